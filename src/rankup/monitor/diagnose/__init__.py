"""The findings about a run, and the verdict on it: rules, each of which looks at one cause.

A rule yields diagnoses; `diagnose` runs them all, drops what a more definite one explains, and
tells what each wasted. `verdict` is what a reader takes away. Thresholds are in
`monitor.thresholds`.

A finding's cost is its own: what is left of its GPUs' time after their work (`billing.work`) in its
windows, at most `share` of that time. Findings overlap, as a GPU that starves for data has a low
use as well, so their costs may add up to more than was wasted (`OVERLAP`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...base import amounts
from ...base.findings import Level
from .. import billing, words
from ..billing import Cost, Work, cost
from ..recording import Recording
from ..thresholds import LIMITS, UNUSED
from . import gpu, nodes, training
from .common import Diagnosis, Look

__all__ = [
    "CODES",
    "Diagnosis",
    "Verdict",
    "diagnose",
    "not_judged",
    "overlap",
    "unknown",
    "verdict",
]

Rule = Callable[[Look], Iterable[Diagnosis]]


@dataclass(frozen=True)
class Code:
    """A row of the table: the words for a finding, wherever it is shown.

    Attributes:
        rule: finds it.
        headline: of a run whose worst finding it is; empty where the finding's own words say more.
        section: of the page, where it is to be seen.
        explains: findings that are not said again on the same GPUs.
        remark: about a run that is sound: it comes last, whatever it costs.
        failure: as an error it comes first.
    """

    code: str
    rule: Rule
    title: str
    headline: str = ""
    section: str = "gpu"
    explains: tuple[str, ...] = ()
    remark: bool = False
    failure: bool = False


OVERLAP = "Findings may name the same time: each says what it cost by itself."

# The most definite cause first: of findings that cost the same, the first is named.
_TABLE = (
    Code("RK701", gpu.unused, "unused GPU", explains=("RK705",)),
    Code(
        "RK723",
        nodes.gpu_lost,
        "GPU lost or unreadable",
        "A GPU could not be read",
        explains=("RK705",),
    ),
    Code(
        "RK706",
        training.spinning,
        "spinning in a collective",
        "The run hung in a collective",
        explains=("RK702", "RK705", "RK727"),
        failure=True,
    ),
    Code(
        "RK727",
        training.stalled,
        "a step stalled",
        "Steps stood still",
        section="progress",
    ),
    Code(
        "RK715",
        training.checkpoint_stalls,
        "training waits for checkpoints",
        "The training waited for its checkpoints",
        section="progress",
        explains=("RK703",),
    ),
    Code(
        "RK704",
        training.starved,
        "starved by data",
        "The run waited for data",
        section="progress",
        explains=("RK703",),
    ),
    Code(
        "RK702",
        gpu.idle,
        "idle GPU",
        "GPUs idled",
        explains=("RK705",),
    ),
    Code(
        "RK705",
        gpu.imbalance,
        "imbalance between ranks or nodes",
        "The work was divided unevenly, and all waited for the slowest",
    ),
    Code(
        "RK710",
        nodes.cores,
        "ranks share few cores",
        "The ranks could use only a few of the cores",
        section="cpu",
        explains=("RK709", "RK703", "RK704"),
    ),
    Code(
        "RK709",
        nodes.cores,
        "CPU oversubscribed",
        "More processes than cores took turns",
        section="cpu",
    ),
    Code("RK703", gpu.low, "low utilisation", "The GPUs worked little"),
    Code("RK712", gpu.slowed, "slowed down by heat, hardware or the power limit"),
    Code(
        "RK717",
        nodes.limit_hit,
        "time limit hit",
        "The run was ended by its time limit",
        section="progress",
    ),
    Code(
        "RK720",
        training.not_a_number,
        "loss is not a number",
        "The loss is not a number",
        section="progress",
        failure=True,
    ),
    Code("RK724", nodes.failed, "the run failed", section="progress", failure=True),
    Code(
        "RK708",
        gpu.gpu_memory,
        "GPU memory nearly full",
        "Sound, but the GPU memory was nearly full",
        remark=True,
    ),
    Code(
        "RK714",
        nodes.host_memory,
        "memory of the node nearly full",
        "Sound, but the node's memory was nearly full",
        section="memory",
        remark=True,
    ),
    Code(
        "RK716",
        nodes.limit_long,
        "time limit far too long",
        "Sound, but it asked for far more time than it took",
        section="progress",
        remark=True,
    ),
    Code("RK718", nodes.short, "short run", section="progress", remark=True),
)
CODES = {one.code: one for one in _TABLE}
_RULES = tuple(dict.fromkeys(one.rule for one in _TABLE))


def diagnose(recording: Recording) -> tuple[Diagnosis, ...]:
    """All that is to be said of a run, what wasted the most first; nothing for a healthy one."""
    look = Look(recording)
    found = [one for rule in _RULES for one in rule(look)]
    rank = {code: place for place, code in enumerate(CODES)}
    levels = {"error": 0, "warning": 1, "ok": 2}
    priced = [_priced(one, look) for one in _unexplained(found)]
    return tuple(
        sorted(priced, key=lambda one: (-(one.cost or 0), levels[one.level], rank[one.code]))
    )


def overlap(diagnoses: Sequence[Diagnosis]) -> str:
    """Return the sentence that costs may overlap; empty where fewer than two findings have one."""
    return OVERLAP if sum(bool(one.cost) for one in diagnoses) > 1 else ""


def _unexplained(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The diagnoses without GPUs that another one explains; those left without any go."""
    kept = []
    for one in found:
        over = [other for other in found if one.code in CODES[other.code].explains]
        everywhere = any(not other.gpus for other in over)
        if over and (everywhere or not one.gpus):
            continue
        explained = {column for other in over for column in other.gpus}
        left = tuple(column for column in one.gpus if column not in explained)
        if left or not one.gpus:
            # A message names its GPUs, so what is explained in part stays as it is.
            kept.append(one)
    return kept


def _window_share(
    recording: Recording, windows: Sequence[tuple[float, float]]
) -> NDArray[np.float64]:
    """(bins,) share of each bin, 0 to 1, that windows cover together; 1 for no windows."""
    if not windows:
        return np.ones(recording.bins)
    begins = recording.begin + np.arange(recording.bins) * recording.width
    covered = np.zeros(recording.bins)
    for begin, end in windows:
        covered += np.clip(
            np.minimum(begins + recording.width, end) - np.maximum(begins, begin), 0, None
        )
    return np.clip(covered / recording.width, 0, 1)


def _wasted(recording: Recording, one: Diagnosis, done: Work) -> float:
    """Seconds without work that a finding explains."""
    if one.gpus and done.per_gpu:
        chosen = np.isin(done.things, one.gpus)
    elif one.nodes:
        chosen = np.isin(done.node, one.nodes)
    else:
        chosen = np.ones(len(done.things), bool)
    # A sample tells of a moment and stands for the time before it, so what happened in a window may
    # be found a bin beside it; no more than the window's own time is counted.
    width = recording.width
    wider = tuple((begin - width, end + width) for begin, end in one.windows)
    seconds = done.seconds[:, chosen]
    lost = np.nan_to_num(1 - done.share[:, chosen]) * seconds
    total = float((lost * _window_share(recording, wider)[:, None]).sum(dtype=np.float64))
    within = _window_share(recording, one.windows)[:, None]
    return min(total, one.share * float((seconds * within).sum(dtype=np.float64)))


def _priced(one: Diagnosis, look: Look) -> Diagnosis:
    """Return the finding with its cost, which its message says where it is worth a word."""
    bill, done = look.bill, look.work
    if not (one.share > 0 and done.known and bill.units):
        return replace(one, unit=bill.unit)
    cost = _wasted(look.recording, one, done) * bill.units / done.known
    if cost < LIMITS.named_waste * bill.units:
        return replace(one, cost=cost, unit=bill.unit)
    said = f"{one.message}. Wasted: {words.amount(cost)} of {words.amount(bill.units)} {bill.unit}"
    return replace(one, message=said, cost=cost, unit=bill.unit)


_NUMBERS = (
    "No",
    "One",
    "Two",
    "Three",
    "Four",
    "Five",
    "Six",
    "Seven",
    "Eight",
    "Nine",
    "Ten",
    "Eleven",
    "Twelve",
)


@dataclass(frozen=True)
class Verdict:
    """The sentences that a reader takes away.

    Attributes:
        headline: one sentence.
        sentences: two to six more.
        level: of the worst finding; ok without any.
    """

    headline: str
    sentences: tuple[str, ...]
    level: Level


def verdict(
    recording: Recording, diagnoses: Sequence[Diagnosis], paid: Cost | None = None
) -> Verdict:
    """The verdict on a run from what was found in it; `paid` is its cost, where it is known."""
    paid = cost(recording) if paid is None else paid
    levels = {one.level for one in diagnoses}
    level: Level = "error" if "error" in levels else "warning" if "warning" in levels else "ok"
    order = sorted(diagnoses, key=_weight)
    worst = order[0] if order else None
    sentences = [_extent(recording, paid), _worked(paid)]
    if worst is not None and worst.todo:
        sentences.append(f"To do: {worst.todo}.")
    rest = [one for one in diagnoses if one is not worst and one.level != "ok"]
    if rest:
        titles = ", ".join(CODES[code].title for code in dict.fromkeys(one.code for one in rest))
        sentences.append(f"Also found: {titles}.")
    sentences += unknown(recording, paid)
    return Verdict(_headline(recording, worst, paid), tuple(filter(None, sentences)), level)


def unknown(recording: Recording, paid: Cost) -> list[str]:
    """Return sentences of what is not on record, though it was billed or written."""
    said = []
    if 0 < paid.seen < LIMITS.seen_least:
        said.append(
            f"Samples tell of {words.known_part(paid.seen)} of the time; the rest is not known."
        )
    if recording.unread:
        parts = [f"{words.shown(name)}: {words.shown(why)}" for name, why in recording.unread]
        said.append(f"Not all of the record could be read: {amounts.some(parts, 3)}.")
    return said


def not_judged(said: Verdict, diagnoses: Sequence[Diagnosis]) -> bool:
    """Return whether the run was too short for a verdict: neither good nor bad."""
    return said.level == "ok" and any(
        one.code == "RK718" and one.message.startswith(nodes.TOO_SHORT) for one in diagnoses
    )


def _weight(one: Diagnosis) -> tuple[bool, bool, bool, float]:
    """Failures first, then what cost most; remarks last."""
    known = CODES[one.code]
    failed = known.failure and one.level == "error"
    return (not failed, known.remark, one.level != "error", -(one.cost or 0.0))


def _headline(recording: Recording, worst: Diagnosis | None, paid: Cost) -> str:
    if not recording.samples and not len(recording.steps.step):
        began = "" if worst is None or worst.code != "RK724" else f"; {worst.message}"
        return f"Nothing was recorded of this run{began}."
    running = billing.goes_on(recording)
    if worst is None:
        return _sound(recording, paid, running)
    so_far = "So far: " if running else ""
    if worst.code == "RK724":
        return _sentence(worst.message.split("; the last checkpoint")[0])
    if worst.code == "RK718":
        return _sentence(worst.message)
    if worst.code == UNUSED:
        said = _unused(recording, worst)
    elif worst.code == "RK702" and worst.gpus:
        said = f"{_of_all(len(worst.gpus), _billed(recording))} idled"
    else:
        said = CODES[worst.code].headline or _sentence(worst.message).rstrip(".")
    said += _where(recording, worst, said)
    if worst.cost and worst.cost >= LIMITS.headline_waste * paid.billed:
        wasted = words.amount(worst.cost)
        said += f": {wasted} of {words.amount(paid.billed)} {paid.unit} were wasted"
    return f"{so_far}{said}."


def _where(recording: Recording, worst: Diagnosis, said: str) -> str:
    """The nodes of a finding about some of them, where the headline does not name them yet."""
    places = set(worst.nodes) | {int(recording.gpu_node[column]) for column in worst.gpus}
    if not places or len(places) == len(recording.heads):
        return ""
    names = words.node_names(recording, sorted(places))
    return "" if names in said else f" ({names})"


def _unused(recording: Recording, worst: Diagnosis) -> str:
    nodes = len(recording.heads)
    whole = {int(recording.gpu_node[column]) for column in worst.gpus}
    own = sum(int((recording.gpu_node == node).sum()) for node in whole)
    if nodes > 1 and len(whole) < nodes and own == len(worst.gpus):
        return f"{_of_all(len(whole), nodes, 'node')} did nothing"
    return f"{_of_all(len(worst.gpus), _billed(recording))} did nothing"


def _sound(recording: Recording, paid: Cost, running: bool) -> str:
    things = "the GPUs" if recording.facts.gpus or len(recording.gpus) else "the cores"
    if running:
        return "Running, and nothing is wrong so far."
    if paid.efficiency is None:
        return "Nothing wrong was seen, but what the GPUs did is not on record."
    worked = f"{things} worked {words.percent(paid.efficiency)} of the time that was billed"
    if unknown(recording, paid):
        return f"Nothing wrong was found in what is on record; {worked}."
    found = "Healthy:" if paid.efficiency >= LIMITS.healthy else "Nothing wrong was found;"
    return f"{found} {worked}."


def _extent(recording: Recording, paid: Cost) -> str:
    """Return a sentence of what ran where, for how long, and what it was billed."""
    facts = recording.facts
    known = billing.attempts(recording)
    nodes = max((len(attempt.nodes) for attempt in known), default=0) or max(1, facts.nodes)
    gpus = facts.gpus if facts.gpus is not None else _billed(recording) // max(1, nodes)
    what = words.plural(nodes, "node") + (f" with {words.plural(gpus, 'GPU')}" if gpus else "")
    what += " each" if gpus and nodes > 1 else ""
    seconds = sum(billing.bill(recording).seconds)
    attempts = f" in {len(known)} attempts" if len(known) > 1 else ""
    state = known[-1].state
    end = " and was cancelled" if state == "CANCELLED" else ""
    verb = "has run" if billing.goes_on(recording) else "ran"
    return (
        f"It {verb} {words.duration(seconds)}{attempts} on {what}{end}, which is "
        f"{words.amount(paid.billed)} {paid.unit}."
    )


def _worked(paid: Cost) -> str:
    if paid.efficiency is None or paid.used is None:
        return "How much of that did work is not known."
    how = " (use and power of the GPUs)" if "power" in paid.formula else ""
    return (
        f"{words.amount(paid.used)} {paid.unit} of that did work, an efficiency of "
        f"{words.percent(paid.efficiency)}{how}."
    )


def _billed(recording: Recording) -> int:
    return int(billing.billed(recording).sum())


def _of_all(count: int, whole: int, one: str = "GPU") -> str:
    """ "Three of four GPUs", "All 32 GPUs", "40 of 64 GPUs"."""
    if count >= whole:
        return f"The {one}" if whole == 1 else f"All {words.plural(whole, one)}"
    if whole < len(_NUMBERS):
        return f"{_NUMBERS[count]} of {_NUMBERS[whole].lower()} {one}s"
    return f"{count:,} of {words.plural(whole, one)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
