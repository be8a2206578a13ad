"""How a model is built on a layout, and the one check of what was asked for. No torch here: what
cannot be is said before a job waits for its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..base import gone
from ..base.errors import UserError, nearest
from ..runtime.compression import Compression
from .layout import SELDOM, Layout

Recompute = Literal["none", "selective", "selective:2", "full"]
Half = Literal["bfloat16", "float16"]
# How options are written: a name, and its value where that matters.
Spelling = Callable[..., str]

# Our words for torch's schedules.
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
VIRTUAL = 2  # stages per rank, where a schedule takes several


def torch_name(name: str) -> str:
    """torch's name of a schedule, given that or ours.

    Raises:
        UserError: it is neither; names the nearest.
    """
    for ours, theirs in SCHEDULES.items():
        if name.lower() in (ours, theirs.lower()):
            return theirs
    gone.refuse("--pp-schedule", name)
    raise UserError(f"unknown pipeline schedule {name!r}; {nearest(name, SCHEDULES)}")


def stages_per_rank(name: str) -> int:
    """Stages that one rank holds under a schedule."""
    return VIRTUAL if torch_name(name) == "Interleaved1F1B" else 1


@dataclass(frozen=True)
class Choices:
    """The choices by which a model is built on a mesh.

    Attributes:
        half: torch's name of a type of 16 bits to compute in: parameters are gathered in it, and
            everything a model does is in it, as after `model.bfloat16()`. Weights and sums of
            gradients are float32.
        autocast: for a script's own model: inputs stay as they are given, torch's autocast chooses
            the type of each operator, and what the model returns is cast to float32. A recipe's
            model and loss cast by themselves, and a few rows of logits at a time.
        compiled: mode in which torch compiles each block, or a model that has none; None leaves
            them as they are.
        strict: what was asked for and cannot be had of this model is an error: one graph for each
            compiled block, blocks to compute again. Else such a block runs in several graphs, and
            a warning says what has no effect.
        recompute: what the backward computes again.
        offload: see `sharded.shard`.
        zero: what is shared out of a sharded model beside the optimizer's state, and gathered or
            added up when: 3, weights for each part of a micro-batch; 2, weights once a step; 1,
            gradients once a step, too, in the last backward.
        schedule: of the pipeline.
        by_name: draw each parameter by its name; False keeps the constructor's own values.
        plan: patterns of module names -> styles of tensor parallelism, where the model does not
            bring it.
        once: gradients are finished once a step; a script's own loop may do so in between.
        compression: of the gradients that ranks send each other; of sharded ones bf16 alone.
    """

    half: Half | None = None
    autocast: bool = False
    compiled: str | None = None
    strict: bool = True
    recompute: Recompute = "none"
    offload: bool = False
    zero: int = 3
    schedule: str = "1f1b"
    by_name: bool = True
    plan: Mapping[str, Any] | None = None
    once: bool = True
    compression: Compression = field(default_factory=Compression)


def as_flag(name: str, value: object = None) -> str:
    """An option as it is written on the command line."""
    text = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
    return text if value is None or isinstance(value, bool) else f"{text} {value}"


def as_keyword(name: str, value: object = None) -> str:
    """An option as it is written in a call."""
    return name if value is None else f"{name}={value!r}"


def check(
    layout: Layout, choices: Choices, strategy: str | None = None, spell: Spelling = as_flag
) -> None:
    """Refuse what does not go with a layout.

    Raises:
        UserError: says what, and the way out.
    """
    torch_name(choices.schedule)
    if layout.cp > 1 and layout.pp > 1:
        raise UserError(
            f"{spell('cp', layout.cp)} gathers keys and values in every layer, which the schedules "
            f"of {spell('pp', layout.pp)} are not made for; split the layers by "
            f"{spell('shard')} or {spell('tp')} instead"
        )
    if choices.offload and layout.only_replicas:
        raise UserError(
            f"{spell('offload', True)} keeps shards of a model in host memory, and here every rank "
            f"holds all of it; add {spell('strategy', 'fsdp')}, on two ranks or more"
        )
    if not choices.compression:
        return
    compress = spell("compress", str(choices.compression))
    if strategy in SELDOM:
        raise UserError(
            f"{compress} is of gradients, and under {spell('strategy', strategy)} copies send what "
            f"they have learned, whole and seldom; leave one of them away"
        )
    several = layout.dp_replicate * layout.shard_size > 1
    if layout.pp > 1 and several:
        raise UserError(
            f"{compress} does not go with {spell('pp', layout.pp)}: torch adds the gradients of "
            "all micro-batches of a pipeline up before it sends them, and would do so in the type "
            "that it sends; leave it out"
        )
    if choices.compression.kind == "powersgd" and (choices.half or not layout.only_replicas):
        raise UserError(
            f"{compress} is for whole gradients in float32, those of ddp; leave it out, or give "
            f"{spell('compress', 'bf16')}, which goes with sharded ones and 16 bits as well"
        )


def without_effect(layout: Layout, choices: Choices, spell: Spelling = as_flag) -> list[str]:
    """Return the options that were given and do nothing on a layout."""
    found = []
    if choices.plan is not None and layout.tp == 1:
        found.append(f"{spell('plan')} does nothing without {spell('tp')}")
    if layout.pp == 1 and torch_name(choices.schedule) != "1F1B":
        schedule = spell("pp_schedule", choices.schedule)
        found.append(f"{schedule} does nothing without {spell('pp')}")
    alone = layout.dp_replicate * layout.shard_size == 1
    if choices.compression and alone:
        compress = spell("compress", str(choices.compression))
        found.append(f"{compress} does nothing where one rank has every gradient for itself")
    if choices.zero < 3 and (layout.shard_size == 1 or layout.pp > 1):
        found.append(
            f"{spell('zero', choices.zero)} does nothing "
            + (
                "in a pipeline, which gathers once a step anyway"
                if layout.pp > 1
                else f"where weights are not sharded ({spell('shard')})"
            )
        )
    return found
