"""Options of `image-classification`, and its data before a rank is started. No torch."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..base.errors import UserError
from ..base.files import replacing, user_path, write_json
from ..base.flags import flag
from ..base.text import say
from ..data.keys import kind_of
from ..parallel.layout import Layout
from ..train.options import TrainOptions

if TYPE_CHECKING:
    from ..data.opened import Samples

CLASSES = "classes.json"
DRAWINGS = "drawings.tar"
SIDE = 48  # pixels
COUNTS = {"train": 32, "val": 8}  # drawings of each kind
_QUALITY = 85
_GRAIN = 12.0
_KINDS = {"train": "train", "valid": "val", "test": "test"}


_Plane = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ImageClassificationOptions(TrainOptions):
    """`image-classification`: photos, network and augmentation."""

    global_batch: int = flag(256, "photos per optimizer step, over all ranks", least=1)
    micro_batch: int = flag(
        64, "photos per forward and backward pass, of which batch norm takes its mean", least=1
    )
    lr: float = flag(2e-3, "peak learning rate", least=0)
    schedule: Literal["cosine", "wsd", "constant", "step", "one-cycle"] = flag(
        "one-cycle", "learning rate: rises and falls once (one-cycle), or after --warmup"
    )
    data: str | None = flag(
        None, "a pack, another container, or class folders; default drawings made for trials"
    )
    model: Literal["xresnet18", "xresnet34", "xresnet50"] = flag("xresnet50", "the network")
    size: int = flag(160, "side of what the network sees, in pixels", least=8)
    min_scale: float = flag(0.35, "least part of a photo's area that a random crop takes", least=0)
    smoothing: float = flag(0.1, "label smoothing: what the other classes share", least=0)
    frozen_epochs: int = flag(
        0, "epochs at the beginning that train norms and the last layer alone", least=0
    )
    decoder: Literal["rankup", "dali"] = flag("rankup", "who decodes photos, on CPU or GPU (dali)")
    workers: int | None = flag(
        None, "threads per rank that make batches; default its cores minus one", least=1
    )

    TINY: ClassVar[Mapping[str, Any]] = {
        "global_batch": 32,
        "micro_batch": 16,
        "steps": 20,
        "valid_every": 10,
        "checkpoint_every": 10,
        "model": "xresnet18",
        "size": 32,
    }

    @classmethod
    def preset(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without photos, what drawings are large and many enough for."""
        small = ("global_batch", "micro_batch", "model", "size")
        drawings = {n: cls.TINY[n] for n in small} if values["data"] is None else {}
        return {**drawings, **super().preset(values)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_scale <= 1:
            raise UserError(
                f"--min-scale {self.min_scale:g} is a part of a photo: above 0 and at most 1"
            )
        if self.smoothing >= 1:
            raise UserError(f"--smoothing {self.smoothing:g} leaves nothing of the label; give 0.1")
        if self.micro_batch == 1:
            raise UserError(
                "--micro-batch 1: batch norm takes its mean over a micro-batch, so give it 16 "
                "photos or more"
            )

    def layout(self, world_size: int, per_node: int) -> Layout:
        found = super().layout(world_size, per_node)
        if found.cp > 1:
            raise UserError(
                f"--cp {found.cp} shares sequences among ranks, and photos are none; use "
                "--strategy ddp, fsdp or hsdp"
            )
        if found.tp > 1 or found.pp > 1:
            raise UserError(
                f"--model {self.model} has batch norm, whose running statistics --tp and --pp "
                "cannot keep; use --strategy ddp, fsdp or hsdp"
            )
        return found

    @property
    def identity(self) -> dict[str, Any]:
        names = ("data", "model", "size", "min_scale", "smoothing", "frozen_epochs")
        return {**super().identity, **{name: getattr(self, name) for name in names}}

    def source(self, directory: Path) -> Path:
        """Where the photos are: a container, or a folder."""
        return directory / DRAWINGS if self.data is None else user_path(self.data, "--data")

    def prepare(self, directory: Path) -> None:
        """Look at the data, and note its classes in the run directory.

        Raises:
            UserError: it is not there, has no labels, or nothing to train on.
        """
        from ..data.opened import open as open_samples

        if self.decoder == "dali" and not _has_dali():
            raise UserError(
                "--decoder dali: NVIDIA DALI is not here; pip install 'rankup[dali]', or leave it "
                "to --decoder rankup"
            )
        if self.data is None:
            draw(directory / DRAWINGS)
            say(
                f"no --data: {self.model} learns drawings made for trials, at --size {self.size} "
                f"and --global-batch {self.global_batch}; give photos by --data"
            )
        write_json(directory / CLASSES, classes(open_samples(self.source(directory))))

    def samples(self, directory: Path) -> int:
        """Return how many samples an epoch has, of what was prepared."""
        from ..data.opened import open as open_samples

        samples = open_samples(self.source(directory))
        return _labels(samples, split_names(samples)["train"]).size


def split_names(samples: Samples) -> dict[str, str | None]:
    """The names that the data's splits go by: `train`, `valid` and `test` -> name, or None.

    A test split without labels, as ImageNet's, is left out.

    Raises:
        UserError: there is nothing to train on, or what is has no labels.
    """
    found: dict[str, str | None] = {}
    for part, kind in _KINDS.items():
        found[part] = next((name for name in samples.splits if kind_of(name) == kind), None)
    if found["train"] is None:
        if len(samples.splits) != 1:
            raise UserError(
                f"{samples.root} has no split `train`; it has {', '.join(samples.splits) or 'none'}"
            )
        found["train"] = samples.splits[0]
        found["valid"] = found["test"] = None
    if samples.index.labels is None:
        raise UserError(
            f"{samples.root} has no labels to learn: class folders, or labels given to rankup pack"
        )
    for part, name in found.items():
        labels = _labels(samples, name)
        if part == "test" and labels.size and labels.max() < 0:
            found["test"] = None
        elif labels.size and labels.min() < 0:
            raise UserError(f"{int((labels < 0).sum())} photos of {name} have no label")
    if not _labels(samples, found["train"]).size:
        raise UserError(f"the split {found['train']} of {samples.root} is empty")
    return found


def classes(samples: Samples) -> list[str]:
    """The name of each class, in the order of the labels.

    Raises:
        UserError: as `split_names`, or what is there are no photos, or all of one class.
    """
    names = split_names(samples)
    first = samples.index.fields[0]
    if first.dtype:
        raise UserError(
            f"{samples.root} holds arrays ({first.dtype} of shape {first.shape}), not photos in "
            "files of JPEG, PNG or the like"
        )
    found = list(samples.classes)
    if not found:  # numbers alone
        count = 1 + max(int(_labels(samples, name).max(initial=0)) for name in names.values())
        found = [str(number) for number in range(count)]
    if len(found) < 2:
        raise UserError(f"{samples.root} has one class alone, {found[0]!r}; there is no choice")
    return found


def _has_dali() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # of nvidia itself
        return False


def read_classes(directory: Path) -> list[str]:
    """Return what `prepare` has noted."""
    found: list[str] = json.loads((directory / CLASSES).read_text(encoding="utf-8"))
    return found


def _labels(samples: Samples, name: str | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    labels = samples.index.labels
    if labels is None or name is None:
        return np.empty(0, np.int64)
    split = samples.index.split(name)
    return labels[split.start : split.stop]


# --- drawings of ten kinds, for trials where there are no photos


def draw(path: Path) -> None:
    """Write a tar of the drawings; the same bytes each time."""
    with replacing(path) as out, tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in drawings():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def drawings() -> Iterator[tuple[str, bytes]]:
    """The JPEG files of all drawings in class folders, by name: `train/disc/000.jpg` …"""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in COUNTS.items():
        for kind in KINDS:
            for number in range(count):
                file = io.BytesIO()
                Image.fromarray(picture(kind, rng)).save(file, "JPEG", quality=_QUALITY)
                yield f"{split}/{kind}/{number:03}.jpg", file.getvalue()


def picture(kind: str, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One of `KINDS`, uint8 (SIDE, SIDE, 3): two colours, place and size drawn, some grain."""
    radius = rng.uniform(0.5, 0.8)
    middle = rng.uniform(radius - 1, 1 - radius, 2)
    down, across = np.meshgrid(*(np.linspace(-1, 1, SIDE) - one for one in middle), indexing="ij")
    inside = KINDS[kind](down / radius, across / radius)
    back = rng.uniform(0, 255, 3)
    front = (back + rng.uniform(80, 175, 3)) % 255  # never close to each other
    pixels = np.where(inside[:, :, None], front, back) + rng.normal(0, _GRAIN, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _round(y: _Plane, x: _Plane) -> _Plane:
    return np.hypot(y, x)


def _edge(y: _Plane, x: _Plane) -> _Plane:
    return np.maximum(abs(y), abs(x))


# Where a kind's colour is, of places down and across; seen in a mirror each is the same.
KINDS = {
    "disc": lambda y, x: _round(y, x) < 1,
    "ring": lambda y, x: abs(_round(y, x) - 0.8) < 0.2,
    "square": lambda y, x: _edge(y, x) < 1,
    "frame": lambda y, x: abs(_edge(y, x) - 0.8) < 0.2,
    "triangle": lambda y, x: (abs(y) < 1) & (abs(x) < (y + 1) / 2),
    "cross": lambda y, x: (_edge(y, x) < 1) & (np.minimum(abs(y), abs(x)) < 0.25),
    "diagonals": lambda y, x: (_edge(y, x) < 1) & (abs(abs(y) - abs(x)) < 0.3),
    "rows": lambda y, x: (_edge(y, x) < 1) & (np.sin(12 * y) > 0),
    "columns": lambda y, x: (_edge(y, x) < 1) & (np.cos(12 * x) > 0),
    "board": lambda y, x: (_edge(y, x) < 1) & (np.sin(9 * y) * np.cos(9 * x) > 0),
}
