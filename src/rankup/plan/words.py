"""A layout in the words of `rankup run` and of `rankup.parallelize`, and back."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from .. import recipes
from ..base.errors import UserError
from ..parallel.choices import stages_per_rank
from ..parallel.layout import SELDOM
from ..parallel.layout import Layout as Mesh
from ..recipes.options import LanguageModelOptions
from ..recipes.vocabulary import BYTES
from ..slurm.parse import time_text
from .estimate import Estimate
from .framework import COMPILES, FRAMEWORKS
from .layout import Layout, Precision
from .machines import Site
from .search import Layouts, Search, strategy_of
from .shape import Shape
from .target import RECIPE, Target

_START = 5  # minutes of a job before its first step, and for its last checkpoint
_ONE_WORD = ("ddp", "fsdp", *SELDOM)  # strategies that say all of a mesh


def layout_text(layout: Layout) -> str:
    """Return the strategy of a layout, or its sizes where they say more."""
    kept = [f"zero {layout.zero}"] if layout.zero in (1, 2) else []
    if layout.strategy in ("ddp", "fsdp") and layout.cp == 1:
        return ", ".join([layout.strategy, *kept])
    sizes = {"dp": layout.dp_replicate, "shard": layout.dp_shard, "cp": layout.cp}
    sizes |= {"tp": layout.tp, "pp": layout.pp}
    said = [layout.strategy] if layout.strategy in SELDOM else []
    said += [f"{name} {n}" for name, n in sizes.items() if n > 1]
    said += [layout.schedule] if layout.schedule != "1f1b" else []
    return ", ".join([*said, *kept]) or layout.strategy


def layout_of(options: LanguageModelOptions, gpus: int, mesh: Mesh) -> Layout:
    """Return the layout that a recipe's options ask for."""
    strategy = strategy_of(mesh.tp, mesh.pp, mesh.shard_size, mesh.dp_replicate * mesh.shard_size)
    every = 1
    if options.strategy in SELDOM:
        strategy = options.strategy
        every = int(options.sync_every) if options.sync_every.isdigit() else 1
    sharded = 3 if mesh.pp > 1 else int(options.zero)
    return Layout(
        gpus=gpus,
        strategy=strategy,
        dp_replicate=mesh.dp_replicate,
        dp_shard=mesh.dp_shard,
        tp=mesh.tp,
        pp=mesh.pp,
        cp=mesh.cp,
        schedule=options.pp_schedule if mesh.pp > 1 else "1f1b",
        interleave=stages_per_rank(options.pp_schedule) if mesh.pp > 1 else 1,
        micro_batch=options.micro_batch,
        global_batch=options.global_batch,
        recompute=options.activation_checkpointing,
        precision=options.precision,
        zero=sharded if mesh.shard_size > 1 else 0,
        sequence_parallel=mesh.tp > 1,
        inner_steps=every,
        framework=COMPILES["rankup"] if options.compile else "rankup",
    )


@dataclass(frozen=True)
class Wanted:
    """What a recipe was told of its layout, against which a search is held."""

    target: Target
    site: Site

    def of(self, search: Search, gpus: int, most: int) -> Layouts:
        """Return the first `most` layouts that the target can be cut into and was told to take; all
        that fit, where no recipe tells anything."""
        found, machine = search.layouts(self.site.machine, gpus), self.site.machine
        if self.target.recipe is None:
            return found
        # To parse the options takes a moment.
        fitting = tuple(islice(filter(self._allows, found.fitting), most))
        if fitting:
            return Layouts(gpus, fitting, None)
        if found.closest is not None and self._allows(found.closest):
            return Layouts(gpus, (), found.closest)
        every = Search(search.shape, search.global_batch, search.precision, cp=search.cp)
        return Layouts(gpus, (), None, self._ruled_out(list(every.candidates(machine, gpus))))

    def _allows(self, fit: Estimate) -> bool:
        layout, target = fit.layout, self.target
        has = _options(layout)
        if any(has[option] != value for option, value in self._told().items()):
            return False
        words = [*target.words[1:], *layout_words(layout, target)]
        try:
            options = recipes.find(target.words[0]).parse(words)
            options.layout(layout.gpus, min(layout.gpus, self.site.machine.gpus_per_node))
        except UserError:
            return False
        return True

    def _told(self) -> dict[str, str | int]:
        """The options by which the recipe was told its layout."""
        recipe, target = self.target.recipe, self.target
        assert recipe is not None
        told: dict[str, str | int | None] = {
            "--strategy": recipe.strategy,
            "--dp": recipe.dp,
            "--shard": recipe.shard,
            "--cp": recipe.cp,
            "--tp": recipe.tp,
            "--pp": recipe.pp,
        }
        if target.said("--micro-batch"):
            told["--micro-batch"] = recipe.micro_batch
        if target.said("--activation-checkpointing"):
            told["--activation-checkpointing"] = recipe.activation_checkpointing
        if target.said("--zero"):
            told["--zero"] = recipe.zero
        return {option: value for option, value in told.items() if value is not None}

    def _ruled_out(self, layouts: Sequence[Layout]) -> str:
        """The option that none of the layouts has, or all that were told; empty without layouts."""
        told = self._told()
        every = [_options(layout) for layout in layouts]
        for option, value in told.items():
            if every and all(has[option] != value for has in every):
                return f"{option} {value}"
        return " ".join(f"{option} {value}" for option, value in told.items()) if every else ""


def _options(layout: Layout) -> dict[str, str | int]:
    """A layout by the options of a recipe."""
    return {
        "--strategy": layout.strategy,
        "--dp": layout.dp_replicate,
        "--shard": layout.dp_shard,
        "--cp": layout.cp,
        "--tp": layout.tp,
        "--pp": layout.pp,
        "--micro-batch": layout.micro_batch,
        "--activation-checkpointing": layout.recompute,
        "--zero": str(layout.zero or 3),  # says nothing where nothing is sharded
    }


def layout_words(layout: Layout, target: Target) -> list[str]:
    """Return the options of a recipe that are a layout, without those that it was given."""
    has = _options(layout)
    names = ["--dp", "--shard", "--cp", "--tp", "--pp"]
    words: dict[str, object] = {}
    if layout.strategy in _ONE_WORD:
        names, words = ["--cp"], {"--strategy": layout.strategy}
    words |= {name: has[name] for name in names if has[name] != 1}
    if layout.pp > 1 and layout.schedule != "1f1b":
        words["--pp-schedule"] = layout.schedule
    words |= {"--zero": layout.zero} if layout.zero in (1, 2) else {}
    words["--micro-batch"] = layout.micro_batch
    if layout.recompute != "none":
        words["--activation-checkpointing"] = layout.recompute
    said = [
        word
        for option, value in words.items()
        if not target.said(option)
        for word in (option, str(value))
    ]
    compiled = FRAMEWORKS[layout.framework].compiled and not target.said("--compile")
    return [*said, "--compile"] if compiled else said


def framework_of(target: Target) -> str:
    """Return the habits of what trains a target: the recipe's, or those of the user's script."""
    if target.recipe is not None:
        return COMPILES["rankup"] if target.recipe.compile else "rankup"
    return "rankup" if _as_recipe(target.shape) else "script"


def by_recipe(target: Target) -> bool:
    """Return True if what would train the model is the recipe, which has stages and a loop that
    knows the last micro-batch of a step; a script of one's own has neither."""
    return target.recipe is not None or _as_recipe(target.shape)


def _as_recipe(shape: Shape) -> bool:
    """True if the recipe has models of this kind."""
    plain = not shape.gated and not shape.tied and shape.kv_heads == shape.heads
    return plain and shape.ffn == 4 * shape.hidden and shape.vocab > BYTES


def run_command(
    target: Target, site: Site, layout: Layout, steps: int | None, seconds: float | None
) -> tuple[str, str]:
    """Return the command that starts a layout, and what has to stand in the script; empty for a
    recipe, which takes all of it as options.

    Args:
        steps: of the whole run, where that is known.
        seconds: that it takes at most.
    """
    per_node = site.machine.gpus_per_node
    words = ["rankup", "run", "--nodes", str(max(1, layout.gpus // per_node))]
    if layout.gpus < per_node:
        words += ["--nproc", str(layout.gpus)]
        words += ["--allow-idle-gpus"] if site.whole_nodes else []
    if seconds is not None:
        minutes = math.ceil(seconds / 60) + _START
        words += ["--time", time_text(min(minutes, site.most_minutes or minutes))]
    words += ["--partition", site.partition] if site.partition else []
    own = list(target.words)
    if target.recipe is None and _as_recipe(target.shape):
        own = [RECIPE, *_sizes(target.shape), "--global-batch", str(layout.global_batch)]
        own += ["--precision", layout.precision] if layout.precision == "bf16" else []
        own += ["--steps", str(steps)] if steps else []
    elif target.recipe is None:
        return shlex.join([*words, *(own or ["train.py"])]), _call(layout)
    elif steps and not (target.recipe.steps or target.recipe.epochs):
        own += ["--steps", str(steps)]
    return shlex.join([*words, *own, *layout_words(layout, target)]), ""


def _sizes(shape: Shape) -> list[str]:
    words = ["--layers", shape.layers, "--dim", shape.hidden, "--heads", shape.heads]
    words += ["--seq-len", shape.seq, "--vocab", "bpe", "--vocab-size", shape.vocab]
    return [str(word) for word in words]


def _call(layout: Layout) -> str:
    """The call of `rankup.parallelize` that splits a user's model so."""
    sizes = {"dp": layout.dp_replicate, "shard": layout.dp_shard, "tp": layout.tp}
    keywords: dict[str, object] = {name: n for name, n in sizes.items() if n > 1}
    if layout.strategy in _ONE_WORD:
        keywords = {"strategy": layout.strategy}
    precision: Precision = layout.precision
    keywords |= {"precision": precision} if precision != "fp32" else {}
    if layout.recompute != "none":
        keywords["activation_checkpointing"] = layout.recompute
    keywords |= {"zero": layout.zero} if layout.zero in (1, 2) else {}
    keywords |= {"compile": True} if FRAMEWORKS[layout.framework].compiled else {}
    said = "".join(f", {name}={value!r}" for name, value in keywords.items())
    return f"rankup.parallelize(build_model, build_optimizer{said})"
