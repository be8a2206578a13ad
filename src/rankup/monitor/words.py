"""Durations, amounts and places of a run as people say them; safe to be shown on a terminal."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

from ..base.amounts import duration as duration
from ..base.amounts import ranges, some
from ..base.text import clean

if TYPE_CHECKING:  # numpy comes with it, and `status` starts without
    from .recording import Facts, Recording


def amount(units: float) -> str:
    """A number of core-h or the like: three digits, thousands apart."""
    if abs(units) >= 100:
        return f"{units:,.0f}"
    return f"{units:.1f}" if abs(units) >= 10 else f"{units:.2g}"


def percent(share: SupportsFloat) -> str:
    """A share of 0 to 1: "23 %"."""
    return f"{100 * float(share):.0f} %"


def known_part(share: float) -> str:
    """How much is known, where that is not all and not nothing: "less than 1 %", "23 %"."""
    return "less than 1 %" if share < 0.005 else percent(share)


def clock(moment: float) -> str:
    """The time of day here, for a moment in unix seconds."""
    try:
        return time.strftime("%H:%M", time.localtime(moment))
    except (ValueError, OverflowError, OSError):  # a clock that is far off, or NaN
        return "?"


def window(begin: float, end: float) -> str:
    """ "from 14:05 to 15:10"."""
    return f"from {clock(begin)} to {clock(end)}"


def memory(count: float) -> str:
    """Bytes of memory in GiB, as `nvidia-smi` and `free` count."""
    gib = count / 2**30
    if gib < 0.1:
        return f"{count / 2**20:.0f} MiB"
    return f"{gib:.3g} GiB" if gib >= 10 else f"{gib:.2g} GiB"


def plural(count: int, one: str) -> str:
    """ "1 GPU", "3 GPUs"."""
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def shown(text: str) -> str:
    """A word from elsewhere, safe for a terminal, on one line and not too long."""
    line = clean(" ".join(text.split()).replace("\x1b", "\\x1b"))
    return line if len(line) <= 300 else f"{line[:297]}..."


def argument(facts: Facts) -> str:
    """The word by which a verb finds the run: its id, or its folder where that has another name."""
    named = facts.run if Path(facts.directory).name == facts.run else facts.directory
    return shlex.quote(shown(named))


def resume(facts: Facts) -> str:
    """The command that goes on with the run from its last checkpoint."""
    return f"rankup run --resume {argument(facts)}"


def numbers(values: Iterable[int]) -> str:
    """ "0, 2-4" for 0, 2, 3 and 4."""
    return ranges(values).replace(",", ", ")


def node_names(recording: Recording, nodes: Iterable[int]) -> str:
    """Names of nodes by place; of many the first, and how many more."""
    return some([clean(recording.heads[node].node) for node in nodes])


def gpus(recording: Recording, columns: Iterable[int]) -> str:
    """ "GPUs 1-3 of jwb0001", "GPU 0 of each of 8 nodes", "5 GPUs (jwb1:0, …)", "all 4 GPUs"."""
    columns = list(columns)
    if len(columns) > 1 and len(columns) == len(recording.gpus):
        return f"all {len(columns)} GPUs"
    by_node: dict[int, tuple[int, ...]] = {}
    for column in columns:
        node = int(recording.gpu_node[column])
        by_node[node] = (*by_node.get(node, ()), recording.gpus[column].index)
    word = "GPU" if columns and len(next(iter(by_node.values()))) == 1 else "GPUs"
    if len(by_node) == 1:
        node, indices = next(iter(by_node.items()))
        return f"{word} {numbers(indices)} of {clean(recording.heads[node].node)}"
    if len(set(by_node.values())) == 1:
        indices = next(iter(by_node.values()))
        every = "each of all" if len(by_node) == len(recording.heads) else "each of"
        where = f"{every} {len(by_node)} nodes"
        if len(by_node) <= 4 and len(by_node) < len(recording.heads):
            where = node_names(recording, by_node)
        return f"{word} {numbers(indices)} of {where}"
    names = recording.gpu_names()
    return f"{len(columns)} GPUs ({some([clean(names[column]) for column in columns])})"
