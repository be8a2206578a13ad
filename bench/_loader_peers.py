"""How others make batches of photos with two workers; each function here prepares a `Slice`."""

from __future__ import annotations

import io
import math
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import _photos
from _loader_batches import BATCH, HDF5, SIZE, WORKERS, Endless, Slice, paced, random_crop, whole

_APART = 1.0  # levels of 255 that two resized photos may differ by on average


def pillow_crop(image: Image.Image) -> torch.Tensor:
    """Random resized crop and flip by Pillow, as torchvision has them, without torchvision."""
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
    """The course's transform, without torchvision: float at full size, then resized, antialiased.

    Its batches are float; here the pixels become bytes again at the end, as those of all others:
    less to send to the training process.
    """
    pixels = torch.from_numpy(np.array(image.convert("RGB")))
    full = pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
    small = F.interpolate(full[None], (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return small.mul_(255).round_().to(torch.uint8)


def compare_whole(folder: Path) -> None:
    """See that our whole photo, resized, is the course's, up to how each of them rounds."""
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
    """torch's DataLoader as the peers use it, over a map-style data set."""
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

    def __init__(self, folder: Path, make: Callable[[Path], torch.Tensor]) -> None:
        self.listed = [(str(path), label) for path, label in _photos.listed(folder / "photos")]
        self._make = make

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        path, label = self.listed[row]
        return self._make(Path(path)), label


def files_pillow(folder: Path) -> Slice:
    files = Files(folder, opened)
    return torch_loader(files, len(files.listed))


def opened(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        return pillow_crop(image)


def files_our_transform(folder: Path) -> Slice:
    """Which part of the difference is the transform's."""
    transform, rng = random_crop(), np.random.default_rng()

    def make(path: Path) -> torch.Tensor:
        return torch.from_numpy(transform(path.read_bytes(), rng)).permute(2, 0, 1)

    files = Files(folder, make)
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
    """Shards in the order of their bytes, resampled without end; a buffer of 1000 shuffles them."""
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


def mosaic(folder: Path) -> Slice:
    """mosaicml-streaming from a local folder; its index is long enough to have no end here."""
    sys.path.append(str(_photos.MDS))
    for name in ("streaming", "streaming.base"):  # whose __init__ imports torchvision and clouds
        package = types.ModuleType(name)
        package.__path__ = [str(_photos.MDS.joinpath(*name.split(".")))]
        sys.modules[name] = package
    from streaming.base.dataset import StreamingDataset

    class Photos(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            sample = super().__getitem__(row)
            return _decoded(sample["image"]), sample["class"]

    where = str(folder / "mosaic" / "photos")
    data = Photos(local=where, batch_size=BATCH, shuffle=True, epoch_size=1_000_000)
    return paced(iter(DataLoader(data, BATCH, num_workers=WORKERS)))


def dali_reader(folder: Path) -> Slice:
    """DALI's own reader of files."""
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
    """DALI decodes, and takes the bytes and the order from rankup."""
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
