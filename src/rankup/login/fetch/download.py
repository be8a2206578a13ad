"""One file of the web, whole or not at all; what came of it before an interruption is kept.

The target's name appears only once the length and the checksum are right. Until then `NAME.part`
holds the bytes, and `NAME.part.json` says of what they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx

from ... import __version__
from ...base import lock, progress
from ...base.files import fsync_directory, replacing, write_json
from ...base.text import say
from ...base.urls import cleaned, identity, public, web_parts
from ..record import Item
from .request import FetchFailed

_BLOCK = 1 << 20  # bytes
# Reads of 64 KiB, the default, take a sixth more of the processor.
httpcore.HTTP11Connection.READ_NUM_BYTES = _BLOCK
_MOST_REDIRECTS = 10
_LONGEST = 120.0  # seconds that a server may ask to wait before the next attempt
# 408 and these pass: a busy server, or one that is being restarted.
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_MEANING = {
    401: "the server wants a user and a password: https://user:password@host/...",
    403: "the server refuses it to you",
    404: "there is no such file",
    410: "the file has been removed for good",
    407: "the proxy wants a user and a password",
}


@dataclass(frozen=True)
class Patience:
    """The patience with a server.

    Attributes:
        stall: seconds without a byte, after which a connection is given up.
        connect: seconds for each address of a host, and for the handshake.
        pauses: seconds before each further attempt; they start anew when something has come.
    """

    stall: float = 60.0
    connect: float = 10.0
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    lock: lock.Pace = field(default_factory=lock.Pace)


def download(
    url: str,
    target: Path,
    *,
    sha256: str = "",
    replace: bool = False,
    authorization: str = "",
    name: str = "",
    patience: Patience | None = None,
) -> Item:
    """Make `target` the file behind `url`; one that is there already is taken as it is.

    Returns:
        The file; without a checksum where it was there already and none was asked for.

    Args:
        sha256: what the file must have, also one that is there; empty: anything.
        replace: fetch anew, instead of an error, where the file that is there has another one.
        authorization: a header for the server of `url` alone.
        name: what a user calls it; by default that of the file.

    Raises:
        FetchFailed: it did not come; the message says why, and what is kept.
        OSError: the folder cannot be written to.
    """
    patience = patience or Patience()
    sha256 = sha256.lower()
    # Before the lock: a cache that others keep may be there for reading only.
    if (found := _present(url, target, sha256, replace)) is not None:
        return found
    with lock.held(target, say, patience.lock, doing="fetching") as held:
        if (found := _present(url, target, sha256, replace)) is not None:
            return found
        part = _Part(target, url, trusted=bool(sha256), held=held)
        with progress.shown(name or target.name) as show:
            _complete(part, url, authorization, patience, show)
            came = part.digest()
        if sha256 and came != sha256:
            part.remove()
            raise FetchFailed(
                f"{public(url)}: wrong checksum: the sha256 of what came is {came}, "
                f"{sha256} was asked for; it is removed"
            )
        part.finish(target)
    return Item(target.name, public(url), str(target), part.size, 1, came)


def _present(url: str, target: Path, sha256: str, replace: bool) -> Item | None:
    if not target.exists():
        return None
    if not target.is_file():
        raise FetchFailed(f"{target} is there and no file; name another one with --to")
    has = _sha256(target) if sha256 else ""
    if has == sha256:
        return Item(target.name, public(url), str(target), target.stat().st_size, 1, has)
    if replace:
        return None
    raise FetchFailed(
        f"{target} is there and has another checksum: sha256 {has}, {sha256} was asked for; "
        "remove it, or name another file with --to"
    )


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


class _Part:
    """The beginning of `target` from `url`, while its lock is held.

    Args:
        trusted: the whole will be held against a checksum, so that the rest may be asked for also
            where the server has no word for the version.

    Attributes:
        size: bytes that are there, of this `version`.
    """

    def __init__(self, target: Path, url: str, trusted: bool, held: lock.Held) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")
        self._identity, self._trusted, self._held = identity(url), trusted, held
        self.size, self.version = 0, _Version()
        self._hash: hashlib._Hash | None = None  # of bytes that all came to this process
        if self.path.exists() and not os.access(self.path, os.R_OK | os.W_OK):
            # Another user has begun it: go on with a copy, or anew where it may not be read.
            try:
                with self.path.open("rb") as theirs, replacing(self.path) as ours:
                    shutil.copyfileobj(theirs, ours, _BLOCK)
            except PermissionError:
                self.remove()
            held.check()
        # Another user may have written it: what is no note of ours is as good as none.
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            note = json.loads(self._note.read_text(encoding="utf-8"))
            version, size = _Version(**note["version"]), self.path.stat().st_size
            words = "".join((version.etag, version.modified))
            sound = words.isascii() and words.isprintable() and note["url"] == self._identity
            if sound and size <= (version.total or size):
                self.size, self.version = size, version

    @property
    def resumable(self) -> bool:
        """True where it would be noticed if the rest were another version's.

        Some servers give two versions one ETag, and a date knows no fractions of a second.
        """
        return self._trusted or bool(self.version.etag and self.version.modified)

    def goes_on_as(self, rest: _Version) -> bool:
        """Return False where an answer for the rest shows that the file is another one by now.

        Such an answer may leave out the length, and with a checksum the date, but not the ETag. A
        server may also give two versions one ETag: then the date or the length gives it away.
        """
        mine = self.version
        undated = self._trusted and not rest.modified
        return (
            rest.etag == mine.etag
            and (undated or rest.modified == mine.modified)
            and (None in (rest.total, mine.total) or rest.total == mine.total)
        )

    def begin(self, version: _Version) -> None:
        """Forget what there was; from here on it is this version.

        The bytes go first: should this end in between, nothing is taken for something else. They go
        to a new file: the old one may be another user's, or still be open in a process that has
        lost its lock.
        """
        self._held.check()
        self.remove()
        with self.path.open("xb"):
            pass
        self.version, self._hash = version, hashlib.sha256()
        write_json(self._note, {"url": self._identity, "version": asdict(version)})

    def append(self, file: BinaryIO, block: bytes) -> None:
        """Write at once, so that nothing of it is lost."""
        self._held.check()
        rest = memoryview(block)
        while rest:  # a disk that is almost full takes a part of it
            written = file.write(rest)
            if self._hash is not None:
                self._hash.update(rest[:written])
            self.size += written
            rest = rest[written:]

    def digest(self) -> str:
        """Return the sha256 of all bytes; what an earlier fetch has left is read once more."""
        return _sha256(self.path) if self._hash is None else self._hash.hexdigest()

    def remove(self) -> None:
        """Keep nothing."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)
        self.size, self.version, self._hash = 0, _Version(), None

    def finish(self, target: Path) -> None:
        """Give the file its name, for good."""
        self._held.check()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        fsync_directory(target.parent)
        self._note.unlink(missing_ok=True)

    def __str__(self) -> str:
        return f" ({self.size} bytes are kept)" if self.size and self.resumable else ""


def _complete(
    part: _Part, url: str, authorization: str, patience: Patience, show: progress.Progress
) -> None:
    """Make the part as long as the file, in as many attempts as it takes."""
    best, failed, silent = part.size, 0, 0
    while True:
        try:
            return _attempt(part, url, authorization, patience, show)
        except _Broken as broken:
            if isinstance(broken, _Changed):
                part.remove()
            if part.size > best:
                best, failed, silent = part.size, 0, 0
            failed += 1
            silent += broken.silent  # more patience would only be waiting
            late = broken.after > _LONGEST
            if late or silent > 1 or failed > len(patience.pauses):
                again = f"run it again in {broken.after:.0f} s" if late else "run it again"
                raise FetchFailed(f"{public(url)}: {broken}; {again}{part}") from None
            pause = max(patience.pauses[failed - 1], broken.after)
            say(f"{public(url)}: {broken}; trying again in {pause:g} s")
        time.sleep(pause)


def _attempt(
    part: _Part, url: str, authorization: str, patience: Patience, show: progress.Progress
) -> None:
    """Request the rest of the part, if the server still has its version, else the whole file.

    Raises:
        _Broken: it may be tried again.
        FetchFailed: trying again is of no use.
    """
    if not part.resumable:
        part.remove()
    if part.size and part.size == part.version.total:
        return  # ended between the last byte and the name
    headers = {"User-Agent": f"rankup/{__version__}", "Accept-Encoding": "identity"}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        if known := part.version.etag or part.version.modified:
            headers["If-Range"] = known
    if authorization:
        headers["Authorization"] = authorization
    # The stall holds for each byte.
    timeout = httpx.Timeout(patience.stall, connect=min(patience.connect, patience.stall))
    with _client(timeout) as client:
        try:
            response = _send(client, client.build_request("GET", url, headers=headers))
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise _unreachable(error, url) from None
        with closing(response):
            _receive(part, response, url, show)


def _receive(part: _Part, response: httpx.Response, url: str, show: progress.Progress) -> None:
    """Append what comes, or begin the part anew with it."""
    start, version = _offered(response, url)
    total = version.total
    if start and (start != part.size or not part.goes_on_as(version)):
        raise _Changed
    # What is there of another version goes first.
    free = shutil.disk_usage(part.path.parent).free + (part.size if start == 0 else 0)
    if total is not None and total - start > free:
        raise FetchFailed(
            f"{public(url)} has {total} bytes, {total - start} of them still to come, and "
            f"{part.path.parent} has room for {free}; make room there, or name another place: "
            f"--to, or `cache` in [fetch] of rankup.toml{part}"
        )
    if start == 0:
        part.begin(version)
    why = "the connection was cut"
    with part.path.open("r+b", buffering=0) as file:
        file.seek(part.size)
        show(part.size, total)
        try:
            for block in response.iter_raw():
                part.append(file, block if total is None else block[: total - part.size])
                show(part.size, total)
                if part.size == total:
                    break
            if total in (None, part.size):
                return
        except httpx.ReadTimeout:
            why = "the server sent nothing more"
        except httpx.HTTPError:
            pass
    raise _Broken(f"{why} after {part.size}{'' if total is None else f' of {total}'} bytes")


class _Broken(Exception):  # noqa: N818 - not wrong in itself: another attempt may succeed
    """The connection failed, or the server is busy.

    Attributes:
        after: seconds the server asks to wait.
        silent: nobody answers: the server is down, or a firewall drops what is sent to it.
    """

    def __init__(self, why: str, after: float = 0.0, *, silent: bool = False) -> None:
        super().__init__(why)
        self.after, self.silent = after, silent


class _Changed(_Broken):
    """The rest that was asked for may belong to another version of the file, or there is none."""

    def __init__(self) -> None:
        super().__init__("the server does not show that what was kept is of this version")


@dataclass(frozen=True)
class _Version:
    """The server's words for one content of a URL.

    Attributes:
        etag: a strong one, or empty.
        modified: as the server writes it, or empty.
        total: bytes of the whole file; None where the server does not say.
    """

    etag: str = ""
    modified: str = ""
    total: int | None = None


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


def _offered(response: httpx.Response, url: str) -> tuple[int, _Version]:
    """Return the position of the first byte that comes, and the version that it is of."""
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
    return begin, _Version(etag if strong else "", modified if modified.isascii() else "", total)


def _refused(response: httpx.Response, url: str) -> Exception:
    code = response.status_code
    if code == 416:
        return _Changed()
    if code in _PASSING:
        after = _number(response.headers.get("Retry-After", "")) or 0
        return _Broken(f"HTTP status {code} from the server", after)
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
        return _Broken(f"{host} does not answer; no network here, or a firewall?", silent=True)
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else said
    return _Broken(f"no answer from {host}, or not one of a web server ({reason})")


def _range(text: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", text.strip())
    if match is None:
        raise _Changed
    begin, total = int(match[1]), _number(match[2])
    if total is not None and begin > total:
        raise _Changed
    return begin, total


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text.strip()) else None
