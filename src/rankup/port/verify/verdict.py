"""The results of the seven checks, and their table with what differs below it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TextIO

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
_COLOURS = {"proved": "32", "differs": "1;31", "rank 0's": "33", "not seen": "33", "-": "2"}
_SHOWN = 4  # differences of a check


@dataclass(frozen=True)
class Result:
    """The result of one check on some number of ranks.

    Attributes:
        check: key of `CHECKS`.
        state: `not seen`: the script did nothing of the kind that could be compared; `rank 0's`:
            all that differs are numbers of rank 0's part of the training batches, as a port
            promises; `-`: means nothing on so many ranks.
        detail: a few words or figures for the table.
        differences: explained; empty unless `differs` or `rank 0's`.
    """

    check: str
    world: int
    state: State
    detail: str = ""
    differences: tuple[str, ...] = ()


def differs(check: str, world: int, detail: str, *differences: str) -> Result:
    """The result of a check that found differences."""
    return Result(check, world, "differs", detail, differences)


def merged(results: Iterable[Result]) -> list[Result]:
    """One result for each check and number of ranks: all that differs in any of the runs."""
    found: dict[tuple[str, int], Result] = {}
    for one in results:
        first = found.setdefault((one.check, one.world), one)
        if one is first or one.state != "differs":
            continue
        if first.state == "differs":
            every = dict.fromkeys([*first.differences, *one.differences])
            found[one.check, one.world] = replace(first, differences=tuple(every))
        else:
            found[one.check, one.world] = one
    return list(found.values())


def show(results: Sequence[Result], notes: Sequence[str], out: TextIO | None = None) -> None:
    """Print the table."""
    out = out or sys.stdout
    worlds = sorted({one.world for one in results})
    cells = {(one.check, one.world): one for one in results}
    titles = [f"{number}. {title}" for number, title in enumerate(CHECKS.values(), 1)]
    heads = [f"{world} rank{'s' if world > 1 else ''}" for world in worlds]
    widths = [
        max(len(head), *(len(_text(cells.get((check, world)))) for check in CHECKS))
        for head, world in zip(heads, worlds, strict=True)
    ]
    first = max(map(len, titles))
    line = "  ".join(f"{head:{width}}" for head, width in zip(heads, widths, strict=True))
    print(f"{'':{first}}  {line}".rstrip(), file=out)
    for title, check in zip(titles, CHECKS, strict=True):
        shown = [
            _cell(cells.get((check, world)), width, out.isatty())
            for world, width in zip(worlds, widths, strict=True)
        ]
        print(f"{title:{first}}  {'  '.join(shown)}".rstrip(), file=out)
    for number, check in enumerate(CHECKS, 1):
        _show_differences(number, [one for one in results if one.check == check], out)
    if notes:
        print("\nto make the runs comparable, in all of them:", file=out)
        for note in notes:
            print(f"  {clean(note)}", file=out)


def _show_differences(number: int, results: Sequence[Result], out: TextIO) -> None:
    """Those on the fewest ranks: on more it is mostly the same again."""
    for state in ("differs", "rank 0's"):
        one = next((one for one in results if one.state == state), None)
        if one is None:
            continue
        ranks = f"{one.world} rank{'s' if one.world > 1 else ''}"
        heading = f"{number}. differs on {ranks}"
        if state == "rank 0's":
            heading = f"{number}. numbers of rank 0's part of the training batches on {ranks}"
        for difference in one.differences[:_SHOWN]:
            lines = [clean(line) for line in difference.split("\n")]
            print(f"\n{heading}: {lines[0]}", file=out)
            for line in lines[1:]:
                print(f"   {line}", file=out)
        if len(one.differences) > _SHOWN:
            print(f"   and {len(one.differences) - _SHOWN} more", file=out)
        return


def _text(result: Result | None) -> str:
    if result is None or result.state == "-":
        return "-"
    return f"{result.state}: {result.detail}" if result.detail else result.state


def _cell(result: Result | None, width: int, colours: bool) -> str:
    text = f"{clean(_text(result)):{width}}"
    if not colours or result is None:
        return text
    return f"\033[{_COLOURS[result.state]}m{text}\033[0m"
