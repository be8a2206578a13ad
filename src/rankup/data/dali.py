"""`DaliLoader`: a Loader whose photos NVIDIA's DALI decodes and resizes, on the CPU or the GPU.

Which samples, which part of each and which are flipped is decided by rankup, as everywhere, by
(seed, epoch, sample): nothing is drawn from DALI's own random state, which knows of no rank and no
resume. DALI gets bytes and coordinates, and does what it is good at.
"""

from __future__ import annotations

import copy
import re
import threading
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset, Subset

from ..base.errors import UserError
from ..runtime.shard import part
from . import images
from .batches import BatchRequest
from .engines import Engine, default_workers
from .errors import BadContainer
from .fetch import Fetch, Made, allocate
from .loader import Loader
from .photos.decoding import measure
from .photos.shaping import Photo, View
from .reader import PackedDataset
from .splits import unwrapped
from .threads import Threads

_END = b"\xff\xd9"  # of a JPEG
_FAILURES = (RuntimeError, IndexError, ValueError, TypeError, OSError)  # as DALI's errors arrive
_STORY = re.compile(r"encountered:\s*(.*?)\s*(?:Current pipeline|$)", re.DOTALL)


class DaliLoader(Loader):
    """A `Loader` whose photos are decoded by DALI; whatever else it says there holds here.

        photos = PackedDataset("imagenet.h5", "train", rankup.data.photos.RandomResizedCrop(224))
        loader = DaliLoader(photos, global_batch=1024, seed=1)

    A run may go on with the other one. Pixels differ by rounding; on a GPU, also by what else is in
    the batch. Batches are `(images, labels)` on `device`: images uint8 (n, 3, height, width),
    labels int64 (n,). A JPEG that is damaged in its middle is decoded without an error: use
    `verify=True`.

    Args:
        dataset: with one of `photos.RandomResizedCrop`, `CenterCrop` and `Resize` as transform.
        workers: threads of DALI; by default the cores of this rank minus one.
        prefetch: batches that are made ahead.
        device: `cpu`, or the GPU that decodes; by default a GPU where there is one.
        options: shuffle, train, seed, drop_last, rank, world_size and quiet, as for Loader.

    Raises:
        UserError: DALI is not installed, or the data set is not one of photos alone.
    """

    def __init__(
        self,
        dataset: PackedDataset | Subset[Any],
        global_batch: int,
        *,
        workers: int | None = None,
        prefetch: int = 2,
        timeout: float = 1800.0,
        device: torch.device | str | None = None,
        pin_memory: bool | None = None,
        **options: Any,
    ) -> None:
        where = _device(device)
        gpu = where.type == "cuda"
        pin, to = (False, where) if gpu else (pin_memory, None)
        photos = _fitting(dataset)[0]
        super().__init__(photos, global_batch, workers=0, pin_memory=pin, device=to, **options)
        # The part of the last rank is never the smaller one.
        most = len(part(global_batch, self.world_size - 1, self.world_size))
        self._engine = engine(photos, max(1, most), workers, where, prefetch, timeout)


def engine(
    dataset: PackedDataset,
    most: int,
    workers: int | None = None,
    device: torch.device | str | None = None,
    prefetch: int = 2,
    timeout: float = 1800.0,
) -> Engine:
    """Return what makes batches, each of at most `most` samples; else as `DaliLoader`."""
    count = default_workers() if workers is None else workers
    if count < 1 or prefetch < 1:
        raise UserError(
            f"workers={count}, prefetch={prefetch}: DALI has at least one thread, and is at least "
            f"one batch ahead"
        )
    photos = _Photos(dataset, most, count, _device(device))
    # One reads while another one decodes; more where each read waits for a server.
    readers = 5 if dataset.samples.how == "pread" else 2
    return Threads(Fetch(photos), readers, -(-prefetch // readers), timeout, pin_memory=False)


class _Item(NamedTuple):
    data: npt.NDArray[np.uint8]
    view: View


class _Photos(Dataset[Any]):
    """Makes batches of photos: reads their bytes, and has DALI decode them, one batch at a time."""

    def __init__(
        self, dataset: PackedDataset, most: int, threads: int, device: torch.device
    ) -> None:
        given, self._transform = _fitting(dataset)
        self._reading = copy.copy(given)
        self._reading.transform = self._item
        self._refused: dict[int, str] = {}  # what DALI has said of bytes, by their xxh3
        self._lock = threading.Lock()
        self._settings = {"batch_size": most, "num_threads": threads, "prefetch_queue_depth": 1}
        self._device = device
        self._dali, self._pipeline = _imported(), None

    def make(self, request: BatchRequest) -> Made:
        while True:
            made: Made = self._reading.make(request)
            items: list[_Item] = made.inputs
            with self._lock:
                try:
                    made.inputs = self._decoded(items)
                    return made
                except _FAILURES as error:
                    self._refuse(items, error)

    def _item(self, data: bytes | memoryview, rng: np.random.Generator) -> _Item:
        why = self._refused.get(xxhash.xxh3_64_intdigest(data)) if self._refused else None
        if why is not None:
            raise BadContainer(f"DALI cannot decode this {images.kind_of(data)}: {why}")
        size = measure(data)
        # DALI reads no further than a part's last row, and would not see that more is missing.
        if (
            size.jpeg
            and _END not in bytes(data[-64:])
            and _END not in bytes(data[len(data) // 2 :])
        ):
            raise BadContainer("the photo was cut short")
        return _Item(np.frombuffer(data, np.uint8), self._transform.view(*size[:2], rng))

    def _refuse(self, items: list[_Item], failed: Exception) -> None:
        """Find the samples that made DALI fail, by decoding each alone."""
        before = len(self._refused)
        for item in items:
            try:
                self._decoded([item])
            except _FAILURES as error:  # noqa: PERF203
                self._refused[xxhash.xxh3_64_intdigest(item.data.data)] = _reason(error)
        if len(self._refused) == before:
            why = _reason(failed)
            raise UserError(f"DALI failed, though not at any sample alone: {why}") from failed

    def _decoded(self, items: list[_Item]) -> torch.Tensor:
        views = [one.view for one in items]
        inputs = {
            "data": [one.data for one in items],
            "start": np.array([view.part[:2] for view in views], np.int32),
            "shape": np.array([view.part[2:] for view in views], np.int32),
            "size": np.array([view.size for view in views], np.float32),
            "corner": np.array([view.corner for view in views], np.int32),
            "flip": np.array([view.flip for view in views], np.int32),
        }
        gpu = self._device.type == "cuda"
        pipeline = self._pipeline or self._built()
        self._pipeline = None  # after its first error it does nothing more
        with torch.cuda.device(self._device) if gpu else nullcontext():
            decoded = torch.from_dlpack(pipeline.run(**inputs)[0].as_tensor())
            # Into memory of our own: the next batch is written where this one was.
            own = torch.empty_like(decoded) if gpu else allocate(tuple(decoded.shape), torch.uint8)
            own.copy_(decoded)
        self._pipeline = pipeline
        return own.permute(0, 3, 1, 2)

    def _built(self) -> Any:
        """Build a pipeline: decode a part, resize it, cut the result out of that, maybe flip it."""
        fn = self._dali.fn
        gpu = self._device.type == "cuda"
        height, width, _ = self._transform.shape
        settings = {**self._settings, "device_id": self._device.index if gpu else None}
        pipeline = self._dali.Pipeline(**settings)
        with pipeline:
            names = ("data", "start", "shape", "size", "corner", "flip")
            data, start, shape, size, corner, flip = (
                fn.external_source(name=name, ndim=0 if name == "flip" else 1) for name in names
            )
            pictures = fn.decoders.image_slice(
                data,
                device="mixed" if gpu else "cpu",
                start=start,
                shape=shape,
                axis_names="HW",
                adjust_orientation=False,
            )
            linear = self._dali.types.INTERP_LINEAR
            pictures = fn.resize(pictures, size=size, interp_type=linear, antialias=True)
            cut = {"start": corner, "shape": (height, width), "axis_names": "HW"}
            pipeline.set_outputs(fn.flip(fn.slice(pictures, **cut), horizontal=flip))
        pipeline.build()
        return pipeline


def _reason(error: Exception) -> str:
    """Return DALI's own words, without the story around them."""
    found = _STORY.search(str(error))
    text = found[1] if found else str(error)
    return " ".join(text.split()).rstrip(":") or type(error).__name__


def _imported() -> Any:
    try:
        import nvidia.dali as dali
        import nvidia.dali.fn
        import nvidia.dali.types  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"NVIDIA DALI is not here ({error}): pip install 'rankup[dali]', or use a Loader"
        ) from None
    return dali


def _fitting(given: Dataset[Any]) -> tuple[PackedDataset, Photo]:
    dataset = unwrapped(given)
    if not isinstance(dataset, PackedDataset) or isinstance(dataset.field, tuple):
        raise UserError("DaliLoader needs a PackedDataset of one field, which is photos")
    if not isinstance(dataset.transform, Photo):
        raise UserError(
            f"DaliLoader cannot carry out the transform {dataset.transform!r}: give the data set "
            f"one of rankup.data.photos' RandomResizedCrop, CenterCrop and Resize, or use a Loader"
        )
    return dataset, dataset.transform


def _device(asked: torch.device | str | None) -> torch.device:
    """Return the device that decodes, a GPU with its number."""
    there = torch.cuda.is_available()
    device = torch.device(asked if asked is not None else "cuda" if there else "cpu")
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UserError(f"DALI decodes on the CPU or on a GPU of NVIDIA, not on {device}")
    if not there:
        raise UserError(f"device={device}: torch sees no GPU here; device='cpu' needs none")
    return torch.empty(0, device=device).device
