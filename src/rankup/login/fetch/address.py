"""A file name for each URL, without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote_to_bytes

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

    Two URLs share no place, but where they differ in user, password or fragment alone. For what a
    name does not show, since no file could have it or it may be secret, it has a digest.
    """
    parts = parse(url)
    words = ("" if parts.scheme == "https" else parts.scheme, parts.hostname, parts.port)
    host = "+".join(str(word) for word in words if word)  # no host has a plus in its name
    path = parts.path.partition(";")[0]
    segments = [_decoded(segment) for segment in path.split("/") if segment]
    names = [_name(word) for word in (host, *segments)]
    if path.endswith("/") or not segments:
        names.append("index")
    # The query says which file it is (`?id=1`), and may hold a token.
    whole = f"{host}{path}?{urls.hidden(url)}"
    quoted = (quote(name, safe="+=,@~", errors="surrogateescape") for name in names[1:])
    if whole != f"{'/'.join((names[0], *quoted))}?":
        stem, dot, suffix = names[-1].partition(".")
        names[-1] = f"{stem}-{urls.digest(whole)}{dot}{suffix}"
    return folder.joinpath(*names)


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode(errors="surrogateescape")


def _name(word: str) -> str:
    """A file name for a word: short, plain, and neither hidden nor a way up."""
    name = re.sub(r"[^\w.+=,@~-]", "_", word)
    name = f"_{name[1:]}" if name.startswith(".") else name  # our own files are hidden ones
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")
