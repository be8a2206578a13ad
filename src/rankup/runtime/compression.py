"""How people write what is sent of gradients: `bf16`, `powersgd:4`. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

_RANK = 4  # of powersgd's matrices, where nothing is said


@dataclass(frozen=True)
class Compression:
    """What is sent in place of float32 gradients.

    Attributes:
        kind: none, bf16 or powersgd.
        rank: of the matrices that powersgd sends.
    """

    kind: str = "none"
    rank: int = _RANK

    def __bool__(self) -> bool:
        return self.kind != "none"

    def __str__(self) -> str:
        return f"powersgd:{self.rank}" if self.kind == "powersgd" else self.kind


def parse(text: str) -> Compression:
    """`none`, `bf16` or `powersgd[:RANK]`.

    Raises:
        ValueError: it is none of these, or its number is impossible; says which are known.
    """
    kind, colon, amount = text.partition(":")
    if kind not in ("none", "bf16", "powersgd") or (colon and kind != "powersgd"):
        if kind in ("int8", "topk"):
            raise ValueError(f"compress={text!r} is gone in 0.3: give bf16 or powersgd[:RANK]")
        raise ValueError(f"{text!r} is no compression; known are none, bf16 and powersgd[:RANK]")
    if not colon:
        return Compression(kind)
    if not (amount.isdecimal() and 1 <= int(amount) <= 1024):
        raise ValueError(f"{text!r}: powersgd takes the rank of its matrices, 4 for example")
    return Compression(kind, int(amount))
