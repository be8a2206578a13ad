"""Gradients of a user's model: weighed in the backward, brought together and clipped behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from ...base.errors import UserError
from ...runtime.context import CONTEXT, Weight
from ...runtime.statistics import RunningStatistics
from ...runtime.world import after_first_step
from ..build import Built
from ..gradients import clip, global_norm
from ..mesh import Mesh


class Gradients:
    """What is left to do with gradients once the script's backwards are over.

    It happens by itself before `optimizer.step()`, or earlier where the script clips.
    """

    def __init__(self, built: Built) -> None:
        self._built = built
        self._steps = 0

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(self._before_step)

    def finish(self) -> None:
        """Bring gradients together that are still in parts."""
        self._built.finish_gradients()

    def clip(self, max_norm: float) -> torch.Tensor:
        """See `parallelize`."""
        built = self._built
        self.finish()
        parameters = [p for p in built.model.parameters() if p.requires_grad]
        norm = global_norm(parameters, built.mesh)
        clip(parameters, norm, max_norm)
        return norm.float()

    def _before_step(
        self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        # After the optimizer itself comes the closure, where there is one.
        if any(map(callable, (*args[1:], *kwargs.values()))):
            raise UserError(
                "optimizer.step(closure): a backward inside of the step would come after what "
                "parallelize does before it; call loss.backward() first, then optimizer.step()"
            )
        self.finish()
        if self._built.mesh.data_size == 1:
            CONTEXT.units = None  # nobody else weighs with them
        self._steps += 1
        if self._steps == 2:
            after_first_step()


class Weights:
    """Makes the gradient under `fully_shard` the exact mean over all data ranks, as `wrap` does.

    Each rank scales its gradient by what `shard` dealt it, or by the units given to `count`, before
    it goes into the mean. That happens at each whole parameter, not at the loss: so it is right
    whatever the script calls of the model, and an idle rank's NaN counts for nothing.

    Making one is a collective: each part of the model is gathered once, to be hooked.
    """

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        # torch divides; but in groups of one, as beside tp, it would do so twice.
        divided, alike = mesh.layout.dp_shard > 1, mesh.world.world_size // mesh.data_size
        whole = mesh.data_size if divided else 1
        self._weight = Weight(CONTEXT, whole, mesh.data_size, alike, mesh.world.device)
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
        self._weight.begin(self._share_statistics)
        return self._weight.apply(gradient)

    def _share_statistics(self) -> None:
        """Running statistics become their mean over the ranks that had samples."""
        if self._statistics.size:
            self._statistics.start_mean(self._weight.works)()


def refuse_after_failure(model: nn.Module, *_: Any) -> None:
    """Before a forward under `fully_shard`: raise where a backward has failed.

    What that has left, some of it gathered and none of it exchanged, would go into this one's.

    Raises:
        RuntimeError: a backward has begun and has not come to its end.
    """
    queued = fully_shard.state(model)._state_ctx.post_backward_final_callback_queued  # type: ignore[attr-defined]
    # A recomputed forward is part of a backward that is under way.
    if queued and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
        raise RuntimeError(
            "parallelize: an earlier backward has failed before its gradients were exchanged, and "
            "no rank can go on from there; let its error end the script, and go on from a "
            "checkpoint"
        )


def _take_mean(unit: FSDPModule, size: int) -> None:
    """Divide the sum by the number of data ranks, whichever name this torch has for it."""
    if hasattr(unit, "set_gradient_divide_factor"):
        unit.set_gradient_divide_factor(float(size))
    else:
        unit.set_reduce_scatter_divide_factor(float(size))


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Backwards inside keep their gradients on this rank; the next one outside exchanges all.

    As DDP's: saves the exchange. Under FSDP each rank then holds its gradients whole meanwhile.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
