"""Requests and connections of the script: recorded, and refused where a proof wants it."""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...base.urls import public
from .hooks import Changes, Handler, replaces
from .journal import Journal

_LISTENING = "0A"


class Network:
    """Tells of requests and connections, and refuses the latter where a proof wants it.

    Args:
        main: process id of the script; with `block` only ports of its tree are connected to.
        used: called at each use of the network.
    """

    def __init__(
        self, journal: Journal, *, block: bool, main: int, used: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._block = block
        self._main = main
        self._used = used

    def handlers(self) -> dict[str, Handler]:
        """Return the audit events and their handlers."""
        return {
            "socket.connect": self.connected,
            "socket.sendto": self.connected,
            "socket.sendmsg": self.connected,
            "socket.getaddrinfo": self.looked_up,
            "socket.gethostbyname": self.looked_up,
        }

    def request(self, url: str, method: str) -> None:
        """An HTTP request is about to be sent."""
        self._journal.tell(
            "url", url=public(url), method=method.upper(), where=self._journal.where()
        )
        self._used()

    def cut(self, url: str, missing: int) -> None:
        """A connection ended `missing` bytes before the end of a body, and nobody was told."""
        where = self._journal.where()
        self._journal.tell("cut", url=public(url), missing=missing, where=where)

    def connected(self, socket: object, address: object = None) -> None:
        """`socket.connect` or a datagram to an address; none: it is connected already.

        Raises:
            OSError: it is refused.
        """
        if not isinstance(address, tuple) or len(address) < 2:
            return  # a Unix socket, or of the kernel
        host, port = text(address[0]), address[1]
        if is_loopback(host):
            # Others on this machine could be a way out, such as a proxy.
            refused = self._block and not self._is_ours(port)
            if not refused:
                return
        else:
            refused = self._block
        self._tell(host, port, refused)
        if refused:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    def looked_up(self, host: object, *rest: object) -> None:
        """`socket.getaddrinfo` and its like.

        Raises:
            socket.gaierror: it is refused, as a machine without a name server would.
        """
        name = text(host)
        if not name or is_loopback(name) or _number(name) or name == os.uname().nodename:
            return
        self._tell(name, None, self._block)
        if self._block:
            import socket

            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    def _tell(self, host: str, port: object, refused: bool) -> None:
        where = self._journal.where()
        number = port if isinstance(port, int) else None
        if self._journal.once("connect", host, number, where):
            self._journal.tell("connect", host=host, port=number, refused=refused, where=where)
        self._used()

    def _is_ours(self, port: object) -> bool:
        """True for a port that a process of the script's session listens on."""
        sockets: set[str] = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if os.getsid(int(pid)) == os.getsid(self._main):
                    folder = f"/proc/{pid}/fd"
                    sockets.update(os.readlink(f"{folder}/{one}") for one in os.listdir(folder))
        lines = []
        for name in ("tcp", "tcp6"):
            with suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as file:
                lines += [line.split() for line in file]
        return any(
            words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port
            for words in lines
            if len(words) > 9 and f"socket:[{words[9]}]" in sockets
        )


def is_loopback(host: str) -> bool:
    """Return True for a host, by name or number, that is this machine itself."""
    if host.rstrip(".").lower() in ("localhost", ""):
        return True
    address = _number(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return address is not None and (address.is_loopback or address.is_unspecified)


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def clients(network: Network) -> Changes:
    """Return what to do with the HTTP clients of Python that scripts and libraries use."""
    return {
        "http.client": [lambda module: _watch_http(module, network)],
        "httpx": [lambda module: _watch_httpx(module, network)],
        "httpx2": [lambda module: _watch_httpx(module, network)],
        "aiohttp": [lambda module: _watch_aiohttp(module, network)],
    }


def _watch_http(module: Any, network: Network) -> None:
    """Tell of each request of `http.client`: of urllib, requests and all that stand on it."""

    @replaces(module.HTTPConnection, "putrequest")
    def putrequest(
        original: Any, connection: Any, method: str, url: str, *args: Any, **kwargs: Any
    ) -> Any:
        connection._rankup_url = _whole_url(connection, text(url))
        network.request(connection._rankup_url, text(method))
        return original(connection, method, url, *args, **kwargs)

    @replaces(module.HTTPConnection, "getresponse")
    def getresponse(original: Any, connection: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(connection, *args, **kwargs)
        answer._rankup_url = getattr(connection, "_rankup_url", "")
        return answer

    _watch_bodies(module.HTTPResponse, network)


def _watch_bodies(response: Any, network: Network) -> None:
    """Tell of bodies that were cut off.

    Who reads in pieces is not told by `http.client`: the last piece is short, as at a true end. So
    it goes unnoticed in `shutil.copyfileobj` and in torch.hub.
    """

    def tell(answer: Any) -> None:
        url = getattr(answer, "_rankup_url", "")
        if url and answer.length:
            answer._rankup_url = ""
            network.cut(url, answer.length)

    @replaces(response, "read")
    def read(original: Any, answer: Any, amt: Any = None) -> Any:
        open_before, left = answer.fp is not None, answer.length
        piece = original(answer, amt)
        if amt and open_before and left and len(piece) < min(amt, left):
            tell(answer)
        return piece

    @replaces(response, "readinto")
    def readinto(original: Any, answer: Any, buffer: Any) -> Any:
        open_before = answer.fp is not None
        count = original(answer, buffer)
        if open_before and not count and len(buffer):
            tell(answer)
        return count


def _watch_httpx(module: Any, network: Network) -> None:
    """Tell of each request of httpx or httpx2, redirects included."""
    for client in (module.Client, module.AsyncClient):
        _before(
            client, "_send_single_request", lambda one: network.request(str(one.url), one.method)
        )


def _watch_aiohttp(module: Any, network: Network) -> None:
    """Tell of each request of aiohttp; it follows redirects by itself."""
    _before(module.ClientSession, "_request", lambda method, url: network.request(str(url), method))


def _before(client: Any, name: str, tell: Callable[..., None]) -> None:
    """Tell of each call of a method, given its arguments without names."""

    @replaces(client, name)
    def call(original: Any, client: Any, *args: Any, **kwargs: Any) -> Any:
        tell(*args)
        return original(client, *args, **kwargs)


def _whole_url(connection: Any, target: str) -> str:
    if "://" in target:
        return target  # through a proxy
    secure = connection.default_port == 443
    host = getattr(connection, "_tunnel_host", None) or connection.host
    port = getattr(connection, "_tunnel_port", None) or connection.port
    shown = f"[{host}]" if ":" in host else host
    at = "" if port in (None, connection.default_port) else f":{port}"
    return f"{'https' if secure else 'http'}://{shown}{at}{target}"
