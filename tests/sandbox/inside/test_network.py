"""Requests and connections are told, with the line that made them, and refused for a proof."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import pytest

from rankup.sandbox.inside import network

from ...login.web import Web
from .running import Runner

_ASKS = """\
import asyncio, os, socket, subprocess, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen
import requests

def by_urllib():
    print(urlopen("OLD?token=secret").read())

def by_requests():
    print(requests.get("WITH_USER", params={"key": "secret"}).content)

def by_httpx():
    import httpx2
    print(httpx2.get("OLD?token=secret", follow_redirects=True).content)
    async def get():
        async with httpx2.AsyncClient() as client:
            return (await client.get("OLD?token=secret")).status_code
    print(asyncio.run(get()))

def by_a_librarys_thread():
    with ThreadPoolExecutor() as pool:
        pool.submit(urlopen, "THREAD").result()

def by_programs():
    subprocess.run([sys.executable, "prepare.py", "--token", "secret"], check=True)
    os.system("TOKEN=secret true --key secret 'https://me:secret@example.org/a?b=secret'")
    subprocess.run("true https://example.org/c#d", shell=True)
    subprocess.run(["true", "--password", "secret"])

def looks_up():
    for _ in range(3):
        try:
            socket.getaddrinfo("no-such-host.invalid", 443)
        except OSError:
            pass

by_urllib()
by_requests()
by_httpx()
by_a_librarys_thread()
by_programs()
looks_up()
"""


def test_requests_of_all_libraries_and_programs_are_told_without_secrets(
    run: Runner, web: Web
) -> None:
    old, new = web.put("/old.bin", redirect="/new.bin"), web.put("/new.bin", b"data")
    thread, prepared = web.put("/thread.bin", b"data"), web.put("/prepared.bin", b"data")
    run.file("prepare.py", f"import urllib.request as u\nu.urlretrieve('{prepared}', 'a.bin')\n")
    text = _ASKS.replace("WITH_USER", new.replace("http://", "http://me:secret@"))
    has_httpx = find_spec("httpx2") is not None
    if not has_httpx:  # huggingface_hub of this environment has another client
        text = text.replace("\nby_httpx()", "")
    done = run(text.replace("OLD", old).replace("THREAD", thread))
    assert done.code == 0, done.explain()
    by_httpx = [
        (old, "train.py:14 in by_httpx"),
        (new, "train.py:14 in by_httpx"),
        (old, "train.py:17 in get"),
    ]
    assert [(one["url"], one["where"]) for one in done.of("url")] == [
        (old, "train.py:7 in by_urllib"),
        (new, "train.py:7 in by_urllib"),
        (new, "train.py:10 in by_requests"),
        *(by_httpx if has_httpx else ()),
        (thread, "train.py:22 in by_a_librarys_thread"),
        (prepared, "prepare.py:2"),
    ]
    assert {one["method"] for one in done.of("url")} == {"GET"}
    assert done.one("open")["path"] == str(run.folder / "a.bin")
    python, *words = [one["words"] for one in done.of("spawn")]
    assert (len(python), python[0].startswith("python")) == (1, True)
    assert words == [["true", "https://example.org/a"], ["true", "https://example.org/c"], ["true"]]
    # A server on this machine is not the network.
    look_up = done.one("connect")
    assert (look_up["host"], look_up["port"], look_up["refused"]) == (
        "no-such-host.invalid",
        None,
        False,
    )
    assert look_up["where"] == "train.py:33 in looks_up"
    assert "secret" not in (run.state / "events.jsonl").read_text()


def test_blocked_every_way_out_is_refused_and_told_but_not_to_its_own_servers(
    run: Runner, web: Web
) -> None:
    web.put("/a.bin", b"data")
    done = run(
        f"""\
        import multiprocessing, socket, subprocess, sys, urllib.request

        def attempt(function, *args):
            try:
                function(*args)
            except OSError as error:
                print(type(error).__name__, error.errno)
            else:
                print("came through")

        def serve(server):
            server.accept()[0].sendall(b"from a child")

        attempt(socket.create_connection, ("192.0.2.1", 443), 5)
        attempt(socket.getaddrinfo, "example.org", 443)
        attempt(urllib.request.urlopen, "{web.url("/a.bin")}")
        attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b"x", ("192.0.2.1", 53))
        program = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        print(subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode)
        server = socket.create_server(("127.0.0.1", 0))
        process = multiprocessing.get_context("fork").Process(target=serve, args=(server,))
        process.start()
        port = server.getsockname()[1]
        server.close()
        print(socket.create_connection(("localhost", port), 60).recv(100))
        process.join()
        near, far = socket.socketpair()
        near.send(b"x")
        """,
        block=True,
    )
    assert done.out.splitlines() == [
        "OSError 101",
        f"gaierror {socket.EAI_AGAIN}",
        "URLError None",
        "OSError 101",
        "1",
        "b'from a child'",
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


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.8.9.1", True),
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


# Ways to read a body of 1000 bytes: those that miss it when 600 do not come, and those that cannot.
_NOTICED = (
    "shutil.copyfileobj(answer, io.BytesIO())",
    "answer.read(1000)",
    "answer.read(600); answer.read(600)",
    "io.BufferedReader(answer).readinto(bytearray(2000))",
)
_WHOLE = (
    "shutil.copyfileobj(answer, io.BytesIO())",
    "answer.read()",
    "answer.read(10); answer.close(); answer.read(10)",
    "answer.read(600); answer.read(600); answer.read(600)",
)


def test_a_body_that_is_cut_off_unnoticed_is_told_and_no_other(run: Runner, web: Web) -> None:
    lines = ["import io, shutil, urllib.request"]
    cut = {web.put(f"/cut-{i}.bin", bytes(1000), cut=400): read for i, read in enumerate(_NOTICED)}
    whole = {web.put(f"/{i}.bin", bytes(1000)): read for i, read in enumerate(_WHOLE)}
    for url, read in {**cut, **whole}.items():
        lines += [f"answer = urllib.request.urlopen('{url}?key=secret')", read]
    done = run("\n".join(lines))
    assert done.code == 0, done.explain()
    told = [(one["url"], one["missing"], one["where"]) for one in done.of("cut")]
    assert told == [(url, 600, f"train.py:{2 * i + 3}") for i, url in enumerate(cut)]
