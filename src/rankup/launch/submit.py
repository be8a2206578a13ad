"""A run as a Slurm job: what it asks for is checked, its script is written and submitted."""

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

from .. import __version__
from ..base.errors import UserError
from ..base.files import user_path, write_atomic
from ..site import detect, places, rundir
from ..site.config import Config
from ..site.profile import Profile
from ..site.rundir import Job
from ..slurm import limits, script
from ..slurm.client import Client
from ..slurm.limits import Grant, Wish
from ..slurm.options import JobOptions, refuse_own_directives, variables
from ..slurm.parse import array_tasks
from ..slurm.partitions import Partition
from ..slurm.times import parse_seconds, parse_time, time_text
from . import software
from .ready import Fetched

# Every node has its own; a run directory there is seen by nobody else.
_LOCAL_TO_A_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108


@dataclass(frozen=True)
class Plan:
    """A job that can be submitted: what it asks for, checked against this machine."""

    profile: Profile
    granted: Grant
    options: JobOptions
    variables: Mapping[str, str]
    cost: str
    notes: tuple[str, ...]
    srun: tuple[str, ...] = ()  # options beside the profile's
    fetched: Fetched = field(default_factory=Fetched)


def plan(client: Client, config: Config, options: JobOptions, nproc: int | None) -> Plan:
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
    wish = Wish(
        nodes=options.nodes or 1,
        ranks=nproc,
        minutes=None if options.time is None else parse_time(options.time),
        account=options.account,
        qos=options.qos,
        allow_idle_gpus=options.allow_idle_gpus,
    )
    accounts = None
    if options.account is not None or profile.account_required:
        accounts = client.accounts(getpass.getuser())
    granted = limits.grant(wish, profile, partition, accounts)
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


def _notes(
    options: JobOptions, partition: Partition, profile: Profile, differences: list[str]
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
    scratch = places.scratch(plan.profile, os.environ, plan.options.account)
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
        seen = places.mounted(plan.profile, path)
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


def job_script(plan: Plan, job: Job, directory: Path, resume: bool) -> script.JobScript:
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
    container = software.container(options.container, profile, inside)
    needs = [job.cwd, *([job.target] if job.kind == "script" else [])]
    needs += [str(path) for path in (*argument_paths(job), *plan.fetched.places.values())]
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
        name=options.name or (job.target if job.kind == "recipe" else Path(job.target).stem),
        nodes=granted.nodes,
        ranks=granted.ranks,
        gpus=granted.gpus,
        cpus=granted.cpus,
        minutes=granted.minutes,
        made_by=("rankup", *without_values(sys.argv[1:])),
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
    life = {
        "submitted": rundir.now(),
        "nodes": plan.granted.nodes,
        "nproc": plan.granted.ranks,
        "job": number,
    }
    try:
        rundir.write(directory, replace(job, lives=[*job.lives, life]))
    except OSError as error:
        raise OSError(
            f"job {number} is submitted, but {directory / rundir.JOB} could not be written "
            f"({error.strerror}); to end it: scancel {number}"
        ) from None
    return number


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


def without_values(words: list[str]) -> Iterator[str]:
    """A command line without what `--env` gave: it may be secret."""
    given = False
    for word in words:
        option, equals, entry = word.partition("=")
        if given or (option == "--env" and equals):
            text = word if given else entry
            name, has_value, _ = text.partition("=")
            yield ("" if given else "--env=") + name + ("=..." if has_value else "")
            given = False
        else:
            given = word == "--env"
            yield word


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
