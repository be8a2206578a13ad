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

from rankup.login.fetch import alone
from rankup.login.fetch.tree import marked

from ...conftest import RunRankup

# Overwrites, appends, clears a folder, and then hangs, with a process of its own in the background.
SCRIPT = """
import os, shutil, sys, time
for name in "results.txt", "report.txt":
    file = open(name, "w")
    file.write("half")
    file.flush()
log = open("train.log", "a")
log.write("more")
log.flush()
shutil.rmtree("runs")
os.makedirs("runs")
events = open("runs/events", "w")
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
open("ready", "w").close()
time.sleep(600)
"""
BEFORE = {
    "report.txt": "of last week",
    "results.txt": "of last week, too",
    "train.log": "line",
    "runs/old": "run",
    "train.py": SCRIPT,
}


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
        until = time.monotonic() + 120
        while not (project / "ready").exists():
            assert process.poll() is None, _said(project).read_text()
            assert time.monotonic() < until, "the script did not start"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(60)
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


def test_ctrl_c_puts_the_files_back_and_a_second_fetch_has_waited_for_it(
    project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """At once, each would take the other's half written files for the user's."""
    with _going(project, environment) as fetch:
        [state] = _states(project)
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
            fetch.wait(120)
            second.communicate(timeout=120)
        finally:
            second.kill()
            second.wait(60)
    said = _said(project).read_text()
    assert fetch.returncode == 130, said
    del (after := _files(project))["other.py"]
    assert after == {**BEFORE, "ready": ""}
    for line in ("report.txt is as it was before", "train.log is as long as before", "stopped"):
        assert line in said
    assert "Traceback" not in said
    assert (_states(project), list((tmp_path / "tmp").iterdir())) == ([], [])
    assert marked(str(state)) == []


def test_after_kill_9_the_next_fetch_puts_the_files_back(
    project: Path, environment: dict[str, str], tmp_path: Path, rankup_here: RunRankup
) -> None:
    """But not what a job has written since the kill."""
    with _going(project, environment) as fetch:
        [state] = _states(project)
        fetch.kill()
        fetch.wait(60)
        assert _files(project) != {**BEFORE, "ready": ""}
        (project / "results.txt").write_text("of a job")
        later = time.time() + 60
        os.utime(project / "results.txt", (later, later))
        (project / "other.py").write_text("print('hello')")
        done = rankup_here(["fetch", "other.py"], cwd=project, env=environment)
        assert "an earlier fetch was killed; its script's files are put back" in done.stderr
        said = "results.txt was written since, and stays as it is; the old one is "
        assert said in done.stderr
        after = _files(project)
        [old] = project.glob(".results.txt.rankup-*")
        for name in ("other.py", old.name):
            del after[name]
        assert after == {**BEFORE, "ready": "", "results.txt": "of a job"}
        assert old.read_text() == BEFORE["results.txt"]
        assert (_states(project), list((tmp_path / "tmp").iterdir())) == ([], [])
        assert marked(str(state)) == []
        # Once is enough.
        again = rankup_here(["fetch", "other.py"], cwd=project, env=environment)
        assert "an earlier fetch" not in again.stderr


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
    monkeypatch.setattr(alone, "refusal", lambda timeout=30.0: refusal)
    done = rankup_here(["fetch", "--only-proof", "tiny.py"], cwd=project, env=environment)
    assert done.returncode == 0, done.stderr
    assert refusal in done.stderr
    assert "error 101" in done.stdout
    assert "Python's connections blocked" in done.stdout
    assert "it does without 192.0.2.1:80 (tiny.py:2)" in done.stderr
