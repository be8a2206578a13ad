"""A run as a Slurm job: what it asks for is checked, and its script (`jobscript`) submitted."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..site import detect, places, rundir
from ..site.config import Config
from ..site.profile import Profile
from ..site.rundir import Job
from ..slurm import limits
from ..slurm.client import Client
from ..slurm.limits import Grant, Wish
from ..slurm.options import JobOptions, refuse_own_directives, variables
from ..slurm.parse import array_tasks
from ..slurm.partitions import Partition
from ..slurm.times import parse_time, time_text
from .ready import Fetched
from .stage import Staging
from .typed import typed

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
    staging: Staging = field(default_factory=Staging)


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


def bill(plan: Plan) -> dict[str, Any]:
    """What `job.json` keeps of a life's machine and its price, for the report."""
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
        "bill": bill(plan),
        "command": typed(),
    }
    try:
        rundir.write(directory, replace(job, lives=[*job.lives, life]))
    except OSError as error:
        raise OSError(
            f"job {number} is submitted, but {directory / rundir.JOB} could not be written "
            f"({error.strerror}); to end it: scancel {number}"
        ) from None
    return number
