"""The results of the seven checks, and their table with what differs below it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TextIO

from ...base.amounts import words
from ...base.text import clean

State = Literal["proved", "differs", "rank 0's", "not seen", "-"]

CHECKS = {
    "losses": "losses equal at equal global batch",
    "parameters": "parameters equal on all ranks",
    "samples": "each sample seen once",
    "evaluation": "evaluation exact",
    "output": "one writer per file, the same printed lines",
    "saved": "saved file loads into the original, strict=True",
    "killed": "a killed rank ends the rest",
}
_STYLES = {"proved": "green", "differs": "bold red", "-": "dim"}
_SHOWN = 4  # differences of a check


@dataclass(frozen=True)
class Result:
    """The finding of one check.

    Attributes:
        check: a key of `CHECKS`.
        world: the number of ranks.
        state: `not seen`: the script did nothing of the kind that could be compared; `rank 0's`:
            all that differs are numbers of rank 0's part of the training batches, as a port
            promises; `-`: means nothing on so many ranks.
        detail: a few words or figures for the table.
        differences: explained; empty unless `differs` or `rank 0's`.
    """

    state: State
    detail: str = ""
    differences: tuple[str, ...] = ()
    check: str = ""
    world: int = 0

    @property
    def ranks(self) -> str:
        """The number of ranks in words."""
        return words(self.world, "rank", "ranks")


def differs(detail: str, *differences: str) -> Result:
    """Return that there are differences."""
    return Result("differs", detail, differences)


def merged(results: Iterable[Result]) -> list[Result]:
    """Return one result for each check and number of ranks: all that differs in any of the runs."""
    found: dict[tuple[str, int], Result] = {}
    for one in results:
        first = found.setdefault((one.check, one.world), one)
        if one is first or one.state != "differs":
            continue
        if first.state == "differs":
            every = dict.fromkeys([*first.differences, *one.differences])
            one = replace(first, differences=tuple(every))
        found[one.check, one.world] = one
    return list(found.values())


def show(results: Sequence[Result], notes: Sequence[str], out: TextIO | None = None) -> None:
    """Print the table, what differs, and how the runs were made comparable."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Wide enough that nothing is folded: a terminal does that by itself, but not of a table.
    console = Console(file=out, width=1000, soft_wrap=True, highlight=False, markup=False)
    terminal = shutil.get_terminal_size().columns if console.is_terminal else 1000
    ranks = {one.world: one.ranks for one in sorted(results, key=lambda one: one.world)}
    table = Table("", *ranks.values(), box=None, pad_edge=False, padding=(0, 1), header_style="")
    cells = {(one.check, one.world): one for one in results}
    for number, (check, title) in enumerate(CHECKS.items(), 1):
        row = [cells.get((check, world)) or Result("-") for world in ranks]
        texts = [f"{one.state}: {one.detail}" if one.detail else one.state for one in row]
        styles = [_STYLES.get(one.state, "yellow") for one in row]
        table.add_row(f"{number}. {title}", *map(Text, map(clean, texts), styles))
    console.print(table, width=terminal, soft_wrap=False)
    for number, check in enumerate(CHECKS, 1):
        # On more ranks it is mostly the same again.
        wrong = [one for one in results if one.check == check and one.differences]
        for one in sorted(wrong, key=lambda one: (one.state != "differs", one.world))[:1]:
            what = "differs"
            if one.state != "differs":
                what = "numbers of rank 0's part of the training batches"
            for difference in one.differences[:_SHOWN]:
                lines = "\n   ".join(map(clean, difference.split("\n")))
                console.print(f"\n{number}. {what} on {one.ranks}: {lines}")
            if len(one.differences) > _SHOWN:
                console.print(f"   and {len(one.differences) - _SHOWN} more")
    if notes:
        console.print("\nto make the runs comparable, in all of them:")
        for note in notes:
            console.print(f"  {clean(note)}", width=terminal, soft_wrap=False)
