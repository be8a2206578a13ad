"""Recipe `language-model`: a causal transformer predicts each token of a text from those before."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from ..base.errors import UserError
from ..base.text import say
from ..runtime.world import setup
from ..train.gossip.loop import train as train_by_gossip
from ..train.loop import train
from ..train.optimizer import build_optimizer
from ..train.task import Batch
from .asked import Asked
from .draw import Draw, restored
from .models.transformer import Shape, Transformer
from .options import TOKENS, LanguageModelOptions
from .text import TokenFile, open_tokens
from .vocabulary import UNKNOWN, Tokens, opened

_COUNTED = 1 << 24  # tokens at a time
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


def shape_of(options: LanguageModelOptions, vocabulary: int) -> Shape:
    """The model's, for so many different tokens."""
    return Shape(
        vocabulary,
        options.seq_len,
        options.layers,
        options.dim,
        options.heads,
        options.dropout,
        prior=options.prior,
    )


def log_frequencies(file: TokenFile) -> npt.NDArray[np.float32]:
    """Of each token in the training text, in nats.

    Tokens that it does not have, as the unknown word often is, share what Good and Turing expect of
    all that is new: the part of the text that tokens make up which stand there once (Good 1953).
    """
    counts = np.zeros(file.vocab_size, np.float64)
    text = file.splits["train"]
    for start in range(0, len(text), _COUNTED):
        counts += np.bincount(text[start : start + _COUNTED], minlength=file.vocab_size)
    unseen = counts == 0
    if unseen.any():
        counts[unseen] = max(1.0, (counts == 1).sum()) / unseen.sum()
    found: npt.NDArray[np.float32] = np.log(counts / counts.sum()).astype(np.float32)
    return found


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    flat = logits.float().flatten(0, 1)
    return F.cross_entropy(flat, targets.flatten(), ignore_index=_IGNORED, reduction="sum")


class LanguageModel:
    """The task: three texts, the transformer, cross-entropy per token."""

    unit = "tokens"

    def __init__(self, options: LanguageModelOptions, directory: Path) -> None:
        file = open_tokens(directory)
        options.check(file)
        self.options = options
        self.shape = shape_of(options, file.vocab_size)
        self._logits = log_frequencies(file) if options.prior else None
        # In one kernel, which never has all logits in float32.
        self._compiled = torch.compile(_cross_entropy) if options.compile else None
        self.train, self.valid, self.test = (
            Windows(file.splits[name], options.seq_len) for name in ("train", "valid", "test")
        )

    def build_model(self) -> nn.Module:
        return Transformer(self.shape, self._logits)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, targets = batch
        if self._compiled is None:
            return _cross_entropy(model(tokens), targets)
        if missing := self.options.micro_batch - len(tokens):  # one shape, one graph
            tokens = F.pad(tokens, (0, 0, 0, missing))
            targets = F.pad(targets, (0, 0, 0, missing), value=_IGNORED)
        logits = model(tokens)
        whole = not isinstance(logits, DTensor)
        return (self._compiled if whole else _cross_entropy)(logits, targets)

    def flops_per_unit(self, model: nn.Module) -> float:
        """6 per weight that multiplies, plus attention (Kaplan et al., 2020; PaLM, appendix B)."""
        weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
        return 6.0 * weights + 12.0 * self.shape.layers * self.shape.dim * self.shape.seq_len


def generate(
    options: LanguageModelOptions, directory: Path, tensors: Mapping[str, Any], asked: Asked
) -> Iterator[str]:
    """The prompt, gone on from: at most `max_tokens` tokens, each drawn from the model's logits.

    Raises:
        UserError: no prompt, or weights of another model.
    """
    asked.only("language-model", *("prompt", "file", "max_tokens", "temperature", "top_k", "seed"))
    words = opened(directory / TOKENS)
    text = asked.text()
    if unknown := dict.fromkeys(words.unknown(text)):
        say(f"not in the vocabulary, and read as {UNKNOWN}: {', '.join([*unknown][:10])}")
    told = words.encode(text)
    if not told:
        raise UserError("the prompt is empty; give some words to go on from")
    task = LanguageModel(options, directory / TOKENS)
    model = restored(task.build_model, tensors)
    device = next(model.parameters()).device
    draw = Draw(asked, forbidden=(0,) if words.unit == "words" else ())
    for _ in range(100 if asked.max_tokens is None else asked.max_tokens):
        window = torch.tensor([told[-options.seq_len :]], device=device)
        with torch.inference_mode():
            told.append(draw(model(window)[0, -1]))
    yield words.decode(told)


def run(options: LanguageModelOptions, directory: Path, resume: bool) -> None:
    """Train on every rank; the text has been tokenised into `directory` before."""
    world = setup()
    task = LanguageModel(options, directory / TOKENS)
    loop = train_by_gossip if options.strategy == "gossip" else train
    outcome = loop(task, options, world, directory, resume=resume)
    if world.is_root and outcome.finished:
        for name, loss in (("valid", outcome.valid_loss), ("test", outcome.test_loss)):
            if loss is not None:
                with contextlib.suppress(OSError):  # a reader that is gone does not fail the run
                    print(f"{name} loss {loss:.4f} (perplexity {math.exp(min(loss, 700)):.1f})")
