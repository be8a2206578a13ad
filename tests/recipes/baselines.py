"""What a language model has to beat: counts of words and of pairs of words."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

DISCOUNT = 0.75


def unigram(train: Sequence[int], valid: Sequence[int]) -> float:
    """Perplexity of the training text's frequencies; each token of `valid` occurs in `train`."""
    counts = Counter(train)
    logs = sum(math.log(counts[token] / len(train)) for token in valid)
    return math.exp(-logs / len(valid))


def bigram(train: Sequence[int], valid: Sequence[int], discount: float = DISCOUNT) -> float:
    """Perplexity of an interpolated Kneser-Ney bigram (Chen and Goodman, 1999, section 2.7)."""
    pairs = Counter(itertools.pairwise(train))
    before = Counter(train[:-1])  # how often a word has a follower
    followers = Counter(first for first, _ in pairs)  # how many different ones
    kinds = Counter(second for _, second in pairs)  # after how many different words it comes
    logs = 0.0
    for first, second in itertools.pairwise(valid):
        lower = max(kinds[second], 1) / len(pairs)  # the text's first word may follow nothing
        if before[first]:
            seen = max(pairs[first, second] - discount, 0) / before[first]
            lower = seen + discount * followers[first] / before[first] * lower
        logs += math.log(lower)
    return math.exp(-logs / (len(valid) - 1))
