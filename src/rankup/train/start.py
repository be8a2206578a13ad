"""What is made sure of before the first step: equal code, a backend that adds up, a built model."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase

import torch
from torch import nn

from ..base.errors import RunFailed, UserError, nearest
from ..parallel.build import Built, Loss, build
from ..parallel.mesh import Mesh
from ..runtime.world import World, same_code
from .options import TrainOptions
from .task import Batch, Task


def start(task: Task, options: TrainOptions, world: World) -> Built:
    """The model on the ranks as the options split it; call on all of them.

    Raises:
        UserError: the sizes do not come out, or the model cannot be cut so.
        RunFailed: ranks run different code.
    """
    try:
        same_code(world)
    except RuntimeError as error:
        raise RunFailed(str(error)) from None
    layout = options.layout(world.world_size, world.local_world_size)
    example = None
    if layout.pp > 1 and len(task.train):
        some = torch.arange(min(options.micro_batch, len(task.train)))
        example = (task.loss, task.train.batch(some))
    return assemble(task, options, Mesh(layout, world, apart=options.apart), example)


def assemble(
    task: Task, options: TrainOptions, mesh: Mesh, example: tuple[Loss, Batch] | None = None
) -> Built:
    """Build the task's model on a mesh as the options have it; arguments as of `build`."""
    set_arithmetic(options)
    choices = options.choices

    def build_model() -> nn.Module:
        model = task.build_model()
        freeze(model, options.freeze)
        return model

    return build(build_model, mesh, options.seed, choices, example, task.gives)


def freeze(model: nn.Module, patterns: str | None) -> None:
    """Leave parameters whose names match one of `patterns`, apart by commas, as they are.

    Raises:
        UserError: a pattern matches no name, or nothing would be left to train.
    """
    if patterns is None:
        return
    parameters = list(model.named_parameters(remove_duplicate=False))
    for pattern in patterns.split(","):
        found = [p for name, p in parameters if fnmatchcase(name, pattern.strip())]
        if not found:
            names = {re.sub(r"\b\d+\b", "*", name) for name, _ in parameters}
            raise UserError(
                f"--freeze {pattern.strip()!r} matches no parameter of the model; "
                f"{nearest(pattern.strip(), names)}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise UserError(
            f"--freeze {patterns} leaves no parameter of the model to be trained; freeze less"
        )


def fill(task: Task, built: Built) -> None:
    """Give the parameters the values that the task has for them, where it has some."""
    task.values({built.copies.get(n, n): p.detach() for n, p in built.model.named_parameters()})


def set_arithmetic(options: TrainOptions) -> None:
    """Choose how float32 products are computed, before anything is.

    Torch's own defaults let cuDNN's convolutions use TF32, and differ from version to version.
    """
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at cuBLAS's first use
        torch.use_deterministic_algorithms(True)


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
