"""FSDP2 under a pipeline: parameters are gathered once per step, gradients summed once.

A stage's forward and backward run many times per step. Were each a collective, ranks with more
chunks, or chunks of another shape, would wait for ranks that have none. So from the first forward
of a step on the parameters stay whole, gradients add up unreduced, and the last backward alone
exchanges them: what the data ranks do together does not depend on how many chunks each has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


def parts(stage: nn.Module) -> Iterator[FSDPModule]:
    """The sharded modules of a stage."""
    return (module for module in stage.modules() if isinstance(module, FSDPModule))


def hold(stage: nn.Module) -> None:
    """From now on parameters stay whole and gradients are not exchanged."""
    for module in parts(stage):
        module.set_reshard_after_forward(False, recurse=False)
        module.set_reshard_after_backward(False, recurse=False)
        module.set_requires_gradient_sync(False, recurse=False)
        module.set_is_last_backward(False)


def exchange(stage: nn.Module) -> None:
    """The backward that comes next sums the gradients.

    Parameters stay whole also in it: what one block gave back, FSDP would gather again for a
    neighbour that it takes for the next.
    """
    for module in parts(stage):
        module.set_requires_gradient_sync(True, recurse=False)
        module.set_is_last_backward(True)


def release(stage: nn.Module) -> None:
    """Give whole parameters back."""
    for module in parts(stage):
        module.reshard()


def exchange_now(stage: nn.Module) -> None:
    """Sum the gradients outside of a backward.

    A backward that is split into inputs and weights passes by the hooks in which FSDP does that.
    torch's own schedules call the same two functions, which have no public name.
    """
    exchange(stage)
    for module in parts(stage):
        state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # before torch 2.11 a module had one
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        for group in groups:
            group.post_backward()
    for module in parts(stage):
        state = fully_shard.state(module)  # type: ignore[attr-defined]
        if state._is_root:
            state._root_post_backward_final_callback()
