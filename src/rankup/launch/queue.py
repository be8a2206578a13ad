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
from ..slurm.client import Client
from ..slurm.options import JobOptions, refuse_secrets
from . import allocation, submit
from .request import Request, created, new, require_torch, resumed
from .submit import Plan


def run(request: Request, client: Client, inside: bool) -> int:
    """Check, write the job script, and submit it, or run it when this is `inside` a job.

    Returns 0 once it is submitted; with --follow, and inside a job, the job's exit code.

    Raises:
        UserError: the job cannot run as asked; nothing was submitted or left behind.
    """
    config = configuration.load(Path.cwd())
    _refuse_impossible(request)
    job = None
    if request.resume is not None:
        directory, job = resumed(request, config.runs)
        _refuse_second(client, directory, job)
    options, nproc = _options(request, config, job)
    make = allocation.plan if inside else submit.plan
    plan = make(client, config, options, nproc)
    if not options.environment and not options.container:
        require_torch()
    link = None
    if job is None:
        runs, link = submit.runs_folder(config, plan)
        directory, job = new(request, runs)
    if options.array and job.kind == "recipe":
        raise UserError(
            "every task of an array would be the same run of the recipe; --array is for scripts "
            "that read SLURM_ARRAY_TASK_ID"
        )
    refuse_secrets((*job.args, job.cwd, str(directory)), os.environ)
    job = replace(job, launch={**options.said(), **({"nproc": nproc} if nproc else {})})
    submit.refuse_unmounted(plan, _places(job, directory, options))
    text = script.render(submit.job_script(plan, job, directory, request.resume is not None))
    for note in plan.notes:
        print(note, file=sys.stderr)
    if request.dry_run:
        print(text, end="")
        print(f"not submitted; it would cost {plan.cost}" if plan.cost else "", file=sys.stderr)
        return 0
    resume = request.resume is not None
    if link is not None:
        link.mkdir(parents=True, exist_ok=True)
        config.runs.symlink_to(link)
        print(f"runs go to {link}, linked as {config.runs}", file=sys.stderr)
    with _restored(directory) if resume else created(directory, job):
        if resume:  # somebody else may have resumed it since it was looked at
            _refuse_second(client, directory, rundir.read(directory))
        if not inside:
            job, number = submit.submit(client, plan, job, directory, resume)
    if inside:
        return allocation.start(client, plan, job, directory, resume)
    _say(plan, job, directory, number)
    if not request.follow:
        return 0
    from .logs import follow

    return follow(directory)


def _say(plan: Plan, job: Job, directory: Path, number: str) -> None:
    print(f"run {job.id} in {directory}", file=sys.stderr)
    print(f"job {number}: {plan.cost}", file=sys.stderr)
    print(f"script: {directory / 'job.sh'}", file=sys.stderr)
    print(f"rankup status {job.id} · rankup logs -f {job.id} · rankup cancel {job.id}")


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


def _refuse_impossible(request: Request) -> None:
    if request.follow and request.options.array:
        raise UserError("--follow follows one job, not an array; use `rankup logs -f --task N`")


def _refuse_second(client: Client, directory: Path, job: Job) -> None:
    """UserError while a life of the run waits or runs: two would write one checkpoint folder."""
    for name, tasks in client.queue(rundir.slurm_jobs(directory, job)).items():
        state = tasks[0].state
        raise UserError(
            f"{directory} is going on already: job {name} is {state}; wait for it, or "
            f"`rankup cancel {job.id}` first"
        )


def _places(job: Job, directory: Path, options: JobOptions) -> dict[str, Path]:
    """What compute nodes have to see."""
    found = {"the working directory": Path(job.cwd), "the run directory": directory}
    if job.kind == "script":
        found["the script"] = Path(job.target)
    for option in ("environment", "container"):
        value = getattr(options, option)
        if value is not None and "://" not in value:
            found[f"--{option}"] = Path(value)
    if not options.environment and not options.container:
        found["the Python environment"] = Path(sys.prefix)
    for word in job.args if job.kind == "script" else ():
        text = word.partition("=")[2] if word.startswith("-") else word
        if "/" in text and len(text) < 4096 and "\0" not in text and os.path.exists(text):
            found["the argument"] = Path(os.path.abspath(text))
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
