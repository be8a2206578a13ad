"""What went wrong in a run: rules, each a pure function of its recording.

A rule looks at one cause and yields diagnoses; `diagnose` runs them all, drops what a more definite
one explains, and tells what each wasted. Thresholds are in `monitor.thresholds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..billing import bill
from ..recording import Recording
from ..work import work
from . import balance, cpu, data, gpu, limits, loss, memory, pauses, record, spin, throttle
from .diagnosis import Diagnosis
from .settle import plain, settle

__all__ = ["RULES", "Diagnosis", "diagnose"]

Rule = Callable[[Recording], Iterable[Diagnosis]]

RULES: tuple[Rule, ...] = (
    *(gpu.unused, gpu.idle, gpu.low, gpu.waiting),
    *(data.starved, data.slow_files, balance.imbalance, spin.spinning, spin.stalled),
    *(memory.gpu_memory, memory.swap, memory.host_memory, cpu.cores),
    *(throttle.power_limited, throttle.heat_limited, pauses.checkpoint_stalls),
    *(limits.limit_long, limits.limit_hit, limits.short),
    *(loss.not_a_number, loss.flat_or_rising, record.gaps, record.gpu_lost, record.failed),
)


def diagnose(recording: Recording) -> tuple[Diagnosis, ...]:
    """All that is to be said of a run, what wasted the most first; nothing for a healthy one."""
    found = [one for rule in RULES for one in rule(recording)]
    return settle(recording, plain(found), work(recording), bill(recording))
