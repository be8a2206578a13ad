"""`rankup bench-data`: looks at the file, measures part by part, says what came of it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ...base.errors import EXIT_FAILED, UserError
from ...base.files import user_path
from ...site import mounts
from ...site.gpus import usable_cores
from .. import images
from ..stage import memory
from . import chosen
from .advice import advice, named
from .measured import Data, Measured
from .printing import lines, safe
from .verdict import judge

if TYPE_CHECKING:
    from ..opened import Samples
    from ..reader import PackedDataset
    from ..transforms import Transform

_ROWS = 1024  # samples that are chosen from
_LOOKED = 64  # images whose sizes are looked at


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is to be measured, as the command was given it."""

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
        _say("", asked)
    verdict = judge(measured)
    if asked.as_json:
        told = {
            **dataclasses.asdict(measured),
            "verdict": {
                **dataclasses.asdict(verdict),
                "met": verdict.met,
                "limits": named(verdict.limit, measured),
                "advice": advice(measured, verdict),
            },
        }
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
    from ..reader import PackedDataset
    from . import parts, whole

    busy = os.getloadavg()[0]  # before there is load of ours in it
    _say("opening", asked)
    dataset = PackedDataset(root, asked.split, field=asked.field, on_bad="drop")
    samples, count = dataset.samples, len(dataset)
    if not count:
        raise UserError(f"{root} has no samples to measure with")
    rows = _rows(dataset)
    image = _image(samples, asked.field, rows)
    transform, spelled, own = _transform(asked, bool(image))
    dataset.transform = transform
    storage = mounts.kind_of(samples.file(0))
    _say("reading from storage", asked)
    cold, why_not = parts.cold(dataset, rows, storage, asked.seconds / 6)
    _say("the parts", asked)
    taken = parts.take(dataset, rows, asked.seconds / 4)
    # A batch of large volumes may be more than there is memory for.
    room = _memory()
    sample = max(map(parts.bytes_of, taken.items))
    batch = max(1, min(asked.batch, room // 20 // max(1, sample)))
    found, made, stacked = parts.measure(dataset, taken, batch, asked.seconds)
    found = dataclasses.replace(found, cold=cold, why_not_cold=why_not)
    data = _data(asked, dataset, image, rows, storage, spelled, own, made, busy)
    work = (found.transform.median if found.transform else 0.0) + found.read.median
    tried = whole.counts(data.cores) if asked.workers is None else (asked.workers,)
    plan = whole.Plan(
        counts=tried,
        batch=batch,
        sample=sample,
        seconds=work + (found.collate.median if found.collate else 0.0),
        each=max(0.3, 0.8 * asked.seconds / len(tried)),
        room=room,
        loose=not stacked,
    )
    loads, refused = whole.measure(dataset, taken.rows, plan, lambda what: _say(what, asked))
    return Measured(data, found, loads, asked.demand, refused)


def _memory() -> int:
    """Bytes that may still be used: what the node has, or the job's own limit."""
    left = [one.left for one in memory.limits(os.environ, 0)]
    return min(left, default=psutil.virtual_memory().available)


def _rows(dataset: PackedDataset) -> list[int]:
    """Samples in random order, some hundred of them."""
    from ..orders import Shuffled

    some = min(len(dataset), _ROWS)
    return Shuffled(len(dataset)).slice(0, 0, some).tolist()


def _image(samples: Samples, field: str | None, rows: list[int]) -> str:
    """The kind of most of some samples, where they are images."""
    if samples.index.field(field).dtype:
        return ""
    kinds = [images.kind_of(samples.span(row, field, 0, 18)) for row in rows[:9]]
    return max(set(kinds), key=kinds.count)


def _transform(asked: Asked, image: bool) -> tuple[Transform | None, str, bool]:
    if asked.transform is not None:
        found = chosen.load(asked.transform)
        return (
            found,
            asked.transform,
            not str(getattr(found, "__module__", "")).startswith("rankup."),
        )
    if image:
        from ..photos import RandomResizedCrop

        return RandomResizedCrop(asked.size), f"photos:RandomResizedCrop({asked.size})", False
    return None, "", False


def _data(
    asked: Asked,
    dataset: PackedDataset,
    image: str,
    rows: list[int],
    storage: str,
    spelled: str,
    own: bool,
    made: Any,
    busy: float,
) -> Data:
    import torch

    from ..transforms import Shaped

    samples = dataset.samples
    width, height = _pixels(samples, asked.field, rows) if image else (0, 0)
    in_place = isinstance(dataset.transform, Shaped)
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
        result=_result(made),
        own=own,
        in_place=in_place,
        crop=asked.size if image and asked.transform is None else 0,
        batch=asked.batch,
        cores=usable_cores(),
        gpus=torch.cuda.device_count(),
        memory=_memory(),
        busy=busy,
    )


def _pixels(samples: Samples, field: str | None, rows: list[int]) -> tuple[int, int]:
    """Median width and height of some images; 0 where their heads do not tell."""
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


def _result(made: Any) -> str:
    import torch

    if not isinstance(made, torch.Tensor):
        return ""
    return f"{str(made.dtype).removeprefix('torch.')} {tuple(made.shape[1:])}"


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


def _say(what: str, asked: Asked) -> None:
    """On a terminal, what is measured now."""
    if sys.stderr.isatty() and not asked.as_json:
        shown = f"measuring: {what} …" if what else ""
        print(f"\r{shown:<60}\r", end="", file=sys.stderr, flush=True)
