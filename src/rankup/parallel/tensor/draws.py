"""Dropout where each tensor-parallel rank has other values than its neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

_SEEDS = 2**62


class OwnDraws(ParallelStyle):
    """A module whose draws differ over the ranks, and leave the ranks' random states equal.

    The ranks of a tensor-parallel group start a micro-batch from the same random state, so that
    they drop the same values of what all of them have. Where a rank has a part, the same draws
    would drop the same places of every part; here the common state gives a seed, and the rank's
    number goes into it.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rank = device_mesh.get_local_rank()
        kept: list[tuple[torch.device, torch.Tensor] | None] = []

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not module.training or getattr(module, "p", 1.0) == 0.0:
                kept.append(None)
                return
            kept.append(_begin(inputs[0].device, rank))

        def leave(_: nn.Module, __: tuple[Any, ...], ___: Any) -> None:
            before = kept.pop() if kept else None
            if before is not None:
                _end(*before)

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)
        return module


def _enter(device: torch.device, rank: int) -> tuple[torch.device, torch.Tensor]:
    seed = int(torch.randint(_SEEDS, (), dtype=torch.int64)) ^ rank
    generator = _generator(device)
    state = generator.get_state()
    generator.manual_seed(seed)
    return device, state


def _leave(device: torch.device, state: torch.Tensor) -> None:
    _generator(device).set_state(state)


# Generators cannot be traced: a compiled block that drops something runs in pieces.
_begin = torch.compiler.disable(_enter)
_end = torch.compiler.disable(_leave)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[
        torch.cuda.current_device() if device.index is None else device.index
    ]
