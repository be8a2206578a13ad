"""Muon for the matrices of a model's blocks, and AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor


class Muon(torch.optim.AdamW):
    """Orthogonalised momentum for matrices (Jordan et al., 2024), by `torch.optim.Muon`.

    A step is as large as AdamW's (Liu et al., 2025), so that rate and weight decay of AdamW serve
    both. Of a sharded matrix the update is gathered once in bf16, in which torch computes it; one
    rank of a line orthogonalises it for all of them, the ranks in turn, and sends it round.

    Args:
        matrices: two-dimensional parameters.
        others: groups of parameters for AdamW.
        momentum: Nesterov's, of matrices.
        settings: of AdamW.
    """

    def __init__(
        self,
        matrices: Sequence[torch.Tensor],
        others: Iterable[dict[str, Any]],
        *,
        weight_decay: float,
        momentum: float,
        **settings: Any,
    ) -> None:
        orthogonal = {"params": matrices, "weight_decay": weight_decay, "muon": True}
        groups = [orthogonal, *({**group, "muon": False} for group in others)]
        super().__init__([group for group in groups if group["params"]], **settings)
        self._momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients that are there; collective where matrices are sharded."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["muon"]]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["muon"]:
                for turn, matrix in enumerate(group["params"]):
                    self._step(matrix, turn, group["lr"], group["weight_decay"])
        return loss

    def _step(self, matrix: torch.Tensor, turn: int, lr: float, weight_decay: float) -> None:
        if matrix.grad is None:
            return
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        average = state["momentum_buffer"].lerp_(matrix.grad, 1 - self._momentum)
        update = matrix.grad.lerp(average, self._momentum).bfloat16()
        matrix.mul_(1 - lr * weight_decay)
        moved = _in_turn(update, turn) if isinstance(update, DTensor) else _orthogonal(update)
        matrix.add_(moved.to(matrix.dtype), alpha=lr)


def _in_turn(update: DTensor, turn: int) -> DTensor:
    """Return the orthogonalised update, sharded as it was: the work of one rank of a line."""
    mesh, whole = update.device_mesh, update.full_tensor()
    line = max(range(mesh.ndim), key=mesh.size)
    group, own = mesh.get_group(line), turn % mesh.size(line)
    if mesh.get_local_rank(line) == own:
        whole = _orthogonal(whole)
    if mesh.size(line) > 1:
        dist.broadcast(whole, group=group, group_src=own)
    return distribute_tensor(whole, mesh, update.placements, src_data_rank=None)


def _orthogonal(update: torch.Tensor) -> torch.Tensor:
    """Return the step of torch's Muon against a whole update, which is its momentum already."""
    step = torch.zeros_like(update)
    step.grad = update
    torch.optim.Muon(
        [step],
        lr=1.0,
        weight_decay=0.0,
        momentum=0.0,
        nesterov=False,
        adjust_lr_fn="match_rms_adamw",
    ).step()
    return step
