"""What to change, in plain words, for each part that can limit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .measured import Measured
from .verdict import Verdict

NAMES = {
    "read": "reading",
    "collate": "putting samples together to batches",
    "copy": "copying batches to the GPU",
    "loader": "handing batches from the workers to the loop",
}


def named(limit: str, measured: Measured) -> str:
    """A part, as people say it."""
    if limit != "transform":
        return NAMES[limit]
    if measured.data.own:
        return f"the transform {measured.data.transform}"
    return "decoding and cropping" if measured.data.image else "the transform"


def advice(measured: Measured, verdict: Verdict) -> tuple[str, ...]:
    """What to change, the most useful first; empty where there is nothing to gain."""
    lines: list[str] = []
    if not verdict.met:
        lines += _PARTS[verdict.limit](measured, verdict)
    if verdict.first_epoch is not None:
        lines.append(f"for the first epoch, {_stage(measured)}")
    if verdict.crowded is not None and not verdict.met:
        lines.append(
            f"each of {verdict.chosen.workers} workers has {100 * verdict.crowded:.0f} % of the "
            f"speed of one alone: other programs run here, or two cores are one (hyperthreads), or "
            f"memory is what they wait for"
        )
    return tuple(lines)


def _read(measured: Measured, verdict: Verdict) -> Iterator[str]:
    data = measured.data
    if data.container == "files" or data.pieces:
        now = "takes work in Python for each sample" if data.pieces else "is opened for each sample"
        yield (
            f"`rankup pack {data.path} {_pack_name(data.path)}`: one file that stays open and has "
            f"each sample in one piece; {data.path} {now}"
        )
    if verdict.cold:
        yield (
            "the data is larger than the memory: part of it in memory (`rankup stage --fraction`), "
            "smaller samples (`rankup pack --resize` for photos), or an order by blocks "
            "(rankup.data.orders.Blocks), which reads in long pieces"
        )
    elif not data.resident:
        yield _stage(measured)
    yield from _cores(measured, verdict)


def _transform(measured: Measured, verdict: Verdict) -> Iterator[str]:
    data = measured.data
    yield from _cores(measured, verdict)
    side = 8 * data.crop // 7
    short = min(data.width, data.height)
    if data.crop and short > 1.2 * side:
        left = (side / short) ** 2
        yield (
            f"smaller photos, `rankup pack --resize {side}`: of {data.width} x {data.height} "
            f"pixels {100 * left:.0f} % are left to decode"
        )
    if data.image == "JPEG" and not data.own:
        yield "decode on the GPU: rankup.data.dali.DaliLoader"
    if data.own:
        yield (
            "what the transform does to every sample alike (float, normalise) can be done to whole "
            "batches on the GPU"
        )
        if data.image:
            yield (
                "compare it with rankup's own: --transform 'photos:RandomResizedCrop(224)', which "
                "decodes and crops alone"
            )


def _collate(measured: Measured, verdict: Verdict) -> Iterator[str]:
    if not measured.data.in_place:
        yield (
            "a transform with `shape` and `into` (rankup.data.transforms.Shaped) writes each "
            "sample where it belongs in the batch"
        )
    yield "smaller samples: uint8 until they are on the GPU, float there"
    yield from _cores(measured, verdict)


def _copy(measured: Measured, verdict: Verdict) -> Iterator[str]:
    yield "smaller samples: uint8 is a quarter of float32; make them float on the GPU"
    yield "copies beside the training: Loader(..., device='cuda')"


def _loader(measured: Measured, verdict: Verdict) -> Iterator[str]:
    if verdict.chosen.kind == "processes":
        yield (
            "samples that are small cost more on their way than in the making: store several as "
            "one sample, or give less (uint8 instead of float)"
        )
    else:
        yield "samples that are small cost Python more than their bytes: store several as one"
    if measured.data.gpus > 1:
        yield f"this was one loop; {measured.data.gpus} ranks have a loop each"


def _cores(measured: Measured, verdict: Verdict) -> Iterator[str]:
    data, chosen = measured.data, verdict.chosen
    if verdict.cores is None:
        return
    needed = math.ceil(verdict.cores)
    if needed > data.cores:
        yield (
            f"more cores: {verdict.demand:,.0f}/s take about {needed:,}, this process may use "
            f"{data.cores} (`--cpus-per-task` of the job; a compute node has more than a login "
            f"node)".replace(",", " ", 1)
        )
    elif chosen.workers < data.cores:
        yield (
            f"{data.cores} cores are there and more than {chosen.workers} "
            f"{chosen.kind} are not faster: "
            + (
                "try processes, the transform holds Python's lock"
                if chosen.kind == "threads"
                else "run it again on a node where nothing else runs"
            )
        )


def _stage(measured: Measured) -> str:
    data = measured.data
    where = f"`rankup stage {data.path}` (`rankup run --stage`): "
    if data.size > data.memory:
        return (
            where
            + "it is larger than the memory that is free, so a part: --fraction (--stage-fraction)"
        )
    return where + "into the node's memory, once per job, in large pieces"


def _pack_name(path: str) -> str:
    return f"{path.rstrip('/').rsplit('/', 1)[-1].rsplit('.', 1)[0]}.h5"


_PARTS = {
    "read": _read,
    "transform": _transform,
    "collate": _collate,
    "copy": _copy,
    "loader": _loader,
}
