"""A file name for each URL, without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, unquote_to_bytes

from ...base import urls
from ...base.errors import UserError

_LONGEST_NAME = 170  # bytes; a file system takes 255, and digests, `.part.json` or a lock's follow


def parse(url: str) -> SplitResult:
    """Return the parts of an HTTP URL.

    Raises:
        UserError: it is none; neither its query nor its credentials are in the message.
    """
    parts = urls.web_parts(url)
    if parts is None:
        raise UserError(f"--url {urls.public(url)!r} is not {urls.WEB}")
    return parts


def place(url: str, folder: Path) -> Path:
    """Return the path of a file of the web below `folder`: `<host>/<path>`, never outside of it.

    Two URLs share no place, but where they differ in user, password or fragment alone. What a name
    does not show, since no file could have it or it may be secret, a digest in the name stands for.
    """
    parts = parse(url)
    path = parts.path.partition(";")[0]
    segments = [_decoded(raw) for raw in path.split("/")[1:]]
    words = [word for word in segments if word not in ("", ".", "..")]
    names = [_host(parts), *map(_name, words)]
    listing = path.endswith("/") or not words
    if listing:
        names.append("index")
    unseen = urls.hidden(url)  # it says which file it is (`?id=1`), and may hold a token
    if listing or segments != words:
        unseen += f" {path}"
    if unseen:
        names[-1] = _with_digest(names[-1], unseen)
    return folder.joinpath(*names)


def _host(parts: SplitResult) -> str:
    """`host`, `host+port`; with http `http+host`: no host has a plus in its name."""
    words = ("" if parts.scheme == "https" else parts.scheme, parts.hostname, parts.port)
    return _name("+".join(str(word) for word in words if word))


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode(errors="surrogateescape")


def _name(word: str) -> str:
    name = re.sub(r"[^\w.+=,@~-]", "_", word)
    if name.startswith("."):  # our own files beside it are hidden ones
        name = f"_{name[1:]}"
    if len(name.encode()) > _LONGEST_NAME:
        kept = name.encode()[: _LONGEST_NAME - 9].decode(errors="ignore")
        return f"{kept}-{urls.digest(word)}"
    return name if name == word else _with_digest(name, word)


def _with_digest(name: str, text: str) -> str:
    stem, dot, suffix = name.partition(".")
    return f"{stem}-{urls.digest(text)}{dot}{suffix}"
