"""Parameters that every tensor-parallel rank has, in modules that compute on ordinary tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle


class Held(ParallelStyle):
    """Parameters become DTensors; while the module runs, it sees the ordinary tensors in them.

    Any forward works so, also one that reads the weights of modules inside it.

    Args:
        partial: ranks compute on different parts, so that their gradients add up.
        deep: also the modules inside.
    """

    def __init__(self, *, partial: bool, deep: bool = True) -> None:
        self.partial = partial
        self.deep = deep

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        owners = list(module.modules()) if self.deep else [module]
        for owner in owners:
            for name, parameter in list(owner.named_parameters(recurse=False)):
                whole = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
                owner.register_parameter(name, nn.Parameter(whole, parameter.requires_grad))
        gradient = Partial() if self.partial else Replicate()
        # A module may be called again while it runs, so what was swapped is stacked.
        swapped: list[list[tuple[nn.Module, str, nn.Parameter]]] = []

        def swap() -> None:
            swapped.append([])
            seen: dict[int, torch.Tensor] = {}
            for owner in owners:
                for name, parameter in owner._parameters.items():
                    if not isinstance(parameter, DTensor):
                        continue
                    if id(parameter) not in seen:
                        seen[id(parameter)] = parameter.to_local(grad_placements=[gradient])
                    swapped[-1].append((owner, name, parameter))
                    owner._parameters[name] = seen[id(parameter)]  # type: ignore[assignment]

        def back() -> None:
            for owner, name, parameter in swapped.pop():
                owner._parameters[name] = parameter

        inner = module.forward

        # Not as hooks: what computes a forward a second time, in the backward, skips those.
        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            swap()
            try:
                return inner(*args, **kwargs)
            finally:
                back()

        module.forward = forward  # type: ignore[method-assign]
        return module
