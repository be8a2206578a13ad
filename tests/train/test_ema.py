"""The moving average of the weights: exact, the same in every layout, and evaluated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankup.base.errors import UserError
from rankup.launch.weights import checkpoint, export, read
from rankup.parallel.initial import initialize
from rankup.runtime.world import World
from rankup.site import rundir
from rankup.site.rundir import Job
from rankup.train.options import TrainOptions
from tests.parallel.tasks import SmallLM
from tests.parallel.test_same_run import SGD
from tests.pool import RankPool

from .runs import Report, losses, records, train_task

DECAY = 0.8
OPTIONS = replace(
    SGD, clip=0.0, ema=DECAY, valid_every=3, checkpoint_every=1, keep=9, async_checkpoints=False
)


def _train(world: World, directory: Path, options: TrainOptions, resume: bool) -> Report:
    return train_task(world, SmallLM(options, tied=True), options, directory, resume)


def _run(ranks: RankPool, run: Path, count: int, resume: bool = False, **asked: Any) -> Report:
    options = replace(OPTIONS, **asked)
    report: Report = ranks.run(count, _train, run, options, resume)[0]
    assert not report.error
    return report


def _weights(run: Path, step: int, ema: bool = False) -> dict[str, torch.Tensor]:
    return read(checkpoint(run / "checkpoints", step, best=False), ema)


@pytest.fixture(scope="module")
def one(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    _run(ranks, run, 1)
    return run


def test_it_is_the_average_of_each_step_s_weights_and_is_evaluated(one: Path) -> None:
    model = SmallLM(OPTIONS, tied=True).build_model()
    initialize(model, OPTIONS.seed)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(1, 7):
        for name, value in _weights(one, step).items():
            average[name] = DECAY * average[name] + (1 - DECAY) * value
    torch.testing.assert_close(_weights(one, 6, ema=True), average, rtol=0, atol=1e-6)
    assert (average["tokens.weight"] - _weights(one, 6)["tokens.weight"]).abs().max() > 0.01
    task = SmallLM(OPTIONS, tied=True)
    model.load_state_dict(average)
    every = torch.arange(len(task.valid))
    with torch.no_grad():
        expected = float(task.loss(model, task.valid.batch(every))) / task.valid.count(every)
    last = records(one)[-1]
    assert last["valid_loss_ema"] == pytest.approx(expected, rel=1e-5)
    assert last["valid_loss"] != pytest.approx(expected, rel=1e-3)
    assert [step for step in records(one)[:-1] if "valid_loss_ema" in step] == [
        step for step in records(one)[:-1] if "valid_loss" in step
    ]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"shard": 2}, {"strategy": "pp"}),
        pytest.param({"strategy": "tp"}, {"strategy": "ddp"}, marks=pytest.mark.slow),
        pytest.param({"shard": 2, "tp": 2}, {"strategy": "3d"}, marks=pytest.mark.slow),
        pytest.param({"shard": 2, "zero": "2"}, {"shard": 2}, marks=pytest.mark.slow),
    ],
)
def test_it_goes_on_in_any_layout(
    ranks: RankPool, one: Path, tmp_path: Path, first: dict[str, Any], then: dict[str, Any]
) -> None:
    count = 4 if "tp" in first else 2
    _run(ranks, tmp_path / "run", count, **first, steps=3)
    _run(ranks, tmp_path / "run", 4 if "3d" in then.values() else 2, resume=True, **then)
    assert losses(tmp_path / "run") == pytest.approx(losses(one), rel=1e-5)
    torch.testing.assert_close(
        _weights(tmp_path / "run", 6, ema=True), _weights(one, 6, ema=True), rtol=0, atol=1e-5
    )
    for ours, theirs in zip(records(tmp_path / "run"), records(one), strict=True):
        for name in ("valid_loss", "valid_loss_ema", "test_loss_ema"):
            assert ours.get(name) == pytest.approx(theirs.get(name), rel=1e-5)


def test_it_can_begin_at_a_resume_and_changes_no_step(
    ranks: RankPool, one: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _run(ranks, run, 1, steps=3, ema=None)
    with pytest.raises(UserError, match="has no moving average"):
        _weights(run, 3, ema=True)
    report = _run(ranks, run, 1, resume=True)
    assert "begins here" in report.output
    assert losses(run) == losses(one)
    start, end = _weights(run, 3), _weights(run, 4)
    expected = {name: DECAY * start[name] + (1 - DECAY) * end[name] for name in start}
    torch.testing.assert_close(_weights(run, 4, ema=True), expected, rtol=0, atol=1e-6)
    _run(ranks, run, 1, resume=True, ema=None, steps=7)  # nor is it in the way of a run without
    job = Job("20261126-200000-abcd", "script", "train.py", [], str(tmp_path), {}, {}, [])
    rundir.write(one, job)
    assert export(str(one), "torch", str(tmp_path / "ema.pt"), ema=True) == 0
    exported = torch.load(tmp_path / "ema.pt", weights_only=True)
    torch.testing.assert_close(exported, _weights(one, 6, ema=True))
