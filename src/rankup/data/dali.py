"""`DaliLoader`: a Loader whose photos NVIDIA's DALI decodes and resizes, on the CPU or the GPU.

Which samples, which part of each and which are flipped is decided by rankup, as everywhere, by
(seed, epoch, sample): nothing is drawn from DALI's own random state, which knows of no rank and no
resume. DALI gets bytes and coordinates, and does what it is good at.
"""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset, Subset

from ..base.errors import UserError
from . import images
from .batches import BatchRequest
from .engines import Engine, Threads, default_workers
from .errors import BadContainer, require_positive
from .fetch import Fetch, Made, allocate
from .loader import Loader
from .orders import unwrapped
from .photos.decoding import measure
from .photos.shaping import Photo, View
from .reader import PackedDataset

_FAILURES = (RuntimeError, IndexError, ValueError, TypeError, OSError)  # as DALI's errors arrive


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
        photos = unwrapped(dataset)
        made = engine(photos, workers, device, prefetch, timeout)
        where = _device(device)
        pin, to = (False, where) if where.type == "cuda" else (pin_memory, None)
        super().__init__(photos, global_batch, workers=0, pin_memory=pin, device=to, **options)
        self._engine = made


def engine(
    dataset: Dataset[Any],
    workers: int | None = None,
    device: torch.device | str | None = None,
    prefetch: int = 2,
    timeout: float = 1800.0,
) -> Engine:
    """Return what makes batches; options as of `DaliLoader`."""
    count = default_workers() if workers is None else workers
    require_positive(workers=count, prefetch=prefetch)
    if (
        not isinstance(dataset, PackedDataset)
        or isinstance(dataset.field, tuple)
        or not isinstance(dataset.transform, Photo)
    ):
        raise UserError(
            "DALI decodes a PackedDataset of photos alone, with one of rankup.data.photos' "
            "RandomResizedCrop, CenterCrop and Resize as its transform; a Loader takes any"
        )
    photos = _Photos(dataset, dataset.transform, count, _device(device))
    # One reads while another one decodes; more where each read waits for a server.
    readers = 5 if dataset.samples.how == "pread" else 2
    return Threads(Fetch(photos), readers, -(-prefetch // readers), timeout, pin_memory=False)


class _Item(NamedTuple):
    data: npt.NDArray[np.uint8]
    view: View


class _Photos(Dataset[Any]):
    """Makes batches of photos: reads their bytes, and has DALI decode them, one batch at a time."""

    def __init__(
        self, dataset: PackedDataset, transform: Photo, threads: int, device: torch.device
    ) -> None:
        try:
            import nvidia.dali as dali
            import nvidia.dali.fn
            import nvidia.dali.types  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"NVIDIA DALI is not here ({error}): pip install 'rankup[dali]', or use a Loader"
            ) from None
        self._dali: Any = dali
        self._pipeline: Any = None
        self._transform = transform
        self._reading = copy.copy(dataset)
        self._reading.transform = self._item
        self._refused: set[int] = set()  # xxh3 of what DALI cannot decode
        self._lock = threading.Lock()
        self._threads, self._device = threads, device
        self._most = 0  # samples that the pipeline takes at once

    def make(self, request: BatchRequest) -> Made:
        while True:
            made: Made = self._reading.make(request)
            items: list[_Item] = made.inputs
            with self._lock:
                try:
                    made.inputs = self._decoded(items)
                    return made
                except _FAILURES as error:
                    # Once more without the samples that make it fail, of which `on_bad` decides.
                    refused = {_digest(one.data.data) for one in items if not self._decodes(one)}
                    if not refused - self._refused:
                        raise UserError(
                            f"DALI failed, though not at any sample alone: {error}"
                        ) from error
                    self._refused |= refused

    def _item(self, data: bytes | memoryview, rng: np.random.Generator) -> _Item:
        if self._refused and _digest(data) in self._refused:
            raise BadContainer(f"DALI cannot decode this {images.kind_of(data)}")
        size = measure(data)
        # DALI reads no further than a part's last row, and would not see that more is missing.
        if size.jpeg and b"\xff\xd9" not in bytes(data[len(data) // 2 :]):
            raise BadContainer("the photo was cut short")
        return _Item(np.frombuffer(data, np.uint8), self._transform.view(*size[:2], rng))

    def _decodes(self, item: _Item) -> bool:
        try:
            self._decoded([item])
        except _FAILURES:
            return False
        return True

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
        pipeline = self._pipeline
        if pipeline is None or len(items) > self._most:
            self._most = max(self._most, len(items))
            pipeline = self._built()
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
        pipeline = self._dali.Pipeline(
            batch_size=self._most,
            num_threads=self._threads,
            device_id=self._device.index if gpu else None,
            prefetch_queue_depth=1,
        )
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


_digest = xxhash.xxh3_64_intdigest


def _device(asked: torch.device | str | None) -> torch.device:
    """Return the device that decodes, a GPU with its number."""
    if asked is None:
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty(0, device=asked).device
