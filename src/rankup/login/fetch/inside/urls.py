"""URLs as they may be written down: without user, password, query and fragment."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>|;]+", re.IGNORECASE)

_QUERY = re.compile(r"(\burl: /[^\s?]*)\?[^\s)'\"]*")  # urllib3's "Max retries exceeded with url: "


def public(url: str) -> str:
    """The URL without anything that could be a secret; what is none is returned up to a `?`."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))
    except ValueError:
        return url.partition("?")[0].rpartition("@")[2]


def cleaned(text: str) -> str:
    """A message or traceback in which URLs are public, also those without their host."""
    return _QUERY.sub(r"\1?...", _URL.sub(lambda found: public(found[0]), text))


def among(text: str) -> list[str]:
    """The URLs in a command line, made public."""
    return [public(found) for found in _URL.findall(text)]
