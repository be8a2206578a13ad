"""A file of the web is whole or not there, and what came before an interruption is not lost."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from rankup.base.lock import Pace
from rankup.login.fetch.download import Patience, download
from rankup.login.fetch.request import FetchFailed
from rankup.login.record import Item

from ..stage import until
from ..web import Answer, Web

DATA = bytes(range(256)) * 4000
SUM = hashlib.sha256(DATA).hexdigest()
QUICK = Patience(pauses=(0.01, 0.02, 0.03), lock=Pace(0.1, 3600.0, 0.02))


def _get(url: str, target: Path, sha256: str = "", replace: bool = False) -> Item:
    return download(url, target, sha256=sha256, replace=replace, patience=QUICK)


def _left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_a_file_comes_whole_with_its_checksum_and_nothing_else_is_left(
    web: Web, tmp_path: Path
) -> None:
    target = tmp_path / "deep" / "a.bin"
    url = web.put("/a.bin", DATA)
    assert _get(url, target, SUM.upper()) == Item("a.bin", url, str(target), len(DATA), 1, SUM)
    assert target.read_bytes() == DATA
    assert _left(target) == ["a.bin"]


def test_an_empty_file_is_a_file(web: Web, tmp_path: Path) -> None:
    done = _get(web.put("/a.bin", b""), tmp_path / "a.bin")
    assert (done.bytes, done.sha256) == (0, hashlib.sha256().hexdigest())
    assert _left(tmp_path / "a.bin") == ["a.bin"]


def test_what_is_there_is_not_asked_for_again(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA)
    _get(url, tmp_path / "a.bin")
    again = _get(url, tmp_path / "a.bin")
    assert (again.bytes, again.sha256) == (len(DATA), "")
    assert _get(url, tmp_path / "a.bin", SUM).sha256 == SUM
    assert len(web.requests("/a.bin")) == 1


def test_a_file_that_is_there_with_another_checksum_stays_unless_it_may_be_replaced(
    web: Web, tmp_path: Path
) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"mine")
    url = web.put("/a.bin", DATA)
    with pytest.raises(FetchFailed, match=f"(?s)another checksum.*{SUM}"):
        _get(url, target, SUM)
    assert target.read_bytes() == b"mine"
    assert _get(url, target, SUM, replace=True).sha256 == SUM
    assert target.read_bytes() == DATA


def test_a_cut_connection_is_gone_on_with_from_where_it_broke(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA, cut=300_000, times=2)
    _get(url, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA
    ranges = [asked.headers.get("range") for asked in web.requests("/a.bin")]
    assert ranges[0] is None
    assert ranges[1] == "bytes=300000-"
    assert web.requests("/a.bin")[1].headers["if-range"].startswith('"')


def test_a_server_that_always_cuts_is_given_up_and_what_came_is_kept(
    web: Web, tmp_path: Path
) -> None:
    target = tmp_path / "a.bin"
    web.put("/a.bin", DATA, cut=0)
    with pytest.raises(FetchFailed, match=r"cut after 0 of .*run it again$"):
        _get(web.url("/a.bin"), target)
    assert len(web.requests("/a.bin")) == 1 + len(QUICK.pauses)
    web.put("/a.bin", DATA, cut=1000, times=1)
    impatient = Patience(pauses=())
    with pytest.raises(FetchFailed, match=r"run it again \(1000 bytes are kept\)"):
        download(web.url("/a.bin"), target, patience=impatient)
    assert not target.exists()
    web.forget()
    _get(web.url("/a.bin"), target)
    assert target.read_bytes() == DATA
    assert [asked.headers.get("range") for asked in web.requests("/a.bin")] == ["bytes=1000-"]


def test_a_server_without_ranges_starts_anew(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA, cut=300_000, times=1, ranges=False)
    _get(url, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_file_that_changes_in_between_is_not_put_together_of_two(
    web: Web, tmp_path: Path
) -> None:
    other = DATA[::-1]
    web.put("/a.bin", DATA, cut=300_000)
    with pytest.raises(FetchFailed):
        download(web.url("/a.bin"), tmp_path / "a.bin", patience=Patience(pauses=()))
    web.put("/a.bin", other)
    _get(web.url("/a.bin"), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == other


_DATED, _UNDATED = {"Last-Modified": "Tue, 03 Nov 2026 08:00:00 GMT"}, {"Last-Modified": ""}


@pytest.mark.parametrize(
    ("before", "data", "after"),
    [
        ({}, DATA[::-1], _DATED),
        ({}, DATA[::-1] + b"more", {}),
        ({}, DATA[::-1], _UNDATED),  # of a part a server may leave the date out
        (_UNDATED, DATA[::-1], _UNDATED),
    ],
    ids=["date", "length", "no date of the rest", "no date"],
)
def test_one_etag_for_two_versions_gives_no_mixture(
    web: Web, tmp_path: Path, before: dict[str, str], data: bytes, after: dict[str, str]
) -> None:
    url = web.put("/a.bin", DATA, cut=300_000, etag="same", headers=before)
    kept = "" if before else r" \(300000 bytes are kept\)"
    with pytest.raises(FetchFailed, match=f"run it again{kept}$"):
        download(url, tmp_path / "a.bin", patience=Patience(pauses=()))
    web.put("/a.bin", data, etag="same", headers=after)
    _get(url, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == data


def test_a_body_that_is_compressed_on_the_way_is_not_taken_for_the_file(
    web: Web, tmp_path: Path
) -> None:
    """`identity` was asked for; a file that is an archive by itself may be called that, too."""
    packed = gzip.compress(DATA)
    for encoding in ("gzip", "br"):
        url = web.put("/a.json", packed, headers={"Content-Encoding": encoding})
        with pytest.raises(FetchFailed, match=f"a.json comes with Content-Encoding: {encoding}"):
            _get(url, tmp_path / "a.json")
        assert len(web.requests("/a.json")) == 1
        web.forget()
    assert web.requests() == []
    assert _left(tmp_path / "a.json") == []
    url = web.put("/a.tar.gz", packed, headers={"Content-Encoding": "x-gzip"})
    _get(url, tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == packed


def test_without_a_word_for_the_version_only_a_checksum_lets_it_be_gone_on_with(
    web: Web, tmp_path: Path
) -> None:
    for sha256, wanted in (("", None), (SUM, "bytes=1000-")):
        web.forget()
        target = tmp_path / f"a{sha256[:3]}.bin"
        url = web.put("/a.bin", DATA, cut=1000, times=1, etag="")
        _get(url, target, sha256)
        assert target.read_bytes() == DATA
        assert web.requests("/a.bin")[1].headers.get("range") == wanted


@pytest.mark.parametrize(
    "note",
    [
        '{"url": "http://other/", "version": {"etag": "a", "modified": "", "total": null}}',
        '{"url": "URL", "total": null}',
        '{"url": "URL", "version": {"etag": 5, "modified": 5, "total": null}}',
        '{"url": "URL", "version": {"etag": "\u00e9", "modified": "", "total": null}}',
        '{"url": "URL", "version": {"etag": "a\\r\\nX: y", "modified": "", "total": null}}',
        "[" * 20_000,
        "null",
    ],
)
def test_what_is_kept_of_another_url_or_damaged_is_not_used(
    web: Web, tmp_path: Path, note: str
) -> None:
    """In a shared cache another user may have written it."""
    target, url = tmp_path / "a.bin", web.put("/a.bin", DATA)
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    (tmp_path / "a.bin.part.json").write_text(note.replace("URL", url))
    _get(url, target)
    assert target.read_bytes() == DATA
    assert web.requests("/a.bin")[0].headers.get("range") is None


def test_one_that_is_interrupted_does_not_go_on_reading_what_is_kept(
    web: Web, tmp_path: Path
) -> None:
    """Ctrl-C would wait for it: here for hundreds of gigabytes, which are a hole in a file."""
    kept, rest = 300 << 30, b"x" * (6 << 20)
    place = f"bytes {kept}-{kept + len(rest) - 1}/{kept + len(rest)}"
    date = "Mon, 02 Nov 2026 08:00:00 GMT"
    headers = {"Content-Range": place, "ETag": '"a"', "Last-Modified": date}
    web.otherwise(lambda asked: Answer(rest, 206, headers, cut=5 << 20, ranges=False))
    (tmp_path / "a.bin.part").touch()
    os.truncate(tmp_path / "a.bin.part", kept)
    version = {"etag": '"a"', "modified": date, "total": kept + len(rest)}
    note = json.dumps({"url": web.url("/a.bin"), "version": version})
    (tmp_path / "a.bin.part.json").write_text(note)
    before = set(threading.enumerate())
    with pytest.raises(FetchFailed, match=f"cut after {kept + (5 << 20)} of"):
        download(web.url("/a.bin"), tmp_path / "a.bin", patience=Patience(pauses=()))
    here = {one for one in threading.enumerate() if one.name.startswith("ThreadPoolExecutor")}
    assert here <= before


def test_one_that_ended_just_before_the_rename_asks_for_nothing(web: Web, tmp_path: Path) -> None:
    web.put("/a.bin", DATA, cut=300_000)
    with pytest.raises(FetchFailed):
        download(web.url("/a.bin"), tmp_path / "a.bin", patience=Patience(pauses=()))
    (tmp_path / "a.bin.part").write_bytes(DATA)
    web.forget()
    _get(web.url("/a.bin"), tmp_path / "a.bin", SUM)
    assert web.requests() == []


def test_a_wrong_checksum_names_both_and_keeps_nothing(web: Web, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(FetchFailed, match=f"wrong checksum.*{SUM}.*{wrong}"):
        _get(web.put("/a.bin", DATA), tmp_path / "a.bin", wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no such file"), (403, "refuses"), (400, "400")]
)
def test_what_no_further_attempt_mends_is_not_tried_again(
    web: Web, tmp_path: Path, status: int, words: str
) -> None:
    url = web.put("/a.bin", status=status) + "?token=secret"
    with pytest.raises(FetchFailed, match=words) as caught:
        _get(url, tmp_path / "a.bin")
    assert f"{web.url('/a.bin')}: HTTP status {status}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(web.requests("/a.bin")) == 1


def test_a_busy_server_is_asked_again_when_it_says(web: Web, tmp_path: Path) -> None:
    _get(web.put("/a.bin", DATA, status=503, times=2), tmp_path / "a.bin")
    url = web.put("/b.bin", DATA, status=429, retry_after="0", times=1)
    _get(url, tmp_path / "b.bin")
    assert len(web.requests("/b.bin")) == 2
    url = web.put("/c.bin", DATA, status=429, retry_after="4000", times=1)
    with pytest.raises(FetchFailed, match="again in 4000 s"):
        _get(url, tmp_path / "c.bin")


def test_a_server_that_falls_silent_is_left_and_gone_on_with(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA, stall=3600, times=1)
    download(url, tmp_path / "a.bin", patience=replace(QUICK, stall=1.0))
    assert (tmp_path / "a.bin").read_bytes() == DATA


@pytest.mark.slow
def test_a_slow_server_is_waited_for(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA[:40_000], per_second=4_000)
    patience = Patience(stall=5.0, pauses=())  # half of what it takes in all
    download(url, tmp_path / "a.bin", patience=patience)
    assert (tmp_path / "a.bin").read_bytes() == DATA[:40_000]


def test_redirects_are_followed_and_a_password_goes_to_its_own_server_alone(
    web: Web, tmp_path: Path
) -> None:
    web.put("/there", DATA)
    web.put("/here", redirect=web.url("/there", host="localhost"))
    web.put("/near", redirect="/there")
    for start, sent in (("/here", None), ("/near", _basic("me:it's"))):
        web.forget()
        url = web.url(start).replace("http://", "http://me:it's@")
        _get(url, tmp_path / start[1:])
        assert web.requests(start)[0].headers["authorization"] == _basic("me:it's")
        assert web.requests("/there")[0].headers.get("authorization") == sent
    assert "it's" not in "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.suffix == ".json"
    )


def test_no_server_and_no_host_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"no answer from 127\.0\.0\.1:9,"):
        _get("http://127.0.0.1:9/a", tmp_path / "a")
    with pytest.raises(FetchFailed, match=r"no host|cannot be looked up"):
        _get("http://nobody.invalid/a", tmp_path / "a")


def test_a_proxy_of_the_environment_is_used(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.put("/a.bin", DATA)
    monkeypatch.setenv("http_proxy", web.url())
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    _get("http://data.example.org/a.bin", tmp_path / "a.bin", SUM)
    assert web.requests()[0].headers["host"] == "data.example.org"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("all_proxy", "foo://me:hunter2@proxy:1", "foo://"), ("no_proxy", "fe80::/10", "NO_PROXY")],
)
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv("http_proxy", web.url())
    monkeypatch.setenv(name, value)
    with pytest.raises(FetchFailed, match=rf"a proxy of the environment .*{words}") as caught:
        _get("http://data.example.org/a.bin", tmp_path / "a.bin")
    assert "hunter2" not in str(caught.value)


def test_no_room_is_said_before_anything_comes(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = web.put("/a.bin", DATA)
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 1, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(FetchFailed, match=rf"has {len(DATA)} bytes.*room for"):
        _get(url, tmp_path / "a.bin")
    assert list(tmp_path.iterdir()) == [], "nor is the beginning of one left"


def test_from_https_to_http_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(transport: object, request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(302, headers={"Location": "http://e.org/b?key=secret"})

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    with pytest.raises(FetchFailed, match=r"http://e\.org/b: from https to http is not"):
        _get("https://e.org/a", tmp_path / "a.bin")
    assert asked == ["https://e.org/a"]


def test_a_disk_that_fills_up_keeps_what_came(web: Web, tmp_path: Path) -> None:
    """A file that takes no more stands for the disk, in a process of its own."""
    url = web.put("/a.bin", DATA)
    code = """
import errno, os, sys
from pathlib import Path
room = 200_000
class Full:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *error): self.file.close()
    def seek(self, to): self.file.seek(to)
    def write(self, data):
        left = room - self.file.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data[:left])
real = Path.open
def full(self, mode="r", *rest, **more):
    file = real(self, mode, *rest, **more)
    return Full(file) if mode == "r+b" else file
Path.open = full
sys.argv = ["rankup", "fetch", "--url", sys.argv[1], "--to", sys.argv[2]]
from rankup.__main__ import main
sys.exit(main())
"""
    target = tmp_path / "a.bin"
    words = [sys.executable, "-c", code, url, str(target)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    said = f"No space left on device; make room in {tmp_path} and run it again: what came is kept"
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    _get(url, target)
    assert target.read_bytes() == DATA
    assert web.requests("/a.bin")[-1].headers["range"] == "bytes=200000-"


def test_many_at_once_fetch_it_once(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA, per_second=4_000_000)
    target = tmp_path / "a.bin"
    results: list[Item] = []
    threads = [
        threading.Thread(target=lambda: results.append(_get(url, target, SUM))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [one.bytes for one in results] == [len(DATA)] * 6
    assert len(web.requests("/a.bin")) == 1
    assert _left(target) == ["a.bin"]


def test_after_kill_9_the_next_one_goes_on(web: Web, tmp_path: Path) -> None:
    url = web.put("/a.bin", DATA, stall=3600)
    target = tmp_path / "a.bin"
    code = (
        "import sys; from pathlib import Path; from rankup.login.fetch.download import download; "
        "download(sys.argv[1], Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, url, str(target)])
    try:
        part = tmp_path / "a.bin.part"
        until(lambda: part.exists() and part.stat().st_size > 100_000)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    kept = part.stat().st_size
    assert 0 < kept < len(DATA)
    web.put("/a.bin", DATA)
    _get(url, target, SUM)  # its lock is not waited for
    assert web.requests("/a.bin")[-1].headers["range"] == f"bytes={kept}-"
    assert _left(target) == ["a.bin"]


def test_a_file_in_a_cache_for_reading_only_is_found(web: Web, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "a.bin"
    url = web.put("/a.bin", DATA)
    _get(url, target)
    before = target.parent.stat().st_mtime_ns
    _get(url, target, SUM)
    assert target.parent.stat().st_mtime_ns == before  # not even a lock was made


def test_a_file_where_a_folder_has_to_be_is_named(web: Web, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a file")
    for deep in ("f/g", "f/g/h"):
        with pytest.raises(OSError, match=f"{tmp_path}/f"):
            _get(web.put("/g", DATA), tmp_path / deep)
    with pytest.raises(FetchFailed, match="is there and no file"):
        _get(web.put("/g", DATA), tmp_path)


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("https://\x1b[2Jevil/\x1b]0;pwn", "redirects to no usable URL"),
        ("http://h:x/", "redirects to no usable URL"),
        ("file:///etc/hostname", "redirects to no usable URL"),
        ("ftp://127.0.0.1/x", "redirects to no usable URL"),
        ("/a", "redirects without an end"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_an_answer(
    web: Web, tmp_path: Path, to: str, words: str
) -> None:
    web.put("/a", redirect=to)
    with pytest.raises(FetchFailed, match=f"{web.url('/a')} {words}"):
        _get(web.url("/a"), tmp_path / "a")


def test_a_host_that_no_domain_can_have_is_named(web: Web, tmp_path: Path) -> None:
    web.put("/a", redirect="http://xn--/")
    for url in (web.url("/a"), "http://xn--/"):
        with pytest.raises(FetchFailed, match=f"{url}, or where it leads to, is no usable URL"):
            _get(url, tmp_path / "a")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"200 OK\r\nContent-Length: -5\r\n\r\ndata", "not one of a web server .*Content-Length"),
        (b"200 OK\r\nContent-Length: many\r\n\r\ndata", "not one of a web server .*Content-Length"),
        (b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata", "cut after 4 bytes"),
        (b"204 No Content\r\n\r\n", "HTTP status 204"),
        (b"206 Part\r\nContent-Range: bytes 7-9/10\r\n\r\ntail", "is of this version"),
        (b"206 Part\r\nContent-Range: bytes 7-9/5\r\n\r\ntail", "is of this version"),
        (b"206 Part\r\n\r\ndata", "is of this version"),
    ],
)
def test_an_answer_that_is_not_the_whole_file_is_refused(
    tmp_path: Path, answer: bytes, words: str
) -> None:
    """Of a length that is no number, the file would be whole wherever the connection ends."""
    with pytest.raises(FetchFailed, match=words):
        _get_raw(answer, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_body_without_an_end_is_read_to_the_length_that_was_given(tmp_path: Path) -> None:
    head = b"206 Part\r\nContent-Range: bytes 0-3/4\r\n\r\n"
    _get_raw(head + b"data" * 1000, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"data"


def _get_raw(answer: bytes, target: Path) -> None:
    """Download from a server that sends these bytes to the first that asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            client, _ = server.accept()
            with client, suppress(OSError):
                client.recv(10_000)
                client.sendall(b"HTTP/1.1 " + answer)

        thread = threading.Thread(target=send)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a"
        try:
            download(url, target, patience=Patience(pauses=()))
        finally:
            thread.join(60)


def _basic(who: str) -> str:
    return "Basic " + base64.b64encode(who.encode()).decode()


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
