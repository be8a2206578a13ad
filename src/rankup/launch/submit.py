"""A run as a Slurm job: checked against this machine, its script, its environment."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..base.errors import UserError
from ..base.files import user_path, write_atomic
from ..site import detect, rundir
from ..site.config import Config
from ..site.jobspec import JobSpec, refuse_own_directives, variables
from ..site.profile import Profile, scratch_folder, seen_by_nodes
from ..site.rundir import Job
from ..slurm import limits, script
from ..slurm.client import Client
from ..slurm.limits import Grant
from ..slurm.parse import array_tasks
from ..slurm.partitions import Partition
from ..slurm.times import parse_seconds, time_text
from . import stage
from .environment import own_environment
from .ready import Fetched
from .request import by_crew, typed

# Every node has its own; a run directory there is seen by nobody else.
_LOCAL_TO_A_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108


@dataclass(frozen=True)
class Plan:
    """A job that can be submitted: what it asks for, checked against this machine."""

    profile: Profile
    granted: Grant
    options: JobSpec
    variables: Mapping[str, str]
    cost: str
    notes: tuple[str, ...]
    srun: tuple[str, ...] = ()  # options beside the profile's
    fetched: Fetched = field(default_factory=Fetched)


def plan(client: Client, config: Config, options: JobSpec) -> Plan:
    """Check what a job asks for against the profile and what Slurm says now.

    Raises:
        UserError: it would be refused, wait for ever, or waste what is paid for.
    """
    profile, _ = detect.choose(
        config, os.environ, os.uname().nodename, cluster_name=client.cluster_name
    )
    partitions = client.partitions()
    partition = limits.choose_partition(options.partition, profile, partitions)
    # Where nobody names one Slurm chooses: by constraint and qos at some sites.
    named = options.partition or (partition.name if profile.partition == partition.name else None)
    if named is None and (profile.sbatch or profile.qos):
        partition = limits.without_limits(partition)
    options = replace(options, partition=named, qos=options.qos or profile.qos)
    accounts = None
    if options.account is not None or profile.account_required:
        accounts = client.accounts(getpass.getuser())
    granted = limits.grant(options, profile, partition, accounts)
    refuse_own_directives(options.sbatch)
    tasks = len(array_tasks(options.array)) if options.array else 1
    return Plan(
        profile,
        granted,
        options,
        variables(options.env, os.environ),
        limits.cost(granted, profile, tasks),
        tuple(_notes(options, partition, profile, limits.differences(profile, partitions))),
    )


def bill(plan: Plan) -> dict[str, Any]:
    """Return the part of `job.json` about an attempt's machine and its price, for the report."""
    granted, price = plan.granted, limits.price(plan.granted, plan.profile)
    return {
        "site": plan.profile.title,
        "partition": granted.partition,
        "account": plan.options.account or "",
        "gpus": granted.gpus,
        "minutes": granted.minutes or None,
        "unit": price.unit,
        "per_node_hour": price.per_node_hour,
    }


def _notes(
    options: JobSpec, partition: Partition, profile: Profile, differences: list[str]
) -> Iterator[str]:
    for difference in differences:
        if difference.split(":")[0] in (
            f"partition {partition.name}",
            f"partition {profile.partition}",
        ):
            yield f"note: {difference}; Slurm's word is taken"
    if not partition.up:
        yield f"note: partition {partition.name} takes jobs and starts none now (see `sinfo`)"
    if partition.idle_nodes < (options.nodes or 1) and partition.up:
        idle, name = partition.idle_nodes, partition.name
        yield f"note: {idle} nodes of {name} are idle now, so the job will wait"
    if options.time is None:
        minutes = limits.default_minutes(partition)
        yield f"note: time limit {time_text(minutes)} by default; --time sets it"
    elif re.fullmatch(r"\d+:\d+", options.time.strip()):
        yield f"note: Slurm reads --time {options.time} as minutes and seconds; hours are 3h30m"


def runs_folder(config: Config, plan: Plan) -> tuple[Path, Path | None]:
    """Where run directories go, and the scratch folder to be linked as `./runs`, if any.

    What `rankup.toml` says, or a `./runs` that is there; else the site's scratch: checkpoints are
    large, and home is not.
    """
    scratch = scratch_folder(plan.profile, os.environ, plan.options.account)
    if config.runs_set or os.path.lexists(config.runs) or scratch is None:
        return config.runs, None
    # One folder per project: `last` means the last run of this one.
    here = config.runs.parent.resolve()
    name = f"{here.name}-{hashlib.sha256(os.fsencode(here)).hexdigest()[:6]}"
    folder = scratch / getpass.getuser() / "rankup-runs" / name
    if profile_days := plan.profile.purge_days:
        print(
            f"note: {scratch} deletes files unused for {profile_days} days; keep results elsewhere",
            file=sys.stderr,
        )
    return folder, folder


def refuse_unmounted(plan: Plan, paths: Mapping[str, Path]) -> None:
    """Refuse paths that compute nodes do not see; warn of those they hardly do.

    Raises:
        UserError: one lies where the site mounts nothing: the job would die without a log.
    """
    doubtful = []
    for what, path in paths.items():
        seen = seen_by_nodes(plan.profile, path)
        if seen is False:
            where = ", ".join(plan.profile.mounts) or "not known"
            raise UserError(
                f"{what} {path} is not mounted on the compute nodes of {plan.profile.title} "
                f"(mounted: {where}); the job would die there without a log. Move it, or if it "
                "is mounted, say so in rankup.toml: [site] mounts"
            )
        if seen is None and any(path.is_relative_to(local) for local in _LOCAL_TO_A_NODE):
            doubtful.append(what)
    if doubtful:
        print(
            f"warning: {', '.join(doubtful)}: in a folder that most sites have on each node apart; "
            "if compute nodes see it, say so in rankup.toml: [site] mounts",
            file=sys.stderr,
        )


def send(client: Client, plan: Plan, job: Job, directory: Path) -> str:
    """Submit the job script that lies in the run directory; the job's id, also in `job.json`.

    Raises:
        SlurmError: Slurm refused it, or (`unreachable`) it is not known whether it did.
        OSError: it is submitted and `job.json` could not be written.
    """
    for name in ("retries", "requeues", "short", "cancelled"):
        for log in (directory / "log", *directory.glob("array/*/log")):
            (log / name).unlink(missing_ok=True)
    (directory / "requeue").unlink(missing_ok=True)
    number = client.submit(directory / "job.sh")
    attempt = {
        "submitted": rundir.now(),
        "nodes": plan.granted.nodes,
        "nproc": plan.granted.ranks,
        "job": number,
        "bill": bill(plan),
        "command": typed(),
    }
    try:
        rundir.write(directory, replace(job, attempts=[*job.attempts, attempt]))
    except OSError as error:
        raise OSError(
            f"job {number} is submitted, but {directory / rundir.JOB} could not be written "
            f"({error.strerror}); to end it: scancel {number}"
        ) from None
    return number


def job_script(
    plan: Plan, job: Job, directory: Path, resume: bool, *, monitor: bool = True
) -> script.JobScript:
    """Return what the job script says."""
    options, granted, profile = plan.options, plan.granted, plan.profile
    environment = (
        None if options.environment is None else user_path(options.environment, "--environment")
    )
    if environment is not None and not environment.is_file():
        raise UserError(f"--environment {environment} is no file; name a script to source")
    activate, path = (str(environment.resolve()), None) if environment else own_environment()
    exported = {**profile.environment, **plan.fetched.variables}
    if profile.list_gpus and granted.gpus:
        exported["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(granted.gpus)))
    inside = [str(directory), job.cwd, *profile.mounts]
    if job.kind == "script":
        inside.append(str(Path(job.target).parent))
    inside += plan.fetched.folders()
    inside += [str(Path(name).parent) for name in (*options.stage, *options.mount)]
    inside += [options.stage_to] if options.stage_to else []
    container = in_container(options.container, profile, inside)
    needs = [job.cwd, *([job.target] if job.kind == "script" else [])]
    needs += [str(path) for path in (*argument_paths(job), *plan.fetched.places.values())]
    needs += [*options.stage, *options.mount]
    # A resume finds what an earlier attempt was given in the run's own file.
    given = {*plan.variables, *_earlier(directory / "env")}
    return script.JobScript(
        run_dir=str(directory),
        work_dir=job.cwd,
        words=job.words,
        recipe=job.kind == "recipe",
        crew=by_crew(job),
        name=options.name or job.name,
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
        **({"max_attempts": options.max_attempts} if options.max_attempts else {}),
        options=options.directives(),
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
        stage=options.stage,
        stage_options=stage.words(options),
        stage_folder=options.stage_to,
        mounts=options.mount,
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
    """Return what an earlier `--env` left in the run's file."""
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


def in_container(image: str | None, profile: Profile, inside: list[str]) -> tuple[str, ...]:
    """The words that start a program in an Apptainer image; none without one.

    Args:
        inside: folders to be seen in it, the run directory first.

    Raises:
        UserError: there is no such image, or a folder cannot be handed to Apptainer.
    """
    if image is None:
        return ()
    if "://" not in image:
        path = user_path(image, "--container")
        if not path.exists():
            raise UserError(
                f"--container {image} does not exist; compute nodes have no network, so pull it "
                "here first: apptainer pull IMAGE.sif docker://..."
            )
        image = str(path.resolve())
    gpus = {"cuda": ("--nv",), "rocm": ("--rocm",), "cpu": ()}[profile.devices]
    # Apptainer brings home and the working directory along, and nothing of scratch.
    binds = [folder for folder in dict.fromkeys(inside) if os.path.isdir(folder)]
    for folder in (*inside[:1], *binds):
        if any(c in folder for c in ":,"):
            raise UserError(f"{folder} cannot be seen in a container: its name has a ':' or ','")
    binds = list(dict.fromkeys((*inside[:1], *binds)))
    return ("apptainer", "exec", *gpus, "--bind", ",".join(binds), image)
