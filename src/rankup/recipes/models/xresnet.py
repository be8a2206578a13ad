"""XResNet: fastai's residual network (fastai/vision/models/xresnet.py), written anew.

It is the ResNet of He et al. ("Deep residual learning", 2016) with what He et al. ("Bag of tricks
for image classification", 2019) call ResNet-D: a stem of three small convolutions, the stride of a
bottleneck in its 3 x 3 convolution, an average pool before the 1 x 1 convolution of a shortcut. The
last norm of each block starts at zero, so that at first a block is its shortcut.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# Residual blocks of each of the four stages, and how much wider than inside a block is at its end.
DEPTHS = {
    "xresnet18": ((2, 2, 2, 2), 1),
    "xresnet34": ((3, 4, 6, 3), 1),
    "xresnet50": ((3, 4, 6, 3), 4),
}
_STEM = (32, 32, 64)
_WIDTHS = (64, 128, 256, 512)
_BIAS = 1e-3  # fastai's: a little of every channel passes the first rectifier


class Conv(nn.Conv2d):
    """A convolution without bias that keeps the size, or halves it; normal weights (He, 2015)."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, size, stride, padding=size // 2, bias=False)
        if size == 1:
            # Of channels-last photos its gradient has these strides, and DDP copies what has not.
            strides = (inputs, 1, inputs, inputs)
            self.weight.data = self.weight.data.as_strided(self.weight.shape, strides)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight)


class Norm(nn.BatchNorm2d):
    """Batch norm whose scale starts at `start`."""

    def __init__(self, channels: int, start: float = 1.0) -> None:
        self.start = start
        super().__init__(channels)

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        nn.init.constant_(self.weight, self.start)
        nn.init.constant_(self.bias, _BIAS)


class Head(nn.Linear):
    """The last layer, to one logit per class."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)


def _step(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [Conv(inputs, outputs, size, stride), Norm(outputs), nn.ReLU(inplace=True)]


class Block(nn.Module):
    """Two 3 x 3 convolutions, or with `widening` 4 a bottleneck of three, beside a shortcut."""

    def __init__(self, inputs: int, width: int, widening: int, stride: int) -> None:
        super().__init__()
        outputs = width * widening
        if widening == 1:
            path = _step(inputs, width, 3, stride)
            path += [Conv(width, outputs, 3), Norm(outputs, start=0.0)]
        else:
            path = _step(inputs, width, 1) + _step(width, width, 3, stride)
            path += [Conv(width, outputs, 1), Norm(outputs, start=0.0)]
        self.path = nn.Sequential(*path)
        shortcut: list[nn.Module] = []
        if stride > 1:
            shortcut.append(nn.AvgPool2d(stride, ceil_mode=True))
        if inputs != outputs:
            shortcut += [Conv(inputs, outputs, 1), Norm(outputs)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


class XResNet(nn.Module):
    """Images of shape (batch, 3, height, width) -> logits of shape (batch, classes).

    Args:
        name: of `DEPTHS`.
    """

    def __init__(self, name: str, classes: int) -> None:
        super().__init__()
        depths, widening = DEPTHS[name]
        stem: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip((3, *_STEM), _STEM, strict=False)):
            stem += _step(inputs, outputs, 3, stride=2 if number == 0 else 1)
        self.stem = nn.Sequential(*stem)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks: list[nn.Module] = []
        inputs = _STEM[-1]
        for stage, (depth, width) in enumerate(zip(depths, _WIDTHS, strict=True)):
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(Block(inputs, width, widening, stride))
                inputs = width * widening
        self.blocks = nn.Sequential(*blocks)
        self.head = Head(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.stem(images)))
        logits: torch.Tensor = self.head(x.mean(dim=(2, 3)))
        return logits
