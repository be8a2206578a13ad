"""Connections that are given up soon where nobody answers, and are patient once they stand.

A firewall that drops packets would else cost a minute for each address and attempt, and a server
that sends its headers byte by byte as long as it likes.
"""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from contextlib import suppress

LONGEST = 10.0  # seconds for each address of a host, and for the handshake


class NotReached(TimeoutError):  # noqa: N818 - a kind of time-out, not an error of ours
    """No connection came to be within `LONGEST`."""


class _SoonGivenUp(http.client.HTTPConnection):
    """`timeout` holds from the moment that the connection stands."""

    def connect(self) -> None:
        patience = self.timeout
        self.timeout = LONGEST if patience is None else min(LONGEST, patience)
        try:
            super().connect()
        except TimeoutError:
            raise NotReached from None
        finally:
            self.timeout = patience
        self.sock.settimeout(patience)

    def getresponse(self) -> http.client.HTTPResponse:
        """Status and headers, all of them within the time that a single byte may take."""
        sock, late = self.sock, threading.Event()

        def give_up() -> None:
            late.set()
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, if there is some

        timer = threading.Timer(self.timeout or LONGEST, give_up)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():
                raise TimeoutError("the headers did not come")


class _Https(_SoonGivenUp, http.client.HTTPSConnection):
    pass


class Http(urllib.request.HTTPHandler):
    """Opens http://."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SoonGivenUp, req)


class Https(urllib.request.HTTPSHandler):
    """Opens https://."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Https, req)
