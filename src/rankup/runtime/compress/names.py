"""How a compression is written by people: `int8`, `topk:0.01`. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("none", "bf16", "int8", "topk", "powersgd")
_FRACTION, _RANK = 0.01, 4  # what topk and powersgd take where nothing is said


@dataclass(frozen=True)
class Compression:
    """What is sent in place of float32 values.

    Attributes:
        kind: one of `KINDS`.
        fraction: of the values that topk sends.
        rank: of the matrices that powersgd sends.
    """

    kind: str = "none"
    fraction: float = _FRACTION
    rank: int = _RANK

    def __bool__(self) -> bool:
        return self.kind != "none"

    def __str__(self) -> str:
        if self.kind == "topk":
            return f"topk:{self.fraction:g}"
        return f"powersgd:{self.rank}" if self.kind == "powersgd" else self.kind


def parse(text: str) -> Compression:
    """`none`, `bf16`, `int8`, `topk[:FRACTION]` or `powersgd[:RANK]`.

    Raises:
        ValueError: it is none of these, or its number is impossible; says which are known.
    """
    kind, colon, amount = text.partition(":")
    if kind not in KINDS or (colon and kind not in ("topk", "powersgd")):
        raise ValueError(
            f"{text!r} is no compression; known are none, bf16, int8, topk[:FRACTION] and "
            "powersgd[:RANK]"
        )
    if kind == "topk":
        fraction = _number(amount) if colon else _FRACTION
        if not 0 < fraction <= 1:
            raise ValueError(f"{text!r}: topk sends a fraction of the values, 0.01 for example")
        return Compression(kind, fraction=fraction)
    if kind == "powersgd":
        rank = _number(amount) if colon else _RANK
        if not (1 <= rank <= 1024 and rank == int(rank)):
            raise ValueError(f"{text!r}: powersgd takes the rank of its matrices, 4 for example")
        return Compression(kind, rank=int(rank))
    return Compression(kind)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
