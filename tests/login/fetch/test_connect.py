"""A host that answers nothing costs seconds; one that is slow to answer is waited for."""

from __future__ import annotations

import socket
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


def test_a_server_that_answers_late_is_waited_for(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", b"data", stall=0.5)
    patience = Patience(stall=60, connect=0.2, pauses=())
    download(url, tmp_path / "a.bin", patience=patience)
    assert (tmp_path / "a.bin").read_bytes() == b"data"
