"""Labels that stand as text in small members beside the samples, as WebDataset's `.cls`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.errors import UserError
from ..errors import BadContainer
from ..index import Int64s

LONGEST = 64  # bytes


def check_length(name: str, length: int, where: str) -> None:
    """Refuse what is too long for a label before it is read.

    Raises:
        UserError: it is.
    """
    if length > LONGEST:
        raise UserError(
            f"{where}: the label {name} has {length} bytes; a label is a number or a name of at "
            f"most {LONGEST}: say which member it is with --label, or --fields without it"
        )


def parse(
    texts: Sequence[bytes | None], classes: tuple[str, ...], where: str
) -> tuple[Int64s, tuple[str, ...]]:
    """Labels and class names: numbers are rows of `classes`, other words are classes themselves.

    Args:
        texts: of the samples; None where one has no label.
        classes: names that are known from elsewhere; empty: none are.

    Raises:
        BadContainer: a number is no row of `classes`, or negative.
    """
    words = [None if text is None else text.strip() for text in texts]
    present = [row for row, word in enumerate(words) if word is not None]
    found = [word for word in words if word is not None]
    labels = np.full(len(words), -1, np.int64)
    if not all(map(_is_number, found)):
        named = sorted(set(found))
        number = {name: row for row, name in enumerate(named)}
        labels[present] = [number[word] for word in found]
        return labels, tuple(name.decode("utf-8", "surrogateescape") for name in named)
    labels[present] = list(map(int, found))
    lowest, highest = int(labels.min(initial=-1)), int(labels.max(initial=-1))
    if lowest < -1:
        raise BadContainer(f"{where}: a label is {lowest}; labels count from 0, and -1 is none")
    if classes and highest >= len(classes):
        raise BadContainer(f"{where}: a label is {highest}, and there are {len(classes)} classes")
    return labels, classes


def _is_number(text: bytes) -> bool:
    return text.removeprefix(b"-").isdigit() and len(text) < 18
