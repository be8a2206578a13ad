"""One cause, one finding: what a more definite finding explains is not said again."""

from __future__ import annotations

from collections.abc import Sequence

from . import codes
from .diagnosis import Diagnosis

# What a finding explains, on the same GPUs (or on all, where it names none).
_EXPLAINS: dict[str, tuple[str, ...]] = {
    codes.SPINNING: (codes.IDLE, codes.WAITING, codes.STALLED, codes.IMBALANCE),
    codes.STALLED: (codes.IDLE,),
    codes.STARVED: (codes.LOW,),
    codes.FILE_SYSTEM: (codes.LOW, codes.STARVED),
    codes.CHECKPOINTS: (codes.LOW,),
    codes.IDLE: (codes.IMBALANCE, codes.MEMORY_FAR),
    codes.UNUSED: (codes.IMBALANCE,),
    codes.FEW_CORES: (codes.OVERSUBSCRIBED, codes.LOW, codes.STARVED),
    codes.GPU_LOST: (codes.IMBALANCE,),
}


def plain(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The diagnoses without GPUs that another one explains; those left without any go."""
    kept = []
    for one in found:
        over = [other for other in found if one.code in _EXPLAINS.get(other.code, ())]
        everywhere = any(not other.gpus for other in over)
        if over and (everywhere or not one.gpus):
            continue
        explained = {column for other in over for column in other.gpus}
        left = tuple(column for column in one.gpus if column not in explained)
        if left or not one.gpus:
            # A message names its GPUs, so what is explained in part stays as it is.
            kept.append(one)
    return kept
