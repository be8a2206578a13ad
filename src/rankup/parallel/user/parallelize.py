"""`parallelize`: a user's own model and loop, split in any way."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.parallel import ParallelStyle

from ...base.errors import UserError
from ...runtime.context import CONTEXT, Place
from ...runtime.keys import derive, reseed
from ...runtime.model import wrap
from ...runtime.world import same_code, setup
from ..build import Built, build, prepare
from ..choices import Choices, Recompute, as_keyword, check, without_effect
from ..layout import SELDOM, Layout, choose, crossing
from ..mesh import Mesh
from ..sharded import blocks, release
from .forward import Peers, draws, replace_forward
from .gradients import Gradients, Weights, no_sync, refuse_after_failure

BuildOptimizer = Callable[[Any], torch.optim.Optimizer]
_OF_PIPELINES = ("pp", "pp_schedule", "loss", "micro_batch", "units", "example")


class Parallel(NamedTuple):
    """What `parallelize` returns; unpacks into `model, optimizer`.

    Attributes:
        model: the user's model on this rank.
        optimizer: what `build_optimizer` made.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients down to a norm of `max_norm` over every rank; the norm before."""
        norm: torch.Tensor = self.model.clip_grad_norm_(max_norm)  # type: ignore[operator]
        return norm


def parallelize(
    build_model: Callable[[], nn.Module],
    build_optimizer: BuildOptimizer,
    strategy: str | None = None,
    *,
    dp: int | None = None,
    shard: int | None = None,
    tp: int | None = None,
    seed: int | None = 0,
    precision: str = "fp32",
    activation_checkpointing: Recompute = "none",
    compile: bool = False,
    offload: bool = False,
    zero: int = 3,
    plan: Mapping[str, ParallelStyle] | None = None,
    **others: object,
) -> Parallel:
    """Split a model over all ranks; the loop stays that of one GPU. Call on every rank.

        model, optimizer = rankup.parallelize(Net, lambda m: SGD(m.parameters(), 0.1), "fsdp")

    Data comes from `rankup.shard(loader)`, which deals ranks that compute a batch together the same
    part. The gradient is the exact mean over the samples of all ranks, or over the units given to
    `rankup.count`, as with `wrap`; several backwards before a step add up. The weights are those of
    the constructor on rank 0. The model is the user's own object, with its attributes, methods
    and state-dict names (where it is only copied, it is in `wrap`), and has two methods more:

        model.clip_grad_norm_(max_norm)   in place of torch.nn.utils.clip_grad_norm_, over all ranks
        model.no_sync()                   around backwards that need not be exchanged yet

    Unless the model is only copied, a forward is a collective: all ranks have to call it equally
    often, also in evaluation.

    Args:
        build_model: makes the model. It runs on the meta device first; where that fails, every rank
            builds the model once in its host memory.
        build_optimizer: makes the optimizer of the model that it is given.
        strategy: ddp, fsdp, hsdp or tp; ddp, where no sizes are given either.
        dp: ranks that hold copies, see `layout.choose` for the axes.
        shard: ranks that share the weights (FSDP).
        tp: ranks that share each layer.
        seed: of the constructor's draws and, from here on, of torch's generators on each rank; with
            None these stay as the script has them, for a model that is there already (`lambda:
            model`).
        precision: fp32, or bf16: compute in bfloat16 within torch's autocast, with weights, inputs
            and outputs in float32. Copies go by FSDP then, too.
        activation_checkpointing: none, selective, selective:2 (every second block) or full. Where
            a model has no blocks for it a warning says so.
        compile: compile each block, or a model without blocks. What breaks a graph makes several;
            of what torch does not compile at all a warning says so.
        offload: under FSDP, keep all in host memory.
        zero: under FSDP, 3 frees a block between its forward and its backward, 2 keeps it. For 1,
            put `model.no_sync()` around all backwards but the last.
        plan: name patterns -> styles of `torch.distributed.tensor.parallel`, and of
            `rankup.parallel.tensor.styles`; by default the model's own.
        others: none; what version 0.2 took is refused with a sentence.

    Raises:
        UserError: the layout does not come out, the model cannot be split so, or an option does not
            go with the layout; says the way out.
        RuntimeError: ranks run different code (Python, torch, rankup or the script).
    """
    _refuse(strategy, others)
    world = setup()
    same_code(world)
    layout = choose(world.world_size, world.local_world_size, strategy, dp=dp, shard=shard, tp=tp)
    choices = Choices(
        half="bfloat16" if precision == "bf16" else None,
        autocast=True,
        compiled="default" if compile else None,
        strict=False,
        recompute=activation_checkpointing,
        offload=offload,
        zero=zero,
        by_name=False,
        plan=plan,
        once=False,
    )
    _check_words(precision, activation_checkpointing, zero)
    check(layout, choices, strategy, as_keyword)
    for warning in _notes(layout, choices, world.local_world_size) if world.is_root else ():
        warnings.warn(warning, stacklevel=2)
    mesh = Mesh(layout, world)
    CONTEXT.assign(Place(mesh.data_rank, mesh.data_size, mesh.together))
    # Values that are there already are not drawn, and the script's own draws go on.
    with contextlib.nullcontext() if seed is not None else draws(0, world.device):
        if layout.only_replicas and choices.half is None:
            return _copied(build_model, build_optimizer, mesh, seed or 0, choices)
        built = build(build_model, mesh, seed or 0, choices)
        return _dressed(built, build_optimizer, seed or 0)


def _dressed(built: Built, build_optimizer: BuildOptimizer, seed: int) -> Parallel:
    """The optimizer of a split model, and what lets it look as on one GPU."""
    mesh = built.mesh
    optimizer = _optimizer(build_optimizer, built.model)
    gradients = Gradients(built)
    gradients.watch(optimizer)
    # A forward after the backward leaves parts whole, of which the next one must not take the old.
    optimizer.register_step_pre_hook(lambda *_: release(built.model))
    _dress(built, gradients, seed)
    CONTEXT.models.add(built.model)
    reseed(derive(seed, "draws", mesh.data_rank), mesh.world.device)
    return Parallel(built.model, optimizer)


def _copied(
    build_model: Callable[[], nn.Module],
    build_optimizer: BuildOptimizer,
    mesh: Mesh,
    seed: int,
    choices: Choices,
) -> Parallel:
    """Each rank holds the whole model in float32, in `wrap`."""
    torch.manual_seed(derive(seed, "construction"))
    model = build_model().to(mesh.world.device)
    prepare(model, blocks(model), choices, set())
    wrapped = wrap(model)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def clip_grad_norm_(max_norm: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    # On the wrapper, which passes everything else on to the model.
    vars(wrapped)["clip_grad_norm_"] = clip_grad_norm_
    optimizer = _optimizer(build_optimizer, model)
    reseed(derive(seed, "draws", mesh.data_rank), mesh.world.device)
    return Parallel(wrapped, optimizer)


def _dress(built: Built, gradients: Gradients, seed: int) -> None:
    """Let a split model look like the one on one GPU."""
    model, mesh = built.model, built.mesh
    vars(model).update(clip_grad_norm_=gradients.clip, no_sync=lambda: no_sync(model))
    if mesh.layout.tp > 1:
        replace_forward(model, Peers(mesh, seed).compute)
    if mesh.data_size > 1:
        Weights(model, mesh)  # lives in the hooks it sets
    if isinstance(model, FSDPModule):
        model.register_forward_pre_hook(refuse_after_failure, prepend=True)


def _optimizer(build_optimizer: BuildOptimizer, model: nn.Module) -> torch.optim.Optimizer:
    optimizer = build_optimizer(model)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"build_optimizer returned a {type(optimizer).__name__}; it has to return one "
            f"torch.optim.Optimizer of the model it is given"
        )
    known = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise UserError(
                    f"build_optimizer: a parameter of shape {tuple(parameter.shape)} is none of "
                    f"the model's, so every rank would train it alone: build the optimizer from "
                    f"the model that build_optimizer is given, and put parameters of a loss into "
                    f"the model"
                )
    return optimizer


def _check_words(precision: str, recompute: str, zero: int) -> None:
    for name, value, known in (
        ("precision", precision, ("fp32", "bf16")),
        ("zero", zero, (2, 3)),
        ("activation_checkpointing", recompute, get_args(Recompute)),
    ):
        if value not in known:
            raise UserError(f"{name}={value!r} is unknown; known are: {', '.join(map(str, known))}")


def _refuse(strategy: str | None, others: Mapping[str, object]) -> None:
    """UserError for what parallelize does not take, and did in 0.2."""
    if strategy in SELDOM:
        raise UserError(
            f"strategy={strategy!r} needs a loop of its own, which the recipes have (rankup run "
            "RECIPE --strategy ...); parallelize takes ddp, fsdp, hsdp and tp"
        )
    pipeline = [f"strategy={strategy!r}"] if strategy in ("pp", "3d") else []
    pipeline += [f"{name}=" for name in others if name in _OF_PIPELINES]
    if pipeline:
        raise UserError(
            f"parallelize makes no pipelines any more, and {pipeline[0]} is of one: rankup run "
            "language-model --strategy pp has them, and by-hand/pipeline.py shows one in plain "
            "PyTorch (`rankup demo --files .` writes it); parallelize takes ddp, fsdp, hsdp and tp"
        )
    if "methods" in others:
        raise UserError(
            "methods= is gone in 0.3: let the model's forward call the method, as "
            "model(x, part='encode')"
        )
    if "reshard" in others:
        raise UserError("reshard=False is zero=2 in 0.3, and reshard=True the default, zero=3")
    if others:
        raise UserError(f"parallelize takes no {', '.join(others)}; see help(rankup.parallelize)")


def _notes(layout: Layout, choices: Choices, per_node: int) -> list[str]:
    """What was asked for and does nothing, or costs more than it seems.

    A single process is left alone: there a script of any layout is tried out.
    """
    found = [warning] if (warning := crossing(layout, per_node)) else []
    return found + (without_effect(layout, choices, as_keyword) if layout.world_size > 1 else [])
