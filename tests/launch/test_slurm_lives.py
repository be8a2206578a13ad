"""One run over several lives of a job: deadlines, signals, time limits, resumes."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunRankup, TextFiles
from tests.pool import RankPool
from tests.slurm.cluster import Cluster

from .live import TINY, losses, records, script
from .on_slurm import ONE, ONE_EACH, Site, lives, log, starts, until
from .undisturbed import train


@pytest.fixture
def site(slurm: Cluster, rankup_here: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, rankup_here, tmp_path)


# Each life but the last is slow, so that it is not through before its end; a margin is given for
# each, so that the number of lives does not hang on the machine's speed.
COUNTS = """
import json, os, sys, time
from pathlib import Path
import rankup
world = rankup.setup()
steps, margins = int(sys.argv[1]), [float(word) for word in sys.argv[2:]]
run = Path(os.environ["RANKUP_RUN_DIR"])
place = run / "place"
life, first, loss = json.loads(place.read_text()) if place.exists() else (0, 0, 1.0)
slow = life < len(margins) - 1
deadline = rankup.Deadline(margins[life] if slow else margins[-1])
rankup.barrier()
for step in range(first, steps):
    loss = 0.9 * loss + float(rankup.all_reduce(float(step * (world.rank + 1)), "sum"))
    if world.is_root:
        with (run / "steps").open("a") as file:
            print(step, repr(loss), file=file)
    time.sleep(0.1 if slow else 0)
    if deadline.reached():
        with deadline.saving():
            if world.is_root:
                place.write_text(json.dumps([life + 1, step + 1, loss]))
        deadline.leave()
"""


def _check_counts(run: Path, steps: int, ranks: int) -> None:
    """All steps of all ranks, each once, with the numbers of a run that was never interrupted."""
    loss, expected = 1.0, []
    for step in range(steps):
        loss = 0.9 * loss + step * sum(range(1, ranks + 1))
        expected.append(loss)
    lines = [line.split() for line in (run / "steps").read_text().splitlines()]
    assert [int(step) for step, _ in lines] == list(range(steps))
    assert [float(loss) for _, loss in lines] == pytest.approx(expected, rel=1e-5)


def test_a_script_goes_on_over_three_lives_and_loses_nothing(site: Site) -> None:
    """The first ends by a signal, the second by the deadline. Two ranks of a script do so below."""
    path = script(site.folder, COUNTS)
    job, run = site.submit(*ONE, "--deadline", "40s", path, "500", "1", "28", "1")
    until(lambda: (run / "steps").exists(), run)
    site.cluster.command("scancel", "--signal=USR1", str(job))
    site.ended(job, "COMPLETED", run)
    _check_counts(run, 500, 1)
    assert starts(run) >= 3
    assert [record.get("stopped") for record in lives(run) if "end" in record] == [
        *[True] * (starts(run) - 1),
        None,
    ]
    assert {record["job"] for record in lives(run)} == {str(job)}
    assert "stopped with a checkpoint before the time limit" in log(run)


def _language_model(text: TextFiles, trace: Path, steps: int) -> list[str | Path]:
    files: list[str | Path] = ["--train", text.train, "--valid", text.valid, "--test", text.test]
    batch = ["--global-batch", "32", "--micro-batch", "1", "--steps", str(steps)]
    often: list[str | Path] = [
        "--valid-every",
        "1000",
        "--checkpoint-every",
        "1000",
        "--trace-samples",
        trace,
    ]
    return ["language-model", *files, *TINY, *batch, *often]


def _trace(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _same_as_local(site: Site, ranks: RankPool, text: TextFiles, run: Path, steps: int) -> None:
    """Losses and samples are those of two ranks of one machine that nothing interrupts."""
    words = _language_model(text, site.folder / "local.trace", steps)
    _same_run(site, run, train(ranks, 2, site.folder / "local", words), steps)


def _same_run(site: Site, run: Path, here: Path, steps: int) -> None:
    assert sorted(losses(run)) == list(range(1, steps + 1))
    assert losses(run) == pytest.approx(losses(here), rel=1e-5)
    assert records(run)[-1]["final"] is True
    assert records(run)[-1]["test_loss"] == pytest.approx(records(here)[-1]["test_loss"], rel=1e-5)
    assert _trace(site.folder / "slurm.trace") == _trace(site.folder / "local.trace")


def _beyond(run: Path, step: int) -> bool:
    return any(record.get("step", 0) > step for record in records(run))


@pytest.mark.slow
def test_a_recipe_on_two_nodes_over_three_lives_is_the_same_run(
    site: Site, ranks: RankPool, small_text: TextFiles
) -> None:
    words = _language_model(small_text, site.folder / "slurm.trace", 160)
    job, run = site.submit(*ONE_EACH, *words)
    for life, step in enumerate([10, 60], start=1):
        until(lambda: _beyond(run, step) and starts(run) == life, run)  # noqa: B023
        site.cluster.command("scancel", "--signal=USR1", str(job))
    site.ended(job, "COMPLETED", run)
    assert starts(run) == 3
    assert lives(run)[1]["stopped"] is True
    _same_as_local(site, ranks, small_text, run, 160)


# A step takes about a second.
LONG_STEPS = ("--global-batch", "1024")


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_recipe_stops_at_its_deadline(
    site: Site, run_rankup: RunRankup, small_text: TextFiles
) -> None:
    """A life has half the time that the whole run takes here, on this machine at this hour: enough
    for a start and an evaluation where the job is twice as slow, too little for all of it where it
    is nearly twice as fast."""
    before = time.monotonic()
    here = site.folder / "local"
    words = _language_model(small_text, site.folder / "local.trace", 24)
    local: list[str | Path] = ["run", "--local", "--nproc", "1", "--out", here]
    done = run_rankup([*local, *words, *LONG_STEPS], timeout=200, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    half = (time.monotonic() - before) / 2
    deadline = math.ceil((half + 5) / 0.9)  # of which five seconds and a tenth are kept
    words = _language_model(small_text, site.folder / "slurm.trace", 24)
    job, run = site.submit(*ONE, "--deadline", f"{deadline}s", *words, *LONG_STEPS)
    site.ended(job, "COMPLETED", run, timeout=400)
    assert starts(run) >= 2
    _same_run(site, run, here, 24)


# Without torch in the ranks; its life is over when the marker is there, as Deadline leaves it.
TWICE = """
import os, sys
from pathlib import Path
run = Path(os.environ["RANKUP_RUN_DIR"])
if os.environ["RANK"] == "0":
    first = not (run / "first").exists()
    (run / ("first" if first else "second")).write_text(os.environ["SLURM_JOB_ID"])
    if first and os.environ.get("SLURM_ARRAY_TASK_ID", "1") == "1":
        (run / "requeue").touch()
"""


@pytest.mark.slow
def test_where_requeue_is_off_a_second_job_follows(site: Site) -> None:
    path = script(site.folder, TWICE)
    job, run = site.submit("--sbatch=--no-requeue", path)
    site.ended(job, "COMPLETED", run)
    [follower] = [record for record in lives(run) if "follows" in record]
    assert follower["follows"] == str(job)
    site.ended(int(follower["job"]), "COMPLETED", run)
    assert (run / "first").read_text() == str(job)
    assert (run / "second").read_text() == follower["job"]
    assert not (run / "requeue").exists()
    assert f"job {follower['job']} follows" in log(run)
    status = site.rankup("status", run).stdout
    assert str(job) in status
    assert follower["job"] in status


@pytest.mark.slow
def test_a_task_that_goes_on_leaves_the_other_tasks_alone(site: Site) -> None:
    _, run = site.submit("--array", "0-1", script(site.folder, TWICE))
    until(lambda: not site.queue(), run)
    seen = [len(list((run / "array" / task).glob("log/lives.jsonl"))) for task in "01"]
    assert seen == [1, 1]
    assert [starts(run / "array" / task) for task in "01"] == [1, 2]
    assert not (run / "array" / "0" / "second").exists()
    assert (run / "array" / "1" / "second").exists()


@pytest.mark.slow
def test_slurms_own_time_limit_is_kept(site: Site) -> None:
    path = script(site.folder, COUNTS)
    job, run = site.submit("--time", "1m", path, "800", "25", "5")
    site.ended(job, "COMPLETED", run, timeout=240)
    _check_counts(run, 800, 2)
    assert starts(run) >= 2
    begun, stopped = lives(run)[:2]
    assert stopped["stopped"] is True
    assert 30 < stopped["end"] - begun["start"] < 60
    assert "DUE TO TIME LIMIT" not in log(run)


@pytest.mark.slow
def test_a_node_fails_under_a_recipe_and_nothing_comes_twice(
    site: Site, ranks: RankPool, small_text: TextFiles
) -> None:
    words = _language_model(small_text, site.folder / "slurm.trace", 150)
    job, run = site.submit(*ONE_EACH, "--retries", "1", *words, "--checkpoint-every", "20")
    until(lambda: _beyond(run, 50), run)
    site.cluster.set_down("n2")
    site.ended(job, "COMPLETED", run)
    assert starts(run) == 2
    _same_as_local(site, ranks, small_text, run, 150)
