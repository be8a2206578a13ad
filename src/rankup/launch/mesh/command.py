"""`rankup mesh`: find the target, a recipe or somebody's function, cut it on paper, show it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import recipes
from ...base.errors import UserError, nearest
from ...parallel.holdings import holdings
from ...parallel.layout import Layout, choose, crossing
from ...site import gpus
from ..ready import require_torch
from . import text

Asked = tuple[str | None, int | None, int | None, int | None, int | None, str | None]
ADAMW = 2  # numbers that it keeps for each trained one


@dataclass(frozen=True)
class Split:
    """How the ranks share a model, as asked for; None is left open.

    Attributes:
        nodes, per_node: ranks are nodes x per_node.
    """

    nodes: int
    per_node: int
    strategy: str | None = None
    dp: int | None = None
    shard: int | None = None
    tp: int | None = None
    pp: int | None = None
    pp_schedule: str | None = None

    @property
    def words(self) -> list[str]:
        """The same as options of a recipe."""
        named = {
            "--strategy": self.strategy,
            "--dp": self.dp,
            "--shard": self.shard,
            "--tp": self.tp,
            "--pp": self.pp,
            "--pp-schedule": self.pp_schedule,
        }
        return [w for name, value in named.items() if value is not None for w in (name, str(value))]


@dataclass(frozen=True)
class Target:
    """A model and the layout it is to be split by.

    Attributes:
        build_model: without arguments; UserError where it does not work on meta tensors.
        example: a loss and a batch, which pipeline stages are balanced with; None without.
        states: numbers that the optimizer keeps per trained one.
        optimizer: its name.
        offload: whether parts are kept in host memory.
        notes, warnings: to be said.
    """

    name: str
    layout: Layout
    build_model: Callable[[], Any]
    example: Any
    schedule: str
    states: int = ADAMW
    optimizer: str = "AdamW"
    offload: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def show(
    target: str,
    args: tuple[str, ...],
    nodes: int,
    per_node: int | None,
    asked: Asked,
) -> int:
    """Print who holds what of TARGET's model.

    Args:
        asked: strategy, dp, shard, tp, pp, and the pipeline's schedule.

    Returns:
        The exit code.

    Raises:
        UserError: the target or the layout is not possible; says why.
    """
    require_torch()
    ranks = per_node or max(1, gpus.visible_gpus(os.environ))
    found = find(target, args, Split(nodes, ranks, *asked))
    from ...parallel.choices import Choices
    from ...parallel.on_paper import on_paper

    choices = Choices(schedule=found.schedule, offload=found.offload)
    paper = on_paper(found.build_model, found.layout, choices, found.example)
    held = holdings(found.layout, paper.parts, found.states)
    shown = text.Shown(
        found.name,
        found.layout,
        ranks,
        held,
        paper.parameters,
        paper.weights,
        found.optimizer,
        (*found.notes, *paper.notes, *_offloaded(found.offload)),
        found.warnings,
    )
    print(text.text(shown))
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _offloaded(offload: bool) -> tuple[str, ...]:
    return ("weights, gradients and optimizer state lie in host memory",) if offload else ()


def find(target: str, args: tuple[str, ...], asked: Split) -> Target:
    """What TARGET and the words after it mean; imports torch, and a user's module.

    Raises:
        UserError: there is no such recipe, module or function, or the layout does not come out.
    """
    if target in recipes.RECIPES:
        return _recipe(target, args, asked)
    if args:
        raise UserError(
            f"{' '.join(args)} follows {target}, and only a recipe has options of its own; "
            f"options of `rankup mesh` stand in front of TARGET"
        )
    from ...parallel.choices import Choices
    from ...parallel.on_paper import fitting

    build = _checked(_function(target), target)
    schedule = asked.pp_schedule or "1f1b"
    layout = choose(
        asked.nodes * asked.per_node,
        asked.per_node,
        asked.strategy,
        dp=asked.dp,
        shard=asked.shard,
        tp=asked.tp,
        pp=asked.pp,
        fits=fitting(build, Choices(schedule=schedule)),
    )
    notes: tuple[str, ...] = ()
    if layout.pp > 1:
        notes = ("stages are balanced by their parameters alone; in a run also by their work",)
    return Target(
        target,
        layout,
        build,
        None,
        schedule,
        notes=notes,
        warnings=_crossing(layout, asked.per_node),
    )


def _recipe(name: str, args: tuple[str, ...], asked: Split) -> Target:
    options = recipes.find(name).parse([*asked.words, *args])
    layout = options.layout(asked.nodes * asked.per_node, asked.per_node)
    warnings = list(_crossing(layout, asked.per_node))
    if idle := options.idle_ranks(layout):
        warnings.append(
            f"a global batch of {options.global_batch} in micro-batches of {options.micro_batch} "
            f"leaves {idle} of {layout.world_size} ranks without work"
        )
    from ...recipes.outline import outline

    found = outline(options)
    states = ADAMW if options.optimizer == "adamw" else int(options.momentum > 0)
    return Target(
        name,
        layout,
        found.build_model,
        found.example,
        options.pp_schedule,
        states,
        {"adamw": "AdamW", "sgd": "SGD"}[options.optimizer],
        options.offload,
        (found.note,),
        tuple(warnings),
    )


def _crossing(layout: Layout, per_node: int) -> tuple[str, ...]:
    warning = crossing(layout, per_node)
    return () if warning is None else (warning,)


def _function(target: str) -> Callable[[], Any]:
    """The function that `module:name` or `file.py:name` names."""
    where, colon, name = target.rpartition(":")
    if not colon:
        if target.endswith(".py"):
            raise UserError(
                f"{target} is a file; name the function in it that builds the model: "
                f"{target}:build_model"
            )
        raise UserError(
            f"{target!r} is no recipe; {nearest(target, recipes.RECIPES)}; a model of your own is "
            f"named as module:build_model or file.py:build_model"
        )
    module = _imported(where)
    found = getattr(module, name, None)
    if not callable(found):
        own = [
            n
            for n, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        hint = nearest(name, own) if own else "it defines none"
        raise UserError(f"{where} has no function {name!r}; {hint}")
    try:
        inspect.signature(found).bind()
    except TypeError:
        takes = inspect.signature(found)
        raise UserError(
            f"{target} takes arguments {takes}, and is called without any; write a function that "
            f"needs none: def build_model(): return {name}(...)"
        ) from None
    except ValueError:  # a built-in that does not say what it takes
        pass
    return found


def _imported(where: str) -> Any:
    path = Path(where)
    folder = path.parent if where.endswith(".py") else Path()
    sys.path.insert(0, os.path.abspath(folder))
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        if not path.is_file():
            raise UserError(f"{where} does not exist; give a file, or module:build_model")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # as an import does: its dataclasses look it up
        spec.loader.exec_module(module)
        return module
    except UserError:
        raise
    except SystemExit as error:
        raise UserError(
            f"{where} ended the program while it was imported ({error}); put what it runs under "
            f"`if __name__ == '__main__':`"
        ) from None
    except ModuleNotFoundError as error:
        if error.name == where:
            raise UserError(
                f"no module {where!r} in {Path.cwd()} or in this Python; give module:function or "
                f"file.py:function"
            ) from None
        raise UserError(f"{where} cannot be imported: {error}") from None
    except Exception as error:
        raise UserError(f"{where} cannot be imported: {type(error).__name__}: {error}") from None


def _checked(function: Callable[[], Any], target: str) -> Callable[[], Any]:
    """The function, its failures in plain words."""

    def build() -> Any:
        from torch import nn

        try:
            model = function()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{target} does not work on meta tensors, which have shapes and no values "
                f"({type(error).__name__}: {error}); a model is only built there: leave out "
                f"loading weights, .item(), .cuda() and .to(device)"
            ) from None
        if not isinstance(model, nn.Module):
            raise UserError(
                f"{target} returned {type(model).__name__}; a function that returns the model, "
                f"an nn.Module, is needed"
            )
        return model

    return build
