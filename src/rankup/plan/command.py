"""`rankup plan`: read what was asked, answer it, print it; and what `rankup run` asks of it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .. import recipes
from ..base.amounts import number
from ..base.errors import EXIT_BAD_INPUT, UserError
from ..recipes.options import SIZE_FLAGS
from ..site.profile import Profile
from ..slurm.parse import time_text
from . import machines, measured, picture, table
from .answer import Request, answer
from .estimate import estimate
from .machine import GIB
from .target import RECIPE, Sizes, find
from .words import layout_of


def plan(request: Request) -> int:
    """Print the answer; the exit code, which is 2 where nothing fits.

    Raises:
        UserError: what was asked for is not known, or cannot be.
    """
    drawing = None if request.plot is None else picture.file(request.plot)
    request = _with_options_of_recipe(request)
    target = find(request.target, request.args, request.sizes)
    site = machines.choose(request.where)
    if request.measured is not None:
        site = measured.at_pace(site, request.measured)
    found = answer(request, target, site)
    if request.as_json:
        print(json.dumps(table.as_json(found), indent=1))
    else:
        table.show(found, explain=request.explain)
    if drawing is not None:
        picture.draw(found, drawing)
    return 0 if found.chosen is not None else EXIT_BAD_INPUT


def _with_options_of_recipe(request: Request) -> Request:
    """Return the question with what a recipe has an option for among the recipe's options."""
    if request.target not in recipes.RECIPES:
        return request
    own = ("global_batch", "precision", "steps", "epochs")
    said = {f"--{name.replace('_', '-')}": getattr(request, name) for name in own}
    said |= {option: getattr(request.sizes, name) for name, option in SIZE_FLAGS.items()}
    words = [
        word for option, value in said.items() if value is not None for word in (option, str(value))
    ]
    sizes = replace(request.sizes, **dict.fromkeys(SIZE_FLAGS, None))
    left = replace(request, global_batch=None, precision=None, steps=None, epochs=None)
    return replace(left, args=(*request.args, *words), sizes=sizes)


@dataclass(frozen=True)
class Job:
    """The nodes, ranks per node and minutes that a job gets; 0 minutes: without a limit."""

    nodes: int
    per_node: int
    minutes: int


def doubts(
    name: str, args: Sequence[str], profile: Profile, partition: str | None, job: Job
) -> list[str]:
    """Return what a plan has against a recipe's run: that it does not fit, or ends too late.

    Empty where the recipe, or the partition's GPU, is not one that is predicted.
    """
    if name != RECIPE:
        return []
    try:
        site = machines.of_profile(profile, partition)
        target = find(name, args, Sizes())
    except UserError:
        return []
    options = target.recipe
    assert options is not None
    ranks = job.nodes * job.per_node
    layout = layout_of(options, ranks, options.layout(ranks, job.per_node))
    site = site.tf32() if options.tf32 else site
    run = estimate(target.shape, layout, site.machine)
    used, there = (f"{size / GIB:.1f} GiB" for size in (run.memory_total, run.capacity))
    said = []
    if not run.fits:
        sure = run.memory_total * (1 - run.memory_band) > run.capacity
        said.append(
            f"warning: a plan says that this {'will' if sure else 'may'} not fit: {used} ± "
            f"{run.memory_band:.0%} of the {there} of a {site.machine.gpu}; "
            f"`rankup plan --gpus {ranks} {shlex.join(target.words)}` shows what does"
        )
    if options.steps is not None and job.minutes:
        hours = options.steps * run.seconds / 3600
        attempts = math.ceil(hours * 60 / job.minutes)
        if attempts > 1:
            said.append(
                f"warning: a plan says that this takes {number(hours * (1 - run.band))} "
                f"to {number(hours * (1 + run.band))} h, which is {attempts:,} attempts of "
                f"{time_text(job.minutes)}"
            )
    return said
