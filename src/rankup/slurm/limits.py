"""The limits of a job, checked before it is submitted: sbatch accepts what never starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..base.errors import UserError, nearest
from ..site.jobspec import JobSpec
from ..site.profile import Partition as Shape
from ..site.profile import Profile
from .parse import Partition, parse_time, time_text

DEFAULT_MINUTES = 60


@dataclass(frozen=True)
class Grant:
    """The nodes, ranks and time that a job gets.

    Attributes:
        gpus, cpus: of each node, as asked of Slurm; `cpus` None leaves it to Slurm.
        exclusive: whole nodes are billed.
        node: what a node of the partition has.
    """

    partition: str
    nodes: int
    ranks: int
    gpus: int
    cpus: int | None
    minutes: int
    exclusive: bool
    node: Shape


def choose_partition(
    asked: str | None, profile: Profile, partitions: Mapping[str, Partition]
) -> Partition:
    """The partition asked for, else the profile's, else Slurm's default.

    Raises:
        UserError: there is no such partition, or none is the default.
    """
    if asked is not None:
        for name in asked.split(","):
            if name not in partitions:
                raise UserError(
                    f"--partition {name}: this cluster has none of that name; "
                    f"{nearest(name, partitions)}"
                )
        return partitions[asked.split(",")[0]]
    if profile.partition is not None and profile.partition in partitions:
        return partitions[profile.partition]
    for partition in partitions.values():
        if partition.default:
            return partition
    raise UserError(
        "this cluster has no default partition; give --partition, one of: "
        f"{', '.join(sorted(partitions))}"
    )


def without_limits(partition: Partition) -> Partition:
    """Return it without limits, which mean nothing where constraint and qos decide on it."""
    return replace(
        partition,
        takes_jobs=True,
        up=True,
        max_minutes=None,
        default_minutes=None,
        max_nodes=None,
        min_nodes=0,
        total_nodes=0,
        idle_nodes=sys.maxsize,
    )


def grant(
    spec: JobSpec, profile: Profile, partition: Partition, accounts: frozenset[str] | None
) -> Grant:
    """Return what the job gets of `partition`, whose live figures win over the profile's.

    Raises:
        UserError: Slurm would refuse the job, let it wait for ever, or bill GPUs that it does not
            use; all reasons at once.
    """
    node = _node(profile, partition)
    minutes = None if spec.time is None else parse_time(spec.time)
    exclusive = partition.exclusive or bool(profile.exclusive)
    ranks = spec.nproc or max(1, node.gpus)
    problems = [*_limits(spec, minutes, partition), *_account(spec, profile, partition, accounts)]
    if 0 < node.gpus < ranks:
        problems.append(
            f"--nproc {ranks} asks for more ranks than the {node.gpus} GPU(s) of a node in "
            f"{partition.name}; give --nproc {node.gpus} or less, and more --nodes"
        )
    if exclusive and ranks < node.gpus and not spec.allow_idle_gpus:
        problems.append(
            f"--nproc {ranks} leaves {node.gpus - ranks} of the {node.gpus} GPUs of each node "
            f"unused, and you pay for {node.gpus}: a node of {partition.name} is billed whole. "
            f"Leave --nproc away, or give --allow-idle-gpus"
        )
    if problems:
        raise UserError("\n  - ".join(["this job cannot run as asked:", *problems]))
    shared = None if not node.gpus else max(1, node.cores * ranks // node.gpus)
    return Grant(
        partition=partition.name,
        nodes=spec.nodes or 1,
        ranks=ranks,
        gpus=node.gpus if exclusive else min(ranks, node.gpus),
        cpus=(node.cores if exclusive else shared or ranks) or None,
        minutes=minutes or default_minutes(partition),
        exclusive=exclusive,
        node=node,
    )


def default_minutes(partition: Partition) -> int:
    """The time limit of a job that asks for none: the partition's own, else an hour at most."""
    return partition.default_minutes or min(DEFAULT_MINUTES, partition.max_minutes or 10**9)


@dataclass(frozen=True)
class Price:
    """The cost of one node of a job per hour, in `unit`."""

    unit: str
    per_node_hour: float


def price(granted: Grant, profile: Profile) -> Price:
    """Return the bill of a node of the job: whole, or as much of it as is granted."""
    unit, node = profile.billing.unit, granted.node
    per_node = profile.node_hour(node)
    if not granted.exclusive and node.gpus:
        per_node *= granted.gpus / node.gpus
    elif not granted.exclusive and unit == "core-h":
        per_node = granted.cpus or 1
    if unit == "GPU-h" and not node.gpus:
        return Price("core-h", granted.cpus or node.cores)
    return Price(unit, per_node)


def cost(granted: Grant, profile: Profile) -> str:
    """Return the most that an attempt can cost, in the site's unit."""
    node_hour = price(granted, profile)
    total = granted.nodes * granted.minutes / 60 * node_hour.per_node_hour
    times = f"{granted.nodes} node{'s' if granted.nodes > 1 else ''} x {clock(granted.minutes)} h"
    return f"at most {total:,.4g} {node_hour.unit} per attempt ({times}, {profile.title})"


def clock(minutes: int) -> str:
    """Hours and minutes: 90 -> "1:30"."""
    return f"{minutes // 60}:{minutes % 60:02d}"


def differences(profile: Profile, partitions: Mapping[str, Partition]) -> list[str]:
    """Return the differences between a profile's facts and the live machine's."""
    found = []
    for name, said in profile.partitions.items():
        live = partitions.get(name)
        if live is None:
            found.append(f"partition {name}: it is in the profile and not on this machine")
            continue
        facts = {
            "max_minutes": (said.max_minutes, live.max_minutes),
            "max_nodes": (said.max_nodes, live.max_nodes),
            "gpus": (said.gpus, live.gpus),
        }
        found += [
            f"partition {name}: {fact} is {ours} in the profile, {theirs} says Slurm"
            for fact, (ours, theirs) in facts.items()
            if ours is not None and theirs is not None and ours != theirs
        ]
    return found


def _node(profile: Profile, partition: Partition) -> Shape:
    """A node's GPUs and cores: Slurm's figures; the profile's where Slurm says nothing.

    Slurm counts hardware threads, the profile what `--cpus-per-task` should get.
    """
    said = profile.shape(partition.name)
    cores = said.cores if said and (not partition.cores or said.cores < partition.cores) else None
    return Shape(
        name=partition.name,
        max_minutes=partition.max_minutes,
        gpus=partition.gpus or (said.gpus if said else 0),
        cores=cores or partition.cores,
        memory_gb=partition.memory_mb // 1024,
        max_nodes=partition.max_nodes,
        internet=said.internet if said else profile.internet,
        per_node_hour=said.per_node_hour if said else None,
    )


def _limits(spec: JobSpec, minutes: int | None, partition: Partition) -> Iterator[str]:
    name, most = partition.name, partition.max_minutes
    if minutes and most is not None and minutes > most:
        yield (
            f"--time {time_text(minutes)} is over the limit of {name}, which is "
            f"{time_text(most)}; a run that takes longer goes on by itself in a next attempt"
        )
    nodes = min(filter(None, (partition.max_nodes, partition.total_nodes)), default=None)
    asked = spec.nodes or 1
    if nodes is not None and asked > nodes:
        yield f"--nodes {asked} is more than {name} gives a job, which is {nodes}"
    if asked < partition.min_nodes:
        yield f"--nodes {asked} is less than {name} takes, which is {partition.min_nodes}"
    if not partition.takes_jobs:
        yield f"partition {name} does not take jobs now; `sinfo` shows which do"
    if partition.allow_qos is not None and spec.qos and spec.qos not in partition.allow_qos:
        yield f"--qos {spec.qos} is not allowed in {name}; {nearest(spec.qos, partition.allow_qos)}"


def _account(
    spec: JobSpec, profile: Profile, partition: Partition, accounts: frozenset[str] | None
) -> Iterator[str]:
    account, name = spec.account, partition.name
    if account is None:
        if profile.account_required:
            known = f", one of: {', '.join(sorted(accounts))}" if accounts else ""
            known += "; `jutil user projects` lists yours" if profile.jutil else ""
            yield f"{profile.title} bills an account: give --account{known}"
        return
    account = account.lower()  # as Slurm does
    accounts, allowed = _lower(accounts), _lower(partition.allow_accounts)
    if accounts is not None and account not in accounts:
        yield f"--account {account} is not one of yours; {nearest(account, accounts)}"
    elif allowed is not None and account not in allowed:
        yield f"--account {account} may not use {name}; {nearest(account, allowed)}"
    elif account in (_lower(partition.deny_accounts) or ()):
        yield f"--account {account} may not use {name}"


def _lower(names: frozenset[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(name.lower() for name in names)
