"""How many of rankup's own files a step and a checkpoint enter: the way is to be short."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import rankup
from rankup import recipes
from rankup.recipes.options import TOKENS
from rankup.runtime.collectives import barrier
from rankup.runtime.deadline import Deadline
from rankup.runtime.world import World
from rankup.train.loop import Attempt
from rankup.train.plan import Step
from rankup.train.step import StepResult, Trainer
from tests.pool import RankPool

from .runs import train_text

SOURCE = Path(rankup.__file__).parent
CHECKPOINT = 5


class Profiled:
    """Notes the files of rankup that this process enters from `start` to `stop`."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def start(self) -> None:
        threading.setprofile(self._note)  # what a thread writes belongs to a checkpoint
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: Any, event: str, arg: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            self.files.add(str(path.relative_to(SOURCE)))


def _train(world: World, directory: Path, words: list[str]) -> tuple[list[str], list[str]]:
    """Train a language model; the files of its fourth step, and of the checkpoint behind the sixth.

    The step is the whole way round the loop: the numbers of the step before are written in it.
    """
    options = recipes.find("language-model").parse(words)
    if world.is_root:
        options.prepare(directory)
    barrier()
    step, save = Profiled(), Profiled()
    take, checkpoint = Trainer.take, Attempt._checkpoint

    def taken(self: Trainer, step_of_run: Step, stop: Deadline) -> StepResult:
        if step_of_run.number == 4:
            step.start()
        if step_of_run.number == 5:
            step.stop()
        return take(self, step_of_run, stop)

    def saved(self: Attempt) -> None:
        save.start()
        try:
            checkpoint(self)
        finally:
            save.stop()

    with (
        mock.patch.object(Trainer, "take", taken),
        mock.patch.object(Attempt, "_checkpoint", saved),
    ):
        report = train_text(world, directory, options, directory / TOKENS)
    assert report.error == ""
    # A step has no `rankup.backward`, whose watch of optimizers another test may have left.
    return sorted(step.files - {"runtime/agreement.py"}), sorted(save.files)


@pytest.mark.parametrize(
    ("ranks_of_run", "words", "most"),
    [(1, [], 11), (2, ["--strategy", "fsdp"], 12), (2, ["--model", "llama-160m"], 12)],
    ids=["1", "fsdp", "llama"],
)
def test_a_step_and_a_checkpoint_enter_few_files(
    ranks: RankPool, tmp_path: Path, ranks_of_run: int, words: list[str], most: int
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the way through the house is short " * 4000)
    given = ["--tiny", "--train", str(text), "--steps", "6", "--valid-every", "6", *words]
    for step, save in ranks.run(ranks_of_run, _train, tmp_path / "run", given):
        assert len(step) <= most, " ".join(step)
        assert len(save) <= CHECKPOINT, " ".join(save)
