"""The facts of a job and the numbers of its nodes and GPUs, as tables of text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...slurm.job import Attempt
from .. import billing, words
from ..lines import Head
from ..recording import Array, Recording, highest, mean
from .figures import GIB, Figure, row_names

GPU_ROWS = 128  # up to here the table has a row per GPU, above one per node
NODE_ROWS = 256  # of more nodes those are shown that are worth a look


@dataclass(frozen=True)
class Table:
    """Text in rows; numbers are aligned to the right.

    Attributes:
        named: how many columns from the left are names.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    named: int = 1


def stamp(moment: float) -> str:
    """Local date and time with its zone: "22 Nov 2025, 19:00:00 CET"."""
    return time.strftime("%-d %b %Y, %H:%M:%S %Z", time.localtime(moment)).rstrip()


def duration_of(recording: Recording) -> float:
    """Seconds that the run was running, all attempts together."""
    return sum(billing.length(attempt, recording) for attempt in billing.attempts(recording))


def facts(recording: Recording) -> list[tuple[str, str]]:
    """Title and text of what is known of the job; what nobody knows is left out."""
    known = recording.facts
    attempts = billing.attempts(recording)
    begin, end = attempts[0].begin, billing.end_of(attempts[-1], recording)
    still = billing.goes_on(recording)
    jobs = dict.fromkeys(attempt.job for attempt in attempts if attempt.job)
    pairs = [
        ("Run", known.run),
        ("Name", known.name),
        ("Command", known.command),
        ("Directory", known.directory),
        ("Machine", ", ".join(filter(None, [known.site, known.partition]))),
        ("Account", known.account),
        ("Slurm jobs" if len(jobs) > 1 else "Slurm job", ", ".join(jobs)),
        ("Nodes", _node_list(recording)),
        ("GPUs", _gpus(recording)),
        ("CPU", _cores(recording.heads)),
        ("Ranks", f"{known.ranks} per node" if known.ranks else ""),
        ("Started", stamp(begin)),
        ("As of" if still else "Ended", stamp(end)),
        ("Ran for", _ran_for(recording)),
        ("In the queue", words.duration(known.queued) if known.queued is not None else ""),
        ("Recorded", _recorded(recording)),
        *known.what.items(),
    ]
    return [(title, text) for title, text in pairs if text]


def attempts_table(recording: Recording) -> Table | None:
    """The attempts of the run where there is more than one, or where one did not end well."""
    attempts = recording.facts.attempts
    if len(attempts) < 2 and all(attempt.state in ("COMPLETED", "RUNNING") for attempt in attempts):
        return None
    return Table(
        "Each start of the run",
        ("Start", "State", "In words", "Job", "Ran for", "Time limit"),
        tuple(_attempt(attempt, recording) for attempt in attempts),
        named=4,
    )


def summary(recording: Recording, plots: Sequence[Figure]) -> Table:
    """Lowest, mean and highest of each channel; the text of its plots."""
    found = []
    names = row_names(recording)
    for plot in plots:
        ends = ["", ""]
        if len(plot.average) > 1:
            where = int(np.nanargmin(plot.average)), int(np.nanargmax(plot.average))
            ends = [f"{names[plot.of][at]} ({number(float(plot.average[at]))})" for at in where]
        for name, values in plot.values.items():
            title = f"{plot.title}, {name}" if name else plot.title
            title += f" ({plot.unit})" if plot.unit else ""
            figures = (values[what] for what in ("lowest", "mean", "highest"))
            found.append((title, *map(number, figures), *ends))
    head = ("Channel", "Lowest", "Mean", "Highest", "Least on average", "Most on average")
    return Table("Lowest, mean and highest of all samples", head, tuple(found))


def gpu_table(recording: Recording, plots: Sequence[Figure]) -> Table | None:
    """A row per GPU, or per node where there are many GPUs."""
    shown = [plot for plot in plots if plot.of == "gpu" and not plot.more]
    if not shown:
        return None
    heads, columns = [], []
    for plot in shown:
        heads += [f"{plot.title} mean ({plot.unit})", f"highest ({plot.unit})"]
        columns += [plot.average, plot.peak]
    if len(recording.gpus) <= GPU_ROWS:
        names = recording.gpu_names()
        body = [(name, *map(number, line)) for name, *line in zip(names, *columns, strict=True)]
        return Table("Each GPU", ("GPU", *heads), tuple(body))
    each = [_per_node(column, recording, at % 2 == 1) for at, column in enumerate(columns)]
    body = [(node, *map(number, line)) for node, *line in zip(recording.nodes, *each, strict=True)]
    caption, kept = _least("The GPUs of each node", each[0], heads[0])
    return Table(caption, ("Node", *heads), tuple(body[place] for place in kept))


def fs_table(recording: Recording) -> Table | None:
    """What was read from and written to each network file system."""
    if not recording.fs:
        return None
    lines = [
        (mount, *(f"{count / 1e9:,.2f}" for count in both))
        for mount, both in sorted(recording.fs.items())
    ]
    head = ("Mount point", "Read (GB)", "Written (GB)")
    return Table("Network file systems, all nodes together", head, tuple(lines))


def node_table(recording: Recording) -> Table | None:
    """What each node has, and how much of the time it was sampled."""
    if not recording.heads:
        return None
    sampled = mean(recording.covered, axis=0) * 100
    lines = [
        (
            head.node,
            f"{len(head.usable)} of {head.cores}",
            f"{head.memory / GIB:,.0f}",
            str(len(head.gpus)),
            (recording.facts.gpus and head.gpu_error) or "",
            number(float(share)),
        )
        for head, share in zip(recording.heads, sampled, strict=True)
    ]
    head = ("Node", "Usable cores", "Memory (GiB)", "GPUs", "", "Sampled (% of the time)")
    caption, kept = _least("Nodes", sampled.tolist(), "samples")
    return Table(caption, head, tuple(lines[place] for place in kept))


def profile_tables(recording: Recording, most: int = 16) -> list[Table]:
    """The profiled steps of each rank, and the operators of the first of them."""
    profiles = recording.profiles
    if not profiles:
        return []
    rows = [
        (
            f"{one.steps[0]} to {one.steps[1]}",
            f"rank {one.rank} on {one.node}",
            one.trace,
            number(one.seconds),
            *(number(100 * share) for share in one.shares()),
        )
        for one in profiles[:most]
    ]
    named = ("Steps", "Where", "Trace, in the run directory")
    shares = ("Computing (%)", "In collectives (%)", "Nothing computed beside them (%)")
    newest = profiles[0]
    operators = [(one.name, f"{one.calls:,}", number(one.seconds)) for one in newest.operators]
    title = f"Operators by their own time, steps {newest.steps[0]} to {newest.steps[1]}"
    return [
        Table("Profiled steps", (*named, "Seconds", *shares), tuple(rows), named=3),
        Table(f"{title}, rank {newest.rank}", ("Operator", "Calls", "Seconds"), tuple(operators)),
    ]


def event_table(recording: Recording, most: int = 200) -> Table | None:
    """Events and gaps in order of time; of very many the first ones, and how many more."""
    lines = [
        (event.time, event.kind, event.text, event.seconds or None) for event in recording.events
    ]
    lines += [
        (gap.begin, "no samples", f"{gap.node}: {gap.why}", gap.end - gap.begin)
        for gap in recording.gaps
    ]
    if not lines:
        return None
    lines.sort(key=lambda line: line[0])
    body = [
        (stamp(when), kind, text, words.duration(seconds) if seconds else "")
        for when, kind, text, seconds in lines[:most]
    ]
    more = len(lines) - most
    caption = "Events" + (f", the first {most}; {more:,} more are in the plot" if more > 0 else "")
    return Table(caption, ("Time", "What", "", "Took"), tuple(body), named=3)


def number(value: float) -> str:
    """Three or four digits, thousands apart; an en dash for what is not known."""
    if not np.isfinite(value):
        return "–"  # noqa: RUF001
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        return f"{value:.2e}"
    digits = 0 if size >= 100 or not size else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def _least(caption: str, values: Sequence[float], what: str) -> tuple[str, list[int]]:
    """Places of the rows that a table of nodes has room for, and its caption."""
    if len(values) <= NODE_ROWS:
        return caption, list(range(len(values)))
    kept = np.argsort(np.nan_to_num(values, nan=-np.inf), kind="stable")[:NODE_ROWS]
    text = f"{caption}: of {len(values):,} the {NODE_ROWS} with the least {what}"
    return text, sorted(kept.tolist())


def _per_node(values: Array, recording: Recording, peak: bool) -> list[float]:
    of = recording.gpu_node
    pick = highest if peak else mean
    places = range(len(recording.heads))
    return [
        float(pick(values[of == node], axis=0)) if (of == node).any() else np.nan for node in places
    ]


def _node_list(recording: Recording) -> str:
    names = list(recording.nodes)
    asked = recording.facts.nodes
    if not names:
        return f"{asked} asked for, none recorded"
    missing = f"; {asked} asked for" if asked != len(names) else ""
    few = ", ".join(names[:4]) + (f" … {names[-1]}" if len(names) > 5 else "")
    return f"{len(names)} ({few}{missing})" if len(names) != 5 else f"5 ({', '.join(names)})"


def _gpus(recording: Recording) -> str:
    if not recording.gpus:
        return ""
    kinds = Counter(gpu.name for gpu in recording.gpus)
    text = ", ".join(f"{count} x {name}" for name, count in kinds.most_common())
    billed = recording.facts.gpus
    return f"{text} ({billed} per node billed)" if billed is not None else text


def _cores(heads: Sequence[Head]) -> str:
    if not heads:
        return ""
    cores = {(len(head.usable), head.cores) for head in heads}
    usable, all_ = max(cores)
    text = f"{usable} of {all_} cores usable" if usable != all_ else f"{all_} cores"
    return f"{text}, {max(head.memory for head in heads) / GIB:,.0f} GiB memory per node"


def _ran_for(recording: Recording) -> str:
    ran = duration_of(recording)
    limits = [attempt.limit for attempt in recording.facts.attempts if attempt.limit]
    text = words.duration(ran)
    if len(recording.facts.attempts) > 1:
        text += f" in {len(recording.facts.attempts)} starts"
    elif limits:
        text += f" of {words.duration(limits[-1])} allowed ({ran / limits[-1]:.0%})"
    return text


def _recorded(recording: Recording) -> str:
    text = f"{recording.samples:,} samples"
    if recording.heads:
        text += f", about every {recording.heads[0].every:g} s"
    if recording.torn:
        text += f"; {recording.torn} lines could not be read"
    return text


def _attempt(attempt: Attempt, recording: Recording) -> tuple[str, ...]:
    return (
        stamp(attempt.begin),
        attempt.state,
        attempt.words,
        attempt.job or "",
        words.duration(billing.length(attempt, recording)),
        words.duration(attempt.limit) if attempt.limit else "",
    )
