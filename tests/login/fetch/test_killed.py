"""A fetch that is interrupted, or killed at any moment, has changed none of the user's files."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rankup.sandbox import namespace
from rankup.sandbox.processes import marked

from ...conftest import RunRankup
from ..stage import Stage, until
from ..web import Web

# It overwrites, appends, removes, renames and downloads; at `STOP` it says so, and hangs.
SCRIPT = """
import os, shutil, sqlite3, time, urllib.request

def moment(name):
    if name == os.environ["STOP"]:
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        with open(os.environ["SIGN"], "w") as sign:
            sign.write(name)
        time.sleep(600)

moment("start")
results = open("results.txt", "w")
results.write("half")
results.flush()
moment("overwritten")
log = open("train.log", "a")
log.write("more")
log.flush()
moment("appended")
shutil.rmtree("runs")
os.makedirs("runs")
moment("removed")
os.rename("best.pt", "last.pt")
moment("renamed")
study = sqlite3.connect("study.db")
study.execute("insert into runs values ('of the fetch')")
moment("inserted")
for name in "a.bin", "b.bin":
    if not os.path.exists(name):
        with urllib.request.urlopen(os.environ["SERVER"] + "/" + name) as answer:
            with open(name, "wb") as file:
                file.write(answer.read(100))
                file.flush()
                moment("half " + name)
                file.write(answer.read())
moment("downloaded")
if os.path.exists(os.environ["PROOF"]):
    moment("proof")
else:
    open(os.environ["PROOF"], "w").close()
import torch
torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
"""
# The command, which says when it has moved a file into the project, and then hangs.
COMMAND = """
import os, sys, time
link = os.link
def moved(source, target, **more):
    link(source, target, **more)
    if os.environ["STOP"] == "moved " + os.path.basename(target):
        with open(os.environ["SIGN"], "w") as sign:
            sign.write("moved")
        time.sleep(600)
os.link = moved
sys.argv = ["rankup", "fetch", "train.py"]
from rankup.__main__ import main
sys.exit(main())
"""
STANDS_STILL = """
import os, time
open("report.txt", "w").write("half")
open(os.environ["READY"], "w").close()
time.sleep(600)
"""
BEFORE = {
    "results.txt": b"of last week, too",
    "train.log": b"line",
    "runs/old": b"run",
    "best.pt": b"trained for days",
    "train.py": SCRIPT.encode(),
}
DATA = {"a.bin": b"a" * 200, "b.bin": b"b" * 200}
OFTEN = ("start", "overwritten", "half a.bin")
SELDOM = ("appended", "removed", "renamed", "inserted", "downloaded", "moved a.bin", "proof")
MOMENTS = [*OFTEN, *(pytest.param(moment, marks=pytest.mark.slow) for moment in SELDOM)]


@pytest.fixture
def project(tmp_path: Path, web: Web) -> Path:
    """A project with the script and files that it changes."""
    for name, data in BEFORE.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with closing(sqlite3.connect(tmp_path / "project" / "study.db")) as study:
        study.execute("create table runs (name)")
        study.commit()
    for name, data in DATA.items():
        web.put(f"/{name}", data)
    return tmp_path / "project"


@pytest.fixture
def environment(tmp_path: Path, web: Web) -> dict[str, str]:
    """Of a user whose home and folder for temporary files are the test's."""
    (tmp_path / "tmp").mkdir()
    os.mkfifo(tmp_path / "sign")
    return {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "SERVER": web.url(),
        "SIGN": str(tmp_path / "sign"),
        "PROOF": str(tmp_path / "proof"),
        "STOP": "",
    }


@contextmanager
def _stopped(
    project: Path, environment: dict[str, str], moment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A fetch of the script that hangs at a moment; what it says is in `said`."""
    sign = os.open(environment["SIGN"], os.O_RDONLY | os.O_NONBLOCK)
    # No pipe: a process that outlives the fetch would keep it open.
    with _said(project).open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            cwd=project,
            env={**os.environ, **environment, "STOP": moment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
    try:
        ready, _, _ = select.select([sign], [], [], 120)
        assert ready, _said(project).read_text()
        yield process
    finally:
        os.close(sign)
        process.kill()
        process.wait(60)
        for state in _states(project):
            for left in marked(str(state)):
                left.kill()


def _said(project: Path) -> Path:
    return project.parent / "said"


def _files(project: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in project.rglob("*")
        if path.is_file() and path.relative_to(project).parts[0] != ".rankup"
    }


def _states(project: Path) -> list[Path]:
    return list((project / ".rankup").glob("fetch-*"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_while_a_job_writes_there_nothing_of_either_is_lost(
    project: Path,
    environment: dict[str, str],
    rankup_here: RunRankup,
    moment: str,
) -> None:
    with _stopped(project, environment, moment) as fetch:
        before = _files(project)
        [*states] = _states(project)
        # Under names that the script has taken in its copy, too.
        job = {"results.txt": b"of a job", "last.pt": b"of a job", "runs/new": b"of a job"}
        job["b.bin"] = before.get("b.bin", b"of a job")
        for name, data in job.items():
            (project / name).write_bytes(data)
        with (project / "train.log").open("ab") as log:
            log.write(b" of a job")
        fetch.kill()
        fetch.wait(60)
        database = before.pop("study.db")
        came = {name: data for name, data in before.items() if name in DATA}
        assert before == {**BEFORE, **came}
        assert came == {name: DATA[name] for name in came}, "no half a file"
        expected = {**before, **job, "train.log": b"line of a job", "study.db": database}
        assert _files(project) == expected
        # The next one clears up after it, and brings what is missing.
        done = rankup_here(["fetch", "train.py"], cwd=project, env=environment)
        assert done.returncode == 0, done.stderr
        assert _files(project) == {**expected, **DATA, "b.bin": job["b.bin"]}
        assert _states(project) == []
        assert [marked(str(state)) for state in states] == [[] for _ in states]
        assert list(Path(environment["TMPDIR"]).iterdir()) == []


def test_ctrl_c_ends_all_and_a_second_fetch_has_waited_for_it(
    project: Path, environment: dict[str, str]
) -> None:
    """It finds what the first one has brought."""
    with _stopped(project, environment, "downloaded") as fetch:
        [state] = _states(project)
        before = _files(project)
        (project / "other.py").write_text("print('other')")
        second = subprocess.Popen(
            [sys.executable, "-m", "rankup", "fetch", "other.py"],
            cwd=project,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert second.stderr is not None
            assert "waiting for process" in second.stderr.readline()
            fetch.send_signal(signal.SIGINT)
            fetch.wait(120)
            second.communicate(timeout=120)
        finally:
            second.kill()
            second.wait(60)
    said = _said(project).read_text()
    assert fetch.returncode == 130, said
    after = _files(project)
    del after["other.py"]
    assert after == {**before, **DATA}
    assert "stopped; " in said
    assert "was not finished" not in said
    assert "Traceback" not in said
    assert (_states(project), list(Path(environment["TMPDIR"]).iterdir())) == ([], [])
    assert marked(str(state)) == []


@pytest.mark.slow
def test_where_no_namespace_is_allowed_python_refuses_connections(
    project: Path,
    environment: dict[str, str],
    rankup_here: RunRankup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (project / "tiny.py").write_text(
        "import socket, torch\n"
        "try: socket.create_connection(('192.0.2.1', 80), timeout=3)\n"
        "except OSError as error: print('error', error.errno)\n"
        "torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()\n"
    )
    refusal = "no network namespace: not allowed"
    monkeypatch.setattr(namespace, "refusal", lambda timeout=30.0: refusal)
    done = rankup_here(["fetch", "--only-proof", "tiny.py"], cwd=project, env=environment)
    assert done.returncode == 0, done.stderr
    assert refusal in done.stderr
    assert "error 101" in done.stdout
    assert "Python's connections blocked" in done.stdout
    assert "it does without 192.0.2.1:80 (tiny.py:2)" in done.stderr


def test_one_that_stood_still_while_another_went_on_leaves_nothing(
    stage: Stage,
) -> None:
    ready = stage.home / "ready"
    (stage.project / "train.py").write_text(STANDS_STILL)
    (stage.project / "report.txt").write_text("of last week")
    process = subprocess.Popen(
        [sys.executable, "-m", "rankup", "fetch", "train.py"],
        cwd=stage.project,
        env={**os.environ, **stage.environment, "READY": str(ready)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(ready.exists)
        [folder] = (stage.project / ".rankup").glob("fetch-*")
        (stage.project / ".rankup" / ".project.lock").unlink()  # as who takes it over
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, errors
    assert "another one has gone on with project" in errors
    assert not marked(str(folder))
    assert not folder.exists()
    assert (stage.project / "report.txt").read_text() == "of last week"
