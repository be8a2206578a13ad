"""Names of members of archives, before they are keys."""

from __future__ import annotations

# What file managers leave behind; as `files` leaves it out of folders.
_LEFTOVERS = (b"Thumbs.db", b"ehthumbs.db", b"desktop.ini", b"__MACOSX")
_DOT = ord(".")


def plain(name: bytes) -> bytes:
    """Without `./` and doubled slashes, as `tar .` has them; an absolute path stays one.

    >>> plain(b"./n01//x.jpg")
    b'n01/x.jpg'
    """
    if b"./" not in name and b"//" not in name and not name.endswith((b"/", b"/.")):
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    return (b"/" if name.startswith(b"/") else b"") + b"/".join(parts)


def hidden(name: bytes) -> bool:
    """Whether it is nobody's data: hidden, below a hidden folder, or left behind by a program."""
    if name[0] == _DOT or b"/." in name:
        return True
    # Hardly a name of a million has one of these in it.
    return any(one in name and one in name.split(b"/") for one in _LEFTOVERS)
