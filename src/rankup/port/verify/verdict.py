"""The results of the six checks, the verdict that they give, and their table."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TextIO

from ...base.amounts import words
from ...base.text import clean

State = Literal["same", "differs", "rank 0's", "not seen", "-"]

CHECKS = {
    "losses": "losses equal at equal global batch",
    "parameters": "parameters equal on all ranks",
    "samples": "each sample seen once",
    "evaluation": "evaluation exact",
    "output": "one writer per file, the same printed lines",
    "saved": "saved files hold the same, models load, strict=True",
}
# As what was not seen is called in the verdict.
_SHORT = {
    "losses": "losses",
    "parameters": "parameters",
    "samples": "samples",
    "evaluation": "evaluation",
    "output": "printed lines",
    "saved": "saved files",
}
_STYLES = {"same": "green", "differs": "bold red", "-": "dim"}
_SHOWN = 4  # differences of a check
_LISTED = 4  # things that were not seen, in the verdict


@dataclass(frozen=True)
class Result:
    """The finding of one check.

    Attributes:
        state: `not seen`: there was something of the kind, and it could not be compared; `rank
            0's`: all that differs are numbers of rank 0's part of the training batches, as `port`
            says; `-`: there is nothing of the kind.
        detail: a few words or figures for the table.
        differences: explained; empty unless `differs` or `rank 0's`.
        check: a key of `CHECKS`.
        world: the number of ranks.
        unseen: what was not compared, each with the reason.
    """

    state: State
    detail: str = ""
    differences: tuple[str, ...] = ()
    check: str = ""
    world: int = 0
    unseen: tuple[str, ...] = ()

    @property
    def ranks(self) -> str:
        """The number of ranks in words."""
        return words(self.world, "rank", "ranks")


@dataclass(frozen=True)
class Verdict:
    """What verify says of a port.

    Attributes:
        word: the answer.
        detail: what differs, or why nothing was shown; of the same run, on how many ranks.
        unseen: what was not compared.
    """

    word: Literal["the same run", "differs", "not proved"]
    detail: str = ""
    unseen: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line."""
        if self.word != "the same run":
            return clean(f"{self.word}: {self.detail}")
        line = f"{self.word} {self.detail}"
        if self.unseen:
            more = len(self.unseen) - _LISTED
            shown = ", ".join(self.unseen[:_LISTED]) + (f" and {more} more" if more > 0 else "")
            line += f"; not seen: {shown}"
        return clean(line)


def verdict(results: Sequence[Result], unseen: Iterable[str] = (), why: str = "") -> Verdict:
    """Return the verdict of all results.

    Args:
        unseen: further things that were not compared.
        why: not all runs were made; the reason.
    """
    for one in results:
        if one.state == "differs":
            first = one.differences[0].partition("\n") if one.differences else (one.detail, "", "")
            text = f"{first[0].rstrip(':')} ({CHECKS[one.check]}, on {one.ranks})"
            return Verdict("differs", text)
    if why:
        return Verdict("not proved", why)
    missed = [
        f"{_SHORT[one.check]}" + (f" ({one.detail})" if one.detail else "")
        for one in results
        if one.state == "not seen" and not one.unseen
    ]
    missed += [text for one in results for text in one.unseen]
    detail = "on 1, 2 and 3 ranks"
    own = [text for one in results if one.state == "rank 0's" for text in one.differences]
    if own:
        detail += ", but for numbers of rank 0's part, as port says"
    return Verdict("the same run", detail, tuple(dict.fromkeys([*missed, *unseen])))


def differs(detail: str, *differences: str) -> Result:
    """Return that there are differences."""
    return Result("differs", detail, differences)


def merged(results: Iterable[Result]) -> list[Result]:
    """Return one result for each check and number of ranks: all that differs in any of the runs."""
    found: dict[tuple[str, int], Result] = {}
    order = ("-", "same", "not seen", "rank 0's", "differs")
    for one in results:
        first = found.setdefault((one.check, one.world), one)
        if one is first:
            continue
        worse = max(first, one, key=lambda result: order.index(result.state))
        both = [one for one in (first, one) if one.state == worse.state]
        every = dict.fromkeys(text for one in both for text in one.differences)
        unseen = dict.fromkeys([*first.unseen, *one.unseen])
        worse = replace(worse, differences=tuple(every), unseen=tuple(unseen))
        found[one.check, one.world] = worse
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
                what = "numbers of rank 0's part of the training batches, as port says,"
            for difference in one.differences[:_SHOWN]:
                lines = "\n   ".join(map(clean, difference.split("\n")))
                console.print(f"\n{number}. {what} on {one.ranks}: {lines}")
            if len(one.differences) > _SHOWN:
                console.print(f"   and {len(one.differences) - _SHOWN} more")
    unseen = dict.fromkeys(text for one in results for text in one.unseen)
    for title, listed in (
        ("not seen:", list(unseen)),
        ("to make the runs comparable, in all of them:", list(notes)),
    ):
        if listed:
            console.print(f"\n{title}")
        for note in listed:
            console.print(f"  {clean(note)}", width=terminal, soft_wrap=False)
