"""A network in the form of VGG16, with an eighth of its channels and no weights to fetch."""

from __future__ import annotations

from typing import Any

from torch import nn

_PLAN = (8, 8, 0, 16, 16, 0, 32, 32, 32, 0, 64, 64, 64, 0, 64, 64, 64, 0)


class VGG(nn.Module):
    """`features` has the layers of VGG16 in their order."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for channels in _PLAN:
            if channels:
                layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
                before = channels
            else:
                layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)

    def forward(self, pictures: Any) -> Any:
        return self.features(pictures)


def vgg16(pretrained: bool = False, weights: object = None) -> VGG:
    """Random values whatever is asked for."""
    return VGG()
