"""A data set in parts, the same ones on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from ..base.errors import UserError
from ..runtime.keys import derive
from ..runtime.order import Order
from .index import Int64s


def random_split(
    dataset: Dataset[Any], parts: Sequence[float] | Sequence[int], seed: int = 0
) -> list[Dataset[Any]]:
    """Cut a data set into random parts without a common sample: a function of its size and `seed`.

        train, val = rankup.data.random_split(photos, [0.9, 0.1], seed=1)

    Args:
        dataset: map-style; its `subset` is taken where it has one, else torch's Subset.
        parts: counts (int) that sum to its size, or fractions (float) that sum to 1. Fractions are
            rounded so that each part is less than one sample off and their sum is exact.
        seed: that the parts are drawn from.

    Returns:
        A data set for each part; its samples are in the order in which they are stored.

    Raises:
        UserError: the parts are negative, of both kinds, or do not sum to what they should.
    """
    n = len(dataset)  # type: ignore[arg-type]
    bounds = np.cumsum([0, *_counts(n, parts)])
    order = Order(n, derive(seed, "split"))(torch.arange(n)).numpy()
    rows = [np.sort(order[a:b]) for a, b in pairwise(bounds)]
    return [_subset(dataset, one) for one in rows]


def unwrapped(dataset: Dataset[Any]) -> Dataset[Any]:
    """The same samples without torch's Subset around a data set that has subsets of its own.

    Such a data set makes batches whole, and its orders, labels and policies are seen.
    """
    if type(dataset) is not Subset:
        return dataset
    inner = unwrapped(dataset.dataset)
    if not hasattr(inner, "subset"):
        return dataset
    subset: Dataset[Any] = inner.subset(np.asarray(dataset.indices, np.int64))
    return subset


def _subset(dataset: Dataset[Any], rows: Int64s) -> Dataset[Any]:
    if hasattr(dataset, "subset"):
        subset: Dataset[Any] = dataset.subset(rows)
        return subset
    return Subset(dataset, rows.tolist())


def _counts(n: int, parts: Sequence[float] | Sequence[int]) -> list[int]:
    shown, total = list(parts), sum(parts)
    whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in shown)
    fractions = all(isinstance(one, float | np.floating) for one in shown)
    sound = bool(shown) and (whole or fractions) and all(one >= 0 for one in shown)
    if not sound or abs(total - (n if whole else 1)) > 1e-6:
        raise UserError(
            f"parts of a data set are counts (int) that sum to its {n} samples, or fractions "
            f"(float) that sum to 1, none below 0; these are {shown}, and their sum is {total:g}"
        )
    if whole:
        return [int(one) for one in shown]
    exact = np.asarray(shown) * (n / total)
    counts = np.floor(exact).astype(np.int64)
    # The largest remainders get what is left.
    left = n - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return [int(one) for one in counts]
