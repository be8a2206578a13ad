"""URLs: what may be shown and kept of one, and what tells it from others without being shown.

The standard library only: a user's script has this imported beside it.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

WEB = "a URL that starts with http:// or https:// and names a host"

# User and password may hold anything but a slash. What follows `?`, `#`, `;` or `|` is hidden up to
# the next space, quotes and brackets included: of two ways to read it, the one that shows less.
_TEXT = r"\b[a-z][a-z0-9+.-]{0,20}://(?:[^\s/?#]*@)?[^\s'\"<>`?#;|]*"
_HIDDEN = r"(?:[?#;|](?:[^\s'\"]|['\"](?![\s,)\]}>:]|$))*)?"
_IN_TEXT = re.compile(f"({_TEXT}){_HIDDEN}", re.IGNORECASE)
# Without scheme and host, as urllib3 and servers' logs have it: "url: /x?token=...".
_QUERY = re.compile(r"\?[^\s=?'\"]+=(?:[^\s'\"]|['\"](?![\s,)\]}>:]|$))*")
_AROUND = ").,:!}"  # may end a URL, and mostly ends the sentence around it


def web_parts(url: str) -> SplitResult | None:
    """The parts of an HTTP URL that can be asked for; None for what is none."""
    try:
        parts = urlsplit(url.strip())
        parts.port  # noqa: B018 - a bad one raises here
        (parts.hostname or "").encode("idna")
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        return None
    return parts


def public(url: str) -> str:
    """The URL without user, password, query, fragment and `;parameters`.

    Of what cannot be taken apart only the scheme is left. A host is in lower case.
    """
    bare = re.split(r"[?#]", url.strip(), maxsplit=1)[0]
    if "://" not in bare:  # a host and a path, perhaps
        host, slash, path = bare.partition(";")[0].partition("/")
        return host.rpartition("@")[2] + slash + path
    try:
        parts = urlsplit(bare)
        host = host_of(parts)
    except ValueError:
        return f"{bare.partition('://')[0]}://..."
    return urlunsplit((parts.scheme, host, parts.path.partition(";")[0], "", ""))


def host_of(parts: SplitResult) -> str:
    """Host and port, without user and password; ValueError where the port is none."""
    name = parts.hostname or ""
    if ":" in name:  # IPv6
        name = f"[{name}]"
    return name if parts.port is None else f"{name}:{parts.port}"


def identity(url: str) -> str:
    """Return what tells this URL from others: `public`, and a digest of what that leaves out.

    Not of user and password, which two people may have of their own.
    """
    kept = hidden(url)
    return public(url) + (f"#{digest(kept)}" if kept else "")


def hidden(url: str) -> str:
    """Return what `public` leaves out and a server looks at: query and `;parameters`."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return ""
    _, semicolon, parameters = parts.path.partition(";")
    return f"{semicolon}{parameters}?{parts.query}" if semicolon else parts.query


def digest(text: str) -> str:
    """Eight characters that stand for a text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def among(text: str) -> list[str]:
    """The URLs in a text, made public."""
    return [public(found[1].rstrip(_AROUND)) for found in _IN_TEXT.finditer(text)]


def cleaned(text: str) -> str:
    """A text in which URLs are public, and queries without their host are "?..."."""
    return _QUERY.sub("?...", _IN_TEXT.sub(_public, text))


def _public(found: re.Match[str]) -> str:
    url = found[1].rstrip(_AROUND)
    behind = found[1][len(url) :] if found[1] == found[0] else ""
    return public(url) + behind
