"""The verdict on a run in words, one headline and a few sentences behind it; and what it cost.

The bill is nodes x time, of all attempts, at the site's rate (`billing`): a GPU that nobody used is
on it like any other. The efficiency is one number (`billing.work`): the share of the billed time of
all GPUs that worked, by use *and* power; its formula is printed wherever it is. Used = bill x
efficiency, wasted = the rest. Of what was wasted each finding has its part (`diagnose`), no second
counted twice, so that their sum is never more than the whole; what is left over is start-up, waits
too short to name, and validations: about 5 % of a healthy run of half an hour or more, and 15 to 35
% where it validates often or for long (measured on the recordings of the tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.findings import Level
from . import billing, words
from .billing import bill, work
from .diagnose import CODES, Diagnosis, common
from .diagnose.record import TOO_SHORT
from .recording import Recording
from .thresholds import LIMITS

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
class Cost:
    """The cost of a run; amounts in `unit`.

    Attributes:
        unit: the site's; `GPU-h` or `node-h` where it has none.
        priced: whether it is the site's own.
        per_node_hour: of one node.
        node_hours: nodes x hours, all attempts.
        billed: in all; attempts: of each attempt.
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
    attempts: tuple[float, ...]
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
        attempts=paid.attempts,
        efficiency=efficiency,
        formula=done.formula,
        used=used,
        wasted=wasted,
        findings=parts,
        other=other,
        seen=min(1.0, done.known / all_seconds) if all_seconds else 0.0,
    )


@dataclass(frozen=True)
class Verdict:
    """What a reader takes away.

    Attributes:
        headline: one sentence.
        sentences: two to four more.
        level: of the worst finding; ok without any.
    """

    headline: str
    sentences: tuple[str, ...]
    level: Level


def verdict(
    recording: Recording, diagnoses: Sequence[Diagnosis], paid: Cost | None = None
) -> Verdict:
    """The verdict on a run from what was found in it; `paid` is its cost, where it is known."""
    paid = cost(recording, diagnoses) if paid is None else paid
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
    elif 0 < paid.seen < LIMITS.seen_least and common.GAPS not in {one.code for one in diagnoses}:
        sentences.append(
            f"Samples tell of {words.percent(paid.seen)} of the time; the rest is not known."
        )
    return Verdict(_headline(recording, worst, paid), tuple(filter(None, sentences)), level)


def not_judged(said: Verdict, diagnoses: Sequence[Diagnosis]) -> bool:
    """Return whether the run was too short for a verdict: neither good nor bad."""
    return said.level == "ok" and any(
        one.code == common.SHORT and one.message.startswith(TOO_SHORT) for one in diagnoses
    )


def _weight(one: Diagnosis) -> tuple[bool, bool, bool, float]:
    """Failures first, then what cost most; remarks last."""
    known = CODES[one.code]
    failed = known.failure and one.level == "error"
    return (not failed, known.remark, one.level != "error", -(one.cost or 0.0))


def _headline(recording: Recording, worst: Diagnosis | None, paid: Cost) -> str:
    if not recording.samples and not len(recording.steps.step):
        began = "" if worst is None or worst.code != common.FAILED else f"; {worst.message}"
        return f"Nothing was recorded of this run{began}."
    running = billing.goes_on(recording)
    if worst is None:
        return _sound(recording, paid, running)
    so_far = "So far: " if running else ""
    if worst.code == common.FAILED:
        return _sentence(worst.message.split("; the last checkpoint")[0])
    if worst.code == common.SHORT:
        return _sentence(worst.message)
    if worst.code == common.UNUSED:
        said = _unused(recording, worst)
    elif worst.code == common.IDLE and worst.gpus:
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
    found = "Healthy:" if paid.efficiency >= LIMITS.healthy else "Nothing wrong was found;"
    return f"{found} {worked}."


def _extent(recording: Recording, paid: Cost) -> str:
    """What ran where, for how long, and what it was billed."""
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
