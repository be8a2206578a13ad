"""Sets of names, written as one text, and a name that several rooms know."""

from __future__ import annotations

import re

# Where a script puts a model into its evaluation mode: `model.eval()`, `model.train(training)`.
EVALUATES = re.compile(r"\.eval\(\)|\.train\(\s*[^)\s]")
RUNTIME = "rankup_runtime"  # the folder that `port --vendor` puts beside a script


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
