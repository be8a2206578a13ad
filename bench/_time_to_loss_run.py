"""One run of `time_to_loss.py` in a process of one thread: a line of JSON for each point.

The peer is the course's next-word prediction, written anew in plain PyTorch, with the causal mask
that it lacks: two post-norm encoder layers of width 128 with 4 heads and feed-forwards of 2048,
sinusoids for the positions, an output of its own, AdamW as it comes, and 128 windows of 32 words
from random places a step. All else is torch's default: dropout 0.1, ReLU, initial values.

Ours is the recipe `language-model` as `rankup run` trains it, on one rank.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.recipes.text import TokenFile, open_tokens
from rankup.runtime.world import setup
from rankup.train import loop

WIDTH, HEADS, LAYERS, INNER = 128, 4, 2, 2048
WINDOW, BATCH = 32, 128
_AT_ONCE = 64  # windows of a validation
# Windows of 32 as the peer's, and no more parameters than it has.
OPTIONS: dict[str, Any] = {
    **{"seq_len": WINDOW, "layers": 2, "dim": 128, "heads": 4, "dropout": 0.1, "prior": True},
    **{"global_batch": 16, "micro_batch": 16, "warmup": 20},
}


@dataclass(frozen=True)
class Point:
    """State of a run after a validation.

    Attributes:
        step: steps taken.
        loss: per word of the validation text, in nats.
        cpu, wall: seconds of training so far.
        parameters: of the model.
    """

    step: int
    loss: float
    cpu: float
    wall: float
    parameters: int


class Clock:
    """Time since it was made, without what happens in `standing`."""

    def __init__(self) -> None:
        self.parameters = 0
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Leave this block out of the time."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self._cpu += time.process_time() - cpu
        self._wall += time.perf_counter() - wall

    def point(self, step: int, loss: float) -> Point:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return Point(step, loss, cpu, wall, self.parameters)


class Course(nn.Module):
    """Word numbers of shape (batch, WINDOW) → logits of shape (batch, WINDOW, words)."""

    positions: torch.Tensor
    mask: torch.Tensor

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.output = nn.Linear(WIDTH, words)
        self.register_buffer("positions", _sinusoids())
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words) * math.sqrt(WIDTH) + self.positions
        result: torch.Tensor = self.output(self.encoder(x, mask=self.mask, is_causal=True))
        return result


def _sinusoids() -> torch.Tensor:
    """Return positions of shape (WINDOW, WIDTH), as in Vaswani et al. (2017)."""
    place = torch.arange(WINDOW)[:, None]
    speed = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10_000.0) / WIDTH))
    return torch.stack([torch.sin(place * speed), torch.cos(place * speed)], -1).flatten(1)


def train_course(file: TokenFile, run: dict[str, Any], tell: Callable[[Point], None]) -> None:
    """Train the peer; tell of a point each `every` steps and at the end."""
    text, valid = (torch.from_numpy(file.splits[n].astype("int64")) for n in ("train", "valid"))
    torch.manual_seed(run["seed"])
    clock = Clock()
    model = Course(file.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run["lr"])
    clock.parameters = sum(p.numel() for p in model.parameters())
    for step in range(1, run["steps"] + 1):
        start = torch.randint(len(text) - WINDOW, (BATCH, 1))
        window = text[start + torch.arange(WINDOW + 1)]
        loss = _loss(model, window) / (BATCH * WINDOW)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % run["every"] == 0 or step == run["steps"]:
            with clock.standing():
                found = _validate(model, valid)
            tell(clock.point(step, found))


def _loss(model: nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Return the loss summed over the words of windows with one more word at their end."""
    logits = model(window[:, :-1]).flatten(0, 1)
    return F.cross_entropy(logits, window[:, 1:].flatten(), reduction="sum")


@torch.no_grad()
def _validate(model: nn.Module, text: torch.Tensor) -> float:
    """Return the mean loss per word over windows side by side, without a short last one."""
    model.eval()
    windows = text[: (len(text) - 1) // WINDOW * WINDOW + 1].unfold(0, WINDOW + 1, WINDOW)
    total = sum(_loss(model, part).item() for part in windows.split(_AT_ONCE))
    model.train()
    return total / (len(windows) * WINDOW)


def train_ours(text: Path, place: Path, run: dict[str, Any], tell: Callable[[Point], None]) -> None:
    """Train the recipe; tell of a point each `every` steps.

    Args:
        text: folder where it lies as tokens.
        place: the run directory, with metrics and checkpoints as in any run.
    """
    every, steps = run["every"], run["steps"]
    options = LanguageModelOptions(
        **OPTIONS, lr=run["lr"], seed=run["seed"], steps=steps, valid_every=every
    )
    task = LanguageModel(options, text / TOKENS)
    world = setup()
    clock = Clock()
    evaluate, step = loop.evaluate, 0

    def watched(*args: Any) -> float | None:
        nonlocal step
        with clock.standing():
            loss = evaluate(*args)
        if not clock.parameters:
            clock.parameters = sum(p.numel() for p in args[2].model.parameters())
        step += every
        if step <= steps:  # behind the last step come the final evaluations
            tell(clock.point(step, loss))
        return loss

    place.mkdir(parents=True, exist_ok=True)
    with mock.patch.object(loop, "evaluate", watched):
        loop.train(task, options, world, place)


def main() -> None:
    run: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    text = Path(run["text"])
    if run["who"] == "peer":
        train_course(open_tokens(text / TOKENS), run, _tell)
    else:
        train_ours(text, Path(run["place"]), run, _tell)


def _tell(point: Point) -> None:
    print(json.dumps(asdict(point)), flush=True)


if __name__ == "__main__":
    main()
