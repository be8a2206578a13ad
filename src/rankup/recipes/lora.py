"""Low-rank adapters: a linear map's weight stays, and a small one beside it is trained.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021). A is drawn as the paper's
code does, and B begins with zeros, so that a run begins with the model as it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from .models.transformer import Linear

_A, _B = "lora_a", "lora_b"


class AdaptedLinear(Linear):
    """`W x + scale * B A x`, where A has `rank` rows.

    Args:
        base: the map that W is of; the parameter itself, so that what is tied stays tied.
    """

    def __init__(self, base: Linear, rank: int, scale: float) -> None:
        self.scale = scale
        super().__init__(base.in_features, base.out_features, base.std)
        self.weight = base.weight
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.empty(base.out_features, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()  # first, so that W is drawn as without adapters
        if hasattr(self, _A):
            nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
            nn.init.zeros_(self.lora_b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = F.linear(F.linear(x, self.lora_a), self.lora_b)
        return F.linear(x, self.weight) + self.scale * small

    def cut_beside(self, dim: int | None) -> dict[str, int | None]:
        """Return the dimension that A and B are cut over, where W is over `dim`; None: neither."""
        return {_A: 1 if dim == 1 else None, _B: 0 if dim == 0 else None}


def adapt(model: nn.Module, rank: int, scale: float, on: Collection[str]) -> None:
    """Freeze a model, and give its linear maps of these names adapters, in place.

    Args:
        scale: factor of what the adapters add.
        on: last parts of the maps' names: `query` is that of each block.
    """
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        path, _, last = name.rpartition(".")
        if last in on and isinstance(module, Linear):
            setattr(model.get_submodule(path), last, AdaptedLinear(module, rank, scale))


def is_adapter(name: str) -> bool:
    """Return True for the name of an adapter's parameter."""
    return name.rpartition(".")[2] in (_A, _B)


def merged(tensors: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Return the weights of a model without adapters that computes the same."""
    found = {name: tensor for name, tensor in tensors.items() if not is_adapter(name)}
    for name, down in tensors.items():
        path, _, last = name.rpartition(".")
        if last == _A:
            weight, up = tensors[f"{path}.weight"], tensors[f"{path}.{_B}"]
            change = scale * (up.double() @ down.double())
            found[f"{path}.weight"] = (weight.double() + change).to(weight.dtype)
    return found
