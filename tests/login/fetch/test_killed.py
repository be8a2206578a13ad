"""A fetch that is interrupted, or killed, leaves the user's files as they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankup.login.fetch.tree import marked

from ...conftest import RunRankup

# Overwrites, appends, clears a folder, and then hangs, with a process of its own in the background.
SCRIPT = """
import os, shutil, sys, time
report = open("report.txt", "w")
report.write("half")
report.flush()
log = open("train.log", "a")
log.write("more")
log.flush()
shutil.rmtree("runs")
os.makedirs("runs")
events = open("runs/events", "w")
if os.fork() == 0:
    os.setsid()
    time.sleep(100)
open("ready", "w").close()
time.sleep(100)
"""
BEFORE = {"report.txt": "of last week", "train.log": "line", "runs/old": "run", "train.py": SCRIPT}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the script and files that it changes."""
    for name, text in BEFORE.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user whose home and folder for temporary files are the test's."""
    (tmp_path / "tmp").mkdir()
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


@contextmanager
def _going(project: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A fetch of the script, which has come to where it hangs; what it says is in `said`."""
    # No pipe: a process that outlives the fetch would keep it open.
    with _said(project).open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankup", "fetch", "train.py"],
            cwd=project,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 60
        while not (project / "ready").exists():
            assert process.poll() is None, _said(project).read_text()
            assert time.monotonic() < until, "the script did not start"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(30)
        for state in _states(project):
            for left in marked(str(state)):
                left.kill()


def _said(project: Path) -> Path:
    return project.parent / "said"


def _files(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in project.rglob("*")
        if path.is_file() and path.relative_to(project).parts[0] != ".rankup"
    }


def _states(project: Path) -> list[Path]:
    return list((project / ".rankup").glob("fetch-*"))


def test_ctrl_c_puts_the_files_back(
    project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    with _going(project, environment) as fetch:
        [state] = _states(project)
        fetch.send_signal(signal.SIGINT)
        fetch.wait(30)
    said = _said(project).read_text()
    assert fetch.returncode == 130, said
    assert _files(project) == {**BEFORE, "ready": ""}
    for line in ("report.txt is as it was before", "train.log is as long as before", "stopped"):
        assert line in said
    assert "Traceback" not in said
    assert (_states(project), list((tmp_path / "tmp").iterdir())) == ([], [])
    assert marked(str(state)) == []


def test_after_kill_9_the_next_fetch_puts_the_files_back(
    project: Path, environment: dict[str, str], tmp_path: Path, run_rankup: RunRankup
) -> None:
    with _going(project, environment) as fetch:
        [state] = _states(project)
        fetch.kill()
        fetch.wait(30)
        assert _files(project) != {**BEFORE, "ready": ""}
        (project / "other.py").write_text("print('hello')")
        done = run_rankup(["fetch", "other.py"], cwd=project, env=environment)
        assert "an earlier fetch was killed; its script's files are put back" in done.stderr
        del (after := _files(project))["other.py"]
        assert after == {**BEFORE, "ready": ""}
        assert (_states(project), list((tmp_path / "tmp").iterdir())) == ([], [])
        assert marked(str(state)) == []
        # Once is enough.
        again = run_rankup(["fetch", "other.py"], cwd=project, env=environment)
        assert "an earlier fetch" not in again.stderr


def test_what_a_job_has_written_since_the_kill_stays(
    project: Path, environment: dict[str, str], run_rankup: RunRankup
) -> None:
    with _going(project, environment) as fetch:
        [state] = _states(project)
        fetch.kill()
        fetch.wait(30)
    for left in marked(str(state)):
        left.wait(30)
    (project / "report.txt").write_text("of a job")
    later = time.time() + 60
    os.utime(project / "report.txt", (later, later))
    (project / "other.py").write_text("print('hello')")
    done = run_rankup(["fetch", "other.py"], cwd=project, env=environment)
    assert (project / "report.txt").read_text() == "of a job"
    assert "report.txt was written since, and stays as it is; the old one is " in done.stderr
    [old] = project.glob(".report.txt.rankup-*")
    assert old.read_text() == "of last week"
    assert (project / "train.log").read_text() == "line"


def test_a_second_fetch_in_the_project_waits_for_the_first(
    project: Path, environment: dict[str, str], run_rankup: RunRankup
) -> None:
    """At once, each would take the other's half written files for the user's."""
    with _going(project, environment) as fetch:
        (project / "other.py").write_text("open('report.txt', 'w').write('other')")
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
            fetch.wait(30)
            second.communicate(timeout=60)
        finally:
            second.kill()
            second.wait(10)
    assert _files(project)["report.txt"] == BEFORE["report.txt"]


def test_where_no_namespace_is_allowed_python_refuses_connections(
    project: Path, environment: dict[str, str]
) -> None:
    """The real command, whose trial of a namespace is refused."""
    (project / "tiny.py").write_text(
        "import socket, torch\n"
        "try: socket.create_connection(('192.0.2.1', 80), timeout=3)\n"
        "except OSError as error: print('error', error.errno)\n"
        "torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()\n"
    )
    program = (
        "import sys\n"
        "from rankup.login.fetch import alone\n"
        "alone.refusal = lambda timeout=30.0: 'no network namespace: not allowed'\n"
        "from rankup.cli import main\n"
        "sys.argv = ['rankup', 'fetch', '--only-proof', 'tiny.py']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no network namespace: not allowed" in done.stderr
    assert "error 101" in done.stdout
    assert "Python's connections blocked" in done.stdout
    assert "it does without 192.0.2.1:80 (tiny.py:2)" in done.stderr
