"""Photos to a ResNet-50 on one GPU: our `Loader`, and DALI on the CPU and on the GPU.

Three figures in samples/s: of the model when nothing is waited for (a batch that is on the GPU
already), of each feed when nothing takes it up, and of the training with it.
Bfloat16, channels last, batches of 256 photos of 224 x 224, random resized crops, SGD; every core
but one makes batches. Warm: all files are in memory.

It needs a GPU and DALI (`pip install -e '.[dali]'`), in the environment it is started from; without
them it says so, and makes no claim.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _photos
import common

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankup.data import Loader

_BATCH, _SIZE, _CLASSES = 256, 224, 1000
_WIDTHS = ((64, 3), (128, 4), (256, 6), (512, 3))  # of ResNet-50: channels, blocks

Batches = Iterator["tuple[torch.Tensor, torch.Tensor]"]


def main() -> None:
    effort = common.parse_effort(__doc__ or "")
    missing = lacking()
    if missing:
        print(f"bench: nothing measured, no claim: {missing}")
        return
    import torch

    number = 2048 if effort.quick else 8192
    print(f"{common.machine('torch')}, {torch.cuda.get_device_name()}")
    with _photos.workplace() as folder:
        kind = _photos.make(folder / "photos", number)
        print(f"{number} photos, {kind}\n", flush=True)
        import pack

        (folder / "hdf5").mkdir()
        pack.pack(folder / "photos", "hdf5", os.cpu_count() or 1, folder / "hdf5")
        (path,) = (folder / "hdf5").glob("*.h5")
        print(bench(path, effort))


def lacking() -> str:
    """Return what is missing for this bench; empty where it can begin."""
    try:
        import torch

        if not torch.cuda.is_available():
            return "there is no GPU that torch sees"
        import nvidia.dali  # noqa: F401
    except ImportError as error:
        return f"{error}: pip install -e '.[dali]' torch"
    return ""


def bench(path: Path, effort: common.Effort) -> str:
    """Measure all feeds in turns; return the claim line of the best of them."""
    import torch

    torch.backends.cudnn.benchmark = True
    loaders = feeds(path)
    batches = {name: endless(loader) for name, loader in loaders.items()}
    step = trainer()
    fixed = next(batches["Loader"])
    rates: dict[tuple[str, str], list[float]] = {}
    seconds = 5 * effort.slice_seconds
    for turn in range(effort.rounds + 1):
        turns: list[tuple[tuple[str, str], Batches, Callable[..., object]]] = [
            (("", "appetite"), repeated(fixed), step)
        ]
        for name, feed in batches.items():
            turns.append(((name, "alone"), feed, lambda *_: None))
            turns.append(((name, "training"), feed, step))
        for key, feed, use in turns:
            rate = measure(feed, use, seconds)
            if turn:  # the first turn warms up
                rates.setdefault(key, []).append(rate)
    medians = {key: common.median(values) for key, values in rates.items()}
    appetite = medians["", "appetite"]
    print(f"the model alone takes {appetite:.0f} samples/s\n")
    common.table(
        ["feed", "alone", "training", "of the appetite"],
        [
            [
                name,
                f"{medians[name, 'alone']:.0f}",
                f"{medians[name, 'training']:.0f}",
                f"{medians[name, 'training'] / appetite:.2f}",
            ]
            for name in loaders
        ],
    )
    best = max(loaders, key=lambda name: medians[name, "training"])
    note = f"ResNet-50 fed by {best}, against batches that are on the GPU; rounds {effort.rounds}"
    rate = medians[best, "training"]
    return common.claim("gpu_data", rate, appetite, "samples/s", note)


def feeds(path: Path) -> dict[str, Loader]:
    """Make all feeds, over the same samples in the same order, to the GPU."""
    from rankup.data import Loader, PackedDataset, photos
    from rankup.data.dali import DaliLoader

    data = PackedDataset(path, "train", photos.RandomResizedCrop(_SIZE))
    one: dict[str, Any] = {"seed": 1, "drop_last": True, "rank": 0, "world_size": 1, "quiet": True}
    return {
        "Loader": Loader(data, _BATCH, device="cuda", **one),
        "DALI on the CPU": DaliLoader(data, _BATCH, device="cpu", **one),
        "DALI on the GPU": DaliLoader(data, _BATCH, device="cuda", **one),
    }


def endless(loader: Loader) -> Batches:
    """Yield epoch after epoch, on the GPU."""
    while True:
        for images, labels in loader:
            yield images.cuda(non_blocking=True), labels.cuda(non_blocking=True)


def repeated(batch: tuple[torch.Tensor, torch.Tensor]) -> Batches:
    while True:
        yield batch


def measure(
    feed: Batches, use: Callable[[torch.Tensor, torch.Tensor], object], seconds: float
) -> float:
    """Return samples/s over some seconds, after a batch that does not count."""
    import torch

    use(*next(feed))
    torch.cuda.synchronize()
    begun, samples = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        images, labels = next(feed)
        use(images, labels)
        samples += len(labels)
    torch.cuda.synchronize()
    return samples / (time.perf_counter() - begun)


def trainer() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a training step of a new ResNet-50."""
    import torch
    import torch.nn.functional as F

    from rankup.data import photos

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        inputs = photos.normalize(images, dtype=torch.bfloat16)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), labels % _CLASSES)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def resnet50() -> nn.Module:
    """Build the model of He et al., CVPR 2016, with the stride in the 3 x 3."""
    import torch
    from torch import nn

    def conv(inside: int, outside: int, size: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
        return [layer, nn.BatchNorm2d(outside)]

    class Block(nn.Module):
        def __init__(self, inside: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *conv(inside, width, 1),
                nn.ReLU(inplace=True),
                *conv(width, width, 3, stride),
                nn.ReLU(inplace=True),
                *conv(width, 4 * width, 1),
            )
            same = inside == 4 * width and stride == 1
            self.skip = (
                nn.Identity() if same else nn.Sequential(*conv(inside, 4 * width, 1, stride))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(self.body(x) + self.skip(x))

    layers = [*conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for number, (width, blocks) in enumerate(_WIDTHS):
        for block in range(blocks):
            layers.append(Block(inside, width, 2 if block == 0 and number else 1))
            inside = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, _CLASSES)
    )


if __name__ == "__main__":
    main()
