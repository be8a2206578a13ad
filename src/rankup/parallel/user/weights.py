"""How much each rank's gradient counts, where `fully_shard` averages gradients over data ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ...runtime.deal import LEDGER
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
        self._size = mesh.data_size
        # torch divides; but in groups of one, as beside tp, it would do so twice.
        divided = mesh.layout.dp_shard > 1
        self._whole = float(self._size) if divided else 1.0
        self._alike = mesh.world.world_size // mesh.data_size
        self._device = mesh.world.device
        self._statistics = RunningStatistics(model)
        self._backward = -1
        self._factor: float | torch.Tensor = 1.0
        self._works = True
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                if divided:
                    _take_mean(unit, self._size)
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
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            self._begin()
        if isinstance(self._factor, float) and self._factor == 1.0:
            return None
        if isinstance(gradient, DTensor):
            return DTensor.from_local(
                self._scaled(gradient.to_local()),
                gradient.device_mesh,
                gradient.placements,
                run_check=False,
                shape=gradient.shape,
                stride=gradient.stride(),
            )
        return self._scaled(gradient)

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        # Multiplying by zero would keep an idle rank's NaN.
        return gradient * self._factor if self._works else torch.zeros_like(gradient)

    def _begin(self) -> None:
        """At the first parameter that a backward reaches: how much this rank's part counts."""
        units, samples = LEDGER.take_units(self._backward), LEDGER.samples
        if units is not None:
            # A rank that was dealt nothing computes on a stand-in sample that counts for nothing.
            own = units if samples is None or samples[0] else 0.0
            total = torch.full((), own, dtype=torch.float64, device=self._device)
            dist.all_reduce(total)
            # No units on any rank: the gradient is a sum of nothing, not 0 / 0.
            total = torch.where(total > 0, total / self._alike, 1.0)
            self._factor, self._works = own * self._whole / total, own > 0
        elif samples is not None:
            self._factor, self._works = samples[0] * self._whole / samples[1], samples[0] > 0
        else:
            self._factor, self._works = self._whole / self._size, True
        if self._statistics.size:
            torch.autograd.Variable._execution_engine.queue_callback(self._share_statistics)

    def _share_statistics(self) -> None:
        """Running statistics become their mean over the ranks that had samples."""
        flat = self._statistics.flat()
        works = torch.full((1,), float(self._works), dtype=torch.float64, device=flat.device)
        total = torch.cat([torch.where(works > 0, flat, 0.0), works])
        dist.all_reduce(total)
        if total[-1] > 0:
            self._statistics.assign(total[:-1] / total[-1])


def _take_mean(unit: FSDPModule, size: int) -> None:
    """Divide the sum by the number of data ranks, whichever name this torch has for it."""
    if hasattr(unit, "set_gradient_divide_factor"):
        unit.set_gradient_divide_factor(float(size))
    else:
        unit.set_reduce_scatter_divide_factor(float(size))
