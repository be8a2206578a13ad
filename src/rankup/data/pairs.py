"""Articles and summaries as batches of similar lengths, of which little is filled up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from .articles import Split
from .padding import Pad

IGNORED = -100  # a target that is not there: cross_entropy's own default


class Pairs:
    """The articles of a part as samples: (sources, targets) of a batch, each of its own length.

    Args:
        pad: what sources are filled up with; targets are with `IGNORED`.
        by_length: sample i is the i-th shortest article, so that an evaluation, which takes them
            in turn, fills up little.

    Attributes:
        rows: of each sample, the number of its article.
        keys: of each article, what sorts it: its length, among equals that of its summary.
    """

    def __init__(self, split: Split, pad: int, by_length: bool = False) -> None:
        self.split, self.pad = split, pad
        sources, targets = split.lengths.T
        self.keys = sources * (targets.max() + 1) + targets
        self.rows = np.argsort(self.keys, kind="stable") if by_length else np.arange(len(sources))

    def __len__(self) -> int:
        return len(self.rows)

    def count(self, samples: torch.Tensor) -> int:
        """Tokens of the summaries."""
        return int(self.split.lengths[self.rows[samples.numpy()], 1].sum())

    def batch(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 (n, longest article) and (n, longest summary)."""
        rows = self.rows[samples.numpy()].tolist()
        sources = [self.split.source(row).astype(np.int64) for row in rows]
        targets = [self.split.target(row).astype(np.int64) for row in rows]
        return Pad(self.pad)(sources).values, Pad(IGNORED)(targets).values

    def padding(self, batches: Iterable[torch.Tensor]) -> float:
        """The share of the tokens of these batches, in articles and summaries, that fill up."""
        real = places = 0
        for samples in batches:
            lengths = self.split.lengths[self.rows[samples.numpy()]]
            real += int(lengths.sum())
            places += len(lengths) * int(lengths.max(axis=0).sum())
        return 1 - real / places
