"""Stands in for torchmetrics: see tools/stand_ins/README.md."""

from __future__ import annotations

from collections.abc import Sequence


class _Share:
    """The share of places that differ, of what a text is split into."""

    letters = False

    def __call__(self, predicted: Sequence[str], expected: Sequence[str]) -> float:
        wrong = of = 0
        for one, other in zip(predicted, expected, strict=True):
            first, second = (list(text) if self.letters else text.split() for text in (one, other))
            length = max(len(first), len(second))
            of += length
            wrong += length - sum(a == b for a, b in zip(first, second, strict=False))
        return wrong / max(1, of)


class CharErrorRate(_Share):
    """Of letters."""

    letters = True


class WordErrorRate(_Share):
    """Of words."""


class BLEUScore(_Share):
    """The share of words that are right: a stand-in for n-grams."""

    def __call__(self, predicted: Sequence[str], expected: Sequence[str]) -> float:
        return 1 - super().__call__(predicted, expected)
