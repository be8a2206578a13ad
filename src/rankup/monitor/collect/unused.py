"""Says during the job, not the day after, that GPUs do nothing although they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..lines import GPU, Gpu
from ..thresholds import LIMITS
from ..unused import CODE, advice, untouched

SECONDS = LIMITS.unused_soon
_UTIL, _MEMORY, _PROCESSES = (GPU.index(name) for name in ("util", "memory", "processes"))


@dataclass(frozen=True)
class Job:
    """What the words depend on.

    Attributes:
        node: name.
        ranks: on this node; None where nobody says.
        slurm: whether there is a job that is billed.
        whole: whether the job is billed for all GPUs of the node, granted or not.
    """

    node: str
    ranks: int | None
    slurm: bool
    whole: bool = False


class Watch:
    """Follows the samples until it has spoken, which it does once."""

    def __init__(self, gpus: Sequence[Gpu], job: Job) -> None:
        self._job = job
        self._gpus = gpus
        self._paid = [job.whole or gpu.granted is not False for gpu in gpus]
        self._worked: set[int] = set()
        self._silent = False

    def see(self, rows: Sequence[Sequence[float | None]], seconds: float | None) -> str | None:
        """What is to be said after this sample, lines of text; mostly None.

        Args:
            rows: of `lines.GPU`, of all GPUs in the order of the head.
            seconds: for which ranks have been running on this node; None while there are none.
        """
        for place, row in enumerate(rows):
            util = row[_UTIL]
            if util is not None and util > LIMITS.unused_util:
                self._worked.add(place)
        if self._silent or seconds is None or seconds < SECONDS or not rows:
            return None
        unused = [place for place, row in enumerate(rows) if self._is_unused(place, row)]
        paid = sum(self._paid)
        if not unused:
            return None
        self._silent = True
        return self._words([self._gpus[place].index for place in unused], paid, seconds)

    def _is_unused(self, place: int, row: Sequence[float | None]) -> bool:
        if not self._paid[place] or place in self._worked:
            return False
        return untouched(row[_UTIL], row[_MEMORY], row[_PROCESSES])

    def _words(self, unused: list[int], paid: int, seconds: float) -> str:
        job = self._job
        many = len(unused) > 1
        which = ", ".join(map(str, unused[:-1])) + f" and {unused[-1]}" if many else f"{unused[0]}"
        have = "have" if many else "has"
        cost = f" although this job is billed for {'them' if many else 'it'}" if job.slurm else ""
        first = (
            f"GPU {which} of node {job.node} {have} done nothing for {seconds:.0f} s{cost}: "
            f"{paid - len(unused)} of {paid} GPUs {'is' if paid - len(unused) == 1 else 'are'} "
            f"in use ({CODE})"
        )
        return f"{first}\n  -> {advice(len(unused), paid, job.ranks, paid)}"
