"""A Loader with DALI as its engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import xxhash
from torch.utils.data import Dataset, Subset

from ...base.errors import UserError
from ...runtime.shard import part
from ..batches import BatchRequest
from ..engines import Engine, default_workers
from ..fetch import Answer, Fetch, Made
from ..loader import Loader
from ..orders import Ordering
from ..photos.shaping import Photo
from ..reader import PackedDataset
from ..splits import unwrapped
from ..threads import Threads
from .encoded import Encode
from .pipeline import Failed, Pipeline, Setting, imported, refusals

# Threads that read ahead of DALI: of a network file system, where each read waits for a server.
_READERS = 4


class DaliLoader(Loader):
    """A `Loader` whose photos are decoded by DALI; whatever else it says there holds here.

        photos = PackedDataset("imagenet.h5", "train", rankup.data.photos.RandomResizedCrop(224))
        loader = DaliLoader(photos, global_batch=1024, seed=1)

    The same samples, parts and flips as a Loader with these arguments has, and the same places in a
    run: a run may go on with the other one. Pixels differ by rounding. On the CPU a sample's bytes
    are the same at any number of ranks; a GPU's decoders may round by what else is in the batch.

    Batches are `(images, labels)` on `device`: images uint8 (n, 3, height, width), channels last;
    labels int64 (n,). `photos.normalize` makes the images float where they are.

    What DALI cannot decode is dealt with by the data set's `on_bad`. A JPEG that is damaged in its
    middle it decodes without an error: use `verify=True` where that has to be seen.

    Args:
        dataset: with one of `photos.RandomResizedCrop`, `CenterCrop` and `Resize` as transform;
            torch's Subset of it, too.
        global_batch, shuffle, train, seed, drop_last, pin_memory, rank, world_size, quiet: as for
            Loader.
        workers: threads of DALI; by default the cores of this rank minus one.
        prefetch: batches that DALI is ahead.
        timeout: seconds that reading a batch may take before that is an error; 0 for ever.
        device: `cpu`, or the GPU that decodes; by default a GPU where there is one.

    Raises:
        UserError: DALI is not installed, or the data set is not one of photos alone.
    """

    def __init__(
        self,
        dataset: PackedDataset | Subset[Any],
        global_batch: int,
        *,
        shuffle: bool | Ordering = True,
        train: bool | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        workers: int | None = None,
        prefetch: int = 2,
        timeout: float = 1800.0,
        device: torch.device | str | None = None,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        quiet: bool | None = None,
    ) -> None:
        imported()
        photos, _ = _fitting(dataset)
        where = _device(device)
        gpu = where.type == "cuda"
        super().__init__(
            photos,
            global_batch,
            shuffle=shuffle,
            train=train,
            seed=seed,
            drop_last=drop_last,
            workers=0,
            timeout=timeout,
            pin_memory=False if gpu else pin_memory,
            device=where if gpu else None,
            rank=rank,
            world_size=world_size,
            quiet=quiet,
        )
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
    """What makes the batches of requests, each of at most `most` samples; else as `DaliLoader`.

    Raises:
        UserError: DALI is not installed, or the data set is not one of photos alone.
    """
    imported()
    threads = default_workers() if workers is None else workers
    if threads < 1 or prefetch < 1:
        raise UserError(
            f"workers={threads}, prefetch={prefetch}: DALI has at least one thread, and is at "
            f"least one batch ahead"
        )
    photos, transform = _fitting(dataset)
    setting = Setting(
        transform=transform,
        most=most,
        threads=threads,
        prefetch=prefetch,
        device=_device(device),
    )
    return _Dali(photos, setting, timeout)


class _Read(Fetch):
    """Batches of `Item`s, which are not collated."""

    def __call__(self, request: BatchRequest) -> Made:
        made: Made = self.dataset.make(request)  # type: ignore[attr-defined]
        return made


class _Dali:
    """The engine: bytes are read ahead, and pipelines make pictures of them."""

    def __init__(self, dataset: PackedDataset, setting: Setting, timeout: float) -> None:
        self._setting = setting
        self._encode = Encode(setting.transform)
        reading = copy.copy(dataset)
        reading.transform = self._encode
        self._read = _Read(reading)
        far = dataset.samples.how == "pread"
        # Bytes need no page-locked memory of their own.
        readers = _READERS if far else 1
        self._ahead = Threads(self._read, readers, setting.prefetch, timeout, pin_memory=False)
        # Kept from epoch to epoch; two loops over one loader have a pipeline each.
        self._idle: list[Pipeline] = []

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Answer]:
        ahead = self._ahead.run(requests)
        while True:
            pipeline = self._idle.pop() if self._idle else Pipeline(self._setting)
            try:
                yield from pipeline.run(ahead)
                return
            except Failed as failed:
                # DALI ends a pipeline at its first error: what was in it begins anew in another.
                begun = [request for request, _ in pipeline.waiting]
                self._blame([made for _, made in pipeline.waiting], failed)
                again = ((request, self._read(request)) for request in begun)
                ahead = chain(again, _raised(pipeline.error), ahead)
            finally:
                if pipeline.idle:
                    self._idle.append(pipeline)

    def _blame(self, waiting: list[Made], failed: Failed) -> None:
        """Find the samples that made a pipeline fail, by decoding each alone."""
        for made in waiting:
            refused = refusals(made.inputs, self._setting)
            for item, why in refused:
                self._encode.refused[xxhash.xxh3_64_intdigest(item.data.data)] = why
            if refused:
                return
        raise UserError(f"DALI failed, though not at any sample alone: {failed}") from failed

    def close(self) -> None:
        self._idle.clear()
        self._ahead.close()


def _raised(error: Exception | None) -> Iterator[Answer]:
    if error is not None:
        raise error
    yield from ()


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
    """The device that decodes, a GPU with its number."""
    there = torch.cuda.is_available()
    device = torch.device(asked if asked is not None else "cuda" if there else "cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"DALI decodes on the CPU or on a GPU of NVIDIA, not on {device}")
    if device.type == "cpu":
        return device
    if not there:
        raise UserError(f"device={device}: torch sees no GPU here; device='cpu' needs none")
    return torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )
