"""Texts as samples: windows side by side, of one text or several, and several mixed by weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..data.index import Int64s
from ..data.orders.plain import Computed, identity
from ..runtime.keys import derive
from ..runtime.order import Order
from ..train.task import Batch
from .running import IGNORED
from .text import Text
from .tokenized import BLOCK, Joined, counts, parse


class Windows:
    """A text cut into windows of `seq_len` tokens, side by side: an epoch covers each token once.

    Sample i predicts tokens i * seq_len + 1 … (i + 1) * seq_len, each from those before it in the
    window. The last window may be short; its missing targets are ignored.
    """

    def __init__(self, tokens: Text, seq_len: int) -> None:
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
            targets = targets.masked_fill(torch.from_numpy(beyond[:, 1:]), IGNORED)
        return window[:, :-1].contiguous(), targets.contiguous()


class Several:
    """The windows of several texts, those of the first one in front.

    Attributes:
        firsts: the number of the first window of each.
    """

    def __init__(self, texts: Sequence[Windows]) -> None:
        self.texts = texts
        sizes = np.cumsum([0, *map(len, texts)])
        self.firsts, self._count = sizes[:-1], int(sizes[-1])

    def __len__(self) -> int:
        return self._count

    def _each(self, samples: torch.Tensor) -> list[tuple[torch.Tensor, Windows, torch.Tensor]]:
        """Return for each text which of the samples are its own, and their numbers there."""
        text = np.searchsorted(self.firsts, samples.numpy(), side="right") - 1
        found = []
        for number in np.unique(text).tolist():
            here = torch.from_numpy(np.flatnonzero(text == number))
            found.append((here, self.texts[number], samples[here] - int(self.firsts[number])))
        return found

    def count(self, samples: torch.Tensor) -> int:
        return sum(text.count(own) for _, text, own in self._each(samples))

    def batch(self, samples: torch.Tensor) -> Batch:
        seq_len = self.texts[0].seq_len
        tokens = torch.empty(len(samples), seq_len, dtype=torch.int64)
        targets = torch.empty_like(tokens)
        for here, text, own in self._each(samples):
            tokens[here], targets[here] = text.batch(own)
        return tokens, targets


def windows(text: Text | Joined, seq_len: int) -> Windows | Several:
    """Return the samples of a split."""
    if isinstance(text, Joined):
        return Several([Windows(part, seq_len) for part in text.parts])
    return Windows(text, seq_len)


class Mix(Computed):
    """Several texts by their weights: a function of the position in the run.

    Each `BLOCK` positions have a fixed number of samples of each text, in an order of their own.
    The n-th sample of a text is the n-th of its own epochs one after another, of which each has
    every window once. All of the run is one epoch.

    Args:
        positions: samples that the run takes.
        text: that it mixes.
        mix: the weights, as of the option.
    """

    def __init__(self, positions: int, text: Several | Windows, mix: str, seed: int) -> None:
        texts = text.texts if isinstance(text, Several) else [text]
        self.n, self.seed, self.global_batch = positions, seed, None
        self._sizes, self._names, self._counts = [*map(len, texts)], [*parse(mix)], counts(mix)
        self._firsts = text.firsts if isinstance(text, Several) else np.zeros(1, np.int64)
        self.identity = identity("mix", of=mix, sizes=self._sizes)

    @property
    def samples(self) -> int:
        return sum(self._sizes)

    def piece(self, epoch: int, start: int) -> tuple[int, Int64s]:
        """Return the samples of the block of a position, and the position of its first."""
        block = start // BLOCK
        drawn = Order(BLOCK, derive(self.seed, "mix"), block)(torch.arange(BLOCK)).numpy()
        found = np.empty(BLOCK, np.int64)
        before = 0
        for text, count in enumerate(self._counts):
            own = (before <= drawn) & (drawn < before + count)
            passes, places = np.divmod(block * count + drawn[own] - before, self._sizes[text])
            found[own] = self._firsts[text] + self._in_order(text, passes, places)
            before += count
        first = block * BLOCK
        return first, found[: self.n - first]

    def _in_order(self, text: int, passes: Int64s, places: Int64s) -> Int64s:
        """Return the windows at places of the epochs of a text."""
        seed = derive(self.seed, "mix", self._names[text])
        found = np.empty_like(places)
        for epoch in np.unique(passes).tolist():
            here = passes == epoch
            order = Order(self._sizes[text], seed, epoch)
            found[here] = order(torch.from_numpy(places[here])).numpy()
        return found
