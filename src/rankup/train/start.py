"""What is made sure of before the first step: equal code, a backend that adds up, a built model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from ..base.errors import RunFailed
from ..parallel.build import Built, build
from ..parallel.mesh import Mesh
from ..runtime.probe import probe, same_code
from ..runtime.world import World
from .options import TrainOptions
from .task import Task, Valued


def start(task: Task, options: TrainOptions, world: World) -> Built:
    """The model on the ranks as the options split it; call on all of them.

    Raises:
        UserError: the sizes do not come out, or the model cannot be cut so.
        RunFailed: ranks run different code, or the backend does not compute what it should.
    """
    try:
        same_code(world)
        probe(world)
    except RuntimeError as error:
        raise RunFailed(str(error)) from None
    layout = options.layout(world.world_size, world.local_world_size)
    choices = options.choices
    if isinstance(task, Valued):
        choices = replace(choices, by_name=task.by_name)
    example = None
    if layout.pp > 1 and len(task.train):
        some = torch.arange(min(options.micro_batch, len(task.train)))
        example = (task.loss, task.train.batch(some))
    mesh = Mesh(layout, world, apart=options.apart)
    return build(task.build_model, mesh, options.seed, choices, example)


def refuse_unused(model: nn.Module) -> None:
    """After a backward under DDP: RunFailed naming the parameters that it did not reach.

    DDP waits for all of them before it exchanges any gradient, so the step would be a different
    one on each rank.
    """
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if unused:
        shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if unused[5:] else "")
        raise RunFailed(
            f"the loss does not depend on {shown}, so gradients were not exchanged; freeze what "
            "is not used (requires_grad_(False)), take it out of the model, or --strategy fsdp"
        )
