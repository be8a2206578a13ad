"""What was measured, and the verdict, in some ten lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ...base.amounts import size
from ..inodes import spaced, words
from ..inspect.printing import safe
from .advice import advice, named
from .measured import Load, Measured, Spread
from .verdict import Verdict

__all__ = ["lines", "safe"]
_WIDTH = 100
_BUSY = 0.3  # of the cores


def lines(measured: Measured, verdict: Verdict) -> Iterator[str]:
    """The report."""
    data, parts = measured.data, measured.parts
    yield _file(measured)
    result = f" -> {data.result}" if data.result else ""
    gpus = words(data.gpus, "GPU", "GPUs") if data.gpus else "no GPU"
    yield (
        f"transform {data.transform or 'none'}{result}; batches of {data.batch}; "
        f"{words(data.cores, 'core', 'cores')}, {gpus}"
    )
    yield f"{'':18}{'a sample':>9}  {'(quartiles)':<18}{'per second and core':>20}"
    yield _part("read from memory", parts.read)
    yield _part("read from storage", parts.cold, parts.why_not_cold)
    if parts.transform is not None:
        yield _part(_making(measured), parts.transform)
    yield _part("collate", parts.collate, parts.loose and f"not possible: {parts.loose}")
    yield _part("copy to a GPU", parts.copy, parts.why_not_copy)
    for kind in ("threads", "processes"):
        loads = [load for load in measured.loads if load.kind == kind]
        if loads:
            yield _loads(kind, loads, data.batch)
        elif kind in measured.refused:
            yield from _wrapped(f"Loader, {kind}: not possible: {measured.refused[kind]}")
    if data.busy > _BUSY * data.cores:
        yield (
            f"Other programs were at work here (load {data.busy:.1f} on "
            f"{words(data.cores, 'core', 'cores')}): on an idle node it is faster."
        )
    if parts.bad:
        yield f"left out, as they cannot be made: {parts.bad}; the first is {parts.first_bad}"
    yield from _wrapped(_good(measured, verdict))
    yield from _wrapped(_verdict(measured, verdict))
    for number, line in enumerate(advice(measured, verdict), 1):
        yield from _wrapped(f"{number}. {line}", "   ")


def _file(measured: Measured) -> str:
    data = measured.data
    image = data.image
    if image and data.width:
        image += f" of about {data.width} x {data.height} pixels"
    image = f", {image}" if image else ""
    split = f", {data.split}" if data.split else ""
    where = data.storage or "an unknown file system"
    staged = f", staged at {data.staged}" if data.staged else ""
    return (
        f"{data.path}{split}: {words(data.samples, 'sample', 'samples')}, {size(data.size)}"
        f"{image}; {data.container} on {where}, by {data.how}{staged}"
    )


def _making(measured: Measured) -> str:
    return "decode + crop" if measured.data.image and not measured.data.own else "transform"


def _part(name: str, spread: Spread | None, why: str = "") -> str:
    if spread is None:
        return f"  {name:<18} {'-':>7}  {why or 'not measured'}"
    inside = f"({_time(spread.low)} … {_time(spread.high)})"
    rate = 1 / spread.median if spread.median > 0 else 0.0
    note = f"   {why}" if why else ""
    return f"  {name:<18} {_time(spread.median):>7}  {inside:<21}{_rate(rate):>14}{note}"


def _loads(kind: str, loads: Sequence[Load], batch: int) -> str:
    shown = ", ".join(f"{load.workers}: {_rate(load.rate.median)}" for load in loads)
    smaller = min(load.batch for load in loads)
    notes = [f"batches of {smaller}"] if smaller < batch else []
    if own := [load.memory for load in loads if load.memory]:
        notes.append(f"each has {size(max(own))} of memory for itself")
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"Loader, {kind}: samples/s with {shown}{note}"


def _good(measured: Measured, verdict: Verdict) -> str:
    chosen = verdict.chosen
    gpus = measured.data.gpus
    ranks = f" ({max(1, chosen.workers // gpus)} for each of {gpus} ranks)" if gpus > 1 else ""
    one = chosen.kind.removesuffix("es" if chosen.kind == "processes" else "s")
    workers = words(chosen.workers, one, chosen.kind)
    spread = f"{_rate(chosen.rate.low)} … {_rate(chosen.rate.high)}"
    return (
        f"Good: {workers}{ranks}, {_rate(chosen.rate.median)}/s ({spread}): "
        f'Loader(..., workers={chosen.workers}, kind="{chosen.kind}")'
    )


def _verdict(measured: Measured, verdict: Verdict) -> str:
    part = named(verdict.limit, measured)
    share = f" ({_percent(verdict.share)} of a worker's time)" if verdict.share else ""
    rate = _rate(verdict.supply)
    of = _percent(verdict.supply / verdict.demand)
    cold = ", read from storage" if verdict.cold else ""
    if not verdict.met:
        return (
            f"Too slow: {rate}/s{cold} are {of} of the {_rate(verdict.demand)}/s asked for. What "
            f"limits is {part}{share}."
        )
    enough = verdict.enough
    fewer = ""
    if enough is not None and enough.workers < verdict.chosen.workers:
        fewer = f"; {words(enough.workers, 'worker does', 'workers do')}, too"
    first = ""
    if verdict.first_epoch is not None:
        first = f" The first epoch, from storage, has about {_rate(verdict.first_epoch)}/s."
    return (
        f"Fast enough: {rate}/s{cold} are {verdict.supply / verdict.demand:.1f} times the "
        f"{_rate(verdict.demand)}/s asked for{fewer}.{first} First to limit would be {part}{share}."
    )


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 else f"{100 * part:.1g} %"


def _rate(value: float) -> str:
    """Three digits of it: `9 200`."""
    if value < 1000:
        return _three(value)
    return spaced(int(round(value, 3 - len(str(int(value))))))


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
