"""The answer of `rankup plan`: a table and sentences for a terminal, and JSON."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from ..base.amounts import duration, number, words
from . import holdings
from .answer import Answer, Row
from .estimate import RISKY, Estimate
from .machine import GIB
from .search import STOPS_PAYING, where_it_stops_paying
from .words import layout_text, run_command

_WIDTH = 118  # of a table that goes to a file
_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def show(answer: Answer, *, explain: bool) -> None:
    """Print the answer.

    Args:
        explain: with every term of the proposed layout, and who holds what.
    """
    from rich.console import Console

    wide = shutil.get_terminal_size((_WIDTH, 40)).columns if sys.stdout.isatty() else _WIDTH
    console = Console(width=max(80, wide), highlight=False, markup=False, soft_wrap=False)
    for line in _head(answer):
        console.print(line)
    if answer.rows:
        console.print(_table(answer))
    for line in _unfit(answer):
        console.print(line)
    for line in _verdict(answer):
        console.print(line)
    row = answer.chosen or next(iter(answer.rows), None)
    if explain:
        explained = row.estimate if row is not None else _closest(answer)
        if explained is not None:
            lines = (*_explained(explained), "", *holdings.lines(explained))
            print(*lines, sep="\n")  # formulas are wider than a terminal
    if answer.chosen is not None:
        line, call = _command(answer, answer.chosen)
        print("", *([call] if call else []), line, sep="\n")


def _command(answer: Answer, row: Row) -> tuple[str, str]:
    """What starts a row, and what stands in its script."""
    seconds = None if row.seconds is None else row.seconds * (1 + row.estimate.band)
    return run_command(answer.target, answer.site, row.estimate.layout, answer.steps, seconds)


def _head(answer: Answer) -> Iterator[str]:
    shape, machine = answer.target.shape, answer.site.machine
    tokens = answer.global_batch * shape.seq
    yield (
        f"{shape.name}: {number(shape.parameters())} parameters ({shape.layers} layers, hidden "
        f"{shape.hidden}, {shape.heads} heads), sequences of {shape.seq:,} tokens, "
        f"{answer.precision}"
    )
    length = ""
    if answer.steps is not None:
        of = number(answer.steps * tokens).replace("G", "B")  # as --tokens is written
        length = f", {answer.steps:,} steps: {of} tokens"
    yield f"global batch {answer.global_batch} sequences, {number(tokens)} tokens per step{length}"
    yield (
        f"{answer.site.name}: {machine.gpus_per_node} x {machine.gpu} per node, "
        f"{machine.nic_per_node / 1e9:.3g} GB/s between nodes ({machine.source})"
    )
    for note in answer.notes:
        yield f"note: {note}"


def _table(answer: Answer) -> Any:
    from rich import box
    from rich.table import Table

    ends = answer.steps is not None
    unit = answer.site.machine.unit
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    # A band that all rows have stands in the head.
    time = _common(row.estimate.band for row in answer.rows)
    memory = _common(row.estimate.memory_band for row in answer.rows)
    step, gib = f"s/step\n{time}".strip(), f"GiB/GPU\n{memory}".strip()
    for name in ("GPUs", "layout", "micro", "ckpt", step, "tok/s/GPU", "MFU", gib):
        left = name in ("layout", "ckpt")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "layout")
    for name in ("to the end", unit) if ends else (f"{unit}/Gtoken",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limited by")
    last = None
    for row in answer.rows:
        fit, layout = row.estimate, row.estimate.layout
        cells = [
            "→" if row is answer.chosen else "",
            str(layout.gpus) if layout.gpus != last else "",
            layout_text(layout),
            str(layout.micro_batch),
            layout.recompute if layout.recompute != "none" else "-",
            f"{fit.seconds:.3g}" + ("" if time else f" ±{fit.band:.0%}"),
            f"{fit.tokens_per_second_per_gpu:,.0f}",
            f"{fit.mfu:.2f}",
            f"{fit.memory_total / GIB:.3g}" + ("" if memory else f" ±{fit.memory_band:.0%}"),
        ]
        if row.seconds is not None and row.cost is not None:
            cells += [_span(row.seconds, fit.band), _between(row.cost, fit.band)]
        else:
            cells.append(_between(answer.site.token_cost(fit) * 1e9, fit.band))
        cells.append(", ".join((*row.objections, fit.limit) if fit.limit else row.objections))
        table.add_row(*cells)
        last = layout.gpus
    return table


def _common(bands: Iterable[float]) -> str:
    """The band of all rows as it is written; empty where they differ."""
    known = {f"±{band:.0%}" for band in bands}
    return known.pop() if len(known) == 1 else ""


def _span(seconds: float, band: float) -> str:
    """The range of a time, in one unit."""
    unit, word = next((known for known in _TIMES if seconds >= 2 * known[0]), (1.0, "s"))
    return f"{_between(seconds / unit, band)} {word}"


def _between(value: float, band: float) -> str:
    return f"{number(value * (1 - band))} to {number(value * (1 + band))}"


def _closest(answer: Answer) -> Estimate | None:
    return next((layouts.closest for layouts in answer.found if layouts.closest), None)


def _unfit(answer: Answer) -> Iterator[str]:
    """Where nothing fits: the numbers, and the nearest that does."""
    fitting = [layouts.gpus for layouts in answer.found if layouts.fitting]
    for layouts in answer.found:
        if layouts.fitting:
            continue
        if layouts.ruled_out:
            yield f"{_gpus(layouts.gpus)}: no layout that is searched goes with {layouts.ruled_out}"
            continue
        if layouts.closest is None:
            yield (
                f"{_gpus(layouts.gpus)}: no layout divides a global batch of {answer.global_batch} "
                f"sequences and {answer.target.shape.heads} heads among them"
            )
            continue
        least = layouts.closest
        largest = max(least.memory, key=lambda part: part[1])
        more = next((n for n in fitting if n > layouts.gpus), None)
        yield (
            f"{_gpus(layouts.gpus)}: does not fit. {layout_text(least.layout)}, micro-batch "
            f"{least.layout.micro_batch}, activations {least.layout.recompute} needs least, "
            f"{least.memory_total / GIB:.1f} GiB of {least.capacity / GIB:.1f}, most of it "
            f"{largest[0]} ({largest[1] / GIB:.1f} GiB); "
            + (f"it fits on {more} GPUs" if more else _advice_to_fit(answer))
        )


def _gpus(count: int) -> str:
    return words(count, "GPU", "GPUs")


def _advice_to_fit(answer: Answer) -> str:
    if answer.enough is None:
        return "no number of GPUs that was tried is enough"
    return f"the fewest on which it fits are {answer.enough}"


def _verdict(answer: Answer) -> Iterator[str]:
    stops = where_it_stops_paying(answer.found, answer.site.token_cost)
    if stops is not None and stops.best is not None:
        priced = [layouts.best for layouts in answer.found if layouts.best is not None]
        cost = answer.site.token_cost
        least = min(priced, key=cost)
        more = cost(stops.best) / cost(least) - 1
        yield (
            f"adding GPUs stops paying at {stops.gpus}: a token costs {more:.0%} more there than "
            f"on {least.layout.gpus} ({STOPS_PAYING - 1:.0%} is where this is drawn)"
        )
    row = answer.chosen
    if row is None:
        yield f"no layout is proposed: {answer.why}"
        return
    fit = row.estimate
    yield f"→ {_gpus(row.gpus)}, {layout_text(fit.layout)}: {answer.why}"
    if fit.limit:
        yield f"limited by {fit.limit}; {fit.advice}" if fit.advice else f"limited by {fit.limit}"
    if answer.compiled is not None:
        yield _compiled(answer, answer.compiled)
    if fit.risky:
        yield (
            f"risky: {fit.head_room:.0%} of the memory stay free ({RISKY:.0%} are safe), "
            f"{fit.memory_total / GIB:.1f} of {fit.capacity / GIB:.1f} GiB"
        )


def _saving(answer: Answer, compiled: Row) -> tuple[float | None, float]:
    """Seconds of the whole run and its cost that compiling saves; where the length is not known
    None, and the cost of a billion tokens."""
    row, site = answer.chosen, answer.site
    assert row is not None
    if row.seconds is None or row.cost is None or compiled.seconds is None or compiled.cost is None:
        return None, (site.token_cost(row.estimate) - site.token_cost(compiled.estimate)) * 1e9
    return row.seconds - compiled.seconds, row.cost - compiled.cost


def _compiled(answer: Answer, compiled: Row) -> str:
    """What compiling would save, and with which layout."""
    assert answer.chosen is not None
    (seconds, cost), found = _saving(answer, compiled), compiled.estimate
    said, layout = answer.chosen.estimate.layout, found.layout
    others = [layout_text(layout)] if layout_text(layout) != layout_text(said) else []
    if layout.micro_batch != said.micro_batch:
        others.append(f"micro-batches of {layout.micro_batch}")
    if layout.recompute != said.recompute:
        others.append(f"activation checkpointing {layout.recompute}")
    word = "compile=True" if answer.target.recipe is None else "--compile"
    with_others = f" and {', '.join(others)}" if others else ""
    spared = f"{number(cost)} {answer.site.machine.unit}"
    spared += " per Gtoken" if seconds is None else f" and {duration(seconds)} of the run"
    return (
        f"not compiled: {word}{with_others} would take {found.seconds:.3g} s per step, "
        f"{1 - found.seconds / answer.chosen.estimate.seconds:.0%} less, which saves about {spared}"
    )


def _explained(fit: Estimate) -> Iterator[str]:
    """Every term of a step, and every part of the memory."""
    yield f"\none step of {layout_text(fit.layout)} on {fit.layout.gpus} GPUs"
    for term in fit.terms:
        yield f"  {term.name:20} {term.seconds:10.4g} s  {term.seconds / fit.seconds:4.0%}"
        for text in (term.formula, term.detail, term.source):
            if text:
                yield f"      {text}"
    yield f"  {'in all':20} {fit.seconds:10.4g} s  ± {fit.band:.0%}"
    yield "memory of the most loaded rank"
    for name, part in fit.memory:
        yield f"  {name:30} {part / GIB:8.2f} GiB"
    yield (
        f"  {'in all':30} {fit.memory_total / GIB:8.2f} GiB ± {fit.memory_band:.0%}, of "
        f"{fit.capacity / GIB:.1f}"
    )


def as_json(answer: Answer) -> dict[str, Any]:
    """Return the answer as JSON takes it."""
    command = ("", "") if answer.chosen is None else _command(answer, answer.chosen)
    stops = where_it_stops_paying(answer.found, answer.site.token_cost)
    return {
        "model": {**asdict(answer.target.shape), "parameters": answer.target.shape.parameters()},
        "machine": {"name": answer.site.name, **asdict(answer.site.machine)},
        "global_batch": answer.global_batch,
        "precision": answer.precision,
        "steps": answer.steps,
        "rows": [_row(row, row is answer.chosen) for row in answer.rows],
        "does_not_fit": [
            {
                "gpus": layouts.gpus,
                "least": None if layouts.closest is None else _estimate(layouts.closest),
            }
            for layouts in answer.found
            if not layouts.fitting
        ],
        "fewest_gpus": answer.enough,
        "stops_paying_at": None if stops is None else stops.gpus,
        "why": answer.why,
        "compile": None if answer.compiled is None else _compile(answer, answer.compiled),
        "command": command[0] or None,
        "in_the_script": command[1] or None,
        "notes": list(answer.notes),
    }


def _compile(answer: Answer, compiled: Row) -> dict[str, Any]:
    """What compiling would save."""
    (seconds, cost), command = _saving(answer, compiled), _command(answer, compiled)
    return {
        **_estimate(compiled.estimate),
        "saves_seconds": seconds,
        "saves_cost": cost,
        "saves_of": "Gtoken" if seconds is None else "run",
        "command": command[0] or None,
        "in_the_script": command[1] or None,
    }


def _row(row: Row, chosen: bool) -> dict[str, Any]:
    return {
        **_estimate(row.estimate),
        "seconds_to_the_end": row.seconds,
        "cost": row.cost,
        "unit": row.estimate.machine.unit,
        "objections": list(row.objections),
        "chosen": chosen,
    }


def _estimate(fit: Estimate) -> dict[str, Any]:
    return {
        "layout": asdict(fit.layout),
        "seconds_per_step": fit.seconds,
        "band": fit.band,
        "tokens_per_second_per_gpu": fit.tokens_per_second_per_gpu,
        "mfu": fit.mfu,
        "memory": dict(fit.memory),
        "memory_total": fit.memory_total,
        "memory_band": fit.memory_band,
        "memory_of_gpu": fit.capacity,
        "risky": fit.risky,
        "limit": fit.limit,
        "advice": fit.advice,
        "terms": [asdict(term) for term in fit.terms],
    }
