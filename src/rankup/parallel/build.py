"""From a model file to a model on all ranks, always in the same order.

pipeline cut → tensor parallel → shared sequences → activation checkpointing → compile → FSDP2 →
values

FSDP2 stands around every model that is split, or computes in 16 bits. Alone stay float32 on one
rank, where there is nothing to do, and plain replicas of float32, which DDP exchanges.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..base.errors import RunFailed, UserError
from ..runtime.compression import Compression
from ..runtime.model import exchange_by, no_buffer_sync
from .choices import Choices, Recompute, as_flag, as_keyword, check
from .context import PACKS, SharedSequence, share
from .gradients import finish_gradients
from .initial import Initial, materialize
from .layout import Layout
from .mesh import Mesh
from .pipeline.cut import costs, cut, links
from .pipeline.run import Pipeline, model_args, placement, samples
from .pipeline.stage import StageModule, Ties, carve, copies, find_ties
from .sharded import beside_blocks, blocks, has_statistics, keep_norms, shard
from .tensor.apply import apply, loss_context, plain
from .tensor.plan import Plan, named, plan_of
from .tensor.plan import check as check_plan

Batch = tuple[torch.Tensor, ...]
# By which a user switches torch's compiler off.
_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
Loss = Callable[[Any, Batch], torch.Tensor]


def _varlen() -> tuple[Any, ...]:
    """Attention within documents: a private operator, so that another torch may have none."""
    attention = getattr(torch.ops.torch_attn, "_varlen_attn", None) if PACKS else None
    return () if attention is None else (attention.default,)


# Matrix products are most of a block's work and little of its memory: `selective` keeps them, and
# what attention gives, whichever kernel computes it. Kept is, too, what ranks have added up, for
# which a block would wait again. What they gather is larger by their number, and gathered anew.
_KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._efficient_attention_forward.default,
    *_varlen(),
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


@dataclass
class Built:
    """A model on the ranks of a mesh.

    Attributes:
        model: what `build_model` returned; under pp without the modules of other stages.
        replica: what a forward goes through: DDP around the model, or the model.
        whole: the uncut model, for questions about its size; its tensors may be on meta.
        pipeline: what runs a step under pp.
        ties, copies: parameters that stages share; names of this rank's further copies -> the name
            they are kept under.
        plan: how modules are cut over the tensor axis.
        partial: parameters whose gradients the tensor axis adds up behind the last backward.
        draws_apart: what random draws of this rank depend on beside the micro-batch.
        zero: as of `Choices`; 1 where each rank holds its part of the model whole.
        every_micro_batch: gradients are exchanged in each: they go in bf16, and sums stay float32.
        sum_of_gradients: what makes a sum of what the exchange computes; DDP takes a mean.
    """

    model: nn.Module
    replica: nn.Module
    whole: nn.Module
    mesh: Mesh
    pipeline: Pipeline | None = None
    ties: Ties | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    plan: Plan = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    draws_apart: tuple[int | str, ...] = ()
    zero: int = 3
    every_micro_batch: bool = False
    sum_of_gradients: int = 1
    uncompiled: set[str] = field(default_factory=set)

    @property
    def counts(self) -> bool:
        """Whether this rank's losses are added up: the other ranks of its tensor and pipeline
        groups have computed the same ones, or none."""
        return self.mesh.tp == 0 and (self.pipeline is None or self.pipeline.has_last)

    @property
    def counts_samples(self) -> bool:
        """True where this rank's samples are added up: ranks that share a sequence have parts of
        its loss, and the same samples."""
        return self.counts and self.mesh.cp == 0

    @property
    def copied(self) -> frozenset[int]:
        """`id`s of this rank's copies of tied parameters."""
        return frozenset(id(self.model.get_parameter(name)) for name in self.copies)

    @property
    def has_buckets(self) -> bool:
        """Whether DDP exchanges the gradients."""
        return isinstance(self.replica, DistributedDataParallel)

    def exchange_at(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a micro-batch: replicas exchange gradients in the backward of the last one alone.

        Sharded ones are shared out in each, since what is not would lie on every rank whole, unless
        `zero` has it so. What goes in bf16 is exchanged in each, too: FSDP adds up what waits in
        the type that it sends, and would round each sum.
        """
        if isinstance(self.replica, DistributedDataParallel):
            return contextlib.nullcontext() if last else self.replica.no_sync()
        if isinstance(self.replica, FSDPModule):
            if self.zero <= 2:
                self.replica.set_reshard_after_backward(last)
            now = last or self.every_micro_batch
            if self.zero == 1:
                self.replica.set_requires_gradient_sync(now)
            elif self.mesh.at_step.dp_replicate > 1:
                # Between copies the parts can wait until the last: they add up where they are.
                self.replica.set_requires_all_reduce(now)
        return contextlib.nullcontext()

    def computing(self) -> contextlib.AbstractContextManager[Any]:
        """Around forward, loss and backward."""
        return loss_context(self.plan)

    def plain(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss as an ordinary tensor."""
        return plain(loss)

    def losses(self, loss: Loss, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """The loss of each batch without gradients, on ranks that have the last stage."""
        with torch.no_grad(), self.computing():
            if self.pipeline is not None:
                return self.pipeline.evaluate(batches, loss)
            return [loss(self.model, batch) for batch in batches]

    def refuse_uncompiled(self) -> None:
        """After a step: RunFailed where torch has left parts as they are that it was to compile."""
        if not self.uncompiled:
            return
        raise RunFailed(
            f"--compile: torch made no graph of {', '.join(sorted(self.uncompiled))} in the first "
            f"step ({_why_not()}); without --compile the run goes on"
        )

    def finish_gradients(self) -> None:
        """What is left to do with the gradients of a step, once, before they are used."""
        if self.mesh.layout.tp > 1:
            finish_gradients(self.model, self.partial, self.mesh.group("tp"))
        if self.ties is not None:
            self.ties.sum_gradients()


def build(
    build_model: Callable[[], nn.Module],
    mesh: Mesh,
    seed: int,
    choices: Choices,
    example: tuple[Loss, Batch] | None = None,
    given: Callable[[str], bool] = lambda name: False,
) -> Built:
    """Build a model on the ranks of `mesh`; call on all of them.

    Parameters are made on meta, and get memory once they are cut.

    Args:
        example: the loss and a batch, from which the work of each part of the model is counted;
            without it pipeline stages are balanced by their parameters.
        given: parameters of the uncut model, by name, to which the caller gives values afterwards;
            where the model is cut none is drawn for them.

    Raises:
        UserError: the model cannot be cut as the layout asks; says why, and the way out.
    """
    if not mesh.apart:  # what comes from the options of a run, and was checked with them
        check(mesh.layout, choices)
    layout, device = mesh.layout, mesh.world.device
    initial = Initial(build_model, mesh.world, seed, choices.by_name)
    built, stages = split(initial.shapes(), mesh, choices, example)
    # What is offloaded comes to the device part by part; buffers are needed there all the time.
    materialize(built.model, device, torch.device("cpu") if choices.offload else device)
    initial.fill(built.model, built.whole, built.copies, given)
    # Stages that drew alike would drop the same places of each layer, as would parts of a sequence.
    built.draws_apart = ("stage", mesh.pp) if layout.pp > 1 else ()
    built.draws_apart += ("context", mesh.cp) if layout.cp > 1 else ()
    if layout.pp > 1:
        group = mesh.group("pp")
        rows = 0 if example is None else samples(model_args(*example))
        built.pipeline = Pipeline(stages, group, device, choices.schedule, rows)
    elif mesh.at_step.dp_replicate > 1 and not isinstance(built.model, FSDPModule):
        built.replica = replicate(built.model, choices.compression)
        built.sum_of_gradients = mesh.world.world_size
    return built


def split(
    model: nn.Module,
    mesh: Mesh,
    choices: Choices,
    example: tuple[Loss, Batch] | None = None,
) -> tuple[Built, list[StageModule]]:
    """Return a rank's part of a model on meta, and its pipeline stages.

    Other arguments and errors are those of `build`.
    """
    layout = mesh.layout
    refuse(model, layout)
    units = blocks(model)
    beside = beside_blocks(model, units)
    built = Built(model, model, copy.deepcopy(model), mesh)
    built.zero = choices.zero if layout.shard_size > 1 else 1
    if layout.tp > 1:
        built.plan = plan_of(model, choices.plan)
        check_plan(model, built.plan, layout.tp)
    roots, stages = [model], list[StageModule]()
    if layout.pp > 1:
        stages = _cut(built, choices.schedule, example)
        roots = list[nn.Module](stages)
    if layout.tp > 1:
        built.partial = apply(model, built.plan, mesh.device_mesh["tp"], choices.once)
    if isinstance(mesh.sequence, SharedSequence):
        share(model, mesh.sequence)
    # Torch 2.13 mixes up what a compiled block keeps for its backward where tensors are cut and
    # random states are among it; on GPUs these are no tensors, and all is well.
    keep_draws = bool(choices.compiled) and layout.tp > 1 and mesh.world.device.type == "cpu"
    half = None if choices.half is None else getattr(torch, choices.half)
    if half is not None:
        keep_norms(model, choices.autocast)
    prepare(model, units, choices, built.uncompiled, keep_draws)
    if choices.compiled:
        _await_outputs(model, built.plan, units)
    several = mesh.at_step.dp_replicate * layout.shard_size > 1
    built.every_micro_batch = several and bool(choices.compression)
    if (several and not layout.only_replicas) or half is not None or choices.offload:
        shard(
            roots,
            units,
            beside,
            mesh,
            half=half,
            autocast=choices.autocast,
            sums=torch.bfloat16 if built.every_micro_batch else torch.float32,
            offload=choices.offload,
            reshard=built.zero == 3,
        )
    return built, stages


def prepare(
    model: nn.Module,
    units: Sequence[nn.Module],
    choices: Choices,
    uncompiled: set[str],
    keep_draws: bool = False,
) -> None:
    """Let the blocks of a model recompute and be compiled as asked, in place.

    Args:
        uncompiled: where the kinds of those are noted that run as they are all the same.
        keep_draws: see `recompute`.
    """
    if choices.recompute != "none" and not computed_again(units, choices.recompute):
        _say_nothing_is_recomputed(model, units, choices)
    recompute(units, choices.recompute, keep_draws)
    if choices.compiled:
        _compile(units or [model], choices, uncompiled)


def recompute(units: Sequence[nn.Module], how: Recompute, keep_draws: bool = False) -> None:
    """Let each unit keep its inputs alone (`full`), or matrix products as well (`selective`).

    With `selective:2` every second one keeps its inputs alone, and the others all they have.

    The modules stay what they are, so that parameter names do: torch's own wrapper would change
    them. Random draws are the same in both computations; with `keep_draws` none is made twice.
    """
    if how == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    kept = _KEPT if how == "selective" else ()
    if kept or keep_draws:
        policy = functools.partial(_policy, kept, keep_draws)
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
    for unit in computed_again(units, how):
        unit.forward = _recomputed(unit.forward, options)  # type: ignore[method-assign]


def computed_again(units: Sequence[nn.Module], how: Recompute) -> Sequence[nn.Module]:
    """The units that compute something again in the backward, where `how` is not `none`."""
    return units[1::2] if how == "selective:2" else units


def _say_nothing_is_recomputed(
    model: nn.Module, units: Sequence[nn.Module], choices: Choices
) -> None:
    """UserError, or a warning of the first rank where a script goes on without."""
    spell = as_flag if choices.strict else as_keyword
    name = type(model).__name__
    has = (
        f"{name} has one block, of which every second one is none"
        if units
        else f"{name} has no blocks (what its nn.ModuleList, nn.ModuleDict or nn.Sequential hold)"
    )
    asked = spell("activation_checkpointing", choices.recompute)
    text = f"{asked} has no effect: it computes blocks again in the backward, and {has}; "
    if choices.strict:
        raise UserError(text + "leave it out" + (", or give full" if units else ""))
    if not (dist.is_initialized() and dist.get_rank()):
        way = "give 'full'" if units else "put its layers into such a list, or leave it out"
        warnings.warn(text + way, stacklevel=2)


def _recomputed(inner: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a forward that is computed again in the backward.

    A function of Python's, and no `partial`: Dynamo passes by torch's own code that calls a
    module's forward, and compiles the first frame behind it. Of a `partial` that is torch's
    `checkpoint` itself, which is never compiled, and the block would stay as it is without a word.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, **options, **kwargs)

    return forward


def _policy(
    kept: Sequence[Any], draws: bool, context: Any, operator: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    keep = operator in kept or (draws and torch.Tag.nondeterministic_seeded in operator.tags)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _compile(units: Sequence[nn.Module], choices: Choices, uncompiled: set[str]) -> None:
    """Compile each part by itself, in place: parameter names stay."""
    for unit in units:
        kind = type(unit).__name__
        unit.forward = _watched(unit.forward, kind, uncompiled, choices.strict)  # type: ignore[method-assign]
        unit.compile(mode=choices.compiled, fullgraph=choices.strict)
    # Each block that differs from the others is another graph, in training and in evaluation. Torch
    # keeps 8, and would leave the rest of the model as it is.
    config = torch._dynamo.config
    graphs = 4 * len(units)
    config.recompile_limit = max(config.recompile_limit, graphs)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, graphs)


def _why_not() -> str:
    off = [name for name in _SWITCHES if os.environ.get(name) == "1"]
    return f"{off[0]}=1 is set: unset it" if off else "TORCH_LOGS=dynamo says why"


def _watched(
    inner: Callable[..., Any], kind: str, uncompiled: set[str], strict: bool
) -> Callable[..., Any]:
    """Return a forward that notes when Python runs it: a graph has no such line.

    Torch counts its graphs in private places, all together, a compiled loss among them; and
    `fullgraph` says nothing where Dynamo never looked, as it is switched off, say.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and kind not in uncompiled:
            uncompiled.add(kind)
            if not strict and not (dist.is_initialized() and dist.get_rank()):
                warnings.warn(
                    f"compile=True: torch made no graph of a {kind} as a whole ({_why_not()}), so "
                    "that it may run as it is",
                    stacklevel=2,
                )
        return inner(*args, **kwargs)

    return forward


def _await_outputs(model: nn.Module, plan: Plan, units: Sequence[nn.Module]) -> None:
    """Let parts beside the compiled ones, an embedding as a rule, give what has arrived.

    What a collective still brings is a tensor of a kind of its own, and a graph would be made for
    that kind. With torch 2.13 its backward fails under tensor parallelism ('Tensor' object has no
    attribute '_local_tensor'), and where weights are sharded as well gradients are lost without a
    word. Any operator but a view waits, and gives a plain tensor.
    """
    inside = {module for unit in units for module in unit.modules()}

    def wait(module: nn.Module, arguments: Any, output: Any) -> Any:
        special = isinstance(output, torch.Tensor) and type(output) is not torch.Tensor
        return output.clone() if special and not isinstance(output, DTensor) else output

    for name in named(model, plan):
        if (module := model.get_submodule(name)) not in inside:
            module.register_forward_hook(wait)


def _cut(built: Built, schedule: str, example: tuple[Loss, Batch] | None) -> list[StageModule]:
    """Prune the model to this rank's pipeline stages, balanced by cost."""
    model, mesh = built.model, built.mesh
    place = placement(schedule, mesh.layout.pp)
    found = links(model)
    args = None if example is None else model_args(*example)
    cuts = cut(found, model, costs(found, model, args), len(place))
    held = [stage for stage, rank in enumerate(place) if rank == mesh.pp]
    ties = find_ties(model, found, cuts)
    stages = carve(model, found, cuts, held)
    built.copies = copies(ties, held)
    if ties:
        built.ties = Ties(ties, model, place, mesh.lines("pp"))
    return stages


def refuse(model: nn.Module, layout: Layout) -> None:
    """UserError for what a layout cannot train exactly."""
    normed = [name for name, module in model.named_modules() if has_statistics(module)]
    if normed and (layout.pp > 1 or layout.tp > 1):
        axis = "--pp" if layout.pp > 1 else "--tp"
        raise UserError(
            f"{axis} cannot keep the running statistics of batch norm ({normed[0]}"
            + (f" and {len(normed) - 1} more" if len(normed) > 1 else "")
            + "); use --strategy ddp, fsdp or hsdp, or a norm without them (layer or group norm)"
        )


def replicate(model: nn.Module, compression: Compression) -> DistributedDataParallel:
    """DDP without its own buffer exchange: the loop averages running statistics itself.

    Gradients become their mean over the ranks, compressed or not.
    """
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, **no_buffer_sync())
    exchange_by(replica, compression)
    return replica
