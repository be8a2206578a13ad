"""`rankup bench-data`: looks at the file, measures part by part, says what came of it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ...base.amounts import size
from ...base.errors import EXIT_FAILED, UserError
from ...base.files import user_path
from ...site import mounts
from ...site.gpus import usable_cores
from .. import images
from ..inodes import words
from ..inspect.printing import safe
from ..stage import memory
from . import chosen
from .verdict import Data, Measured, Spread, Verdict, judge

if TYPE_CHECKING:
    from ..opened import Samples
    from ..reader import PackedDataset
    from ..transforms import Transform

_ROWS = 1024  # samples that are chosen from
_LOOKED = 64  # images whose sizes are looked at
_WIDTH = 100
_BUSY = 0.3  # of the cores


@dataclasses.dataclass(frozen=True)
class Asked:
    """The request of `rankup bench-data`."""

    file: str
    split: str | None = None
    field: str | None = None
    transform: str | None = None
    size: int = 224
    batch: int = 256
    demand: float = 9200.0
    workers: int | None = None
    seconds: float = 10.0
    as_json: bool = False


def bench_data(asked: Asked) -> int:
    """Measure and print.

    Returns:
        The exit code: 1 where the user's transform raised.

    Raises:
        UserError: values that make no sense, no such file or transform, no torch.
        OSError: the file cannot be read.
    """
    _check(asked)
    root = user_path(asked.file, "FILE")
    try:
        import torch
    except ImportError as error:
        raise UserError(
            "bench-data measures what a training script does, with torch, which is not installed "
            "here: pip install 'rankup[train]', or load its module"
        ) from error
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a worker has one; else the parts would be of several cores
    try:
        measured = _measured(root, asked)
    except chosen.Raised as raised:
        return _raised(raised, asked)
    except SystemExit as left:  # else the program would end in silence, with a code of theirs
        raise UserError(
            f"--transform {asked.transform} ended the program (SystemExit: {left.code}), so there "
            f"is nothing to measure"
        ) from left
    finally:
        torch.set_num_threads(threads)
    verdict = judge(measured)
    if asked.as_json:
        told = {**dataclasses.asdict(measured), "verdict": dataclasses.asdict(verdict)}
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(map(safe, lines(measured, verdict))))
    return 0


def _check(asked: Asked) -> None:
    for name, value in (
        ("--demand", asked.demand),
        ("--seconds", asked.seconds),
        ("--batch", asked.batch),
        ("--size", asked.size),
        ("--workers", asked.workers if asked.workers is not None else 1),
    ):
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"{name} is {value:g}; it should be more than 0")
    if asked.transform is not None:
        chosen.parse(asked.transform)


def _measured(root: Path, asked: Asked) -> Measured:
    from ..orders import Shuffled
    from ..reader import PackedDataset
    from . import measure

    busy = os.getloadavg()[0]  # before there is load of ours in it
    dataset = PackedDataset(root, asked.split, field=asked.field, on_bad="drop")
    samples, count = dataset.samples, len(dataset)
    if not count:
        raise UserError(f"{root} has no samples to measure with")
    rows = Shuffled(count).slice(0, 0, min(count, _ROWS)).tolist()
    image = _image(samples, asked.field, rows)
    dataset.transform, spelled = _transform(asked, bool(image))
    taken = measure.take(dataset, rows, asked.seconds / 4)
    # A batch of large volumes may be more than there is memory for.
    left = [one.left for one in memory.limits(os.environ, 0)]
    room = min(left, default=psutil.virtual_memory().available)
    sample = max(map(measure.bytes_of, taken.items))
    batch = max(1, min(asked.batch, room // 20 // max(1, sample)))
    parts, made = measure.parts(dataset, taken, batch, asked.seconds)
    data = _data(asked, dataset, image, rows, spelled, made, busy)
    workers, seconds = asked.workers or data.cores, asked.seconds / 2
    batch = measure.fitting(workers, batch, seconds, parts, sample, room)
    loose = bool(parts.loose)
    loads, refused = measure.loads(dataset, taken.rows, workers, batch, seconds, loose)
    return Measured(data, parts, loads, asked.demand, refused)


def _image(samples: Samples, field: str | None, rows: list[int]) -> str:
    """Return the kind of most of some samples, where they are images."""
    if samples.index.field(field).dtype:
        return ""
    kinds = [images.kind_of(samples.span(row, field, 0, 18)) for row in rows[:9]]
    return max(set(kinds), key=kinds.count)


def _transform(asked: Asked, image: bool) -> tuple[Transform | None, str]:
    """Return the transform that is measured, and how it is spelled."""
    if asked.transform is not None:
        return chosen.load(asked.transform), asked.transform
    if image:
        from ..photos import RandomResizedCrop

        return RandomResizedCrop(asked.size), f"photos:RandomResizedCrop({asked.size})"
    return None, ""


def _data(
    asked: Asked,
    dataset: PackedDataset,
    image: str,
    rows: list[int],
    spelled: str,
    made: Any,
    busy: float,
) -> Data:
    import torch

    from ..transforms import Shaped

    samples, transform = dataset.samples, dataset.transform
    width, height = _pixels(samples, asked.field, rows) if image else (0, 0)
    storage = mounts.kind_of(samples.file(0))
    result = ""
    if isinstance(made, torch.Tensor):
        result = f"{str(made.dtype).removeprefix('torch.')} {tuple(made.shape[1:])}"
    ours = transform is None or str(getattr(transform, "__module__", "")).startswith("rankup.")
    return Data(
        path=asked.file,
        staged=str(samples.staged or ""),
        split=samples.splits[0] if samples.splits else "",
        container=samples.index.container,
        how=samples.how,
        samples=len(dataset),
        size=int(dataset.lengths.clip(0).sum()),
        storage=storage,
        pieces=bool((samples.index.field(asked.field).offset[:_ROWS] < 0).any()),
        resident=storage in mounts.IN_MEMORY,
        image=image,
        width=width,
        height=height,
        transform=spelled,
        result=result,
        own=not ours,
        in_place=isinstance(transform, Shaped),
        batch=asked.batch,
        cores=usable_cores(),
        gpus=torch.cuda.device_count(),
        busy=busy,
    )


def _pixels(samples: Samples, field: str | None, rows: list[int]) -> tuple[int, int]:
    """Return the median width and height of some images; 0 where their heads do not tell."""
    seen = []
    for row in rows[:_LOOKED]:
        head = samples.span(row, field, 0, images.HEAD)
        look = images.look(head, b"", len(head), "")
        if look.width and look.height:
            seen.append((look.width, look.height))
    if not seen:
        return 0, 0
    widths, heights = (sorted(side) for side in zip(*seen, strict=True))
    return widths[len(seen) // 2], heights[len(seen) // 2]


def _raised(raised: chosen.Raised, asked: Asked) -> int:
    """Show the user's own error, from the user's own code on."""
    error = raised.__cause__
    assert error is not None
    place = error.__traceback__
    own = str(Path(__file__).resolve().parents[2])
    while place is not None and place.tb_next is not None and _inside(place, own):
        place = place.tb_next
    traceback.print_exception(type(error), error, place)
    what = asked.transform or "the transform"
    print(f"rankup: --transform {what} raised, so there is nothing to measure", file=sys.stderr)
    return EXIT_FAILED


def _inside(place: Any, folder: str) -> bool:
    name = place.tb_frame.f_code.co_filename
    return name.startswith((folder, "<frozen importlib")) or "/importlib/" in name


def lines(measured: Measured, verdict: Verdict) -> Iterator[str]:
    """Yield the report."""
    data, parts = measured.data, measured.parts
    pixels = f" of about {data.width} x {data.height} pixels" if data.width else ""
    image = f", {data.image}{pixels}" if data.image else ""
    where = data.storage or "an unknown file system"
    yield (
        f"{data.path}{f', {data.split}' if data.split else ''}: "
        f"{words(data.samples, 'sample', 'samples')}, {size(data.size)}{image}; {data.container} "
        f"on {where}, by {data.how}{f', staged at {data.staged}' if data.staged else ''}"
    )
    gpus = words(data.gpus, "GPU", "GPUs") if data.gpus else "no GPU"
    yield (
        f"transform {data.transform or 'none'}{f' -> {data.result}' if data.result else ''}; "
        f"batches of {data.batch}; {words(data.cores, 'core', 'cores')}, {gpus}"
    )
    yield f"{'':18}{'a sample':>9}  {'(quartiles)':<18}{'per second and core':>20}"
    yield _part("first read", parts.first)
    yield _part("read again", parts.read)
    if parts.transform is not None:
        making = "decode + crop" if data.image and not data.own else "transform"
        yield _part(making, parts.transform)
    yield _part("collate", parts.collate, parts.loose and f"not possible: {parts.loose}")
    yield _part("copy to a GPU", parts.copy, parts.why_not_copy)
    for load in measured.loads:
        own = f"; each has {size(load.memory)} of memory for itself" if load.memory else ""
        yield (
            f"Loader, {load.workers} {load.kind}: {_rate(load.rate)} samples/s (batches of "
            f"{load.batch}{own})"
        )
    for kind, why in measured.refused.items():
        yield from _wrapped(f"Loader, {kind}: not possible: {why}")
    if data.busy > _BUSY * data.cores:
        yield (
            f"Other programs were at work here (load {data.busy:.1f} on "
            f"{words(data.cores, 'core', 'cores')}): on an idle node it is faster."
        )
    if parts.bad:
        yield f"left out, as they cannot be made: {parts.bad}; the first is {parts.first_bad}"
    share = f" ({_percent(verdict.share)} of worker time)" if verdict.share else ""
    rate, demand = _rate(verdict.supply), _rate(measured.demand)
    if verdict.met:
        times = f"{verdict.supply / measured.demand:.1f} times the {demand}/s you asked for"
        yield from _wrapped(
            f"Fast enough: {rate} samples/s, {times}. The bottleneck would be "
            f"{verdict.limits}{share}."
        )
        return
    yield from _wrapped(
        f"Too slow: {rate} samples/s, {_percent(verdict.supply / measured.demand)} of the "
        f"{demand}/s you asked for. The bottleneck is {verdict.limits}{share}."
    )
    yield from _wrapped(f"What to change: {verdict.change}.")


def _part(name: str, spread: Spread | None, why: str = "") -> str:
    if spread is None:
        return f"  {name:<18} {'-':>7}  {why or 'not measured'}"
    inside = f"({_time(spread.low)} … {_time(spread.high)})"
    rate = 1 / spread.median if spread.median > 0 else 0.0
    return f"  {name:<18} {_time(spread.median):>7}  {inside:<21}{_rate(rate):>14}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 else f"{100 * part:.1g} %"


def _rate(value: float) -> str:
    """Return three digits of it: `9,200`."""
    if value < 1000:
        return _three(value)
    return f"{int(round(value, 3 - len(str(int(value))))):,}"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
