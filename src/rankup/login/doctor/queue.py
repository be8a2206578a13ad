"""What Slurm says: whether it answers, its partitions and what is free, the accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ...base.amounts import some
from ...base.errors import nearest
from ...base.findings import Finding, Level
from ...site.profile import Profile
from ...slurm.limits import clock, differences
from ...slurm.partitions import Partition
from . import codes

Presence = Literal["answers", "silent", "absent"]
_MOST_PARTITIONS = 6


def check_presence(profile: Profile, presence: Presence) -> list[Finding]:
    """Whether there is a Slurm, and whether it answers."""
    if presence == "answers":
        return [Finding(codes.SLURM, "ok", "Slurm", "its controller answers")]
    if presence == "silent":
        return [
            Finding(
                codes.SLURM,
                "error",
                "Slurm",
                "its controller does not answer (`scontrol ping`)",
                "try again in some minutes; until then nothing can be submitted",
            )
        ]
    if profile.name == "local":
        return [
            Finding(codes.SLURM, "ok", "Slurm", "none here: `rankup run` starts on this machine")
        ]
    return [
        Finding(
            codes.SLURM,
            "warning",
            "Slurm",
            f"this is taken for {profile.title}, and there is no `sbatch` with a configuration",
            "log in to a login node, or see that Slurm's commands are on PATH",
        )
    ]


def check_partitions(
    profile: Profile, asked: str | None, partitions: Mapping[str, Partition]
) -> list[Finding]:
    """A line for each partition; the one that jobs go to first, the rest by size.

    Args:
        asked: `[job] partition` of rankup.toml.
    """
    if not partitions:
        return [
            Finding(
                codes.PARTITION,
                "error",
                "partitions",
                "Slurm shows you none",
                "ask the site's support whether your account may use this machine",
            )
        ]
    taken = _taken(profile, asked, partitions)
    found = []
    if asked is not None and asked.split(",")[0] not in partitions:
        found.append(
            Finding(
                codes.PARTITION,
                "error",
                "rankup.toml",
                f"[job] partition {asked}: this cluster has none of that name",
                nearest(asked, partitions),
            )
        )
    order = sorted(partitions.values(), key=lambda one: (one.name != taken, -one.total_nodes))
    found += [_partition(one, one.name == taken) for one in order[:_MOST_PARTITIONS]]
    rest = [one.name for one in order[_MOST_PARTITIONS:]]
    if rest:
        message = f"also: {some(rest, 12)}"
        found.append(Finding(codes.PARTITION, "ok", "partitions", message, "`sinfo -s` shows all"))
    return found


def check_differences(profile: Profile, partitions: Mapping[str, Partition]) -> list[Finding]:
    """Where the profile does not say what Slurm says; partitions that are gone in one line."""
    todo = "Slurm's word is taken; say it in rankup.toml, [site], and please report it"
    gone = [name for name in profile.partitions if name not in partitions]
    there = {name: said for name, said in profile.partitions.items() if name in partitions}
    found = [
        Finding(
            codes.DIFFERENCE,
            "warning",
            "profile",
            difference,
            todo,
        )
        for difference in differences(replace(profile, partitions=there), partitions)
    ]
    if gone:
        message = f"not on this machine, and in the profile: {some(gone, 12)}"
        found.append(Finding(codes.DIFFERENCE, "warning", "profile", message, todo))
    return found


def check_account(
    profile: Profile, account: str | None, said_by: str, accounts: frozenset[str] | None
) -> list[Finding]:
    """Whether jobs have an account, and whether it is the user's.

    Args:
        account: the one that jobs would get without `--account`; None: none.
        said_by: where it is set (`rankup.toml`, `$SBATCH_ACCOUNT`).
        accounts: the user's, as Slurm knows them; None: not known.
    """
    yours = some(sorted(accounts), 8) if accounts else ""
    if account is None:
        if not profile.account_required:
            return [] if not yours else [Finding(codes.ACCOUNT, "ok", "account", f"yours: {yours}")]
        known = f"one of: {yours}" if yours else "not known to Slurm"
        if profile.jutil:
            known += "; `jutil user projects` lists yours"
        return [
            Finding(
                codes.ACCOUNT,
                "warning",
                "account",
                f"{profile.title} bills an account, and none is set ({known})",
                'in rankup.toml: [job] account = "ACCOUNT"; or --account with every run',
            )
        ]
    if accounts is not None and account.lower() not in {one.lower() for one in accounts}:
        return [
            Finding(
                codes.ACCOUNT,
                "error",
                "account",
                f"{account} ({said_by}) is not one of yours",
                nearest(account, accounts),
            )
        ]
    sure = "" if accounts is not None else "; whether it is yours Slurm does not say here"
    return [Finding(codes.ACCOUNT, "ok", "account", f"{account} ({said_by}){sure}")]


def _taken(profile: Profile, asked: str | None, partitions: Mapping[str, Partition]) -> str:
    """The partition that a job goes to that names none."""
    for name in (asked and asked.split(",")[0], profile.partition):
        if name and name in partitions:
            return name
    return next((one.name for one in partitions.values() if one.default), "")


def _partition(one: Partition, taken: bool) -> Finding:
    limit = "no time limit" if one.max_minutes is None else f"{clock(one.max_minutes)} h at most"
    nodes = min(filter(None, (one.max_nodes, one.total_nodes)), default=one.total_nodes)
    gpus = f"{one.gpus} GPUs, " if one.gpus else ""
    facts = (
        f"{one.idle_nodes} of {one.total_nodes} nodes free now, {gpus}{one.cores} CPUs and "
        f"{one.memory_mb // 1024} GB a node; {limit}, {nodes} nodes a job"
    )
    if one.exclusive:
        facts += "; whole nodes"
    level: Level = "ok"
    todo = ""
    if not one.takes_jobs or not one.up:
        facts = f"{'starts no jobs now' if one.takes_jobs else 'takes no jobs now'}; {facts}"
        if taken:
            level, todo = "warning", "`sinfo -s` shows which partitions are up; --partition NAME"
    place = f"{one.name} (default)" if taken else one.name
    return Finding(codes.PARTITION, level, place, facts, todo)
