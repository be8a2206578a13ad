"""`from fastai.vision.all import *`."""

from __future__ import annotations

import os
import tarfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

__all__ = [
    "DataLoaders",
    "ImageDataLoaders",
    "Learner",
    "Path",
    "URLs",
    "error_rate",
    "get_image_files",
    "resnet18",
    "torch",
    "untar_data",
    "vision_learner",
]


class URLs:
    """Archives by name."""

    PETS = os.environ.get("DATA_SERVER", "") + "/oxford-iiit-pet.tgz"


def untar_data(url: str) -> Path:
    """Download and unpack below FASTAI_HOME, unless that has been done."""
    home = Path(os.environ.get("FASTAI_HOME", "~/.fastai")).expanduser()
    archive = home / "archive" / url.rpartition("/")[2]
    folder = home / "data" / archive.stem
    if not folder.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        urllib.request.urlretrieve(url, archive)
        with tarfile.open(archive) as tar:
            tar.extractall(folder.parent)
    return folder


def get_image_files(path: Path) -> list[Path]:
    """Pictures below a folder."""
    return sorted(path.rglob("*.jpg"))


def default_device() -> torch.device:
    """The GPU, where there is one."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


class _Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, files: Sequence[Path], label: Callable[[str], bool]) -> None:
        self.files, self.label = files, label

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raw = bytearray(self.files[index].read_bytes())
        picture = torch.frombuffer(raw, dtype=torch.uint8).float().view(1, 4, 4)
        return picture, int(self.label(self.files[index].name))


class DataLoaders:
    """Two of them, and where batches go."""

    def __init__(self, train: DataLoader[Any], valid: DataLoader[Any]) -> None:
        self.train, self.valid, self.device = train, valid, default_device()


class ImageDataLoaders(DataLoaders):
    """Of pictures in files."""

    @classmethod
    def from_name_func(
        cls,
        path: Path,
        fnames: Sequence[Path],
        label_func: Callable[[str], bool],
        bs: int = 64,
        num_workers: int = 0,
    ) -> ImageDataLoaders:
        """Labels follow from the names of the files; every fifth is for validation."""
        valid = fnames[::5]
        train = [name for name in fnames if name not in valid]
        return cls(
            DataLoader(_Pictures(train, label_func), bs, shuffle=True, num_workers=num_workers),
            DataLoader(_Pictures(valid, label_func), bs, num_workers=num_workers),
        )


def resnet18() -> nn.Module:
    """The shape of a body and a head."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))


def error_rate(output: Tensor, target: Tensor) -> Tensor:
    """The share of wrong answers."""
    return (output.argmax(1) != target).float().mean()


class Learner:
    """Trains."""

    def __init__(self, dls: DataLoaders, model: nn.Module) -> None:
        self.dls, self.model = dls, model.to(dls.device)

    def fine_tune(self, epochs: int) -> None:
        """Like fastai's: epochs of the head, then of all."""
        optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        for _ in range(epochs + 1):
            for x, y in self.dls.train:
                output = self.model(x.to(self.dls.device))
                nn.functional.cross_entropy(output, y.to(self.dls.device)).backward()
                optimizer.step()
                optimizer.zero_grad()

    def export(self, name: str) -> None:
        """Keep it."""
        torch.save(self.model, name)


def vision_learner(
    dls: DataLoaders, arch: Callable[[], nn.Module], metrics: object = None, pretrained: bool = True
) -> Learner:
    """With weights from the web, as torchvision's `resnet18(weights=…)` brings them."""
    model = arch()
    if pretrained:
        url = os.environ.get("DATA_SERVER", "") + "/resnet18-f37072fd.pth"
        model.load_state_dict(torch.hub.load_state_dict_from_url(url))
    return Learner(dls, model)
