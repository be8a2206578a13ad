"""`rankup scale`: start what is missing of a series, and say what it gave."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import recipes
from ...base.errors import EXIT_FAILED, UserError
from ...base.text import clean
from ...site import config as configuration
from ...site import gpus, rundir
from ...site.config import Config
from ...site.jobspec import JobSpec
from ...slurm.client import Client
from .. import ready, submit
from ..request import job_of
from ..run import Place, place, run
from . import series as record
from .result import show
from .series import Outcome, Series, outcomes

_ASKED_TO_STOP = (129, 130, 138, 143)  # 128 + HUP, INT, USR1, TERM
# What counts steps shrinks with them: evaluations and checkpoints keep their number.
_IN_STEPS = ("steps", "warmup", "valid_every", "checkpoint_every")
_POLL = 10.0  # seconds between two questions to Slurm


@dataclass(frozen=True)
class Wish:
    """The options of the command line.

    Attributes:
        gpus: numbers of GPUs, as they were typed.
        resume: the series to go on with.
        nproc: GPUs, or ranks, that one node takes; None for what it has.
        wait: stay until the last job has ended.
    """

    target: str | None
    args: tuple[str, ...] = ()
    gpus: str | None = None
    weak: bool = False
    batch_option: str | None = None
    nproc: int | None = None
    resume: str | None = None
    local: bool = False
    dry_run: bool = False
    wait: bool = False
    monitor: bool = True
    options: JobSpec = field(default_factory=JobSpec)


def scale(wish: Wish) -> int:
    """Run or submit the points that are not through, and print the table; the exit code.

    1 where a point failed, 0 where all are through or under way.

    Raises:
        UserError: what was asked for cannot be done; nothing has been started.
    """
    client = Client()
    config = configuration.load(Path.cwd())
    if wish.resume is not None:
        path, series = _known(wish, config)
        where = place(client, os.environ, series.local or wish.local)
    else:
        where = place(client, os.environ, wish.local)
        path, series = _new(wish, config, client, where)
    planned = points(series)
    if wish.dry_run:
        for point in planned:
            print(_shown(series, point, where))
        return 0
    record.write(path, series)
    with rundir.locked(path):
        print(f"series {series.id} in {path}", file=sys.stderr)
        stopped = _start_all(path, series, planned, wish, client, where)
        if wish.wait and where == "slurm" and not stopped:
            _wait(path, series, client)
        found = outcomes(path, series, client)
        show(path, series, found, config, client)
    left = [one for one in found if not one.done]
    if stopped or left:
        print(f"go on with: rankup scale --resume {series.id}", file=sys.stderr)
    failed = stopped or any(not one.live for one in left)
    return EXIT_FAILED if failed else 0


def _known(wish: Wish, config: Config) -> tuple[Path, Series]:
    assert wish.resume is not None
    path = record.find(config.runs, wish.resume)
    if path is None:
        raise UserError(
            f"no series {wish.resume!r} in {config.runs / record.FOLDER}; name its id, its folder, "
            "or `last`"
        )
    if wish.target is not None or wish.gpus is not None or wish.weak or wish.batch_option:
        raise UserError(
            "--resume goes on with the series as it was asked for; leave TARGET, --gpus, --weak "
            "and --batch-option away"
        )
    series = record.read(path)
    if not Path(series.cwd).is_dir():
        raise UserError(f"{series.cwd}, the folder it was started in, is not there any more")
    os.chdir(series.cwd)
    return path, series


def _new(wish: Wish, config: Config, client: Client, where: Place) -> tuple[Path, Series]:
    if wish.target is None:
        raise UserError("nothing to scale: name a recipe or a script, or --resume a series")
    if wish.gpus is None:
        raise UserError("say on how many GPUs: rankup scale --gpus 1,2,4,8 TARGET")
    asked = counts(wish.gpus)
    kind, target = job_of(wish.target, wish.args)
    runs, per_node = _room(wish, config, client, where, asked)
    if where != "local":  # there each run looks for itself, beside its start
        said = ready.before_submit(kind, target, max(asked), wish.options.check)
        print(*map(clean, said), sep="\n", end="\n" if said else "", file=sys.stderr)
    series = Series(
        id=rundir.new_id(),
        target=target,
        args=list(wish.args),
        counts=asked,
        weak=wish.weak,
        batch_option=wish.batch_option,
        per_node=per_node,
        cwd=str(Path.cwd()),
        local=wish.local,
        monitor=wish.monitor,
        options=wish.options.said(),
    )
    return record.folder(runs, series).resolve(), series


def _room(
    wish: Wish, config: Config, client: Client, where: Place, asked: Sequence[int]
) -> tuple[Path, int]:
    """Return the folder of the runs, and the GPUs that one node takes.

    Raises:
        UserError: a job of the series could not be submitted, or this machine has too few GPUs.
    """
    if where == "local":
        there = gpus.visible_gpus(os.environ)
        if 0 < there < asked[-1]:
            raise UserError(
                f"--gpus {asked[-1]}: this machine has {there} GPU(s); give {there} or less, or "
                "set CUDA_VISIBLE_DEVICES= to run on CPU"
            )
        if not there:
            print(
                f"note: no GPU here, so each point runs on that many ranks, {_threads(asked)} "
                f"thread(s) each ({gpus.usable_cores()} cores)",
                file=sys.stderr,
            )
        return config.runs, asked[-1]
    if where == "allocation":
        if wish.nproc is None:
            raise UserError(
                "inside an allocation, say with --nproc how many GPUs (or ranks) a node takes"
            )
        return config.runs, wish.nproc
    options = replace(wish.options, allow_idle_gpus=True).over(config.job)
    plan = submit.plan(client, config, replace(options, nproc=1))
    per_node = wish.nproc or plan.granted.node.gpus or 1
    most = -(-asked[-1] // per_node)
    submit.plan(client, config, replace(options, nodes=most, nproc=1))
    runs, link = submit.runs_folder(config, plan)
    if link is not None and not wish.dry_run:
        submit.link_runs(config.runs, link)
    if plan.granted.exclusive and asked[0] < plan.granted.node.gpus:
        print(
            f"note: nodes of {plan.granted.partition} are billed whole, so {asked[0]} of "
            f"{plan.granted.node.gpus} GPUs cost as much as all of them",
            file=sys.stderr,
        )
    return runs, per_node


def _threads(asked: Sequence[int]) -> int:
    """Threads of a rank: the same at every point, else the cores would scale and not the ranks."""
    return max(1, gpus.usable_cores() // asked[-1])


def _start_all(
    path: Path,
    series: Series,
    planned: Sequence[Point],
    wish: Wish,
    client: Client,
    where: Place,
) -> bool:
    """Start every point that is neither through nor under way; whether somebody stopped it."""
    for point, before in zip(planned, outcomes(path, series, client), strict=True):
        if before.done or before.live:
            continue
        print(f"\n{_shown(series, point, where)}", file=sys.stderr)
        request = _request(series, point, before, wish, where)
        extra = {}
        if where == "local" and not gpus.visible_gpus(os.environ):
            extra = {
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(_threads(series.counts)))
            }
        try:
            code = run(request, extra)
        except UserError as error:  # the others may do
            print(f"rankup: {clean(str(error))}", file=sys.stderr)
            continue
        if code in _ASKED_TO_STOP:
            return True
        if code:
            print(f"rankup: the point of {point.count} failed ({code})", file=sys.stderr)
    return False


def _request(series: Series, point: Point, before: Outcome, wish: Wish, where: Place) -> JobSpec:
    here = where == "local"
    asked = replace(wish.options.over(series.options), allow_idle_gpus=True, nodes=point.nodes)
    again = f"-{before.attempts + 1}" if before.attempts else ""
    spec = replace(
        JobSpec() if here else asked,
        target=series.target,
        args=point.args,
        nproc=point.ranks,
        local=here,
        monitor=series.monitor,
        check=here and wish.options.check and point.count == series.counts[0],  # once is enough
        id=f"{series.id}-{point.count}{again}",
    )
    if before.saved and before.path is not None:
        return replace(spec, target=None, args=(), resume=str(before.path), id=None)
    return spec


def _wait(path: Path, series: Series, client: Client) -> None:
    said = ""
    while True:
        found = outcomes(path, series, client)
        line = " · ".join(f"{one.count}: {one.state}" for one in found)
        if line != said:
            print(line, file=sys.stderr, flush=True)
            said = line
        if not any(one.live for one in found):
            return
        time.sleep(_POLL)


def _shown(series: Series, point: Point, where: Place) -> str:
    """The command that does the same by itself."""
    nodes = ["--nodes", str(point.nodes)] if where != "local" else []
    words = ["rankup", "run", *nodes, "--nproc", str(point.ranks), series.target, *point.args]
    return f"{point.count}: {shlex.join(words)}"


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
