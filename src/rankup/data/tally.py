"""Counts the samples that could not be made: a few are the data's, many are something else's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .making import Bad, BadSample

_AT_LEAST = 20
_SHARE = 100  # one in a hundred
_NAMES = 5
_KINDS = 4
_KIND_LENGTH = 80


@dataclass(frozen=True)
class Summary:
    """What one rank has to say of an epoch.

    Attributes:
        kinds: number of a bad sample -> what was wrong with it.
        names: of the first ones.
    """

    kinds: dict[int, str]
    names: dict[int, str]


@dataclass
class Tally:
    """The bad samples of an epoch, on one rank.

    Attributes:
        samples: of the whole epoch.
        world_size: ranks that share them.
    """

    samples: int
    world_size: int
    summary: Summary = field(default_factory=lambda: Summary({}, {}))

    def add(self, bad: Iterable[Bad]) -> None:
        """Count samples, each once.

        Raises:
            BadSample: they are more than can be the data's fault.
        """
        kinds, names = self.summary.kinds, self.summary.names
        for one in bad:
            kinds.setdefault(one.sample, _kind(one.why))
            if len(names) < _NAMES:
                names[one.sample] = one.name
        most = most_bad(self.samples, self.world_size)
        if len(kinds) > most:
            raise BadSample(
                f"{len(kinds)} samples of this epoch could not be made on this rank alone, and "
                f"{most} is the most that is gone on with ({_limit()}): {_text(self.summary)}"
            )


def most_bad(samples: int, world_size: int = 1) -> int:
    """Bad samples of an epoch that one rank goes on with."""
    return max(_AT_LEAST, -(-samples // (_SHARE * world_size)))


def report(ranks: Sequence[Summary], samples: int, epoch: int, on_bad: str) -> str:
    """The line about an epoch; empty where nothing was wrong.

    Raises:
        BadSample: all ranks together had more than can be the data's fault.
    """
    # Ranks may have met the same one, as a replacement or in the place of a sample that is missing.
    every = Summary({}, {})
    for one in ranks:
        every.kinds.update(one.kinds)
        every.names.update(one.names)
    total = len(every.kinds)
    if not total:
        return ""
    done = {"replace": "replaced", "drop": "dropped"}.get(on_bad, "replaced or dropped")
    line = (
        f"{total} of {samples} samples of epoch {epoch} could not be made and were {done}: "
        f"{_text(every)}"
    )
    if total > max(_AT_LEAST, samples // _SHARE):
        raise BadSample(f"{line}. That is more than is gone on with ({_limit()})")
    return line


def _limit() -> str:
    return f"one in {_SHARE}, or {_AT_LEAST}: more are seldom the data's own"


def _text(summary: Summary) -> str:
    kinds = Counter(summary.kinds.values())
    parts = [f"{count} x {kind}" for kind, count in kinds.most_common(_KINDS)]
    if len(kinds) > _KINDS:
        parts.append(f"{len(kinds) - _KINDS} other kinds")
    return f"{', '.join(parts)}; the first: {', '.join([*summary.names.values()][:_NAMES])}"


def _kind(why: str) -> str:
    """An error without the numbers that are the sample's own."""
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\d+", "N", why.splitlines()[0] if why else why)
    return text[:_KIND_LENGTH]
