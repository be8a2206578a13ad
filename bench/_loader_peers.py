"""Batches of `loader.py`, their order and clock, and how others make them with two workers.

Each function that takes the folder prepares a `Slice`.
"""

from __future__ import annotations

import io
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import _photos
import pack

BATCH = 64
SIZE = 160
WORKERS = 2
HDF5 = Path("hdf5", pack.file_name("hdf5"))
_LAST = 1 << 40  # positions in an epoch so long that no slice meets its end
_UNCOUNTED = 5  # batches of a slice before the clock starts: what was made ahead is gone then
_APART = 1.0  # levels of 255 that two resized photos may differ by on average

Slice = Callable[[float], tuple[float, float]]  # seconds -> samples/s, CPU seconds per sample


class Endless:
    """Orders of `count` samples one after another, as one epoch: an `Ordering`, and a sampler."""

    def __init__(self, count: int) -> None:
        from rankup.data.orders import Shuffled

        self.n, self.global_batch = _LAST, None
        self._count, self._order = count, Shuffled(count)
        self.samples, self.seed, self.identity = count, None, "Endless"

    def slice(self, epoch: int, start: int, stop: int) -> Any:
        first, last = start // self._count, (stop - 1) // self._count
        if first == last:
            at = first * self._count
            return self._order.slice(first, start - at, stop - at)
        middle = last * self._count
        return np.concatenate([self.slice(0, start, middle), self.slice(0, middle, stop)])

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for start in itertools.count(0, BATCH):
            yield from self.slice(0, start, start + BATCH).tolist()


def paced(batches: Iterator[tuple[Any, Any]]) -> Slice:
    """Return the slice of a loader, from one batch's arrival to another's; check the first one."""
    images, labels = next(batches)
    shapes = [(BATCH, 3, SIZE, SIZE), (BATCH, SIZE, SIZE, 3)]
    if tuple(images.shape) not in shapes or images.dtype != torch.uint8 or len(labels) != BATCH:
        sys.exit(f"a batch is {images.dtype} of shape {tuple(images.shape)}, {len(labels)} labels")
    del images, labels

    def slice(seconds: float) -> tuple[float, float]:
        for _ in range(_UNCOUNTED):
            next(batches)
        before, done, start = spent(), 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            next(batches)
            done += BATCH
        return done / passed, (spent() - before) / done

    return slice


def spent() -> float:
    """Return CPU seconds of this process and its workers, which others do not lengthen."""
    here = psutil.Process()
    times = [one.cpu_times() for one in (here, *here.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def random_crop(scaled: bool = True) -> Any:
    from rankup.data import photos

    return photos.RandomResizedCrop(SIZE, scaled=scaled)


def whole(scaled: bool = False) -> Any:
    from rankup.data import photos

    return photos.Resize(SIZE, scaled=scaled)


def pillow_crop(image: Image.Image) -> torch.Tensor:
    """Crop at random, resize and flip by Pillow, as torchvision does, without torchvision."""
    image = image.convert("RGB")
    width, height = image.size
    box = (0, 0, width, height)
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        shape = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            box = (left, top, left + across, top + down)
            break
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def course_whole(image: Image.Image) -> torch.Tensor:
    """Transform as the course does, without torchvision: float at full size, antialiased resize.

    Its batches are float; here the pixels become bytes again at the end, as those of all others:
    less to send to the training process.
    """
    pixels = torch.from_numpy(np.array(image.convert("RGB")))
    full = pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
    small = F.interpolate(full[None], (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return small.mul_(255).round_().to(torch.uint8)


def compare_whole(folder: Path) -> None:
    """Check that our whole photo, resized, is the course's, up to how each of them rounds."""
    transform, rng = whole(), np.random.default_rng()
    for path, _ in _photos.listed(folder / "photos")[:20]:
        with Image.open(path) as image:
            theirs = course_whole(image)
        ours = torch.from_numpy(transform(path.read_bytes(), rng)).permute(2, 0, 1)
        apart = (ours.float() - theirs.float()).abs().mean().item()
        if apart > _APART:
            sys.exit(
                f"bench: {path.name} resized is {apart:.1f} levels from the course's, on average"
            )


def torch_loader(dataset: Any, count: int) -> Slice:
    """Iterate over torch's DataLoader, as the peers use it, with a map-style data set."""
    loader = DataLoader(dataset, BATCH, sampler=Endless(count), num_workers=WORKERS)
    return paced(iter(loader))


class CourseHdf5(Dataset[Any]):
    """The course's reader: each worker opens its own file, a data set of variable lengths."""

    def __init__(self, path: Path, transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self._path, self._transform, self._group = path, transform, None

    def __getitem__(self, row: int) -> tuple[torch.Tensor, Any]:
        import h5py

        if self._group is None:
            self._group = h5py.File(self._path, "r")["train"]
        data, label = self._group["images"][row], self._group["targets"][row]
        with io.BytesIO(data) as stream, Image.open(stream) as image:
            return self._transform(image), label


def course(folder: Path) -> Slice:
    import h5py

    path = folder / "course_hdf5_quick" / "photos"
    with h5py.File(path, "r") as file:
        count = len(file["train/images"])
    return torch_loader(CourseHdf5(path, course_whole), count)


class Files(Dataset[Any]):
    """Paths and labels in a Python list."""

    def __init__(self, folder: Path) -> None:
        self.listed = [(str(path), label) for path, label in _photos.listed(folder / "photos")]

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        path, label = self.listed[row]
        with Image.open(path) as image:
            return pillow_crop(image), label


def files_pillow(folder: Path) -> Slice:
    files = Files(folder)
    return torch_loader(files, len(files.listed))


def _decoded(data: bytes) -> torch.Tensor:
    with io.BytesIO(data) as stream, Image.open(stream) as image:
        return pillow_crop(image)


def hugging_face(folder: Path) -> Slice:
    import datasets

    rows = datasets.load_from_disk(str(folder / "hugging_face" / "photos"))
    count = len(rows)
    rows.set_transform(
        lambda batch: {
            "image": [_decoded(data) for data in batch["image"]],
            "label": batch["label"],
        }
    )
    loader = DataLoader(rows, BATCH, sampler=Endless(count), num_workers=WORKERS)
    return paced((batch["image"], batch["label"]) for batch in loader)


def web_dataset(folder: Path) -> Slice:
    """Read shards in order, resampled without end; a buffer of 1000 shuffles them."""
    import webdataset

    shards = sorted(str(path) for path in (folder / "web_dataset").rglob("*.tar"))
    stream = (
        webdataset.WebDataset(shards, resampled=True, shardshuffle=False, empty_check=False)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(_decoded, int)
        .batched(BATCH)
    )
    loader = webdataset.WebLoader(stream, batch_size=None, num_workers=WORKERS)
    return paced((torch.as_tensor(images), labels) for images, labels in loader)


def dali_reader(folder: Path) -> Slice:
    """Read files by DALI's own reader."""
    listed = _photos.listed(folder / "photos")
    return _dali(
        lambda fn: fn.readers.file(
            files=[str(path) for path, _ in listed],
            labels=[label for _, label in listed],
            random_shuffle=True,
            initial_fill=1024,
            name="Reader",
        )
    )


def dali_ours(folder: Path) -> Slice:
    """Decode by DALI, which takes the bytes and the order from rankup."""
    import rankup

    samples = rankup.data.open(folder / HDF5)
    labels, order = samples.index.labels, Endless(len(samples))

    def source(number: int) -> tuple[list[Any], Any]:
        rows = order.slice(0, number * BATCH, (number + 1) * BATCH)
        data = [np.frombuffer(samples.read(row), np.uint8) for row in rows.tolist()]
        return data, labels[rows]

    from nvidia.dali import types as dali_types

    kinds = [dali_types.UINT8, dali_types.INT64]
    return _dali(
        lambda fn: fn.external_source(
            source, num_outputs=2, dtype=kinds, ndim=[1, 0], batch=True, no_copy=True
        )
    )


def _dali(read: Callable[[Any], Any]) -> Slice:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali import types as dali_types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None)
    def pipeline() -> Any:
        data, labels = read(fn)
        images = fn.decoders.image_random_crop(
            data,
            device="cpu",
            output_type=dali_types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )
        images = fn.resize(
            images,
            size=[SIZE, SIZE],
            interp_type=dali_types.INTERP_LINEAR,
            antialias=True,
        )
        return fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5)), labels

    batches = DALIGenericIterator([pipeline()], ["image", "label"], size=-1)
    return paced((batch[0]["image"], batch[0]["label"]) for batch in batches)
