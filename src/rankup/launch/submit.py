"""A run as a Slurm job: what it asks for is checked, its script is written and submitted."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from ..slurm.options import JobOptions, refuse_secrets, variables
from ..slurm.times import parse_seconds, parse_time

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
    options = replace(options, partition=options.partition or partition.name)
    options = replace(options, qos=options.qos or profile.qos)
    wish = Wish(
        partition=partition.name,
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
    refuse_secrets(options.sbatch, os.environ)
    return Plan(
        profile,
        granted,
        options,
        variables(options.env, os.environ),
        limits.cost(granted, profile),
        tuple(_notes(options, granted, limits.differences(profile, partitions))),
    )


def _notes(options: JobOptions, granted: Grant, differences: list[str]) -> Iterator[str]:
    for difference in differences:
        if granted.partition in difference.split(":")[0].split():
            yield f"note: {difference}; Slurm's word is taken"
    if options.time is None:
        yield f"note: time limit {granted.minutes} min by default; --time sets it"


def runs_folder(config: Config, plan: Plan) -> tuple[Path, Path | None]:
    """Where run directories go, and the scratch folder to be linked as `./runs`, if any.

    What `rankup.toml` says, or a `./runs` that is there; else the site's scratch: checkpoints are
    large, and home is not.
    """
    scratch = places.scratch(plan.profile, os.environ, plan.options.account)
    if config.runs_set or os.path.lexists(config.runs) or scratch is None:
        return config.runs, None
    folder = scratch / getpass.getuser() / "rankup-runs"
    return folder, folder


def refuse_unmounted(plan: Plan, paths: Mapping[str, Path]) -> None:
    """Refuse paths that compute nodes do not see; warn of those they hardly do.

    Raises:
        UserError: one lies where the site mounts nothing: the job would die without a log.
    """
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
            print(
                f"warning: {what} {path} lies in a folder that most sites have on each node "
                "apart; if compute nodes see it, say so in rankup.toml: [site] mounts",
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
    activate, path = (str(environment.resolve()), None) if environment else _own_environment()
    exported = dict(profile.environment)
    if profile.list_gpus and granted.gpus:
        exported["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(granted.gpus)))
    container = _container(options.container, profile)
    needs = [job.cwd, *([job.target] if job.kind == "script" else [])]
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
        made_by=("rankup", *_without_values(sys.argv[1:])),
        version=__version__,
        resume=resume,
        stop_after=None
        if options.deadline is None
        else parse_seconds(options.deadline, "--deadline"),
        retries=options.retries or 0,
        options={name: value for name, value in asked.items() if value},
        lines=(*profile.sbatch, *options.sbatch),
        srun_options=profile.srun,
        activate=None if container else activate,
        path=None if container else path,
        variables={k: v for k, v in exported.items() if k not in plan.variables},
        offline=not granted.node.internet,
        threads="OMP_NUM_THREADS" not in plan.variables,
        private=bool(plan.variables) or (directory / "env").is_file(),
        container=container,
        host_suffix=profile.host_suffix,
        needs=tuple(needs),
    )


def submit(client: Client, plan: Plan, job: Job, directory: Path, resume: bool) -> tuple[Job, str]:
    """Write the job script into the run directory and submit it; the job with its new life, its id.

    Raises:
        SlurmError: Slurm refused it.
    """
    text = script.render(job_script(plan, job, directory, resume))
    path = write_script(plan, directory, text)
    (directory / "log" / "retries").unlink(missing_ok=True)
    number = client.submit(path)
    life = {
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "nodes": plan.granted.nodes,
        "nproc": plan.granted.ranks,
        "job": number,
    }
    job = replace(job, lives=[*job.lives, life])
    rundir.write(directory, job)
    return job, number


def write_script(plan: Plan, directory: Path, text: str) -> Path:
    """`job.sh`, and the variables of `--env` beside it, for their owner alone."""
    if plan.variables:
        lines = _kept(directory / "env", plan.variables)
        lines += [f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()]
        write_atomic(directory / "env", "\n".join(lines) + "\n", private=True)
    path = directory / "job.sh"
    write_atomic(path, text, private=True)
    return path


def _kept(path: Path, new: Mapping[str, str]) -> list[str]:
    """Entries of an earlier `--env` that are not given anew; one may span lines."""
    if not path.is_file():
        return []
    words = shlex.split(path.read_text())
    pairs = [word.partition("=") for word in words]
    return [f"{name}={shlex.quote(value)}" for name, _, value in pairs if name not in new]


def _without_values(words: list[str]) -> Iterator[str]:
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


def _own_environment() -> tuple[str | None, str | None]:
    """How the job gets the Python that runs this: a script to source, or a folder for PATH."""
    prefix = Path(sys.prefix)
    # The template that JSC's users know keeps the environment in a folder beside activate.sh,
    # which loads the modules, too.
    for candidate in (prefix.parent / "activate.sh", prefix / "bin" / "activate"):
        if sys.prefix != sys.base_prefix and candidate.is_file():
            return str(candidate), None
    return None, str(Path(sys.executable).parent)


def _container(image: str | None, profile: Profile) -> tuple[str, ...]:
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
    return ("apptainer", "exec", *gpus, image)
