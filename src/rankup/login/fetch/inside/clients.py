"""The HTTP clients of Python that scripts and libraries use: each request is told."""

from __future__ import annotations

from functools import wraps
from typing import Any

from .network import Network, text


def watch_http(module: Any, network: Network) -> None:
    """Tell of each request of `http.client`: of urllib, requests and all that stand on it."""
    connection = module.HTTPConnection
    original, respond = connection.putrequest, connection.getresponse

    @wraps(original)
    def putrequest(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        self._rankup_url = _whole_url(self, text(url))
        network.request(self._rankup_url, text(method))
        return original(self, method, url, *args, **kwargs)

    @wraps(respond)
    def getresponse(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = respond(self, *args, **kwargs)
        answer._rankup_url = getattr(self, "_rankup_url", "")
        return answer

    connection.putrequest, connection.getresponse = putrequest, getresponse
    _watch_bodies(module.HTTPResponse, network)


def _watch_bodies(response: Any, network: Network) -> None:
    """Tell of bodies that were cut off.

    Who reads in pieces is not told by `http.client`: the last piece is short, as at a true end. So
    it goes unnoticed in `shutil.copyfileobj` and in torch.hub.
    """
    original, into = response.read, response.readinto

    def tell(answer: Any) -> None:
        url = getattr(answer, "_rankup_url", "")
        if url and answer.length:
            answer._rankup_url = ""
            network.cut(url, answer.length)

    @wraps(original)
    def read(self: Any, amt: Any = None) -> Any:
        open_before, left = self.fp is not None, self.length
        piece = original(self, amt)
        if amt and open_before and left and len(piece) < min(amt, left):
            tell(self)
        return piece

    @wraps(into)
    def readinto(self: Any, buffer: Any) -> Any:
        open_before = self.fp is not None
        count = into(self, buffer)
        if open_before and not count and len(buffer):
            tell(self)
        return count

    response.read, response.readinto = read, readinto


def watch_httpx(module: Any, network: Network) -> None:
    """Tell of each request of httpx or httpx2, redirects included."""
    one, many = module.Client._send_single_request, module.AsyncClient._send_single_request

    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        network.request(str(request.url), request.method)
        return one(self, request, *args, **kwargs)

    async def send_async(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        network.request(str(request.url), request.method)
        return await many(self, request, *args, **kwargs)

    module.Client._send_single_request = send
    module.AsyncClient._send_single_request = send_async


def watch_aiohttp(module: Any, network: Network) -> None:
    """Tell of each request of aiohttp; it follows redirects by itself."""
    original = module.ClientSession._request

    async def request(self: Any, method: str, url: Any, *args: Any, **kwargs: Any) -> Any:
        network.request(str(url), method)
        return await original(self, method, url, *args, **kwargs)

    module.ClientSession._request = request


def _whole_url(connection: Any, target: str) -> str:
    if "://" in target:
        return target  # through a proxy
    secure = connection.default_port == 443
    host = getattr(connection, "_tunnel_host", None) or connection.host
    port = getattr(connection, "_tunnel_port", None) or connection.port
    shown = f"[{host}]" if ":" in host else host
    at = "" if port in (None, connection.default_port) else f":{port}"
    return f"{'https' if secure else 'http'}://{shown}{at}{target}"
