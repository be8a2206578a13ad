"""One HTTP request for a file or the rest of it, with the standard library."""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import urlsplit

from ... import __version__
from ...base.errors import UserError
from ...base.urls import public
from . import address, connect
from .result import FetchFailed

# 408 and these pass: a busy server, or one that is being restarted.
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_MEANING = {
    401: "the server wants a user and a password: https://user:password@host/...",
    403: "the server refuses it to you",
    404: "there is no such file",
    410: "the file has been removed for good",
    407: "the proxy wants a user and a password",
}


class Broken(Exception):  # noqa: N818 - not wrong in itself: another attempt may succeed
    """The connection failed, or the server is busy.

    Attributes:
        after: seconds the server asks to wait.
    """

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class Unreached(Broken):
    """Nobody answers: the server is down, or a firewall drops what is sent to it."""


class Unsatisfiable(Exception):  # noqa: N818 - the rest was asked for, and there is none
    """What is kept does not fit the file of the server."""


@dataclass(frozen=True)
class Version:
    """What tells one content of a URL from another.

    Attributes:
        etag: a strong one, or empty.
        modified: as the server writes it, or empty.
    """

    etag: str = ""
    modified: str = ""

    def __bool__(self) -> bool:
        return bool(self.etag or self.modified)


class Reply:
    """The file, or its rest, as it comes.

    Attributes:
        start: position of the first byte.
        total: bytes of the whole file; None where the server does not say.
    """

    def __init__(self, response: Any, asked: int) -> None:
        headers: Message = response.headers
        self._response = response
        said = headers.get("Content-Length")
        self.start, self.total = 0, _number(said)
        if said is not None and self.total is None:
            raise Broken("the server gives a length that is no number")
        if response.status == 206:
            self.start, self.total = _range(headers.get("Content-Range", ""))
            if self.start != asked:
                raise Unsatisfiable
        etag = headers.get("ETag", "").strip()
        strong = etag.startswith('"') and etag.isprintable()
        modified = headers.get("Last-Modified", "").strip()
        self.version = Version(etag if strong else "", modified if modified.isascii() else "")

    def read(self, most: int) -> bytes:
        """The next bytes, as soon as there are some; empty at the end.

        Raises:
            Broken: the connection was cut, or nothing came for too long.
        """
        try:
            return bytes(self._response.read1(most))
        except TimeoutError:
            raise Broken("the server sent nothing more") from None
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"the connection was cut ({_short(error)})") from None


@contextlib.contextmanager
def ask(
    url: str, start: int, version: Version, stall: float, authorization: str = ""
) -> Iterator[Reply]:
    """Request a file from `start` on, if it still is that `version`, else the whole of it.

    Args:
        stall: seconds without a byte after which the connection is given up.
        authorization: a header for this server alone; empty: user and password of the URL.

    Raises:
        Broken: it may be tried again.
        Unsatisfiable: there is nothing from `start` on.
        FetchFailed: trying again is of no use.
    """
    request = urllib.request.Request(address.to_send(url))  # noqa: S310 - to_send checks it
    request.add_header("User-Agent", f"rankup/{__version__}")
    request.add_header("Accept-Encoding", "identity")
    if start:
        request.add_header("Range", f"bytes={start}-")
        if version:
            request.add_header("If-Range", version.etag or version.modified)
    if not authorization and (who := address.credentials(url)) is not None:
        authorization = f"Basic {base64.b64encode(':'.join(who).encode()).decode()}"
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    opener = urllib.request.build_opener(_Redirects(), connect.Http(), connect.Https())
    try:
        response = opener.open(request, timeout=stall)
    except urllib.error.HTTPError as error:
        with error:
            raise _answered(error, url) from None
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(error, url) from None
    except ValueError:  # what is asked for has been checked: this is where it leads to
        raise FetchFailed(f"{public(url)} redirects to no usable URL") from None
    with response:
        yield Reply(response, start)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to what anybody may read or change."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme != old.scheme and new.scheme != "https":
            raise FetchFailed(
                f"{public(req.full_url)} redirects to {public(newurl)}: from "
                f"{old.scheme} to {new.scheme} is not followed; give that URL if you trust it"
            )
        try:
            sent = address.to_send(newurl)
        except UserError:
            raise FetchFailed(f"{public(req.full_url)} redirects to no usable URL") from None
        made = super().redirect_request(req, fp, code, msg, headers, sent)
        if made is not None and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            for name, value in req.unredirected_hdrs.items():
                if name.lower() == "authorization":
                    made.add_unredirected_header(name, value)
        return made


def _answered(error: urllib.error.HTTPError, url: str) -> Exception:
    if error.code == 416:
        return Unsatisfiable()
    what = f"HTTP status {error.code}"
    if error.code in _PASSING:
        return Broken(f"{what} from the server", _retry_after(error.headers.get("Retry-After")))
    meaning = _MEANING.get(error.code, http.client.responses.get(error.code, "unknown"))
    moved = public(error.url or url)
    where = "" if moved == public(address.to_send(url)) else f", redirected to {moved}"
    return FetchFailed(f"{public(url)}: {what}: {meaning}{where}")


def _unreachable(error: Exception, url: str) -> Exception:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    host = urlsplit(public(url)).netloc
    if isinstance(reason, ssl.SSLCertVerificationError):
        return FetchFailed(
            f"{public(url)}: the certificate of {host} is not valid here "
            f"({reason.verify_message}); a missing CA bundle is named by SSL_CERT_FILE"
        )
    if isinstance(reason, socket.gaierror):
        if reason.errno == socket.EAI_NONAME:
            return FetchFailed(f"{public(url)}: there is no host {host}, or no network here")
        return Broken(f"the name {host} cannot be looked up; no network?")
    if isinstance(reason, connect.NotReached):
        return Unreached(f"{host} does not answer; no network here, or a firewall?")
    if isinstance(reason, TimeoutError):
        return Broken(f"{host} does not answer")
    return Broken(f"no connection to {host} ({_short(reason)})")


def _retry_after(text: str | None) -> float:
    """Seconds, from a number of them or a date; 0 where it is neither."""
    if (seconds := _number(text)) is not None:
        return float(seconds)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(text or "").timestamp() - time.time())
    return 0.0


def _range(text: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", text.strip())
    if match is None:
        raise Unsatisfiable
    return int(match[1]), _number(match[2])


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,18}", text.strip()) else None


def _short(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__ if isinstance(error, Exception) else str(error)[:80]
