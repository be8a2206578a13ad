"""The sampler as a process beside ranks: what it writes, what it ignores, and when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankup.monitor.lines import header
from tests.conftest import RunRankup

from ..gpus import played
from .conftest import Samplers

_WORKER = "import time\nwhile True:\n    time.sleep(60)"
# A rank with a worker; both end when the rank's stdin is closed.
_RANK = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {_WORKER!r}])
print("ready", flush=True)
sys.stdin.read()
worker.kill()
worker.wait()
"""


@pytest.fixture
def two_ranks(samplers: Samplers) -> Iterator[list[subprocess.Popen[str]]]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK],
            env={**os.environ, "RANKUP_RUN_DIR": str(samplers.run), "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (4, 5)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    yield started
    for process in started:
        process.communicate()


def _gpus(tmp_path: Path, *values: dict[str, object]) -> dict[str, str]:
    return played(tmp_path / "gpus.json", *({"values": one} for one in values))


# GPUs are told of after half a second; a few samples fail.
_FIRST = """
from rankup.monitor.collect import sampler
from rankup.monitor.collect.host import Devices
sampler.SECONDS = 0.5
calls = []
def fail(self):
    calls.append(1)
    if 6 <= len(calls) <= 8:
        raise ValueError("never seen before")
Devices.disk = fail
"""


def test_what_is_written_beside_two_ranks(
    samplers: Samplers, two_ranks: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    stop = samplers.run / "monitor" / "stop"
    stop.parent.mkdir()
    stop.touch()  # of an earlier attempt: stale
    busy = {"util": 97, "memory": 3e10, "power": 300, "processes": 1}
    env = {"SLURM_JOB_ID": "7", **_gpus(tmp_path, busy, {"util": 0, "memory": 0})}
    sampler = samplers.start("--ranks", "2", env=env, first=_FIRST)
    samples = samplers.samples(3)
    (head,) = samplers.lines("head")
    assert (head["node"], head["ranks"], head["every"]) == ("n1", 2, 0.25)
    assert [one["index"] for one in head["gpus"]] == [0, 1]
    for kind in ("rank", "gpu", "host"):
        assert tuple(samplers.rows(kind)[0]) == header(kind)
    first, before, last = samples[:3]
    assert (first["dt"], first["cpu"], first["busiest"], first["cores"]) == ("", "", "", "")
    assert float(last["dt"]) == pytest.approx(float(last["t"]) - float(before["t"]), abs=1.0)
    assert len(last["cores"]) == len(head["usable"])
    assert 0 <= float(last["cpu"]) <= float(last["busiest"]) <= 100
    gpus = [list(row.values()) for row in samplers.rows("gpu") if row["t"] == last["t"]]
    when = [last["t"], last["dt"]]
    assert gpus[0] == [*when, "0", "97", "30000000000", "300", *[""] * 6, "1"]
    assert [row[2] for row in gpus] == ["0", "1"]
    ranks = [row for row in samplers.rows("rank") if row["t"] == last["t"]]
    assert [(one["rank"], one["workers"]) for one in ranks] == [("4", "1"), ("5", "1")]
    assert all(float(one["cpu"]) >= 0 and int(one["memory"]) > 1e6 for one in ranks)

    second = samplers.start()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0
    assert "another sampler watches this run on n1" in errors

    # Warnings of the time limit are not for it.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        sampler.send_signal(number)
    samplers.samples(len(samplers.rows("host")) + 2)
    samplers.wait_for(lambda: len(samplers.lines("note")) == 2)
    notes = {one["code"]: one["text"] for one in samplers.lines("note")}
    unused = notes.pop("RK701")
    assert list(notes.values()) == ["a sample failed: ValueError: never seen before"]
    assert unused.startswith("GPU 1 of node n1 has done nothing for ")
    stop.unlink()
    stop.touch()
    _, errors = sampler.communicate(timeout=60)
    assert sampler.returncode == 0
    assert f"rankup: {unused}\n" in errors
    (end,) = samplers.lines("end")
    assert end["why"] == "stop file"


def test_what_a_killed_one_has_torn_is_cut_off_by_the_next_one(samplers: Samplers) -> None:
    sampler = samplers.start()
    samplers.samples(2)
    sampler.kill()
    sampler.wait()
    # What a kill in the middle of a line leaves, or a node that has lost its power.
    host = samplers.file.with_name("n1.host.csv")
    whole = [file.read_text() for file in (samplers.file, host)]
    for file, torn in ((samplers.file, '{"t": 17'), (host, "17,3\0\0")):
        with file.open("a") as opened:
            opened.write(torn)
    before = len(samplers.rows("host"))
    sampler = samplers.start(env={"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"})
    samplers.samples(before + 1)
    assert [one["attempt"] for one in samplers.lines("head")][1:] == ["7.1"]
    for file, text in zip((samplers.file, host), whole, strict=True):
        assert file.read_text().startswith(text)
    assert samplers.rows("host")[before]["dt"] == ""
    sampler.terminate()
    assert sampler.wait(60) == 0
    assert samplers.lines()[-1]["why"] == "SIGTERM"


def test_it_ends_with_the_process_that_started_it(samplers: Samplers) -> None:
    shell = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(100)",
            *(sys.executable, "-m", "rankup.monitor.collect.main", samplers.run, "--every", "0.25"),
        ],
        env={**os.environ, "SLURMD_NODENAME": "n1"},
    )
    try:
        samplers.samples(1)
    finally:
        shell.kill()
        shell.wait()
    samplers.wait_for(lambda: samplers.lines("end"))
    assert "has ended" in samplers.lines("end")[0]["why"]


@pytest.mark.slow
def test_it_ends_with_a_process_that_did_not_start_it(samplers: Samplers) -> None:
    job = subprocess.Popen([sys.executable, "-c", _WORKER])
    sampler = samplers.start("--parent", str(job.pid))
    try:
        samplers.samples(3)
        assert samplers.lines("end") == []
    finally:
        job.kill()  # and nobody waits for it yet
        assert sampler.wait(60) == 0
        job.wait()
    assert "has ended" in samplers.lines("end")[0]["why"]
    assert samplers.start("--parent", str(job.pid)).wait(60) == 0, "it has ended already"


def test_it_ends_when_the_run_directory_is_gone(samplers: Samplers) -> None:
    sampler = samplers.start()
    samplers.samples(1)
    shutil.rmtree(samplers.run)
    assert sampler.wait(60) == 0
    assert not samplers.run.exists()


@pytest.mark.slow
def test_a_full_disk_is_said_once_and_told_when_there_is_space(samplers: Samplers) -> None:
    first = """
import resource, threading, time
from pathlib import Path
from rankup.monitor.collect import writer
writer._RETRY = 0.2
none = resource.RLIM_INFINITY
def free():
    path = Path(sys.argv[1]) / "monitor" / "n1.host.csv"
    while not (path.exists() and path.stat().st_size > 1000):
        time.sleep(0.05)
    size = path.stat().st_size + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, none))
    while not (Path(sys.argv[1]) / "space").exists():
        time.sleep(0.05)
    resource.setrlimit(resource.RLIMIT_FSIZE, (none, none))
threading.Thread(target=free, daemon=True).start()
"""
    sampler = samplers.start(first=first)
    assert sampler.stderr is not None
    assert "is not recorded for now" in sampler.stderr.readline()
    tables = [samplers.file.with_name(f"n1.{kind}.csv") for kind in ("host", "gpu")]
    assert all(table.read_bytes().endswith(b"\n") for table in tables if table.exists())
    (samplers.run / "space").touch()
    (note,) = samplers.wait_for(lambda: samplers.lines("note"))
    assert "could not be written: File too large" in note["text"]
    sampler.terminate()
    _, errors = sampler.communicate(timeout=60)
    assert errors == ""
    rows = samplers.rows("host")
    assert all(None not in row and None not in row.values() for row in rows)  # no half line


def test_bad_input_is_named(tmp_path: Path, rankup_here: RunRankup) -> None:
    done = rankup_here(["monitor", tmp_path, "--every", "0"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--every 0 is no number of seconds" in done.stderr
