"""`rankup bench-data`: how fast a file feeds a training loop, and which part limits."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ...base.errors import EXIT_FAILED, UserError, nearest
from ...base.files import user_path
from ...site import mounts
from ...site.gpus import usable_cores
from .. import images
from ..inspect.printing import safe
from ..stage import memory
from .verdict import Data, Measured, judge, lines

if TYPE_CHECKING:
    from ..opened import Samples
    from ..reader import PackedDataset
    from ..transforms import Transform

_ROWS = 1024  # samples that are chosen from
_LOOKED = 64  # images whose sizes are looked at
_FORM = "module:function, or photos:RandomResizedCrop(224)"


class Raised(Exception):  # noqa: N818 - what it carries is the error
    """The user's code raised `error`, which is shown with its traceback."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclasses.dataclass(frozen=True)
class Request:
    """The words of `rankup bench-data`, as they were given."""

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


def bench_data(request: Request) -> int:
    """Measure and print.

    Returns:
        The exit code: 1 where the user's transform raised.

    Raises:
        UserError: values that make no sense, no such file or transform, no torch.
        OSError: the file cannot be read.
    """
    for name in ("demand", "seconds", "batch", "size", "workers"):
        value = getattr(request, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UserError(f"--{name} is {value:g}; it should be more than 0")
    root = user_path(request.file, "FILE")
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
        measured = _measured(root, request)
    except Raised as raised:
        traceback.print_exception(raised.error)
        what = request.transform or "the transform"
        print(f"rankup: --transform {what} raised, so there is nothing to measure", file=sys.stderr)
        return EXIT_FAILED
    except SystemExit as left:  # else the program would end in silence, with a code of theirs
        raise UserError(
            f"--transform {request.transform} ended the program (SystemExit: {left.code}), so "
            f"there is nothing to measure"
        ) from left
    finally:
        torch.set_num_threads(threads)
    verdict = judge(measured)
    if request.as_json:
        found = {**dataclasses.asdict(measured), "verdict": dataclasses.asdict(verdict)}
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(map(safe, lines(measured, verdict))))
    return 0


def load_transform(text: str) -> Transform:
    """Return the transform that `module:name` or `module:name(values)` stands for.

    Modules are looked for in the current folder, too. Values are literals.

    Raises:
        UserError: there is no such module or name, or what it names is no transform.
        Raised: the module raised as it was imported, or what was called in it.
    """
    module, _, rest = text.partition(":")
    try:
        named = ast.parse(rest.strip(), mode="eval").body
        call = named if isinstance(named, ast.Call) else None
        args = [ast.literal_eval(one) for one in call.args] if call else []
        kwargs = (
            {one.arg or "**": ast.literal_eval(one.value) for one in call.keywords} if call else {}
        )
        name = ast.unparse(call.func if call else named)
        if not all(map(str.isidentifier, (*module.split("."), *name.split("."), *kwargs))):
            raise ValueError(name)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise UserError(
            f"--transform {text!r} is not understood; it should be {_FORM}, with plain values in "
            f"the brackets: numbers, strings, True, None"
        ) from error
    found: Any = _module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [name for name in dir(found) if not name.startswith("_")]
            raise UserError(
                f"--transform {text}: there is no {part!r} in {module}; {nearest(part, known)}"
            )
        found = getattr(found, part)
    if call is not None:
        try:
            found = found(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            raise Raised(error) from error
    elif inspect.isclass(found):
        raise UserError(
            f"--transform {text} is a class; write what it is made with: {text}(...), as in "
            f"photos:RandomResizedCrop(224)"
        )
    if not callable(found):
        raise UserError(
            f"--transform {text} is {type(found).__name__}; it should be a function of (bytes, rng)"
        )
    return found  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    if name == "photos":
        return importlib.import_module("rankup.data.photos")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does; stays, since what is imported may import more
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise UserError(
                f"--transform: there is no module {missing!r} in {here}, and none is installed"
            ) from error
        raise Raised(error) from error


def _measured(root: Path, request: Request) -> Measured:
    from .. import opened
    from ..orders import Shuffled
    from ..reader import PackedDataset
    from . import measure

    busy = os.getloadavg()[0]  # before there is load of ours in it
    split = request.split
    if split is None and "train" in (several := opened.open(root).splits) and len(several) > 1:
        split = "train"
    dataset = PackedDataset(root, split, field=request.field, on_bad="drop")
    samples, count = dataset.samples, len(dataset)
    if not count:
        raise UserError(f"{root} has no samples to measure with")
    rows = Shuffled(count).slice(0, 0, min(count, _ROWS)).tolist()
    image, spelled = "", request.transform or ""
    if not samples.index.field(request.field).dtype:  # the kind of most of some samples
        kinds = [images.kind_of(samples.span(row, request.field, 0, 18)) for row in rows[:9]]
        image = max(set(kinds), key=kinds.count)
    if image and not spelled:
        spelled = f"photos:RandomResizedCrop({request.size})"
    dataset.transform = load_transform(spelled) if spelled else None
    taken = measure.take(dataset, rows, request.seconds / 4)
    # A batch of large volumes may be more than there is memory for.
    left = [one.left for one in memory.limits(os.environ, 0)]
    room = min(left, default=psutil.virtual_memory().available)
    sample = max(map(measure.bytes_of, taken.items))
    batch = max(1, min(request.batch, room // 20 // max(1, sample)))
    parts, made = measure.parts(dataset, taken, batch, request.seconds)
    data = _data(request, dataset, image, rows, spelled, made, busy)
    workers, seconds = request.workers or data.cores, request.seconds / 2
    batch = measure.fitting(workers, batch, seconds, parts, sample, room)
    loads, refused = measure.loads(dataset, taken.rows, workers, batch, seconds, bool(parts.loose))
    return Measured(data, parts, loads, request.demand, refused)


def _data(
    request: Request,
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
    width, height = _pixels(samples, request.field, rows) if image else (0, 0)
    storage = mounts.kind_of(samples.file(0))
    result = ""
    if isinstance(made, torch.Tensor):
        result = f"{str(made.dtype).removeprefix('torch.')} {tuple(made.shape[1:])}"
    ours = transform is None or str(getattr(transform, "__module__", "")).startswith("rankup.")
    return Data(
        path=request.file,
        staged=str(samples.staged or ""),
        split=samples.splits[0] if samples.splits else "",
        container=samples.index.container,
        how=samples.how,
        samples=len(dataset),
        size=int(dataset.lengths.clip(0).sum()),
        storage=storage,
        pieces=bool((samples.index.field(request.field).offset[:_ROWS] < 0).any()),
        resident=storage in mounts.IN_MEMORY,
        image=image,
        width=width,
        height=height,
        transform=spelled,
        result=result,
        own=not ours,
        in_place=isinstance(transform, Shaped),
        batch=request.batch,
        cores=usable_cores(),
        gpus=torch.cuda.device_count(),
        busy=busy,
    )


def _pixels(samples: Samples, field: str | None, rows: list[int]) -> tuple[int, int]:
    """Return the median width and height of some images; 0 where their heads do not tell."""
    heads = [samples.span(row, field, 0, images.HEAD) for row in rows[:_LOOKED]]
    looks = [images.look(head, b"", len(head), "") for head in heads]
    widths = sorted(one.width for one in looks if one.width and one.height)
    heights = sorted(one.height for one in looks if one.width and one.height)
    middle = len(widths) // 2
    return (widths[middle], heights[middle]) if widths else (0, 0)
