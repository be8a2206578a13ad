"""Recipe `image-classification`: an XResNet says which class a photo is of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..base.errors import UserError
from ..base.text import clean
from ..data import engines, photos
from ..data.batches import BatchRequest
from ..data.errors import BadContainer
from ..data.fetch import Fetch, Made
from ..data.images import SUFFIXES
from ..data.opened import open as open_samples
from ..data.reader import PackedDataset
from ..runtime.keys import derive
from ..runtime.order import Order
from ..runtime.world import setup
from ..train.optimizer import build_optimizer
from ..train.task import Batch
from . import Asked, running
from .image_options import ImageClassificationOptions, read_classes, split_names
from .models.xresnet import Norm, XResNet

_HELD_OUT = 0.1  # of the training photos, where the data has none to validate on
_TOP = 5
_LONG = 1e12  # floating-point operations of a step that keep a few cores busy for long
_SHRINKS = 32  # sides of a photo to one at the network's end

Read = Callable[[], bytes | memoryview]


@dataclass(frozen=True)
class Making:
    """How batches are made.

    Attributes:
        decoder: `rankup`, or `dali`.
        workers: threads, or processes, of this rank; None: by the cores that it has.
        device: on which DALI decodes.
    """

    decoder: str
    workers: int | None
    device: torch.device


class Photos:
    """A split whose batches are (photos as uint8 (n, 3, size, size) channels last, labels).

    What a batch holds depends on (seed, epoch, samples) alone, not on who makes it or when. Under
    DALI what is not made ahead, as by `rankup generate`, is decoded by rankup: the same parts of
    the photos, with pixels that differ by how they were rounded.

    Args:
        dataset: with a transform of `data.photos`.
    """

    def __init__(self, dataset: PackedDataset, making: Making) -> None:
        self.dataset, self._making = dataset, making
        self._engine: engines.Engine | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def count(self, samples: torch.Tensor) -> int:
        return len(samples)

    def batch(self, samples: torch.Tensor) -> Batch:
        return self.once(BatchRequest.of(samples.numpy()))

    def once(self, request: BatchRequest) -> Batch:
        return _batch(Fetch(self.dataset)(request))

    def ahead(self, requests: Iterator[BatchRequest]) -> Iterator[tuple[BatchRequest, Batch]]:
        if self._engine is None:
            self._engine = self._started()
        for made in self._engine.run(requests):
            yield made.request, _batch(made)

    def _started(self) -> engines.Engine:
        making = self._making
        if making.decoder == "dali":
            from ..data.dali import engine

            return engine(self.dataset, making.workers, making.device)
        pin = making.device.type == "cuda"
        return engines.engine(Fetch(self.dataset), making.workers, pin_memory=pin)


def _batch(made: Made) -> Batch:
    images, labels = made.batch()
    return images, labels


class ImageClassification:
    """The task: photos of a container, the network, cross-entropy with smoothed labels."""

    unit = "photos"
    measures = ("top1", "top5")

    def __init__(
        self, options: ImageClassificationOptions, directory: Path, device: torch.device
    ) -> None:
        self.options = options
        self.frozen_epochs = options.frozen_epochs
        self.classes = read_classes(directory)
        source = options.source(directory)
        names = split_names(open_samples(source))
        crop = photos.RandomResizedCrop(options.size, (options.min_scale, 1.0))
        centre = photos.CenterCrop(options.size)
        trained = PackedDataset(source, names["train"], crop)
        valid = PackedDataset(source, names["valid"] or names["train"], centre)
        if names["valid"] is None:
            kept, held_out = _parts(len(trained))
            trained, valid = trained.subset(kept), valid.subset(held_out)
        tested = names["test"]
        test = PackedDataset(source, tested, centre) if tested is not None else valid.subset([])
        _refuse_single(options, len(trained))
        making = Making(options.decoder, options.workers, device)
        self.train, self.valid, self.test = (
            Photos(dataset, making) for dataset in (trained, valid, test)
        )

    def build_model(self) -> nn.Module:
        return XResNet(self.options.model, len(self.classes))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def frozen(self, model: nn.Module) -> list[nn.Parameter]:
        """All but the head and the norms, as fastai freezes."""
        trained = [m for name, m in model.named_modules() if name == "head" or isinstance(m, Norm)]
        kept = {id(p) for module in trained for p in module.parameters()}
        return [p for p in model.parameters() if id(p) not in kept]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self._loss(self._logits(model, batch), batch)

    def measure(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss; sums and counts of photos whose class is the likeliest, or among five."""
        logits, labels = self._logits(model, batch), batch[1]
        best = logits.topk(min(_TOP, len(self.classes))).indices == labels[:, None]
        hits = torch.stack([best[:, :1].sum(), best.sum()]).double()
        return self._loss(logits, batch), torch.stack([hits, torch.full_like(hits, len(labels))], 1)

    def _logits(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        # uint8 until here, and channels last as they come: so they stay through the network.
        logits: torch.Tensor = model(photos.normalize(batch[0])).float()
        return logits

    def _loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        smoothing = self.options.smoothing
        return F.cross_entropy(logits, batch[1], reduction="sum", label_smoothing=smoothing)

    def flops_per_unit(self, model: nn.Module) -> float:
        """Of a forward, as torch counts it, and twice as many of the backward."""
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            self.build_model().eval()(torch.empty(1, 3, self.options.size, self.options.size))
        return 3.0 * counter.get_total_flops()


def _parts(count: int) -> list[list[int]]:
    """Samples to train on, and those held out: the same for every seed."""
    shuffled = Order(count, derive(0, "split"))(torch.arange(count)).numpy()
    rest = count - math.ceil(count * _HELD_OUT - 0.5)
    return [np.sort(shuffled[:rest]).tolist(), np.sort(shuffled[rest:]).tolist()]


def _refuse_single(options: ImageClassificationOptions, count: int) -> None:
    """Of one photo alone, a single pixel at the network's end, batch norm has no deviation."""
    last = count % options.global_batch % options.micro_batch
    if count == 1 or (last == 1 and options.size <= _SHRINKS):
        raise UserError(
            f"the last micro-batch of an epoch of {count} photos would be a single one, of which "
            f"batch norm knows no deviation at --size {options.size}; give another --micro-batch, "
            f"or --size {_SHRINKS + 1} or more"
        )


def run(options: ImageClassificationOptions, directory: Path, resume: bool) -> None:
    """Train on every rank; the classes have been noted in `directory` before."""
    world = setup()
    task = ImageClassification(options, directory, world.device)
    if world.is_root and (note := patience(task, world.device)):
        running.say(note)
    running.run(task, options, world, directory, resume)


def patience(task: ImageClassification, device: torch.device) -> str | None:
    """A line for who trains on a CPU what is meant for GPUs: its first step comes late."""
    options = task.options
    work = task.flops_per_unit(nn.Module()) * options.global_batch
    if device.type != "cpu" or work < _LONG:
        return None
    return (
        f"on a CPU: {options.global_batch} photos per step at --size {options.size} through "
        f"{options.model} take a minute or more; --tiny trains for a minute in all"
    )


def generate(
    options: ImageClassificationOptions,
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    asked: Asked,
) -> Iterator[str]:
    """A line for each photo of a file or folder: its name, and its likeliest classes."""
    asked.only("image-classification", "file")
    if asked.file is None:
        raise UserError("name photos: --file with a photo, a folder of them, or a container")
    names = read_classes(directory)
    model = XResNet(options.model, len(names))
    model.load_state_dict(dict(tensors))
    return _predictions(model.eval(), names, options.size, _contents(asked.file))


@torch.no_grad()
def _predictions(
    model: nn.Module, names: list[str], size: int, contents: Iterator[tuple[str, Read]]
) -> Iterator[str]:
    """A photo at a time: what cannot be read costs its own line alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    centre, unused = photos.CenterCrop(size), np.random.default_rng(0)
    for name, read in contents:
        try:
            pixels = centre(read(), unused)
        except (BadContainer, OSError) as error:
            yield clean(f"{name}: cannot be read: {error}")
            continue
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        logits = model(photos.normalize(image, device=device))[0]
        best = logits.softmax(0).topk(min(_TOP, len(names)))
        told = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        yield clean(f"{name}: " + ", ".join(f"{names[one]} {part:.3f}" for part, one in told))


def _contents(path: Path) -> Iterator[tuple[str, Read]]:
    """Names and what reads them: one photo, all in a folder, or those of a container."""
    if not path.exists():
        raise UserError(f"--file {path} does not exist")
    found = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    found = [one for one in found if one.suffix.lower().lstrip(".") in SUFFIXES]
    if not found:
        samples = open_samples(path)
        return ((samples.path(row), partial(samples.read, row)) for row in range(len(samples)))
    base = path.parent if path.is_file() else path
    return ((str(one.relative_to(base)), one.read_bytes) for one in found)
