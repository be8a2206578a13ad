"""`rankup plan --measured RUN`: how fast this machine is, by the steps of a run on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from .. import recipes
from ..base.amounts import duration, words
from ..base.errors import UserError
from ..site import config, rundir
from .estimate import estimate
from .machine import Machine
from .machines import Site
from .target import RECIPE, Sizes, find
from .words import layout_of, layout_text

_WARM_UP = 5  # steps of an attempt: compiling, first touches of memory, first messages
_FEWEST = 10  # steps, whose median is taken
_MOST_BYTES = 4_000_000  # of the newest lines
_ANOTHER = 4.0  # times as fast or slow: no plan is so wrong on the machine that it is of
_WAITED = 0.05  # of a step, from which waiting for data is told


def at_pace(site: Site, run: str) -> Site:
    """Return the machine at the pace of a run on it: one constant, by which all times are
    multiplied.

    Args:
        run: a run of `language-model`, as `rundir.find` takes it.

    Raises:
        UserError: there is no such run, it has too few steps, or it was on another machine.
    """
    path = rundir.find(config.load(Path.cwd()).runs, run)
    job = rundir.read(path)
    if job.kind != "recipe" or job.target != RECIPE:
        raise UserError(
            f"--measured {run} is a run of {job.name}; how much a step computes is known of "
            f"{RECIPE} alone, so give a run of that, of some dozen steps"
        )
    options = recipes.find(job.target).parse(job.args, job.kept)
    last = job.attempts[-1] if job.attempts else {}
    per_node = last.get("nproc")
    gpus = per_node * last.get("nodes", 1) if isinstance(per_node, int) else 0
    if gpus < 1:
        raise UserError(f"--measured {run}: {path / rundir.JOB} does not say on how many ranks")
    steps = _steps(path, rundir.moment(last.get("started", last.get("submitted"))) or 0.0)
    if len(steps) < _FEWEST:
        raise UserError(
            f"--measured {run}: its last attempt has {words(len(steps), 'step', 'steps')} behind "
            f"the first {_WARM_UP}, and {_FEWEST} are needed; let it go on, or give another run"
        )
    layout = layout_of(options, gpus, options.layout(gpus, per_node))
    machine = (site.tf32() if options.tf32 else site).machine  # the plan may be for a run without
    shape = find(RECIPE, job.args, Sizes(), job.kept).shape
    predicted = estimate(shape, layout, machine)
    flops = layout.global_batch * shape.seq * shape.train_flops() / gpus
    _refuse_other_machine(run, steps, flops / machine.peak_flops, machine)
    waited = median(float(step["data_wait"]) for step in steps)
    seconds = median(step["seconds"] * (1 - step["data_wait"]) for step in steps)
    pace = seconds / predicted.seconds
    if not 1 / _ANOTHER < pace < _ANOTHER:
        raise UserError(
            f"--measured {run} took {duration(seconds)} per step, {pace:.3g} times what is "
            f"predicted for {gpus} x {machine.gpu}: it was on another machine, or something "
            "else held it up (`rankup report` says what); name its machine with --gpu or --site"
        )
    of_data = f", {waited:.0%} more waiting for data" if waited > _WAITED else ""
    note = (
        f"{path.name} took {seconds:.3g} s per step on {words(gpus, 'GPU', 'GPUs')} "
        f"({layout_text(layout)}; median of {len(steps)} steps{of_data}), {pace:.3g} times what "
        "the constants give: all times are multiplied by that"
    )
    return replace(site, machine=replace(site.machine, pace=pace), notes=(*site.notes, note))


def _steps(path: Path, began: float) -> list[dict[str, Any]]:
    """The records of the last attempt's steps behind the first ones."""
    steps = [
        record
        for record in rundir.metrics(path, _MOST_BYTES)
        if _is_number(record.get("seconds"))
        and _is_number(record.get("data_wait"))
        and record.get("time", 0.0) >= began
    ]
    return steps[_WARM_UP:]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _refuse_other_machine(
    run: str, steps: list[dict[str, Any]], busy: float, machine: Machine
) -> None:
    """UserError where the run's own utilisation is of GPUs of another peak.

    Args:
        busy: seconds of a step in which the machine's GPUs would compute it at their peak.
    """
    shares = [step["mfu"] * step["seconds"] for step in steps if _is_number(step.get("mfu"))]
    gpu = machine.gpu
    if not shares:
        raise UserError(
            f"--measured {run} was on no GPU that rankup knows (it notes no MFU), and the plan is "
            f"for {gpu}; give a run on that machine"
        )
    if not 1 / 1.5 < median(shares) / busy < 1.5:  # a frozen weight counts a third less there
        peak = machine.peak_flops * busy / median(shares)
        raise UserError(
            f"--measured {run} was on GPUs of {peak / 1e12:.0f} TFLOP/s, and {gpu} has "
            f"{machine.peak_flops / 1e12:.0f}; name the run's machine with --gpu or --site"
        )
