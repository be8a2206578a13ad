"""URLs: what may be shown of one, what only the request may have, and a file name for it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from ...base.errors import UserError

_LONGEST_NAME = 180  # bytes; a file system takes 255, and `.part.json` or a lock's name follow


def parse(url: str) -> SplitResult:
    """The parts of an HTTP URL.

    Raises:
        UserError: it is none; neither its query nor its credentials are in the message.
    """
    what = "a URL that starts with http:// or https:// and names a host"
    try:
        parts = urlsplit(url.strip())
        parts.port  # noqa: B018 - a bad one raises here
    except ValueError:
        raise UserError(f"--url: this is not {what}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise UserError(f"--url {_safe(parts)!r} is not {what}")
    return parts


def shown(url: str) -> str:
    """The URL without user, password, query and fragment."""
    return _safe(urlsplit(url.strip()))


def credentials(url: str) -> tuple[str, str] | None:
    """User and password that stand in the URL."""
    parts = urlsplit(url.strip())
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")


def to_send(url: str) -> str:
    """The URL as it is requested: no credentials, no fragment, and only characters HTTP takes."""
    parts = parse(url)
    host = _host(parts)
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    query = quote(parts.query, safe="/%:@!$&'()*+,;=~?[]")
    return urlunsplit((parts.scheme, host.encode("idna").decode(), path, query, ""))


def identity(url: str) -> str:
    """What tells this URL from others, without telling its query: `shown`, and a digest of it."""
    query = urlsplit(url.strip()).query
    return shown(url) + (f"#{_digest(query)}" if query else "")


def place(url: str, folder: Path) -> Path:
    """Where a file of the web lies below `folder`: `<host>/<path>`, never outside of it."""
    parts = parse(url)
    words = [word for word in unquote(parts.path).split("/") if word not in ("", ".", "..")]
    names = [_name(word) for word in (_host(parts), *words)]
    if parts.path.endswith("/") or not words:
        names.append("index")
    if parts.query:
        # The query says which file it is (`?id=1`), and may hold a token.
        stem, dot, suffix = names[-1].partition(".")
        names[-1] = f"{stem}-{_digest(parts.query)}{dot}{suffix}"
    return folder.joinpath(*names)


def _name(word: str) -> str:
    name = re.sub(r"[^\w.+=,@~-]", "_", word)
    if name.startswith("."):  # our own files beside it are hidden ones
        name = f"_{name[1:]}"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    kept = name.encode()[: _LONGEST_NAME - 9].decode(errors="ignore")
    return f"{kept}-{_digest(name)}"


def _safe(parts: SplitResult) -> str:
    try:
        return urlunsplit((parts.scheme, _host(parts), parts.path, "", ""))
    except ValueError:
        return f"{parts.scheme}://..."


def _host(parts: SplitResult) -> str:
    name = parts.hostname or ""
    if ":" in name:  # IPv6
        name = f"[{name}]"
    return name if parts.port is None else f"{name}:{parts.port}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def redacted(text: str) -> str:
    """A message of somebody else's: no query and no user in its URLs, and no token of the hub."""
    text = re.sub(r"(https?://)[^\s/@'\"]+@", r"\1", text)
    text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\")]*", r"\1", text)
    return re.sub(r"\b(hf|api_org)_\w{8,}", r"\1_...", text)
