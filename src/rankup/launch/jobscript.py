"""What the job script of a run says, and what lies beside it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .. import __version__
from ..base.errors import UserError
from ..base.files import user_path, write_atomic
from ..site.rundir import Job
from ..slurm import script
from ..slurm.times import parse_seconds
from . import software
from .split import by_crew
from .submit import Plan
from .typed import typed


def job_script(
    plan: Plan, job: Job, directory: Path, resume: bool, *, monitor: bool = True
) -> script.JobScript:
    """What the job script says."""
    options, granted, profile = plan.options, plan.granted, plan.profile
    environment = (
        None if options.environment is None else user_path(options.environment, "--environment")
    )
    if environment is not None and not environment.is_file():
        raise UserError(f"--environment {environment} is no file; name a script to source")
    activate, path = (str(environment.resolve()), None) if environment else software.own()
    exported = {**profile.environment, **plan.fetched.variables}
    if profile.list_gpus and granted.gpus:
        exported["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(granted.gpus)))
    inside = [str(directory), job.cwd, *profile.mounts]
    if job.kind == "script":
        inside.append(str(Path(job.target).parent))
    inside += plan.fetched.folders()
    staging = plan.staging
    inside += [str(Path(name).parent) for name in (*staging.files, *staging.mounts)]
    inside += [staging.folder] if staging.folder else []
    container = software.container(options.container, profile, inside)
    needs = [job.cwd, *([job.target] if job.kind == "script" else [])]
    needs += [str(path) for path in (*argument_paths(job), *plan.fetched.places.values())]
    needs += [*staging.files, *staging.mounts]
    # A resume finds what an earlier life was given in the run's own file.
    given = {*plan.variables, *_earlier(directory / "env")}
    asked = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation,
        "array": options.array,
        "dependency": options.dependency,
        "mail-user": options.mail,
        "mail-type": "BEGIN,END,FAIL,REQUEUE" if options.mail else None,
    }
    return script.JobScript(
        run_dir=str(directory),
        work_dir=job.cwd,
        words=(job.target, *job.args),
        recipe=job.kind == "recipe",
        crew=by_crew(job),
        name=options.name or (job.target if job.kind == "recipe" else Path(job.target).stem),
        nodes=granted.nodes,
        ranks=granted.ranks,
        gpus=granted.gpus,
        cpus=granted.cpus,
        minutes=granted.minutes,
        made_by=tuple(typed()),
        version=__version__,
        resume=resume,
        stop_after=None
        if options.deadline is None
        else parse_seconds(options.deadline, "--deadline"),
        retries=options.retries or 0,
        **({"lives": options.lives} if options.lives else {}),
        options={name: value for name, value in asked.items() if value},
        lines=(*profile.sbatch, *options.sbatch),
        srun_options=(*profile.srun, *plan.srun),
        activate=None if container else activate,
        path=None if container else path,
        variables={k: v for k, v in exported.items() if k not in plan.variables},
        offline=granted.node.internet is not True,
        fetched=plan.fetched.offline,
        threads="OMP_NUM_THREADS" not in given,
        private=bool(given),
        container=container,
        host_suffix=profile.host_suffix,
        needs=tuple(needs),
        stage=staging.files,
        stage_options=staging.words(),
        stage_folder=staging.folder,
        mounts=staging.mounts,
        monitor=monitor,
        whole_nodes=granted.exclusive and granted.gpus > 0,
    )


def write_script(plan: Plan, directory: Path, text: str) -> Path:
    """`job.sh`, and the variables of `--env` beside it, for their owner alone."""
    if plan.variables:
        values = {**_earlier(directory / "env"), **plan.variables}
        lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
        write_atomic(directory / "env", "\n".join(lines) + "\n", private=True)
    path = directory / "job.sh"
    write_atomic(path, text, private=True)
    return path


def _earlier(path: Path) -> dict[str, str]:
    """What an earlier `--env` left in the run's file."""
    if not path.is_file():
        return {}
    try:
        words = shlex.split(path.read_text(encoding="utf-8"))  # an entry may span lines
    except ValueError as error:
        raise UserError(f"{path} is not as rankup wrote it ({error}); mend or remove it") from None
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def argument_paths(job: Job) -> list[Path]:
    """Arguments of a script that are paths of something that is there."""
    found = []
    for word in job.args if job.kind == "script" else ():
        text = word.partition("=")[2] if word.startswith("-") else word
        if "/" in text and len(text) < 4096 and "\0" not in text:
            path = Path(job.cwd) / text
            if os.path.exists(path):
                found.append(path)
    return found
