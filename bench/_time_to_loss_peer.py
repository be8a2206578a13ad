"""The course's next-word prediction, written anew in plain PyTorch, with the mask that it lacks.

Two post-norm encoder layers of width 128 with 4 heads and feed-forwards of 2048, sinusoids for the
positions, an output of its own, AdamW as it comes, and 128 windows of 32 words from random places a
step. Torch's own defaults for all that is not said: dropout 0.1, ReLU, its initial values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from _time_to_loss_clock import Clock, Point
from rankup.data.text import TokenFile

WIDTH, HEADS, LAYERS, INNER = 128, 4, 2, 2048
WINDOW, BATCH = 32, 128
_AT_ONCE = 64  # windows of a validation


class Course(nn.Module):
    """Word numbers of shape (batch, WINDOW) -> logits of shape (batch, WINDOW, words)."""

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
    """Of shape (WINDOW, WIDTH), as in Vaswani et al. (2017)."""
    place = torch.arange(WINDOW)[:, None]
    speed = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10_000.0) / WIDTH))
    return torch.stack([torch.sin(place * speed), torch.cos(place * speed)], -1).flatten(1)


def train(
    file: TokenFile, lr: float, seed: int, steps: int, every: int, tell: Callable[[Point], None]
) -> None:
    """Tell of a point each `every` steps and at the end."""
    text, valid = (torch.from_numpy(file.splits[n].astype("int64")) for n in ("train", "valid"))
    torch.manual_seed(seed)
    clock = Clock()
    model = Course(file.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    clock.parameters = sum(p.numel() for p in model.parameters())
    for step in range(1, steps + 1):
        start = torch.randint(len(text) - WINDOW, (BATCH, 1))
        window = text[start + torch.arange(WINDOW + 1)]
        loss = _loss(model, window) / (BATCH * WINDOW)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0 or step == steps:
            with clock.standing():
                found = _validate(model, valid)
            tell(clock.point(step, found))


def _loss(model: nn.Module, window: torch.Tensor) -> torch.Tensor:
    """Summed over the words of windows with one more word at their end."""
    logits = model(window[:, :-1]).flatten(0, 1)
    return F.cross_entropy(logits, window[:, 1:].flatten(), reduction="sum")


@torch.no_grad()
def _validate(model: nn.Module, text: torch.Tensor) -> float:
    """Mean loss per word over windows side by side; the last one would be short and is left out."""
    model.eval()
    windows = text[: (len(text) - 1) // WINDOW * WINDOW + 1].unfold(0, WINDOW + 1, WINDOW)
    total = sum(_loss(model, part).item() for part in windows.split(_AT_ONCE))
    model.train()
    return total / (len(windows) * WINDOW)
