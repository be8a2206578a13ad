"""Names of members of archives, before they are keys."""

from __future__ import annotations

# What file managers leave behind; as `files` leaves it out of folders.
_LEFTOVERS = (b"Thumbs.db", b"ehthumbs.db", b"desktop.ini")
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
    return (
        name[0] == _DOT
        or b"/." in name
        or name.endswith(_LEFTOVERS)
        or name.startswith(b"__MACOSX/")
        or b"/__MACOSX/" in name
    )
