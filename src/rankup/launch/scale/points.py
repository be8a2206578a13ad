"""What each point of a series runs: its nodes, its ranks, its batch and its number of steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import recipes
from ...base.errors import UserError
from .series import Series

# What counts steps shrinks with them: evaluations and checkpoints keep their number.
_IN_STEPS = ("steps", "warmup", "valid_every", "checkpoint_every")


@dataclass(frozen=True)
class Point:
    """A run of the series: `count` GPUs as `nodes` nodes of `ranks` ranks."""

    count: int
    nodes: int
    ranks: int
    args: tuple[str, ...]


def counts(text: str) -> list[int]:
    """The numbers of `--gpus 1,2,4`, ascending.

    Raises:
        UserError: they are no list of numbers, or fewer than two.
    """
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text.strip()):
        raise UserError(f"--gpus {text!r} is no list of numbers; write it as --gpus 1,2,4,8")
    found = sorted({int(one) for one in text.split(",")})
    if found[0] < 1 or len(found) < 2:
        raise UserError(f"--gpus {text}: a series has two numbers or more, from 1 on: --gpus 1,2,4")
    return found


def points(series: Series) -> list[Point]:
    """Every point, with the words that its run gets behind TARGET.

    Raises:
        UserError: a number of GPUs cannot be cut into whole nodes, or a batch cannot grow with it.
    """
    return [_point(series, count) for count in series.counts]


def _point(series: Series, count: int) -> Point:
    per_node = series.per_node
    if count > per_node and count % per_node:
        near = count // per_node * per_node
        raise UserError(
            f"--gpus {count}: a node has {per_node}, and several nodes are taken whole; "
            f"give {near} or {near + per_node}"
        )
    nodes, ranks = (count // per_node, per_node) if count > per_node else (1, count)
    args = tuple(series.args)
    if series.weak:
        args += tuple(_weak(series, count))
    if series.target in recipes.RECIPES:
        recipes.find(series.target).parse(args)
    return Point(count, nodes, ranks, args)


def _weak(series: Series, count: int) -> list[str]:
    """Options for as many samples as before in batches that grow with the GPUs."""
    first = series.counts[0]
    if series.target not in recipes.RECIPES:
        batch = _value(series.args, series.batch_option)
        return [f"{series.batch_option}={_grown(batch, count, first, str(series.batch_option))}"]
    recipe = recipes.find(series.target)
    options = recipe.parse(series.args)
    known = recipe.option_names()
    if "--global-batch" not in known:
        raise UserError(f"--weak: {series.target} has no --global-batch that could grow")
    grown = _grown(options.global_batch, count, first, "--global-batch")
    words = ["--global-batch", str(grown)]
    for name in _IN_STEPS:
        value: Any = getattr(options, name, None)
        option = f"--{name.replace('_', '-')}"
        if option in known and isinstance(value, int) and value > 0:
            words += [option, str(max(1, round(value * first / count)))]
    return words


def _grown(batch: int, count: int, first: int, option: str) -> int:
    if batch * count % first:
        raise UserError(
            f"--weak: {option} {batch} on {first} is no whole number on {count}; give a multiple "
            f"of {first}"
        )
    return batch * count // first


def _value(args: Sequence[str], option: str | None) -> int:
    """The number that a script's option has among its words."""
    if option is None:
        raise UserError(
            "--weak with a script: name the option that holds its global batch, and give it behind "
            "TARGET: rankup scale --weak --batch-option=--batch-size train.py --batch-size 64"
        )
    for at, word in enumerate(args):
        value = word.partition("=")[2] if word.startswith(f"{option}=") else None
        if word == option and at + 1 < len(args):
            value = args[at + 1]
        if value is not None and value.isdecimal() and int(value):
            return int(value)
    raise UserError(f"--batch-option {option}: it does not stand behind TARGET with a number")
