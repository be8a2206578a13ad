"""`rankup run`: on this machine, inside an allocation, or as a Slurm job. No torch here."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..base.errors import EXIT_BAD_INPUT, UserError
from ..site import config, gpus, rundir
from ..site.jobspec import DATA, OPTIONS, SLURM, JobSpec, flag, of_record
from ..site.rundir import Job
from ..slurm.client import Client
from . import attempts, inside, local, ready, stage, submit
from .logfile import OUTPUT, size_of
from .request import created, new, resumed, same_result, split_notes, typed, wanted

Place = Literal["slurm", "allocation", "local"]


def run(spec: JobSpec, extra: Mapping[str, str] | None = None) -> int:
    """Do it, with `extra` variables in the environment of local ranks; the exit code.

    That of the job, where it is waited for; 0 once it is submitted.

    Raises:
        UserError: what was asked for cannot be done; nothing has been started or left behind.
    """
    client = Client()
    where = place(client, os.environ, spec.local)
    if where == "slurm":
        return submit.run(spec, client)
    if where == "allocation":
        return inside.run(spec, client)
    _refuse_encodings(spec)
    return _run_here(spec, dict(extra or {}))


def _run_here(spec: JobSpec, extra: dict[str, str]) -> int:
    settings = config.load(Path.cwd())
    runs = settings.runs
    python = ready.python_of_ranks()
    if spec.resume is not None:
        directory, job = resumed(spec, runs)
    else:
        directory, job = new(spec, runs)
    _say_what_is_left_out(spec, job)
    given = spec.nproc
    spec = stage.checked(spec.over(of_record(job.launch)), Path(job.cwd))
    nproc = _ranks(spec.nproc, {**os.environ, **extra}, "" if given else ", as the run had,")
    notes = split_notes(job, 1, nproc)
    caches = _caches(settings.project(Path.cwd()), job)
    if spec.dry_run:
        for line in stage.lines(spec):
            print(line)
        print(*(f"{name}={shlex.quote(value)}" for name, value in caches.items()), end="")
        print(" " if caches else "", local.shown(job, nproc), sep="")
        return 0
    ready.beside(job, nproc, spec.check)
    ready.refuse_arguments(job, spec.check)
    for note in notes:
        print(note, file=sys.stderr)
    kept = {
        name: value
        for name, value in spec.said().items()
        if name == "nproc" or OPTIONS[name].panel == DATA
    }
    job = replace(job, launch={**job.launch, **kept})
    with ExitStack() as until_the_end:
        # What cannot be staged is refused before the run begins, and leaves no run directory.
        with nullcontext() if spec.resume else created(directory, job, runs):
            found = until_the_end.enter_context(stage.staged(spec))
        until_the_end.enter_context(rundir.locked(directory))
        attempt: dict[str, Any] = {
            "started": rundir.now(),
            "nproc": nproc,
            "node": platform.node(),
            "command": typed(),
            "offset": size_of(directory / OUTPUT),
        }
        before = rundir.read(directory)
        (directory / "requeue").unlink(missing_ok=True)
        rundir.write(directory, replace(job, attempts=[*job.attempts, attempt]))
        print(f"run {job.id} in {directory}", file=sys.stderr)
        wish = wanted(spec.monitor)
        with local.sampled(directory, nproc, wish):
            code = local.start(
                job, directory, nproc, spec.resume is not None, {**caches, **found, **extra}, python
            )
            refused = code == EXIT_BAD_INPUT and job.kind == "recipe"
            if refused:  # what was refused does not stick
                rundir.write(directory, before)
            else:
                attempt |= local.ended(directory, code)
                _write_end(directory, replace(job, attempts=[*job.attempts, attempt]))
        if wish and not refused:
            _report(directory, settings, code)
    failed = code not in (0, EXIT_BAD_INPUT)
    if "stopped" in attempt or (failed and (directory / "checkpoints").is_dir()):
        print(f"go on with: rankup run --resume {_shown(directory, job)}", file=sys.stderr)
    return code


def _caches(project: Path, job: Job) -> dict[str, str]:
    """The variables under which the ranks find what was fetched."""
    found = dict(ready.fetched(project, job, with_network=True).variables)
    for note in ready.elsewhere(found, os.environ, {}):
        print(note, file=sys.stderr)
    return found


def _report(directory: Path, settings: config.Config, code: int) -> None:
    """The page and the lines of text about the run; its failure is not the run's."""
    from . import report

    try:
        # A full disk may not have taken the end of the run; `code` is it.
        known = report.facts(directory, settings, attempts.NO_SLURM, ended=code)
        judged = report.judge(directory, known)
        report.tell(judged, report.Wish(report.AT_THE_END, ended=code), sys.stderr)
    except UserError as error:
        print(f"warning: no report: {error}", file=sys.stderr)
    except Exception as error:
        print(f"warning: no report: {type(error).__name__}: {error}", file=sys.stderr)


def _write_end(directory: Path, job: Job) -> None:
    """Note how an attempt ended; a failure to write it takes nothing from the job's exit code."""
    try:
        rundir.write(directory, job)
    except OSError as error:
        print(f"warning: {directory / rundir.JOB}: {error.strerror}", file=sys.stderr)


def _say_what_is_left_out(spec: JobSpec, job: Job) -> None:
    said = [name for name in spec.said() if OPTIONS[name].panel == SLURM]
    if said := [flag(one) if OPTIONS[one].typed else f"its {one} lines" for one in said]:
        names = ", ".join(said)
        same = same_result(job)
        why = "" if spec.local else "there is no Slurm here, so "
        print(
            f"note: {why}this runs on this machine alone; without meaning here: {names}"
            + (
                ". The number of ranks changes the time a run takes, not its result" if same else ""
            ),
            file=sys.stderr,
        )


def _refuse_encodings(spec: JobSpec) -> None:
    try:
        " ".join((spec.target or "", *spec.args)).encode()
    except UnicodeEncodeError:
        raise UserError("an argument is not UTF-8, as `job.json` is") from None


def _ranks(asked: int | None, environment: Mapping[str, str], why: str) -> int:
    present = gpus.visible_gpus(environment)
    if asked is None:
        return max(1, present)
    if 0 < present < asked:
        raise UserError(
            f"--nproc {asked}{why} asks for more ranks than the {present} GPU(s) of this node; "
            f"give --nproc {present} or less, or set CUDA_VISIBLE_DEVICES= to run on CPU"
        )
    if not present and asked > (cores := gpus.usable_cores()):
        print(f"note: {asked} ranks share {cores} cores, and wait for each other", file=sys.stderr)
    return asked


def _shown(directory: Path, job: Job) -> str:
    """The shortest name that finds the run from here."""
    try:
        known = config.load(Path.cwd()).runs.resolve() in directory.parents
    except UserError:  # rankup.toml was broken meanwhile: no reason to lose the job's exit code
        known = False
    return job.id if known else str(directory)


def place(client: Client, environment: Mapping[str, str], local: bool) -> Place:
    """`slurm` where sbatch is there and a controller answers, `allocation` inside a job.

    Raises:
        UserError: this is one of several tasks that srun started, or Slurm does not answer: a
            login node is no place to train on by mistake.
    """
    if local:
        return "local"
    if environment.get("SLURM_JOB_ID") and shutil.which("srun", path=environment.get("PATH")):
        if environment.get("SLURM_STEP_NUM_TASKS", "1") not in ("", "1"):
            raise UserError(
                "srun starts `rankup run` once per task here; run it once inside the allocation, "
                "without srun: it starts its ranks on all nodes itself"
            )
        return "allocation"
    there = client.presence()
    if there == "silent":
        raise UserError(
            "this machine has Slurm, but its controller does not answer (`scontrol ping`); try "
            "again in some minutes, or --local to run on this machine, which may be a login node"
        )
    return "slurm" if there == "answers" else "local"
