"""Pieces of a copy over TCP, from node to node of one job: who asks proves that it knows a token.

The server speaks first:  nonce (32 bytes)
the client:               number (u32) · nonce (32) · HMAC of both nonces, as client (32)
the server:               HMAC of both nonces, as server (32)
then, for each piece:     number (u64)  ->  "." any number of times while it is not there yet, then
                          "D" length (u64) xxh3 (u64) bytes, or "!": it will not come
The token itself is never sent. The bytes are not encrypted: they are training data.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

HANDSHAKE = 10.0  # seconds for all of it, so that a stranger holds a thread no longer
SILENT = 30.0  # seconds without a byte after which the other side is given up
SLOWEST = 1 << 20  # bytes per second of a piece, beside `SILENT`, below which it is given up
STALLED = 300.0  # seconds for which a piece may be not there yet
_BEAT = 2.0  # seconds between two "." of a server
_NONCE = 32
_HELLO = struct.Struct("<I32s32s")
_NUMBER = struct.Struct("<Q")
_PIECE = struct.Struct("<QQ")
# Connections that have not proved yet that they know the token: each takes a thread and a
# descriptor, which the copy itself needs too, and anybody in the network can open them.
_STRANGERS = 64
_MORE = 4 * _STRANGERS  # of all kinds, beside one for each node

# Of a piece: the file, offset and length it can be sent from, and its xxh3; None while it is not
# there yet, after a wait of at most the seconds given; a KeyError where it will not come.
Lookup = Callable[[int, float], "tuple[Path, int, int, int] | None"]


class Rubbish(Exception):  # noqa: N818 - says what it is
    """The other side does not keep to this protocol, or is not who it should be."""


class Server:
    """Gives pieces to those who know the token.

    Attributes:
        port: where it listens, on all interfaces of IPv4.
    """

    def __init__(self, token: bytes, lookup: Lookup, nodes: int) -> None:
        self._token, self._lookup = token, lookup
        self._lock = threading.Lock()
        self._got: list[set[int]] = [set() for _ in range(nodes)]
        self._heard = time.monotonic()
        self._stop = threading.Event()
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._listening = socket.create_server(("", 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def got(self, node: int) -> int:
        """How many pieces a node has been sent."""
        with self._lock:
            return len(self._got[node])

    def quiet(self) -> float:
        """Seconds since anybody was sent anything."""
        return time.monotonic() - self._heard

    def close(self) -> None:
        """Listen no longer, and hang up."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept
        self._listening.close()
        self._thread.join(5)
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                caller, _ = self._listening.accept()
            except OSError:
                if self._stop.is_set():
                    return
                time.sleep(0.05)  # no descriptors left for a moment
                continue
            if not self._let_in(caller):
                caller.close()
                continue
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _let_in(self, caller: socket.socket) -> bool:
        with self._lock:
            if len(self._open) >= _MORE + len(self._got):
                return False
            self._open.add(caller)
            self._strangers[caller] = None
            if len(self._strangers) > _STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
        return True

    def _serve(self, caller: socket.socket) -> None:
        try:
            node = self._greet(caller)
            if node is None:
                return
            with self._lock:
                self._strangers.pop(caller, None)
            caller.settimeout(None)  # it may have much to do between two pieces
            while (asked := _received(caller, _NUMBER.size, may_end=True)) is not None:
                self._give(caller, node, *_NUMBER.unpack(asked))
        except (OSError, Rubbish):  # it will read the rest from the source
            pass
        finally:
            with self._lock:
                self._open.discard(caller)
                self._strangers.pop(caller, None)
            caller.close()

    def _greet(self, caller: socket.socket) -> int | None:
        end = time.monotonic() + HANDSHAKE
        caller.settimeout(HANDSHAKE)
        nonce = secrets.token_bytes(_NONCE)
        caller.sendall(nonce)
        hello = _received(caller, _HELLO.size, end=end)
        assert hello is not None
        node, other, proof = _HELLO.unpack(hello)
        right = hmac.compare_digest(proof, _proof(self._token, b"client", nonce, other, node))
        if not right or node >= len(self._got):
            return None
        caller.sendall(_proof(self._token, b"server", nonce, other, node))
        return int(node)

    def _give(self, caller: socket.socket, node: int, number: int) -> None:
        caller.settimeout(2 * SILENT)
        while not self._stop.is_set():
            try:
                found = self._lookup(number, _BEAT)
            except KeyError:
                break
            if found is None:
                caller.sendall(b".")
                continue
            path, offset, length, digest = found
            with path.open("rb") as file:
                caller.sendall(b"D" + _PIECE.pack(length, digest))
                _send_file(caller, file.fileno(), offset, length)
            with self._lock:
                self._got[node].add(number)
            self._heard = time.monotonic()
            caller.settimeout(None)
            return
        caller.sendall(b"!")
        caller.settimeout(None)


def _send_file(caller: socket.socket, descriptor: int, offset: int, length: int) -> None:
    stop = offset + length
    while offset < stop:
        try:
            sent = os.sendfile(caller.fileno(), descriptor, offset, stop - offset)
        except BlockingIOError:  # a socket with a time limit does not block
            if not _writable(caller):
                raise TimeoutError("nobody takes what is sent") from None
            continue
        if not sent:
            raise Rubbish("the copy is shorter than it was")
        offset += sent


def _writable(caller: socket.socket) -> bool:
    poll = select.poll()
    poll.register(caller, select.POLLOUT)
    return bool(poll.poll(1000 * 2 * SILENT))


@contextmanager
def connected(
    addresses: Sequence[str],
    port: int,
    token: bytes,
    node: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Callable[[int, memoryview], memoryview]]:
    """A function that gets a piece by its number from a server, into a buffer.

    It raises `Rubbish` where the server does not send what it should, and KeyError where it says
    that the piece will not come.

    Args:
        addresses: of the server; the first that answers is taken.
        node: who asks.
        stop: asked while a piece is waited for; where it says so, no more is.

    Raises:
        OSError: no address answers.
        Rubbish: who answers does not know the token.
    """
    with _connect(addresses, port) as caller:
        end = time.monotonic() + HANDSHAKE
        theirs = _received(caller, _NONCE, end=end)
        assert theirs is not None
        nonce = secrets.token_bytes(_NONCE)
        proof = _proof(token, b"client", theirs, nonce, node)
        caller.sendall(_HELLO.pack(node, nonce, proof))
        answer = _received(caller, _NONCE, end=end)
        assert answer is not None
        if not hmac.compare_digest(answer, _proof(token, b"server", theirs, nonce, node)):
            raise Rubbish("it does not know the token")
        caller.settimeout(SILENT)

        def get(number: int, into: memoryview) -> memoryview:
            caller.sendall(_NUMBER.pack(number))
            end = time.monotonic() + STALLED
            while (what := _received(caller, 1)) == b".":
                if stop():
                    raise ConnectionAbortedError("this node needs it no longer")
                if time.monotonic() > end:
                    raise TimeoutError(f"it has waited for its file system for {STALLED:g} s")
            if what == b"!":
                raise KeyError(number)
            head = _received(caller, _PIECE.size) if what == b"D" else None
            if head is None:
                raise Rubbish(f"it sent {what!r} for piece {number}")
            length, digest = _PIECE.unpack(head)
            if length != len(into):
                raise Rubbish(f"it sent {length} bytes for piece {number} of {len(into)}")
            done, end = 0, time.monotonic() + SILENT + length / SLOWEST
            while done < length:
                if time.monotonic() > end:
                    raise TimeoutError(f"it has sent {done} of {length} bytes, and is too slow")
                count = caller.recv_into(into[done:])
                if not count:
                    raise ConnectionResetError("it hung up")
                done += count
            if xxhash.xxh3_64_intdigest(into) != digest:
                raise Rubbish(f"the bytes of piece {number} are not those it sent")
            return into

        yield get


def _connect(addresses: Sequence[str], port: int) -> socket.socket:
    why = "it has no address"
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=5)
        except OSError as error:  # noqa: PERF203 - one of few
            why = f"{address}: {error.strerror or error}"
    raise ConnectionError(why)


def _received(
    caller: socket.socket, count: int, may_end: bool = False, end: float | None = None
) -> bytes | None:
    """So many bytes; None where the other side has ended before the first and may.

    Args:
        end: of monotonic time, when it is given up however many have come.
    """
    data = b""
    while len(data) < count:
        if end is not None:
            caller.settimeout(max(0.001, end - time.monotonic()))
        more = caller.recv(count - len(data))
        if not more:
            if may_end and not data:
                return None
            raise ConnectionResetError("it hung up")
        data += more
    return data


def _proof(token: bytes, role: bytes, server: bytes, client: bytes, node: int) -> bytes:
    message = role + server + client + node.to_bytes(4, "little")
    return hmac.digest(token, message, "sha256")
