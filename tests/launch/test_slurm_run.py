"""`rankup run` on the tests' Slurm: the few cases that show each of its ways once.

What job scripts do on fake nodes is in `tests/slurm/test_script_*.py`; what is refused before
anything is submitted in `test_refused.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankup.launch import attempts, cancel, status
from rankup.monitor.lines import FOLDER
from rankup.site import rundir
from rankup.site.config import Config
from tests.conftest import RunRankup
from tests.gallery import STEPS, WORDS, Gallery
from tests.slurm.cluster import Cluster

from .handmade import client, make_run, record, submit
from .live import live, losses, script
from .on_slurm import ONE, ONE_EACH, ONE_THREAD, SECONDS, Site, asked, last_line, log, until

# A rank that starts in a second: no torch is imported in it.
PROBE = """
import json, os, sys
from pathlib import Path
Path(os.environ["RANKUP_RUN_DIR"], "rank" + os.environ["RANK"]).write_text(json.dumps({
    "args": sys.argv[1:],
    "node": os.environ["SLURMD_NODENAME"],
    "world": int(os.environ["WORLD_SIZE"]),
    "cwd": os.getcwd(),
    "secret": os.environ.get("SECRET"),
}))
"""


@pytest.fixture
def site(slurm: Cluster, rankup_here: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, rankup_here, tmp_path)


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """A script whose ranks write down what they find."""
    return script(tmp_path, PROBE, "probe.py")


def _answers(run: Path) -> list[dict[str, Any]]:
    """What the ranks wrote down, by rank."""
    files = sorted(run.glob("rank*"), key=lambda file: int(file.name.removeprefix("rank")))
    return [json.loads(file.read_text()) for file in files]


def test_two_nodes_train_as_two_ranks_here_and_end_with_their_report(
    site: Site, gallery: Gallery
) -> None:
    site.env["RANKUP_MONITOR"] = "1"
    away = site.folder / "slurm"
    here = gallery.run("2")
    files = [f"--{name}={gallery.texts / name}.txt" for name in ("train", "valid", "test")]
    job = [*ONE_EACH, "--time", "10m", *ONE_THREAD, "--follow"]
    done = site.rankup("run", "--out", away, *job, "language-model", *WORDS, *files)
    assert f"step {STEPS}/{STEPS}" in done.stdout, "--follow shows the log"
    assert sorted(losses(away)) == list(range(1, STEPS + 1))
    assert losses(away) == pytest.approx(losses(here), rel=1e-5)
    samples = sorted((away / FOLDER).glob("*.jsonl"))
    assert [file.stem for file in samples] == ["n1", "n2"]
    for file in samples:
        head = json.loads(file.read_text().splitlines()[0])
        assert head["node"] == file.stem
        assert head["attempt"].startswith(f"{asked(away)[0]}.")
    assert not (away / "report.html").exists(), "the nodes are not billed for drawing it"
    assert (away / "report.txt").read_text().splitlines()[0] in log(away)


FAILS = """
import os, time
from pathlib import Path
run = Path(os.environ["RANKUP_RUN_DIR"])
if os.environ["RANK"] == "1":
    raise ValueError("the cause: größer")
time.sleep(600)
"""


def test_one_rank_fails_and_the_job_ends_with_its_words(site: Site) -> None:
    run = site.folder / "run"
    path = script(site.folder, FAILS)
    words: list[str | Path] = [*ONE_EACH, "--time", "10m", "--out", run, "--follow", path]
    done = site.rankup("run", *words, code=1)
    [job] = asked(run)
    assert site.cluster.job(int(job))["JobState"] == "FAILED"
    cause = "rank 1 on n2 failed: ValueError: the cause: größer"
    assert cause in done.stdout
    assert last_line(log(run)) == cause
    assert last_line(site.rankup("logs", run).stdout) == cause
    assert "FAILED" in site.rankup("status", run).stdout


@pytest.mark.slow
def test_whatever_was_typed_arrives_unharmed(site: Site) -> None:
    """Quotes, `$(…)`, % and unicode in names, paths and words; a secret in the ranks alone."""
    odd = 'it\'s 100% %j "ü" $(touch pwned) `touch pwned`; 漢'
    folder = site.folder / odd
    folder.mkdir()
    path = script(folder, PROBE, f"{odd}.py")
    args = ["--", odd, "", "two\nlines", "a\\b", "*", "--nodes", "#x", "--out=$HOME"]
    secret = 's3cr3t \'of "mine" $HOME'
    run = folder / f"run {odd}"
    words = [*ONE, "--name", odd, "--env", f"SECRET={secret}"]
    job, there = site.submit(*words, "--out", run, path, *args, cwd=folder)
    assert there == run
    assert odd in site.cluster.command("scontrol", "show", "job", str(job))
    site.ended(job, "COMPLETED", run)
    [answer] = _answers(run)
    assert answer["args"] == args
    assert answer["cwd"] == str(folder)
    assert answer["secret"] == secret
    assert not list(site.folder.rglob("pwned"))
    assert (run / "log" / f"{job}.out").is_file()
    (run / "rank0").unlink()  # the one file the script itself told it to
    files = [file for file in run.rglob("*") if file.is_file()]
    told = [file for file in files if "s3cr3t" in file.read_text()]
    assert told == [run / "env"]
    assert (run / "env").stat().st_mode & 0o077 == 0


def _inside(allocation: int) -> dict[str, str]:
    return {"SLURM_JOB_ID": str(allocation)}


def test_an_allocation_runs_it_at_once(site: Site, probe: Path) -> None:
    inside = _inside(site.allocate(2))
    done = site.rankup("run", "--nodes", "3", "--out", "three", probe, env=inside, code=2)
    assert re.search(r"--nodes 3: allocation \d+ has 2", done.stderr)
    assert not (site.folder / "three").exists()
    site.rankup("run", "--nproc", "2", "--out", "all", probe, "two words", env=inside)
    found = _answers(site.folder / "all")
    assert [answer["node"] for answer in found] == ["n1", "n1", "n2", "n2"]
    assert {answer["world"] for answer in found} == {4}
    assert {answer["args"][0] for answer in found} == {"two words"}


@pytest.mark.slow
def test_a_shell_that_srun_started_uses_the_whole_allocation(site: Site, probe: Path) -> None:
    """`rankup run` as a step of one task; as one of two tasks it is refused."""
    allocation = site.allocate(2)
    for tasks, code in ((1, 0), (2, 2)):
        out = f"step{tasks}"
        command = ["srun", f"--jobid={allocation}", "--overlap", f"-n{tasks}", f"-N{tasks}"]
        command += [sys.executable, "-m", "rankup", "run", "--nproc", "1", "--out", out]
        done = subprocess.run(
            [*command, str(probe)],
            cwd=site.folder,
            env={**os.environ, **site.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("srun starts `rankup run` once per task here" in done.stderr) == (tasks == 2)
    assert [answer["node"] for answer in _answers(site.folder / "step1")] == ["n1", "n2"]
    assert not (site.folder / "step2").exists()


SAVES = """
import os, sys, time
from pathlib import Path
import rankup
world = rankup.setup()
deadline = rankup.Deadline()
run = Path(os.environ["RANKUP_RUN_DIR"])
(run / f"up{world.rank}").touch()
while "deaf" in sys.argv or not deadline.reached():
    time.sleep(0.02)
(run / f"saved{world.rank}").touch()
deadline.leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True])
def test_ctrl_c_in_an_allocation_saves_and_stops_and_once_more_ends_it(
    site: Site, deaf: bool
) -> None:
    env = {**site.env, **_inside(site.allocate(1))}
    run, path = site.folder / "run", script(site.folder, SAVES)
    words = ["run", *ONE_THREAD, "--nproc", "2", "--out", run, path, *(["deaf"] if deaf else [])]
    with live(words, site.folder, env) as running:
        running.until(lambda: len(list(run.glob("up*"))) == 2, SECONDS)
        running.process.send_signal(signal.SIGINT)
        if deaf:
            running.until(lambda: "once more ends them now" in running.err)
            running.process.send_signal(signal.SIGINT)
        code = running.wait(SECONDS)
        running.nobody_left(SECONDS)
    assert "Traceback" not in running.err
    assert len(list(run.glob("saved*"))) == (0 if deaf else 2)
    assert code != 0 if deaf else code == 128 + signal.SIGINT, running.err
    assert deaf or last_line(running.err) == f"go on with: rankup run --resume {run}"


def test_a_running_job_and_the_one_that_follows_it_are_cancelled(
    slurm: Cluster, tmp_path: Path
) -> None:
    path = make_run(tmp_path / "runs")
    first = submit(slurm, path, "sleep 300", "--nodes=2")
    slurm.wait(int(first), ("RUNNING",))
    second = submit(slurm, path, "echo started", f"--dependency=afterany:{first}")
    record(path, job=second, follows=first)
    (path / "requeue").touch()
    until(lambda: (path / "attempts.jsonl").exists(), path)
    found = status.report(path, Config(), client(slurm)).attempts
    assert [(attempt.state, len(attempt.nodes)) for attempt in found] == [
        ("RUNNING", 2),
        ("PENDING", 0),
    ]
    said = cancel.cancel(path, client(slurm))
    assert said == [f"job {first}: cancelled", f"job {second}: cancelled"]
    assert not (path / "requeue").exists()
    for job_id in (first, second):
        assert slurm.job(int(job_id))["JobState"] == "CANCELLED"
    assert not (path / "log" / f"{second}.out").exists()
    assert cancel.cancel(path, client(slurm)) == ["nothing of this run is going on"]


@pytest.mark.slow
def test_a_job_that_is_just_stopping_to_be_requeued_does_not_come_back(
    slurm: Cluster, tmp_path: Path
) -> None:
    path = make_run(tmp_path / "runs")
    body = (
        'trap \'touch "$run/requeue"; sleep 1; [ -e "$run/requeue" ] '
        '&& scontrol requeue $SLURM_JOB_ID; touch "$run/stopped"; exit 0\' TERM; '
        'touch "$run/ready"; while true; do sleep 0.2; done'
    )
    job_id = int(submit(slurm, path, body))
    until((path / "ready").exists, path)
    assert cancel.cancel(path, client(slurm)) == [f"job {job_id}: cancelled"]
    until((path / "stopped").exists, path)
    assert slurm.command("squeue", "-h", "-t", "pending,running") == ""


@pytest.mark.slow
def test_states_over_a_requeue_and_without_a_controller(slurm: Cluster, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    body = (
        'if [ "$attempt" = 0 ]; then record "\\"end\\": $(date +%s), \\"code\\": 0, '
        '\\"stopped\\": true"; scontrol requeue $SLURM_JOB_ID; sleep 60; fi'
    )
    job_id = int(submit(slurm, path, body))

    def states() -> list[tuple[int, str]]:
        found = attempts.of_run(path, rundir.read(path), client(slurm))
        return [(attempt.restart, attempt.state) for attempt in found]

    until(lambda: states() == [(0, "COMPLETED"), (1, "PENDING")], path)
    slurm.wait(job_id)
    assert states() == [(0, "COMPLETED"), (1, "COMPLETED")]
    with slurm.without_controller():
        (short,), note = status.newest(tmp_path / "runs", client(slurm))
    assert "own records" in note
    assert (short.state, short.source) == ("COMPLETED", "own record")
