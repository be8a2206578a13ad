"""A run on this machine carries its sampler, and ends with its report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankup.launch import report, request
from rankup.monitor.lines import FOLDER
from tests.conftest import RunRankup
from tests.monitor import traces
from tests.monitor.gpus import played

from .handmade import make_run
from .live import live, script

ON = {"RANKUP_MONITOR": "1"}
GPU = {
    "name": "NVIDIA A100",
    "memory": 4e10,
    "power_limit": 400,
    "values": {"util": 96, "memory": 3e10, "power": 330, "temperature": 60, "processes": 1},
}
# It works until there are SAMPLES of its node and, with WAITS, until it is told to go.
TRAIN = """
import os, time
from pathlib import Path
from rankup.runtime.log import log_metrics
run = Path(os.environ["RANKUP_RUN_DIR"])
end = time.monotonic() + 300
step = 0
def few():
    tables = [file.read_bytes() for file in run.glob("monitor/*.host.csv")]
    samples = sum(table.count(b"\\n") - 1 for table in tables if table)
    return samples < int(os.environ.get("SAMPLES", "0"))
while (few() or "WAITS" in os.environ and not (run / "go").exists()) and time.monotonic() < end:
    step += 1
    if os.environ.get("RANK", "0") == "0":
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": %d, "loss": %f, "time": %f}\\n' % (step, 1 / step, time.time()))
    time.sleep(0.1)
"""


@pytest.fixture
def gpus(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with two GPUs that are busy."""
    both = [{**GPU, "uuid": f"GPU-{n}"} for n in range(2)]
    return {**ON, **played(tmp_path / "gpus.json", *both)}


def _lines(run: Path) -> list[dict[str, Any]]:
    (file,) = (run / FOLDER).glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def _samplers(run: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(run) in words and any("rankup.monitor" in word for word in words):
            found.append(process)
    return found


@pytest.mark.slow
def test_a_sampler_that_is_killed_costs_a_gap_and_not_the_run(tmp_path: Path) -> None:
    run, train = tmp_path / "run", script(tmp_path, TRAIN)
    words = ["run", "--local", "--out", run, train]
    with live(words, tmp_path, {**ON, "WAITS": "1"}) as going:
        (found,) = going.until(lambda: (run / FOLDER).is_dir() and _samplers(run))
        going.until(lambda: list((run / FOLDER).glob("*.jsonl")))
        found.kill()
        (run / "go").touch()
        assert going.wait(300) == 0
    assert (run / "report.txt").exists()
    assert all(record.get("kind") != "end" for record in _lines(run))


def test_the_sampler_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    run, train = tmp_path / "run", script(tmp_path, TRAIN)
    words = ["run", "--local", "--out", run, train]
    with live(words, tmp_path, {**ON, "WAITS": "1"}) as going:
        found = going.until(lambda: (run / FOLDER).is_dir() and _samplers(run))
        os.kill(going.process.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(found)
        assert not left


def test_a_switch_for_the_whole_shell() -> None:
    assert request.wanted(True, {})
    assert not request.wanted(True, {request.SWITCH: "0"})
    assert not request.wanted(False, {request.SWITCH: "1"})


def test_json_has_verdict_cost_and_findings(rankup_here: RunRankup, tmp_path: Path) -> None:
    run = _course(tmp_path)
    done = rankup_here(["report", run, "--json"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["finding"]["code"] for one in found["findings"]] == ["RK701"]
    assert found["cost"]["unit"] == "core-h"


def _course(folder: Path) -> Path:
    """The course's job as a run directory: four GPUs billed, one used."""
    from rankup.site import rundir
    from rankup.site.rundir import Job

    trace = traces.one_of_four()
    facts = trace.facts()
    run = folder / "runs" / "train" / "20261120-120000-abcd"
    rundir.create(run)
    (attempt,) = facts.attempts
    bill = {
        **{"site": facts.site, "partition": facts.partition, "gpus": facts.gpus},
        **{"unit": facts.unit, "per_node_hour": facts.per_node_hour, "minutes": 120},
    }
    asked = {"submitted": rundir.now(), "nodes": 1, "nproc": 1, "job": "7", "bill": bill}
    rundir.write(
        run, Job(run.name, "script", "/home/user/train.py", [], str(folder), {}, {}, [asked])
    )
    lines = [
        {"job": "7", "task": None, "restart": 0, "start": attempt.begin, "nodes": attempt.nodes[0]},
        {"job": "7", "task": None, "restart": 0, "end": attempt.ended, "code": 0},
    ]
    (run / rundir.ATTEMPTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace.write(run)
    return run


def test_a_recording_alone_gets_a_report_too(rankup_here: RunRankup, tmp_path: Path) -> None:
    traces.one_of_four().write(tmp_path / "alone")
    done = rankup_here(["report", tmp_path / "alone", "--formats", "text"])
    assert done.returncode == 0, done.stderr
    assert "RK701" in done.stdout
    assert not (tmp_path / "alone" / "report.html").exists()


def test_what_cannot_be_asked_for(rankup_here: RunRankup, tmp_path: Path) -> None:
    run = _course(tmp_path)
    (tmp_path / "file").write_text("")
    new = make_run(tmp_path / "runs", "20261120-120009-abcd")
    for words, said in {
        ("nothing",): "no run 'nothing'",
        (new,): f"{new.name} has not run: It has not been started.",
        (run, "--formats", "docx"): "--formats docx",
        (run, "--out", tmp_path / "file"): "is a file",
        (run, run): "is named twice",
        (run, "--json", "--out", tmp_path / "out"): "--json prints to standard output and writes",
        (run, "--json", "--formats", "text"): "--json prints to standard output and writes no file",
    }.items():
        done = rankup_here(["report", *words], cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(run.glob("report.*"))


def test_several_runs_are_compared(rankup_here: RunRankup, tmp_path: Path) -> None:
    run = _course(tmp_path)
    other = shutil.copytree(run, tmp_path / "other")
    done = rankup_here(["report", run, other], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "efficiency" in done.stdout.lower()
    assert (tmp_path / "scaling.html").exists()


def test_a_disk_that_takes_nothing_hides_no_line_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").mkdir()  # in whose place no file can be put
    judged = report.judge(tmp_path, traces.short().facts())
    assert report.tell(judged, report.Wish(("html", "text")), sys.stdout) == 1
    said = capsys.readouterr()
    assert said.out.startswith(judged.verdict.headline[:20])
    assert said.out.endswith(f"report.txt in {tmp_path}\n")
    assert "report.html could not be written: " in said.err


def test_an_array_of_version_0_2_is_a_sentence_and_its_tasks_are_recordings(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    submitted = {"started": "2026-11-20T12:00:00+0000", "job": "4711"}
    run = make_run(tmp_path / "runs", launch={"array": "0-1"}, attempts=[submitted])
    traces.one_of_four().write(run / "array" / "0")
    for verb in (["report", run], ["logs", run], ["run", "--resume", run], ["status", "4711"]):
        done = rankup_here(verb, cwd=tmp_path)
        assert done.returncode == 2
        assert f"{run} is an array of version 0.2" in done.stderr
    assert f"rankup report {run}/array/N" in done.stderr
    task = rankup_here(["report", "--formats", "text", run / "array" / "0"], cwd=tmp_path)
    assert task.stdout.startswith("Three of four GPUs did nothing: "), task.stderr
    table = rankup_here(["status"], cwd=tmp_path)
    assert (table.returncode, "ARRAY" in table.stdout) == (0, True)
    assert "is an array of version 0.2" in table.stdout
