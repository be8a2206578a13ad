"""What Slurm says of its partitions: limits, who may use them, and what their nodes have."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .parse import key_values
from .times import minutes

# sinfo groups equal nodes, so that a machine of thousands answers in a few lines.
NODE_FORMAT = "%R|%D|%c|%m|%T|%G"

_GPU = re.compile(r"gpu(?::[^:(),]+)?:(\d{1,6})(?:\(|$)")


@dataclass(frozen=True)
class Partition:
    """A partition. Times are in minutes; None is: no limit, no default, everybody.

    `gpus`, `cores` and `memory_mb` are per node: the smallest figure over those nodes that have a
    GPU, or over all where none has one. `up`: takes jobs and starts them; `takes_jobs`: takes
    them, though it may start them later. `idle_nodes` are those a job could start on now, nodes
    that sleep included.
    """

    name: str
    default: bool
    up: bool
    max_minutes: int | None
    default_minutes: int | None
    max_nodes: int | None
    min_nodes: int
    total_nodes: int
    exclusive: bool
    allow_accounts: frozenset[str] | None
    deny_accounts: frozenset[str]
    allow_qos: frozenset[str] | None
    gpus: int
    cores: int
    memory_mb: int
    idle_nodes: int
    takes_jobs: bool = True


@dataclass(frozen=True)
class _Nodes:
    count: int
    cores: int
    memory_mb: int
    gpus: int
    idle: bool


def partitions(shown: str, nodes: str) -> dict[str, Partition]:
    """Partitions by name, of `scontrol show partition -o` and `sinfo -h -e -o NODE_FORMAT`."""
    groups = _nodes(nodes)
    fields = [key_values(line) for line in shown.splitlines() if "PartitionName=" in line]
    return {one["PartitionName"]: _partition(one, groups[one["PartitionName"]]) for one in fields}


def gpus_of(gres: str) -> int:
    """GPUs in sinfo's generic resources: "gpu:a100:4(S:0-1)", "gpu:2,shard:8", "(null)"."""
    # The commas inside parentheses list sockets.
    resources = re.split(r",(?![^(]*\))", gres)
    return sum(int(match[1]) for one in resources if (match := _GPU.match(one.strip())))


def _partition(fields: Mapping[str, str], nodes: Sequence[_Nodes]) -> Partition:
    usual = [group for group in nodes if group.gpus] or nodes
    return Partition(
        name=fields["PartitionName"],
        default=fields.get("Default") == "YES",
        up=fields.get("State", "UP") == "UP",
        max_minutes=_minutes(fields.get("MaxTime", "")),
        default_minutes=_minutes(fields.get("DefaultTime", "")),
        max_nodes=_number(fields.get("MaxNodes", "")),
        min_nodes=_number(fields.get("MinNodes", "")) or 0,
        total_nodes=_number(fields.get("TotalNodes", "")) or sum(group.count for group in nodes),
        exclusive=fields.get("OverSubscribe", fields.get("Shared", "")) == "EXCLUSIVE",
        allow_accounts=_names(fields.get("AllowAccounts", "ALL")),
        deny_accounts=_names(fields.get("DenyAccounts", "")) or frozenset(),
        allow_qos=_names(fields.get("AllowQos", "ALL")),
        gpus=min((group.gpus for group in usual), default=0),
        cores=min((group.cores for group in usual), default=0),
        memory_mb=min((group.memory_mb for group in usual), default=0),
        idle_nodes=sum(group.count for group in nodes if group.idle),
        takes_jobs=fields.get("State", "UP") in ("UP", "DOWN"),
    )


def _nodes(text: str) -> dict[str, list[_Nodes]]:
    found: dict[str, list[_Nodes]] = defaultdict(list)
    for line in text.splitlines():
        fields = line.strip().split("|", 5)
        if len(fields) != 6:
            continue
        name, count, cores, memory, state, gres = fields
        found[name].append(
            _Nodes(
                count=_number(count) or 0,
                cores=_number(cores) or 0,
                memory_mb=_number(memory) or 0,
                gpus=gpus_of(gres),
                # "~" sleeps, "#" wakes up; "*" does not answer, "$" is kept for maintenance.
                idle=state.rstrip("~#") == "idle",
            )
        )
    return found


def _number(text: str) -> int | None:
    """The number at the front of "8", "8+"; None for UNLIMITED and the like."""
    match = re.match(r"\d{1,12}", text)
    return int(match[0]) if match else None


def _minutes(text: str) -> int | None:
    try:
        return minutes(text)
    except ValueError:
        return None


def _names(text: str) -> frozenset[str] | None:
    """Names between commas; None for ALL."""
    if text in ("ALL", "(null)", "N/A"):
        return None
    return frozenset(name for name in text.split(",") if name)
