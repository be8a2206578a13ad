"""Runs that the tests start on ranks, and what they read of a run directory."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rankup.base.errors import RunFailed, UserError
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import LanguageModelOptions
from rankup.runtime.world import World
from rankup.train.loop import Outcome, train
from rankup.train.options import TrainOptions
from rankup.train.plan import Place, Plan
from rankup.train.task import Task

from .tasks import ConvNetTask


@dataclass(frozen=True)
class Report:
    """What became of a run on one rank: its outcome or its error, and what was printed."""

    outcome: Outcome | None
    error: str
    output: str


def train_images(
    world: World,
    directory: Path,
    options: TrainOptions,
    shape: dict[str, Any] | None = None,
    resume: bool = False,
) -> Report:
    """Train the convolutional net; `shape` are further arguments of `ConvNetTask`."""
    return train_task(world, ConvNetTask(options, **(shape or {})), options, directory, resume)


def train_text(
    world: World, directory: Path, options: LanguageModelOptions, tokens: Path, resume: bool = False
) -> Report:
    """Train the language model on what `options.prepare(tokens.parent)` has made."""
    return train_task(world, LanguageModel(options, tokens), options, directory, resume)


def train_task(
    world: World, task: Task, options: TrainOptions, directory: Path, resume: bool
) -> Report:
    """`train` with its errors for the user as text, so that the rank pool goes on living."""
    directory.mkdir(parents=True, exist_ok=True)
    output = io.StringIO()
    outcome, error = None, ""
    with redirect_stdout(output), redirect_stderr(output):
        try:
            outcome = train(task, options, world, directory, resume=resume)
        except (UserError, RunFailed) as failure:
            error = f"{type(failure).__name__}: {failure}"
    return Report(outcome, error, output.getvalue())


def records(directory: Path) -> list[dict[str, Any]]:
    """All lines of `metrics.jsonl` but those about checkpoints."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if "checkpoint" not in (record := json.loads(line))]


def losses(directory: Path) -> list[float]:
    """The loss of each step, which must be numbered 1, 2, 3, …"""
    steps = [record for record in records(directory) if not record.get("final")]
    assert [record["step"] for record in steps] == list(range(1, len(steps) + 1))
    return [record["loss"] for record in steps]


def final_model(directory: Path) -> dict[str, torch.Tensor]:
    """The weights and running statistics that the run ended with."""
    folder = directory / "model-final"
    if not folder.exists():
        state: dict[str, torch.Tensor] = torch.load(directory / "model-final.pt", weights_only=True)
        return state
    assert not (directory / "model-final.pt").exists()
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    shards = {name: load_file(folder / name) for name in {*index.values()}}
    assert {path.name for path in folder.glob("*.safetensors")} == {*shards}
    return {name: shards[file][name] for name, file in index.items()}


def assert_bit_for_bit(directory: Path, other: Path) -> None:
    """Two runs are the same in every loss, weight and running statistic."""
    assert losses(directory) == losses(other)
    ours, theirs = final_model(directory), final_model(other)
    assert list(ours) == list(theirs)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert _without_clock(records(directory)[-1]) == _without_clock(records(other)[-1])


def assert_same_run(directory: Path, other: Path, rtol: float = 1e-5) -> None:
    """Two runs agree up to the order in which floating-point numbers were added up."""
    ours, theirs = torch.tensor(losses(directory)), torch.tensor(losses(other))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=0)
    torch.testing.assert_close(final_model(directory), final_model(other), rtol=1e-4, atol=1e-5)
    last, there = records(directory)[-1], records(other)[-1]
    for name in ("valid_loss", "test_loss", "best_valid_loss"):
        assert abs(last[name] - there[name]) <= rtol * abs(there[name])
    assert last.get("best_step") == there.get("best_step")


def _without_clock(record: dict[str, Any]) -> dict[str, Any]:
    timed = ("time", "waited", "extra_compute")
    found = {name: value for name, value in record.items() if name not in timed}
    if "exchange" in found:
        found["exchange"] = _without_clock(found["exchange"])
    return found


def checkpoints(directory: Path) -> list[str]:
    """Names of the checkpoint directories, oldest first."""
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


def sample_at(options: TrainOptions, n: int, step: int, position: int = 0) -> int:
    """The sample at a position of the global batch of `step`, which is in the first epoch."""
    plan = Plan(n, options.global_batch, options.micro_batch, options.seed)
    assert step <= plan.steps_per_epoch
    steps = {found.number: found for found in plan.steps(Place(), step)}
    return int(steps[step].samples[position])
