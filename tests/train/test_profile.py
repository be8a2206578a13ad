"""`--profile`: a trace of chosen steps, its numbers, and where the report shows them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch.request import resumed
from rankup.monitor.load import load
from rankup.monitor.recording import Facts
from rankup.recipes import find
from rankup.runtime.world import World
from rankup.site import rundir
from rankup.site.jobspec import JobSpec
from rankup.site.rundir import Job
from rankup.train.options import TrainOptions
from tests.monitor.report.pages import text as page_of
from tests.parallel.tasks import SmallLM
from tests.pool import RankPool

from .runs import Report, losses, train_task

OPTIONS = TrainOptions(12, 3, 4, optimizer="sgd", lr=0.1, seed=7, strategy="fsdp", profile="2:3")


def _train(world: World, directory: Path) -> tuple[Report, Report]:
    """A run with a profile of steps 2 and 3, and its resume with one of a step before."""
    longer = replace(OPTIONS, steps=6, profile="1:1")
    first = train_task(world, SmallLM(OPTIONS), OPTIONS, directory, False)
    return first, train_task(world, SmallLM(longer), longer, directory, True)


def test_chosen_steps_are_profiled_and_shown(ranks: RankPool, tmp_path: Path) -> None:
    (first, second), others = ranks.run(2, _train, tmp_path, timeout=200)
    assert not first.error + second.error + others[0].error
    assert "steps 2 to 3 were profiled" in first.output
    assert "--profile 1:1 lies behind step 4, where the run goes on" in second.output
    assert "profile" not in others[1].output
    assert len(losses(tmp_path)) == 6
    names = sorted(path.name for path in (tmp_path / "profile").iterdir())
    assert names == ["steps-2-3-rank0.json", "steps-2-3-rank0.json.gz"], "one rank of a node"
    with gzip.open(tmp_path / "profile" / names[1]) as file:
        traced = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"step 2", "step 3", "aten::mm"} <= traced
    assert not {"step 1", "step 4"} & traced
    recording = load(tmp_path, Facts("1", "lm", "", str(tmp_path)))
    [profile] = recording.profiles
    assert 0 < profile.waiting <= profile.collectives < profile.seconds
    assert 0 < profile.computing < profile.seconds
    assert {"FSDP::all_gather"} < {one.name for one in profile.operators}
    (tmp_path / "profile" / "steps-4-5-rank0.json").write_text("{")
    recording = load(tmp_path, Facts("1", "lm", "", str(tmp_path)))
    assert recording.profiles == (profile,)
    [(name, why)] = recording.unread
    assert name == "profile/steps-4-5-rank0.json"
    assert why.startswith("JSONDecodeError")
    page = page_of(recording)
    assert 'id="profile"' in page
    assert "profile/steps-2-3-rank0.json.gz" in page


def test_steps_beyond_the_epochs_are_refused_before_a_rank_starts(
    tmp_path: Path,
) -> None:
    recipe = "language-model"
    args, beyond = ["--tiny", "--epochs", "2"], ["--profile", "99999:99999"]
    with pytest.raises(UserError, match=r"lies beyond the run, which has \d+ steps"):
        find(recipe).prepare([*args, *beyond], {}, tmp_path)
    rundir.write(tmp_path, Job("1", "recipe", recipe, args, str(tmp_path), {}, {}))
    again = JobSpec(resume=str(tmp_path), target=recipe, args=tuple(beyond))
    with pytest.raises(UserError, match=r"lies beyond the run, which has \d+ steps"):
        resumed(again, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"profile": "five"}, "names no steps"),
        ({"profile": "5"}, "names no steps"),
        ({"profile": "0:3"}, "names no steps"),
        ({"profile": "7:5"}, "names no steps"),
        ({"profile": "1:51", "steps": 90}, "is of 51 steps"),
        ({"profile": "5:11", "steps": 10}, "lies beyond the run, which has 10 steps"),
    ],
)
def test_other_steps_than_the_run_has_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TrainOptions(**options)  # type: ignore[arg-type]
