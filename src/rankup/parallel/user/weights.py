"""How much each rank's gradient counts, where `fully_shard` averages gradients over data ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ...runtime.deal import ENGINE, Weight
from ...runtime.statistics import RunningStatistics
from ..mesh import Mesh


class Weights:
    """Makes the gradient the exact mean over the samples of all data ranks, as `wrap` does.

    Each rank scales its gradient by what `shard` dealt it, or by the units given to `count`, before
    it goes into the mean. That happens at each whole parameter, not at the loss: so it is right
    whatever the script calls of the model, and an idle rank's NaN counts for nothing.

    Making one is a collective: each part of the model is gathered once, to be hooked.
    """

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        # torch divides; but in groups of one, as beside tp, it would do so twice.
        divided, alike = mesh.layout.dp_shard > 1, mesh.world.world_size // mesh.data_size
        whole = mesh.data_size if divided else 1
        self._weight = Weight(whole, mesh.data_size, alike, mesh.world.device)
        self._statistics = RunningStatistics(model)
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                if divided:
                    _take_mean(unit, mesh.data_size)
                self._hook(unit)

    def _hook(self, unit: FSDPModule) -> None:
        """Hook the whole parameters, which live as long as the unit."""
        assert isinstance(unit, nn.Module)
        parts = dict(unit.named_parameters())
        unit.unshard()
        for name, parameter in unit.named_parameters():
            if parameter is not parts[name]:  # else it belongs to a unit inside this one
                trained = parameter.requires_grad
                parameter.requires_grad_(True)  # a frozen one may be trained later
                parameter.register_hook(self._scale)
                parameter.requires_grad_(trained)
        unit.reshard()

    def _scale(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if self._weight.begin() and self._statistics.size:
            ENGINE.queue_callback(self._share_statistics)
        return self._weight.apply(gradient)

    def _share_statistics(self) -> None:
        """Running statistics become their mean over the ranks that had samples."""
        self._statistics.start_mean(self._weight.works)()


def _take_mean(unit: FSDPModule, size: int) -> None:
    """Divide the sum by the number of data ranks, whichever name this torch has for it."""
    if hasattr(unit, "set_gradient_divide_factor"):
        unit.set_gradient_divide_factor(float(size))
    else:
        unit.set_reduce_scatter_divide_factor(float(size))
