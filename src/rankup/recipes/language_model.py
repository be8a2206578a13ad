"""Recipe `language-model`: a causal transformer predicts each token of a text from those before."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..data.text import Tokens, open_tokens
from ..runtime.world import setup
from ..train.loop import train
from ..train.optimizer import build_optimizer
from ..train.task import Batch
from .models.transformer import Shape, Transformer
from .options import TOKENS, LanguageModelOptions

_IGNORED = -100  # a target that is not there: cross_entropy's own default


class Windows:
    """A text cut into windows of `seq_len` tokens, side by side: an epoch covers each token once.

    Sample i predicts tokens i * seq_len + 1 … (i + 1) * seq_len, each from those before it in the
    window. The last window may be short; its missing targets are ignored.
    """

    def __init__(self, tokens: Tokens, seq_len: int) -> None:
        self.tokens = tokens
        self.seq_len = seq_len
        self.targets = len(tokens) - 1

    def __len__(self) -> int:
        return -(-self.targets // self.seq_len)

    def count(self, samples: torch.Tensor) -> int:
        missing = len(self) * self.seq_len - self.targets
        return len(samples) * self.seq_len - missing * samples.tolist().count(len(self) - 1)

    def batch(self, samples: torch.Tensor) -> Batch:
        starts = samples.numpy() * self.seq_len
        places = starts[:, None] + np.arange(self.seq_len + 1)
        beyond = places > self.targets
        window = torch.from_numpy(self.tokens[np.minimum(places, self.targets)].astype(np.int64))
        targets = window[:, 1:]
        if beyond.any():
            targets = targets.masked_fill(torch.from_numpy(beyond[:, 1:]), _IGNORED)
        return window[:, :-1].contiguous(), targets.contiguous()


class LanguageModel:
    """The task: three texts, the transformer, cross-entropy per token."""

    unit = "tokens"

    def __init__(self, options: LanguageModelOptions, directory: Path) -> None:
        file = open_tokens(directory)
        options.check(file)
        self.options = options
        self.shape = Shape(
            file.vocab_size,
            options.seq_len,
            options.layers,
            options.dim,
            options.heads,
            options.dropout,
        )
        self.train, self.valid, self.test = (
            Windows(file.splits[name], options.seq_len) for name in ("train", "valid", "test")
        )

    def build_model(self) -> nn.Module:
        return Transformer(self.shape)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, targets = batch
        logits = model(tokens).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def flops_per_unit(self, model: nn.Module) -> float:
        """6 per weight that multiplies, plus attention (Kaplan et al., 2020; PaLM, appendix B)."""
        weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
        return 6.0 * weights + 12.0 * self.shape.layers * self.shape.dim * self.shape.seq_len


def run(options: LanguageModelOptions, directory: Path, resume: bool) -> None:
    """Train on every rank; the text has been tokenised into `directory` before."""
    world = setup()
    task = LanguageModel(options, directory / TOKENS)
    outcome = train(task, options, world, directory, resume=resume)
    if world.is_root and outcome.finished:
        for name, loss in (("valid", outcome.valid_loss), ("test", outcome.test_loss)):
            if loss is not None:
                with contextlib.suppress(OSError):  # a reader that is gone does not fail the run
                    print(f"{name} loss {loss:.4f} (perplexity {math.exp(min(loss, 700)):.1f})")
