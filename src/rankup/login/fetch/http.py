"""One HTTP request for a file or the rest of it, with httpx."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx

from ... import __version__
from ...base.urls import cleaned, public, web_parts
from .request import FetchFailed

# Reads of 64 KiB, the default, take a sixth more of the processor.
httpcore.HTTP11Connection.READ_NUM_BYTES = 1 << 20
_MOST_REDIRECTS = 10
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


class Changed(Broken):
    """The rest that was asked for belongs to another version of the file, or there is none."""

    def __init__(self) -> None:
        super().__init__("what was kept is of another version")


@dataclass(frozen=True)
class Version:
    """The server's words for one content of a URL.

    Attributes:
        etag: a strong one, or empty.
        modified: as the server writes it, or empty.
        total: bytes of the whole file; None where the server does not say.
    """

    etag: str = ""
    modified: str = ""
    total: int | None = None

    def may_be(self, rest: Version) -> bool:
        """Return False where an answer for the rest shows that the file is another one by now.

        Such an answer may leave out the date and the length, but not the ETag. A server may also
        give two versions one ETag: then the date or the length gives it away.
        """
        return (
            rest.etag == self.etag
            and rest.modified in ("", self.modified)
            and (None in (rest.total, self.total) or rest.total == self.total)
        )


@dataclass(frozen=True)
class Reply:
    """The file, or its rest, as it comes.

    Attributes:
        start: position of the first byte.
        blocks: the bytes; raises Broken where the connection ends before `version.total` of them.
    """

    start: int
    version: Version
    blocks: Iterator[bytes]


@contextmanager
def ask(
    url: str, start: int, version: Version, timeout: httpx.Timeout, authorization: str = ""
) -> Iterator[Reply]:
    """Request a file from `start` on, if it still is that `version`, else the whole of it.

    Args:
        timeout: `read` holds for each byte.
        authorization: a header for this server alone; empty: user and password of the URL.

    Raises:
        Broken: it may be tried again.
        FetchFailed: trying again is of no use.
    """
    headers = {"User-Agent": f"rankup/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if known := version.etag or version.modified:
            headers["If-Range"] = known
    if authorization:
        headers["Authorization"] = authorization
    with _client(timeout) as client:
        try:
            request = client.build_request("GET", url, headers=headers)
            response = _send(client, request)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise _unreachable(error, url) from None
        try:
            yield _reply(response, start, version, url)
        finally:
            response.close()


def _client(timeout: httpx.Timeout) -> httpx.Client:
    # The system's certificates or those of SSL_CERT_FILE, not the ones that httpx brings along.
    trust = ssl.create_default_context()
    hooks = {"response": [_check_redirect]}
    try:
        return httpx.Client(verify=trust, timeout=timeout, event_hooks=hooks)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise FetchFailed(
            f"a proxy of the environment (HTTPS_PROXY, NO_PROXY, ...): {cleaned(str(error))}"
        ) from None


def _send(client: httpx.Client, request: httpx.Request) -> httpx.Response:
    """Return the answer behind all redirects. httpx itself would read the bodies of these."""
    first = public(str(request.url))
    for _ in range(_MOST_REDIRECTS):
        response = client.send(request, stream=True)
        if response.next_request is None:
            return response
        response.close()
        request = response.next_request
    raise FetchFailed(f"{first} redirects without an end")


def _check_redirect(response: httpx.Response) -> None:
    """Refuse what leads from https to what anybody may read or change, or to no web server."""
    if not response.has_redirect_location:
        return
    old = response.request.url
    try:
        new = urljoin(str(old), response.headers["Location"])
        parts = web_parts(new)
    except ValueError:
        parts = None
    if parts is None:
        raise FetchFailed(f"{public(str(old))} redirects to no usable URL")
    if parts.scheme not in (old.scheme, "https"):
        raise FetchFailed(
            f"{public(str(old))} redirects to {public(new)}: from {old.scheme} to {parts.scheme} "
            "is not followed; give that URL if you trust it"
        )


def _reply(response: httpx.Response, start: int, version: Version, url: str) -> Reply:
    if response.status_code not in (200, 203, 206):
        raise _refused(response, url)
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    zipped = urlsplit(url).path.lower().endswith((".gz", ".tgz"))  # by itself, not on the way
    if encoding not in ("", "identity") and not (zipped and encoding in ("gzip", "x-gzip")):
        raise FetchFailed(
            f"{public(url)} comes with Content-Encoding: {encoding[:40]}, although the file as it "
            "is was asked for; fetch it with `curl --compressed`, or from another place"
        )
    begin, total = 0, _number(headers.get("Content-Length", ""))
    if response.status_code == 206:
        begin, total = _range(headers.get("Content-Range", ""))
    etag, modified = headers.get("ETag", "").strip(), headers.get("Last-Modified", "").strip()
    strong = etag.startswith('"') and etag.isascii() and etag.isprintable()
    found = Version(etag if strong else "", modified if modified.isascii() else "", total)
    if begin and (begin != start or not version.may_be(found)):
        raise Changed
    return Reply(begin, found, _blocks(response, begin, total))


def _blocks(response: httpx.Response, position: int, total: int | None) -> Iterator[bytes]:
    """Yield the bytes as they come, and none beyond `total`."""
    why = "the connection was cut"
    try:
        for block in response.iter_raw():
            yield block if total is None else block[: total - position]
            position += len(block)
            if total is not None and position >= total:
                break
        if total is None or position >= total:
            return
    except httpx.ReadTimeout:
        why = "the server sent nothing more"
    except httpx.HTTPError:
        pass
    raise Broken(f"{why} after {position}{'' if total is None else f' of {total}'} bytes")


def _refused(response: httpx.Response, url: str) -> Exception:
    code = response.status_code
    if code == 416:
        return Changed()
    if code in _PASSING:
        after = _number(response.headers.get("Retry-After", "")) or 0
        return Broken(f"HTTP status {code} from the server", after)
    meaning = _MEANING.get(code) or httpx.codes.get_reason_phrase(code) or "unknown"
    moved = public(str(response.url))
    where = "" if moved == public(str(httpx.URL(url))) else f", redirected to {moved}"
    return FetchFailed(f"{public(url)}: HTTP status {code}: {meaning}{where}")


def _unreachable(error: Exception, url: str) -> Exception:
    shown, host = public(url), urlsplit(public(url)).netloc
    said = cleaned(str(error))[:80]
    cause: BaseException | None = error
    while not isinstance(cause, OSError | None):
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.InvalidURL | UnicodeError):
        return FetchFailed(f"{shown}, or where it leads to, is no usable URL: {error}")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FetchFailed(
            f"{shown}: the certificate of {host} is not valid here "
            f"({cause.verify_message}); a missing CA bundle is named by SSL_CERT_FILE"
        )
    if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
        return FetchFailed(f"{shown}: there is no host {host}, or no network here")
    if isinstance(error, httpx.ConnectTimeout):
        return Unreached(f"{host} does not answer; no network here, or a firewall?")
    if isinstance(error, httpx.TimeoutException | httpx.RemoteProtocolError):
        return Broken(f"{host} does not answer, or not as a web server ({said})")
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else said
    return Broken(f"no connection to {host} ({reason})")


def _range(text: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", text.strip())
    if match is None:
        raise Changed
    begin, total = int(match[1]), _number(match[2])
    if total is not None and begin > total:
        raise Changed
    return begin, total


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text.strip()) else None
