"""`rankup run` where there is Slurm: submitted, inside an allocation, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunRankup, TextFiles
from tests.pool import RankPool
from tests.slurm.cluster import Cluster

from .live import TINY, live, losses, records, script
from .on_slurm import ONE_THREAD, SECONDS, Site, asked, last_line, log, until
from .undisturbed import train

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
    "task": os.environ.get("SLURM_ARRAY_TASK_ID"),
}))
"""


@pytest.fixture
def site(slurm: Cluster, run_rankup: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, run_rankup, tmp_path)


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """A script whose ranks write down what they find."""
    return script(tmp_path, PROBE, "probe.py")


def _answers(run: Path) -> list[dict[str, Any]]:
    """What the ranks wrote down, by rank."""
    files = sorted(run.glob("rank*"), key=lambda file: int(file.name.removeprefix("rank")))
    return [json.loads(file.read_text()) for file in files]


def _language_model(text: TextFiles) -> list[str | Path]:
    files: list[str | Path] = ["--train", text.train, "--valid", text.valid, "--test", text.test]
    batch = ["--global-batch", "16", "--micro-batch", "2", "--steps", "6"]
    return ["language-model", *files, *TINY, "--dim", "32", *batch]


def test_two_nodes_train_as_four_local_ranks_do(
    site: Site, ranks: RankPool, small_text: TextFiles
) -> None:
    words = _language_model(small_text)
    away, here = site.folder / "slurm", site.folder / "local"
    job = ["--nodes", "2", "--nproc", "2", "--time", "10m", *ONE_THREAD, "--follow"]
    done = site.rankup("run", "--out", away, *job, *words)
    train(ranks, 4, here, words)
    assert "step 6/6" in done.stdout, "--follow shows the log"
    assert sorted(losses(away)) == [1, 2, 3, 4, 5, 6]
    assert losses(away) == pytest.approx(losses(here), rel=1e-5)
    for name in ("valid_loss", "test_loss"):
        assert records(away)[-1][name] == pytest.approx(records(here)[-1][name], rel=1e-5)


FAILS = """
import os
from pathlib import Path
import rankup
world = rankup.setup()
if world.rank == 1:
    Path(os.environ["RANKUP_RUN_DIR"], "raised").touch()
    raise ValueError("the cause: größer")
rankup.barrier()
"""


def test_one_rank_fails_and_the_job_ends_with_its_words(site: Site) -> None:
    run = site.folder / "run"
    words: list[str | Path] = [
        "--nodes",
        "2",
        "--nproc",
        "1",
        "--allow-idle-gpus",
        "--time",
        "10m",
        "--out",
        run,
    ]
    path = script(site.folder, FAILS)
    done = site.rankup("run", *words, "--follow", path, code=1)
    assert time.time() - (run / "raised").stat().st_mtime < 60
    [job] = asked(run)
    assert site.cluster.job(int(job))["JobState"] == "FAILED"
    cause = "rank 1 on n2 failed: ValueError: the cause: größer"
    assert cause in done.stdout
    assert last_line(log(run)) == cause
    assert last_line(site.rankup("logs", run).stdout) == cause
    assert "FAILED" in site.rankup("status", run).stdout


def test_a_dry_run_prints_the_script_and_does_nothing(site: Site, probe: Path) -> None:
    before = sorted(site.folder.rglob("*"))
    text = site.rankup("run", "--dry-run", "--nodes", "2", probe).stdout
    checked = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
    assert checked.returncode == 0
    assert "#SBATCH --nodes=2" in text
    assert sorted(site.folder.rglob("*")) == before
    assert site.queue() == []


def test_whatever_was_typed_arrives_unharmed(site: Site) -> None:
    """Quotes, `$(…)`, % and unicode in names, paths and words; a secret in the ranks alone."""
    odd = 'it\'s 100% %j "ü" $(touch pwned) `touch pwned`; 漢'
    folder = site.folder / odd
    folder.mkdir()
    path = script(folder, PROBE, f"{odd}.py")
    args = ["--", odd, "", "two\nlines", "a\\b", "*", "--nodes", "#x", "--out=$HOME"]
    secret = 's3cr3t \'of "mine" $HOME'
    run = folder / f"run {odd}"
    words = ["--nproc", "1", "--allow-idle-gpus", "--name", odd, "--env", f"SECRET={secret}"]
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


def test_every_task_of_an_array_is_a_run_of_its_own(site: Site, probe: Path) -> None:
    job, run = site.submit("--array", "0-1", probe)
    until(lambda: not site.queue(), run)
    for task in "01":
        answers = _answers(run / "array" / task)
        assert [answer["task"] for answer in answers] == [task] * 2
        assert (run / "log" / f"{job}_{task}.out").is_file()
    assert _answers(run) == []


def _inside(allocation: int) -> dict[str, str]:
    return {"SLURM_JOB_ID": str(allocation)}


def test_an_allocation_runs_it_at_once(site: Site, probe: Path) -> None:
    inside = _inside(site.allocate(2))
    site.rankup("run", "--nproc", "2", "--out", "all", probe, "two words", env=inside)
    found = _answers(site.folder / "all")
    assert [answer["node"] for answer in found] == ["n1", "n1", "n2", "n2"]
    assert {answer["world"] for answer in found} == {4}
    assert {answer["args"][0] for answer in found} == {"two words"}
    site.rankup("run", "--nodes", "1", "--nproc", "1", "--out", "one", probe, env=inside)
    # Slurm takes the node whose last step has ended first.
    assert {answer["node"] for answer in _answers(site.folder / "one")} <= {"n1", "n2"}
    done = site.rankup("run", "--nodes", "3", "--out", "three", probe, env=inside, code=2)
    assert re.search(r"--nodes 3: allocation \d+ has 2", done.stderr)
    assert not (site.folder / "three").exists()


def _srun(site: Site, allocation: int, tasks: int, *words: str | Path) -> tuple[int, str]:
    """`rankup run` as a step of that many tasks inside an allocation, as a user's shell is one."""
    command = ["srun", f"--jobid={allocation}", "--overlap", f"-n{tasks}", f"-N{tasks}"]
    command += [sys.executable, "-m", "rankup", "run", *map(str, words)]
    done = subprocess.run(
        command,
        cwd=site.folder,
        env={**os.environ, **site.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_shell_that_srun_started_uses_the_whole_allocation(site: Site, probe: Path) -> None:
    allocation = site.allocate(2)
    code, said = _srun(site, allocation, 1, "--nproc", "1", "--out", "step", probe)
    assert code == 0, said
    assert [answer["node"] for answer in _answers(site.folder / "step")] == ["n1", "n2"]
    code, said = _srun(site, allocation, 2, "--nproc", "1", "--out", "twice", probe)
    assert code == 2, said
    assert "srun starts `rankup run` once per task here" in said
    assert not (site.folder / "twice").exists()


SAVES = """
import os, time
from pathlib import Path
import rankup
world = rankup.setup()
deadline = rankup.Deadline()
run = Path(os.environ["RANKUP_RUN_DIR"])
(run / f"up{world.rank}").touch()
while not deadline.reached():
    time.sleep(0.02)
(run / f"saved{world.rank}").touch()
deadline.leave()
"""
DEAF = SAVES.replace("while not deadline.reached():", "while True:")


def _ups(run: Path) -> bool:
    return len(list(run.glob("up*"))) == 2


def test_ctrl_c_in_an_allocation_saves_and_stops(site: Site) -> None:
    env = {**site.env, **_inside(site.allocate(1))}
    run, path = site.folder / "run", script(site.folder, SAVES)
    with live(
        ["run", *ONE_THREAD, "--nproc", "2", "--out", run, path], site.folder, env
    ) as running:
        running.until(lambda: _ups(run), SECONDS)
        running.process.send_signal(signal.SIGINT)
        assert running.wait(60) == 128 + signal.SIGINT, running.err
        running.nobody_left()
        assert (run / "saved0").exists()
        assert (run / "saved1").exists()
        assert last_line(running.err) == f"go on with: rankup run --resume {run}"
        assert "Traceback" not in running.err


@pytest.mark.slow
def test_ctrl_c_twice_in_an_allocation_ends_ranks_that_do_not_listen(site: Site) -> None:
    env = {**site.env, **_inside(site.allocate(1))}
    run, path = site.folder / "run", script(site.folder, DEAF)
    with live(
        ["run", *ONE_THREAD, "--nproc", "2", "--out", run, path], site.folder, env
    ) as running:
        running.until(lambda: _ups(run), SECONDS)
        running.process.send_signal(signal.SIGINT)
        running.until(lambda: "once more ends them now" in running.err)
        running.process.send_signal(signal.SIGINT)
        assert running.wait(60) != 0, running.err
        running.nobody_left()


REFUSED: dict[str, tuple[list[str], str]] = {
    "idle GPUs": (["--nproc", "1", "SCRIPT"], "you pay for 2"),
    "more ranks than GPUs": (["--nproc", "3", "SCRIPT"], "give --nproc 2 or less"),
    "time": (["--time", "3h", "SCRIPT"], "--time 03:00:00 is over the limit of booster"),
    "time in no form": (["--time", "soon", "SCRIPT"], "--time 'soon' is not a time limit"),
    "nodes": (["--nodes", "4", "SCRIPT"], "--nodes 4 is more than booster gives a job, which is 3"),
    "partition": (["--partition", "boster", "SCRIPT"], "did you mean booster"),
    "nodes of devel": (["--partition", "devel", "--nodes", "2", "SCRIPT"], "which is 1"),
    "line break": (["--name", "a\nb", "SCRIPT"], "cannot hold a line break"),
    "backslash": (["--out", "a\\b", "SCRIPT"], "has a backslash"),
    "token": (["SCRIPT", f"--token=hf_{'x' * 30}"], "one of the arguments holds a token"),
    "array of a recipe": (["--array", "0-1", "language-model"], "--array is for scripts"),
    "array to follow": (["--array", "0-1", "--follow", "SCRIPT"], "--follow follows one job"),
    "sbatch says no": (["--sbatch=--gres=gpu:9", "language-model"], "No node of the partition"),
    "dependency": (["--dependency", "afterok:job", "SCRIPT"], "afterok:ID"),
    "resume of nothing": (["--resume", "999999"], "no run '999999'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_and_leaves_nothing(
    slurm: Cluster, rankup_here: RunRankup, tmp_path: Path, probe: Path, name: str
) -> None:
    site = Site(slurm, rankup_here, tmp_path)
    words, message = REFUSED[name]
    before = sorted(site.folder.rglob("*"))
    typed = [str(probe) if word == "SCRIPT" else word for word in words]
    done = site.rankup("run", *typed, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "hf_x" not in done.stderr
    assert sorted(site.folder.rglob("*")) == before
    assert site.queue() == []


def test_without_a_controller_nothing_is_trained_here_unasked(site: Site, tmp_path: Path) -> None:
    path = script(tmp_path, 'print("ran here")')
    with site.cluster.without_controller():
        began = time.monotonic()
        refused = site.rankup("run", "--nodes", "2", path, code=2)
        assert time.monotonic() - began < 30
        assert "its controller does not answer" in refused.stderr
        assert not (tmp_path / "runs").exists()
        done = site.rankup("run", "--local", "--nproc", "1", path)
    assert done.stdout == "ran here\n"
