"""A web server on loopback, with the troubles that real ones have.

    web.put("/a.bin", data, cut=1000, times=1)  # breaks off once, then sends all of it
    web.url("/a.bin")                           # http://127.0.0.1:40123/a.bin
    web.requests("/a.bin")                      # what was asked for, in order

It speaks HTTP/1.1 with kept connections, Range with If-Range, ETag, Last-Modified and HEAD.
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_MODIFIED = "Mon, 02 Nov 2026 08:00:00 GMT"
_PIECE = 16384


@dataclass(frozen=True)
class Asked:
    """A request as it came; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What is sent back, and how it goes wrong.

    Attributes:
        cut: the connection ends after so many bytes of the body.
        per_second: bytes of the body per second.
        stall: seconds of silence in the middle of the body.
        ranges: whether parts are given out.
        etag: without quotes; empty for none.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    per_second: float | None = None
    stall: float = 0.0
    ranges: bool = True
    etag: str = ""


@dataclass(frozen=True)
class _Page:
    """The first `times` requests get `faulty`, the others `sound`."""

    sound: Answer
    faulty: Answer
    times: float


class Web:
    """What is on the server, and what was asked of it. Safe to use from any thread."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._pages: dict[str, _Page] = {}
        self._faults: dict[str, int] = {}
        self._others: list[Callable[[Asked], Answer | None]] = []
        self._asked: list[Asked] = []

    def url(self, path: str = "", host: str = "127.0.0.1") -> str:
        """The address of a path; `host="localhost"` is the same server by another name."""
        return f"http://{host}:{self.port}{path}"

    def put(
        self,
        path: str,
        data: bytes = b"",
        *,
        status: int | None = None,
        redirect: str | None = None,
        retry_after: str | None = None,
        cut: int | None = None,
        per_second: float | None = None,
        stall: float = 0.0,
        times: int | None = None,
        ranges: bool = True,
        etag: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Serve `data` at `path`, in the place of what was there; its URL.

        Args:
            status: sent instead of 200, with a body that says no more than that.
            redirect: a path or URL that the client is sent to.
            retry_after: the header that comes with `status`.
            times: `status`, `redirect`, `cut`, `per_second` and `stall` hold for so many
                requests that want the body, then all is well; None: always.
            etag: made from `data` by default; empty for none.
        """
        mark = hashlib.sha256(data).hexdigest()[:16] if etag is None else etag
        sound = Answer(data, headers=dict(headers or {}), ranges=ranges, etag=mark)
        faulty = Answer(
            data,
            headers=sound.headers,
            cut=cut,
            per_second=per_second,
            stall=stall,
            ranges=ranges,
            etag=mark,
        )
        if redirect is not None:
            faulty = Answer(status=status or 302, headers={"Location": redirect})
        elif status is not None:
            more = {} if retry_after is None else {"Retry-After": retry_after}
            faulty = Answer(f"status {status}\n".encode(), status, more, ranges=False)
        page = _Page(sound, faulty, float("inf") if times is None else times)
        with self._lock:
            self._pages[path] = page
            self._faults[path] = 0
        return self.url(path)

    def otherwise(self, answer: Callable[[Asked], Answer | None]) -> None:
        """Ask this function for what no page is registered for; None: not its business."""
        with self._lock:
            self._others.append(answer)

    def requests(self, path: str | None = None, method: str | None = None) -> list[Asked]:
        """What came, in order: all, or those of one path (without query) and method."""
        with self._lock:
            return [
                asked
                for asked in self._asked
                if (path is None or asked.path == path)
                and (method is None or asked.method == method)
            ]

    def forget(self) -> None:
        """Start to record anew."""
        with self._lock:
            self._asked.clear()

    def answer(self, asked: Asked) -> Answer:
        """What this request gets, and keep a note of it."""
        with self._lock:
            self._asked.append(asked)
            page = self._pages.get(asked.path)
            others = list(self._others)
            if page is not None:
                return self._of_page(page, asked)
        for other in others:
            found = other(asked)
            if found is not None:
                return found
        return Answer(b"not found\n", 404, ranges=False)

    def _of_page(self, page: _Page, asked: Asked) -> Answer:
        if self._faults[asked.path] >= page.times:
            return page.sound
        if asked.method != "HEAD":
            self._faults[asked.path] += 1
        return page.faulty


@contextmanager
def serving() -> Iterator[Web]:
    """A server on a free port of 127.0.0.1; at the end no thread and no connection is left."""
    server = _Server(("127.0.0.1", 0), _Handler)
    web = Web(server.server_address[1])
    server.web = web
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="web")
    thread.start()
    try:
        yield web
    finally:
        web.closing.set()
        server.shutdown()
        thread.join()
        server.hang_up()
        server.server_close()


class _Server(ThreadingHTTPServer):
    # `server_close` waits for the threads of all connections.
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128
    web: Web

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End the connections that clients keep open."""
        with self._guard:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        parts = urlsplit(self.path)
        asked = Asked(
            self.command,
            unquote(parts.path),
            parts.query,
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(size),
        )
        self._send(asked, self.server.web.answer(asked))

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 - names that http.server calls

    def _send(self, asked: Asked, answer: Answer) -> None:
        status, span = answer.status, range(len(answer.body))
        headers = {"Content-Type": "application/octet-stream", **answer.headers}
        if answer.etag:
            headers.setdefault("ETag", f'"{answer.etag}"')
            headers.setdefault("Last-Modified", _MODIFIED)
        if answer.ranges and status == HTTPStatus.OK:
            headers.setdefault("Accept-Ranges", "bytes")
            part = _part(asked, answer)
            if part is not None:
                status, span = (206, part) if part else (416, range(0))
                first, last, size = span.start, span.stop - 1, len(answer.body)
                headers["Content-Range"] = (
                    f"bytes {first}-{last}/{size}" if part else f"bytes */{size}"
                )
        headers.setdefault("Content-Length", str(len(span)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if asked.method != "HEAD":
            self._send_body(answer, answer.body[span.start : span.stop])
            # A body that is cut leaves the connection out of step.
            if answer.cut is not None:
                self.close_connection = True

    def _send_body(self, answer: Answer, body: bytes) -> None:
        pause = self.server.web.closing.wait
        piece = _PIECE
        if answer.per_second is not None:
            piece = max(1, min(_PIECE, int(answer.per_second / 10)))
        end = len(body) if answer.cut is None else min(answer.cut, len(body))
        for start in range(0, end, piece):
            if answer.stall and start <= end // 2 < start + piece:
                self.wfile.flush()
                pause(answer.stall)
            if self.server.web.closing.is_set():
                return
            self.wfile.write(body[start : min(start + piece, end)])
            if answer.per_second is not None:
                pause(piece / answer.per_second)


def _part(asked: Asked, answer: Answer) -> range | None:
    """The bytes that are asked for; None: all; an empty range: none that are there."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range", "").strip())
    if match is None or match.group() == "bytes=-":
        return None
    known = asked.headers.get("if-range")
    if known is not None and known not in (f'"{answer.etag}"', _MODIFIED):
        return None
    size = len(answer.body)
    first, last = match.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    return range(int(first), min(size, int(last) + 1 if last else size))
