"""Requests and connections are told, with the line that made them, and refused for a proof."""

from __future__ import annotations

import socket

import pytest

from rankup.login.fetch.inside import network

from ...web import Web
from .running import Runner


def test_urllib_and_requests_are_told_without_secrets(run: Runner, web: Web) -> None:
    web.put("/old.bin", redirect="/new.bin?signature=secret")
    web.put("/new.bin", b"data")
    with_user = web.url("/new.bin").replace("http://", "http://me:secret@")
    done = run(f"""\
        import urllib.request
        import requests

        def load():
            return urllib.request.urlopen("{web.url("/old.bin")}?token=secret").read()

        print(load())
        print(requests.get("{with_user}", params={{"key": "secret"}}).content)
        """)
    assert (done.code, done.out) == (0, "b'data'\nb'data'\n"), done.explain()
    assert [(one["url"], one["method"], one["where"]) for one in done.of("url")] == [
        (web.url("/old.bin"), "GET", "train.py:5 in load"),
        (web.url("/new.bin"), "GET", "train.py:5 in load"),
        (web.url("/new.bin"), "GET", "train.py:8"),
    ]
    assert "secret" not in (run.state / "events.jsonl").read_text()
    # A server on this machine is not the network.
    assert not done.of("connect")


def test_httpx_is_told_in_both_its_forms(run: Runner, web: Web) -> None:
    pytest.importorskip("httpx2", reason="huggingface_hub of this environment has another client")
    web.put("/old.bin", redirect="/new.bin")
    web.put("/new.bin", b"data")
    done = run(f"""\
        import asyncio
        import httpx2
        url = "{web.url("/old.bin")}?token=secret"
        print(httpx2.get(url, follow_redirects=True).content)
        async def get():
            async with httpx2.AsyncClient() as client:
                return (await client.get(url)).status_code
        print(asyncio.run(get()))
        """)
    assert done.out == "b'data'\n302\n", done.explain()
    assert [(one["url"], one["where"]) for one in done.of("url")] == [
        (web.url("/old.bin"), "train.py:4"),
        (web.url("/new.bin"), "train.py:4"),
        (web.url("/old.bin"), "train.py:7 in get"),
    ]


def test_a_library_thread_is_told_with_the_line_that_waits_for_it(run: Runner, web: Web) -> None:
    web.put("/a.bin", b"data")
    done = run(f"""\
        from concurrent.futures import ThreadPoolExecutor
        from urllib.request import urlopen
        with ThreadPoolExecutor() as pool:
            pool.submit(urlopen, "{web.url("/a.bin")}").result()
        """)
    assert done.one("url")["where"].startswith("train.py:4"), done.explain()


def test_a_python_program_that_the_script_starts_is_watched(run: Runner, web: Web) -> None:
    web.put("/a.bin", b"data")
    run.file(
        "prepare.py",
        f"""\
        import urllib.request
        urllib.request.urlretrieve("{web.url("/a.bin")}", "a.bin")
        """,
    )
    done = run("""\
        import subprocess, sys
        subprocess.run([sys.executable, "prepare.py", "--token", "secret"], check=True)
        """)
    assert done.code == 0, done.explain()
    assert done.one("url")["where"] == "prepare.py:2"
    assert done.one("open")["path"] == str(run.folder / "a.bin")
    words = done.one("spawn")["words"]
    assert len(words) == 1
    assert words[0].startswith("python")


def test_programs_are_told_by_name_and_url_alone(run: Runner) -> None:
    done = run("""\
        import os, subprocess
        os.system("TOKEN=secret true --key secret 'https://me:secret@example.org/a?b=secret'")
        subprocess.run("true https://example.org/c#d", shell=True)
        subprocess.run(["true", "--password", "secret"])
        """)
    assert [one["words"] for one in done.of("spawn")] == [
        ["true", "https://example.org/a"],
        ["true", "https://example.org/c"],
        ["true"],
    ]
    assert "secret" not in (run.state / "events.jsonl").read_text()


def test_blocked_every_way_out_is_refused_and_told(run: Runner, web: Web) -> None:
    web.put("/a.bin", b"data")
    done = run(
        f"""\
        import socket, subprocess, sys, urllib.request

        def attempt(function, *args):
            try:
                function(*args)
            except OSError as error:
                print(type(error).__name__, error.errno)
            else:
                print("came through")

        attempt(socket.create_connection, ("192.0.2.1", 443), 5)
        attempt(socket.getaddrinfo, "example.org", 443)
        attempt(urllib.request.urlopen, "{web.url("/a.bin")}")
        attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b"x", ("192.0.2.1", 53))
        program = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        print(subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode)
        """,
        mode="proof",
        block=True,
    )
    assert done.out.splitlines() == [
        "OSError 101",
        f"gaierror {socket.EAI_AGAIN}",
        "URLError None",
        "OSError 101",
        "1",
    ], done.explain()
    refused = [(one["host"], one["port"], one["refused"]) for one in done.of("connect")]
    assert refused == [
        ("192.0.2.1", 443, True),
        ("example.org", None, True),
        ("127.0.0.1", web.port, True),
        ("192.0.2.1", 53, True),
        ("192.0.2.1", 80, True),
    ]
    assert done.of("connect")[0]["where"] == "train.py:5 in attempt"
    assert done.one("url")["url"] == web.url("/a.bin")
    assert not web.requests()


def test_blocked_a_script_still_reaches_its_own_servers(run: Runner) -> None:
    done = run(
        """\
        import multiprocessing, socket

        def serve(server):
            server.accept()[0].sendall(b"from a child")

        server = socket.create_server(("127.0.0.1", 0))
        process = multiprocessing.get_context("fork").Process(target=serve, args=(server,))
        process.start()
        port = server.getsockname()[1]
        server.close()
        print(socket.create_connection(("localhost", port), 5).recv(100))
        process.join()
        near, far = socket.socketpair()
        near.send(b"x")
        """,
        mode="proof",
        block=True,
    )
    assert (done.code, done.out) == (0, "b'from a child'\n"), done.explain()
    assert not done.of("connect")


def test_not_blocked_a_look_up_is_told_and_let_through(run: Runner) -> None:
    done = run("""\
        import socket
        for _ in range(3):
            try:
                socket.getaddrinfo("no-such-host.invalid", 443)
            except OSError:
                pass
        """)
    look_up = done.one("connect")
    assert (look_up["host"], look_up["port"], look_up["refused"]) == (
        "no-such-host.invalid",
        None,
        False,
    )
    assert look_up["where"] == "train.py:4"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", True),
        ("", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_loopback_is_known_by_name_and_number(host: str, expected: bool) -> None:
    assert network.is_loopback(host) is expected


@pytest.mark.parametrize(
    "read",
    [
        "shutil.copyfileobj(answer, io.BytesIO())",
        "answer.read(1000)",
        "answer.read(600); answer.read(600)",
        "io.BufferedReader(answer).readinto(bytearray(2000))",
    ],
)
def test_a_body_that_is_cut_off_unnoticed_is_told(run: Runner, web: Web, read: str) -> None:
    url = web.put("/a.bin", bytes(1000), cut=400)
    done = run(f"""\
        import io, shutil, urllib.request
        answer = urllib.request.urlopen("{url}?key=secret")
        {read}
        """)
    assert done.code == 0, done.explain()
    cut = done.one("cut")
    assert (cut["url"], cut["missing"], cut["where"]) == (url, 600, "train.py:3")


@pytest.mark.parametrize(
    "read",
    [
        "shutil.copyfileobj(answer, io.BytesIO())",
        "answer.read()",
        "answer.read(10); answer.close(); answer.read(10)",
        "answer.read(600); answer.read(600); answer.read(600)",
    ],
)
def test_a_body_that_is_whole_or_not_wanted_is_not_called_cut_off(
    run: Runner, web: Web, read: str
) -> None:
    url = web.put("/a.bin", bytes(1000))
    done = run(f"""\
        import io, shutil, urllib.request
        answer = urllib.request.urlopen("{url}")
        {read}
        """)
    assert done.code == 0, done.explain()
    assert not done.of("cut")
