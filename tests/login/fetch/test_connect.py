"""A host that answers nothing costs seconds; one that is slow to answer is waited for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from rankup.login.fetch.download import Patience, download
from rankup.login.fetch.request import FetchFailed

from ..web import Web


@pytest.fixture
def silent() -> Iterator[str]:
    """A port whose queue of connections is full: the kernel drops what else is sent to it."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_nobody_answers_is_known_soon_and_not_tried_for_long(
    silent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A third attempt would come after an hour.
    patience = Patience(stall=600, connect=0.3, pauses=(0.1, 3600))
    with pytest.raises(FetchFailed, match=rf"{silent} does not answer; no network here"):
        download(f"https://{silent}/a", tmp_path / "a", patience=patience)
    assert (
        capsys.readouterr().err.count("trying again") == 1
    )  # the line before the second and last attempt


def test_headers_that_trickle_in_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    """Each byte comes in time, and the last one never would."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        thread = threading.Thread(target=_trickle, args=(server, stack))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a"
        patience = Patience(stall=0.5, pauses=())
        with pytest.raises(FetchFailed, match="does not answer"):
            download(url, tmp_path / "a", patience=patience)
        thread.join(60)


def _trickle(server: socket.socket, stack: ExitStack) -> None:
    client = stack.enter_context(server.accept()[0])
    with suppress(OSError):
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Slow: ")
        while True:  # until the other side is gone
            client.sendall(b"x")
            time.sleep(0.05)


def test_a_server_that_answers_late_is_waited_for(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", b"data", stall=0.5)
    patience = Patience(stall=60, connect=0.2, pauses=())
    download(url, tmp_path / "a.bin", patience=patience)
    assert (tmp_path / "a.bin").read_bytes() == b"data"
