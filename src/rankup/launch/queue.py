"""A run under Slurm: submitted, or started at once inside an allocation."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..base.errors import UserError
from ..base.files import write_atomic
from ..site import config as configuration
from ..site import rundir
from ..site.config import Config
from ..site.rundir import Job
from ..slurm import script
from ..slurm.client import Client, SlurmError
from ..slurm.options import JobOptions, refuse_secrets
from ..slurm.times import time_text
from . import (
    allocation,
    checked,
    jobscript,
    lives,
    ready,
    sampler,
    software,
    split,
    stage,
    status,
    submit,
)
from .request import Request, created, new, require_torch, resumed
from .submit import Plan
from .typed import without_values


def run(request: Request, client: Client, inside: bool) -> int:
    """Check, write the job script, and submit it, or run it when this is `inside` a job.

    Returns 0 once it is submitted; with --follow, and inside a job, the job's exit code.

    Raises:
        UserError: the job cannot run as asked; nothing was submitted or left behind.
    """
    config = configuration.load(Path.cwd())
    job, resume = None, request.resume is not None
    if resume:
        directory, job = resumed(request, config.runs)
        _refuse_second(client, directory, job)
        _refuse_finished(directory, job, request)
    options, nproc = _options(request, config, job)
    staging = stage.checked(
        request.staging.over(stage.before(job)), Path(job.cwd) if job else Path.cwd()
    )
    if request.follow and options.array:
        raise UserError("--follow follows one job, not an array; use `rankup logs -f --task N`")
    plan = (allocation.plan if inside else submit.plan)(client, config, options, nproc)
    project = config.project(Path.cwd())
    plan = replace(_with_environment(plan, project), staging=staging)
    node = plan.granted.node
    stage.require_room(staging, node.memory_gb, f"a node of {node.name or 'this allocation'}")
    link = None
    if job is None:
        runs, link = submit.runs_folder(config, plan)
        directory, job = new(request, runs, strict=True)
    if options.array and job.kind == "recipe":
        raise UserError(
            "every task of an array would be the same run of the recipe; --array is for scripts "
            "that read SLURM_ARRAY_TASK_ID"
        )
    shown = (*without_values(sys.argv[1:]), *job.args, *options.sbatch, str(directory))
    refuse_secrets(shown, {**os.environ, **plan.variables})
    internet = plan.granted.node.internet
    notes = ready.require(config, job, internet, allow_missing=request.allow_missing)
    found = ready.fetched(project, job, with_network=internet is True)
    notes += ready.elsewhere(found.variables, os.environ, plan.variables)
    notes += split.notes(job, plan.granted.nodes, plan.granted.ranks)
    notes += checked.before_submit(job, plan.granted.nodes * plan.granted.ranks, request.check)
    plan = replace(plan, fetched=found, notes=(*plan.notes, *notes))
    launch = {**options.said(), **({"nproc": nproc} if nproc else {})}
    job = replace(job, launch={**launch, **stage.recorded(staging)})
    submit.refuse_unmounted(plan, _places(job, directory, plan))
    monitor = sampler.wanted(request.monitor)
    text = script.render(jobscript.job_script(plan, job, directory, resume, monitor=monitor))
    for note in plan.notes:
        print(note, file=sys.stderr)
    if request.dry_run:
        print(text, end="")
        if plan.cost:
            print(f"not submitted; it would cost {plan.cost}", file=sys.stderr)
        return 0
    if link is not None:
        link_runs(config.runs, link)
    if inside:
        with _restored(directory) if resume else created(directory, job, config.runs):
            pass
        return allocation.start(client, plan, job, directory, text)
    number = _submit(client, plan, job, directory, text, None if resume else config.runs)
    _say(plan, job, directory, number)
    if not request.follow:
        return 0
    from .logs import follow

    return follow(directory)


def _submit(
    client: Client, plan: Plan, job: Job, directory: Path, text: str, runs: Path | None
) -> str:
    """Write what the job needs and submit it; if it is refused, all is as it was.

    Args:
        runs: the folder of all runs; None: the run is there already, and is resumed.
    """
    with _restored(directory) if runs is None else created(directory, job, runs):
        if runs is None:  # somebody else may have resumed it since it was looked at
            _refuse_second(client, directory, rundir.read(directory))
            rundir.write(directory, job)
        jobscript.write_script(plan, directory, text)
        try:
            return submit.send(client, plan, job, directory)
        except SlurmError as error:
            if not error.unreachable:
                raise
            uncertain: BaseException = error
        except UserError:
            raise
        except BaseException as error:  # a job in the queue would look for what is here
            uncertain = error
    raise uncertain


def link_runs(runs: Path, target: Path) -> None:
    """Make the folder on scratch, and `./runs` a link to it."""
    target.mkdir(parents=True, exist_ok=True)
    if target.stat().st_uid != os.getuid():
        raise UserError(f"{target} belongs to somebody else; set `runs` in rankup.toml")
    try:
        runs.symlink_to(target)
    except FileExistsError:  # another first submission was quicker
        return
    print(f"runs go to {target}, linked as {runs}", file=sys.stderr)


def _say(plan: Plan, job: Job, directory: Path, number: str) -> None:
    """To people what there is to know; to standard output the job's number alone."""
    print(f"run {job.id} in {directory}", file=sys.stderr)
    limit = time_text(plan.granted.minutes)
    print(f"job {number}, time limit {limit}, {plan.cost}", file=sys.stderr)
    print(f"script {directory / 'job.sh'}", file=sys.stderr)
    print(f"next: rankup logs -f {job.id} · status · cancel", file=sys.stderr)
    print(number)


def _options(request: Request, config: Config, job: Job | None) -> tuple[JobOptions, int | None]:
    """What was said now, else when the run was started, else in `rankup.toml`."""
    # A dependency was one of that submission, values of `env` lie in the run's own file.
    before = {k: v for k, v in job.launch.items() if k not in ("env", "dependency")} if job else {}
    options = request.options.over(before).over(config.job)
    # `jutil env activate -A` sets these; our sbatch sees none of them, so that they cannot override
    # what the job script says.
    account = os.environ.get("SBATCH_ACCOUNT") or os.environ.get("SLURM_ACCOUNT")
    options = options.over({"account": account} if account else {})
    return options, request.nproc or before.get("nproc") or config.job.get("nproc")


def _refuse_second(client: Client, directory: Path, job: Job) -> None:
    """UserError while a life of the run waits or runs: two would write one checkpoint folder."""
    for row in lives.live(directory, job, client):
        raise UserError(
            f"{directory} is going on already: job {row.job_id} is {row.state}; wait for it, or "
            f"`rankup cancel {job.id}` first"
        )


def _refuse_finished(directory: Path, job: Job, request: Request) -> None:
    """UserError for a recipe's run that is through: another job would cost and change nothing."""
    final = job.kind == "recipe" and status.last_metrics(directory).get("final")
    if final and not request.args and (directory / "model-final.pt").exists():
        raise UserError(
            f"{directory} is through, with its final model written. To train longer: "
            f"rankup run --resume {job.id} {job.target} --steps N"
        )


def _with_environment(plan: Plan, project: Path) -> Plan:
    """The plan with the project's environment, where the job is to have that; with what to say."""
    options = plan.options
    if options.container:
        return plan
    notes = []
    if not options.environment:
        activate, note = software.of_project(project)
        notes += [note] if note else []
        options = replace(options, environment=activate)
    if not options.environment:
        require_torch()
    stale = software.staleness(options.environment)
    notes += [f"warning: {stale}"] if stale else []
    return replace(plan, options=options, notes=(*plan.notes, *notes))


def _places(job: Job, directory: Path, plan: Plan) -> dict[str, Path]:
    """What compute nodes have to see."""
    options = plan.options
    found = {"the working directory": Path(job.cwd), "the run directory": directory}
    if job.kind == "script":
        found["the script"] = Path(job.target)
    for option in ("environment", "container"):
        value = getattr(options, option)
        if value is not None and "://" not in value:
            found[f"--{option}"] = Path(value)
    if not options.environment and not options.container:
        found["the Python environment"] = Path(sys.prefix)
    found |= {f"what was fetched as {name}": path for name, path in plan.fetched.places.items()}
    found |= {f"--stage {name}": Path(name) for name in plan.staging.files}
    found |= {f"--mount {name}": Path(name) for name in plan.staging.mounts}
    found |= {f"the argument {path}": path for path in jobscript.argument_paths(job)}
    return found


@contextmanager
def _restored(directory: Path) -> Iterator[None]:
    """What was written for a life that could not be submitted goes again."""
    names = [rundir.JOB, "job.sh", "env"]
    with rundir.locked(directory):
        # Read under the lock: what somebody else submits meanwhile is not to be taken back.
        before = {name: _read(directory / name) for name in names}
        try:
            yield
        except BaseException:
            for name, data in before.items():
                if data is None:
                    (directory / name).unlink(missing_ok=True)
                elif _read(directory / name) != data:
                    write_atomic(directory / name, data, private=True)
            raise


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
