"""What the script asks of the network: told, and refused where a proof wants it."""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Callable

from ....base.urls import public
from . import tree
from .journal import Journal


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

    def connected(self, socket: object, address: object) -> None:
        """`socket.connect` or a datagram to an address.

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

    def sent(self, socket: object, address: object = None) -> None:
        """`socket.sendto` or `socket.sendmsg`: no address means that it is connected already."""
        self.connected(socket, address)

    def looked_up(self, host: object, *rest: object) -> None:
        """`socket.getaddrinfo` and its like.

        Raises:
            socket.gaierror: it is refused, as a machine without a name server would.
        """
        name = text(host)
        if not name or is_loopback(name) or _is_number(name) or name == os.uname().nodename:
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
        return port in tree.listening_ports(tree.members(self._main))


def is_loopback(host: str) -> bool:
    """Whether a host, by name or number, is this machine talking to itself."""
    if host.rstrip(".").lower() in ("localhost", ""):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or address.is_unspecified or bool(mapped and mapped.is_loopback)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""
