"""What a run cost, and how much of that did work.

The bill is nodes x time, of all lives, at the site's rate (`billing`): a GPU that nobody used is on
it like any other. The efficiency is one number (`work`): the share of the billed time of all
GPUs that worked, by use *and* power; its formula is printed wherever it is. Used = bill x
efficiency, wasted = the rest. Of what was wasted each finding has its part (`diagnose`), no
second counted twice, so that their sum is never more than the whole; what is left over is start-up,
waits too short to name, and validations: about 5 % of a healthy run of half an hour or more, and
15 to 35 % where it validates often or for long (measured on the recordings of the tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .billing import bill
from .diagnose import Diagnosis
from .recording import Recording
from .work import work


@dataclass(frozen=True)
class Cost:
    """What a run cost; amounts in `unit`.

    Attributes:
        unit: the site's; `GPU-h` or `node-h` where it has none.
        priced: whether it is the site's own.
        per_node_hour: of one node.
        node_hours: nodes x hours, all lives.
        billed: in all; lives: of each life.
        efficiency: 0 to 1; None where nothing is known of what the GPUs did.
        formula: of it, in words.
        used, wasted: together `billed`; None without an efficiency.
        findings: (code, wasted) of each finding that wasted something, the dearest first.
        other: what was wasted and has no finding; None without an efficiency.
        seen: share of the billed time, 0 to 1, that samples tell of.
    """

    unit: str
    priced: bool
    per_node_hour: float
    node_hours: float
    billed: float
    lives: tuple[float, ...]
    efficiency: float | None
    formula: str
    used: float | None
    wasted: float | None
    findings: tuple[tuple[str, float], ...]
    other: float | None
    seen: float


def cost(recording: Recording, diagnoses: Sequence[Diagnosis]) -> Cost:
    """The cost of a run, with the parts that `diagnoses` wasted."""
    paid, done = bill(recording), work(recording)
    efficiency = done.efficiency
    used = wasted = other = None
    parts = tuple((one.code, one.cost) for one in diagnoses if one.cost)
    if efficiency is not None:
        used = paid.units * efficiency
        wasted = paid.units - used
        other = max(0.0, wasted - sum(part for _, part in parts))
    per_node = len(done.things) / max(1, len(recording.heads)) or 1
    all_seconds = paid.node_seconds * per_node
    return Cost(
        unit=paid.unit,
        priced=paid.priced,
        per_node_hour=paid.per_node_hour,
        node_hours=paid.node_seconds / 3600,
        billed=paid.units,
        lives=paid.lives,
        efficiency=efficiency,
        formula=done.formula,
        used=used,
        wasted=wasted,
        findings=parts,
        other=other,
        seen=min(1.0, done.known / all_seconds) if all_seconds else 0.0,
    )
