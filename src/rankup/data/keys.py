"""Keys come from tars, lists and files of others, and become paths below a folder of ours."""

from __future__ import annotations

from .errors import BadContainer

# PATH_MAX of Linux; a component is at most NAME_MAX, which is checked where files are made.
LONGEST = 4096


def safe(key: bytes) -> bool:
    r"""Return True for a key that, joined to a folder, is a path below that folder.

    Relative, of 1 to 4096 bytes, without empty, `.` and `..` components and NUL. A backslash is
    legal inside a name, but not where Windows would see `\root`, `C:\` or `..\up`.
    """
    if not 0 < len(key) <= LONGEST or b"\0" in key:
        return False
    # One search instead of a split per key: a key without these has only plain components.
    framed = b"/" + key + b"/"
    if b"//" in framed or b"/./" in framed or b"/../" in framed:
        return False
    return b"\\" not in key or _safe_backslashes(key)


def _safe_backslashes(key: bytes) -> bool:
    parts = key.replace(b"\\", b"/").split(b"/")
    return parts[0] != b"" and not parts[0].endswith(b":") and b".." not in parts


def check(key: bytes, where: str) -> None:
    """Refuse a key that is not `safe`.

    Args:
        where: what it was found in, for the message.

    Raises:
        BadContainer: the key, and why it is refused.
    """
    if not safe(key):
        raise BadContainer(
            f"{where} has a sample named {shown(key)}: a name must be a relative path of at most "
            f"{LONGEST} bytes without empty, '.' or '..' parts and NUL, since files are made from "
            "it; rename it there"
        )


def shown(key: bytes) -> str:
    """A key as a message shows it: quoted, escaped, and cut to a line."""
    text = repr(key[:120])[1:]
    return f"{text}... ({len(key)} bytes)" if len(key) > 120 else text
