"""Our recipe `language-model` as `rankup run` trains it, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from _time_to_loss_clock import Clock, Point
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import setup
from rankup.train import loop

# Windows of 32 as the peer's, and no more parameters than it has.
OPTIONS: dict[str, Any] = {
    **{"seq_len": 32, "layers": 2, "dim": 128, "heads": 4, "dropout": 0.1, "prior": True},
    **{"global_batch": 16, "micro_batch": 16, "warmup": 20},
}


def train(
    text: Path,
    place: Path,
    more: dict[str, Any],
    lr: float,
    seed: int,
    steps: int,
    every: int,
    tell: Callable[[Point], None],
) -> None:
    """Tell of a point each `every` steps.

    Args:
        text: where it lies as tokens.
        place: the run directory, with metrics and checkpoints as in any run.
        more: options of the recipe besides.
    """
    options = LanguageModelOptions(
        **{**OPTIONS, **more}, lr=lr, seed=seed, steps=steps, valid_every=every
    )
    task = LanguageModel(options, text / TOKENS)
    world = setup()
    clock = Clock()
    means, step = loop.means, 0

    def watched(*args: Any) -> dict[str, float]:
        nonlocal step
        with clock.standing():
            found = means(*args)
        if not clock.parameters:
            clock.parameters = sum(p.numel() for p in args[3].model.parameters())
        step += every
        if step <= steps:  # behind the last step come the final evaluations
            tell(clock.point(step, found["loss"]))
        return found

    place.mkdir(parents=True, exist_ok=True)
    with mock.patch.object(loop, "means", watched):
        loop.train(task, options, world, place)
