"""What is known of a machine before it is asked: `profiles/*.toml`, one file per site.

Everything here can be overridden in `rankup.toml`, table `[site]`, with the same keys.
docs/profiles.md says what each fact is used for and how to check it on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from ..base.errors import UserError, nearest
from . import rules, schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Devices = Literal["cuda", "rocm", "cpu"]
Unit = Literal["core-h", "node-h", "GPU-h"]
_FOLDER = Path(__file__).with_name("profiles")


@dataclass(frozen=True)
class Partition:
    """The nodes of a partition and its limits; None where only Slurm knows.

    Attributes:
        gpus: per node.
        cores: per node, what `--cpus-per-task` gets with one task per node.
        memory_gb: per node.
        per_node_hour: units that one node costs per hour, where not what the site's billing says.
    """

    name: str
    max_minutes: int | None
    gpus: int
    cores: int
    memory_gb: int | None
    max_nodes: int | None
    internet: bool | None
    per_node_hour: float | None = None


@dataclass(frozen=True)
class Billing:
    """What a job costs.

    Attributes:
        per_node_hour: units that one whole node costs per hour; None: by its GPUs or cores.
        per_gpu_hour: units per GPU and hour where the unit is GPU-h (LUMI: 0.5 per GCD).
    """

    unit: Unit
    per_node_hour: float | None
    per_gpu_hour: float


@dataclass(frozen=True)
class Detection:
    """What gives a site away.

    Attributes:
        systemname: values of `$SYSTEMNAME`, `/etc/FZJ/systemname` and `$LMOD_SYSTEM_NAME`.
        environment: values of variables of the site's own.
        clusters: Slurm's name of the cluster.
        hosts: regular expressions of node names, with or without their domain.
        login: those of login nodes; they do not give the site away, they may be common words.
    """

    systemname: tuple[str, ...]
    environment: Mapping[str, tuple[str, ...]]
    clusters: tuple[str, ...]
    hosts: tuple[str, ...]
    login: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """A site.

    Attributes:
        name: the stem of its file.
        host_suffix: with it a node's name is its InfiniBand name (jwb0001 -> jwb0001i).
        environment: exported in every job.
        list_gpus: a job has to name its GPUs in CUDA_VISIBLE_DEVICES before srun, which would
            else bind one to each task.
        srun: further words for srun.
        sbatch: further `#SBATCH` options.
        partition: the one taken when none is asked for; None: Slurm's default.
        qos: the same for `--qos`.
        node: what a node is like where no partition of `partitions` is meant.
        exclusive: a job is billed whole nodes; None: ask Slurm.
        mounts: path prefixes that compute nodes mount; empty: not known.
        not_mounted: path prefixes that they do not mount.
        project, scratch, data: templates of folders, the best first; see `places.folder`.
        purge_days: files in scratch are deleted when unused for so long.
        jutil: `jutil env activate -p PROJECT` sets the folders' variables.
        modules: what a user of the site's PyTorch loads.
        architecture: x86_64 or aarch64; empty where not known.
        internet: of compute nodes; a partition may say otherwise.
        monitoring: URL of the site's own job reports.
        unsure: keys, with dots, of facts that nobody has confirmed.
        values: the tables this was made from.
    """

    name: str
    title: str
    host_suffix: str
    environment: Mapping[str, str]
    list_gpus: bool
    srun: tuple[str, ...]
    sbatch: tuple[str, ...]
    partition: str | None
    qos: str | None
    node: Partition | None
    partitions: Mapping[str, Partition]
    exclusive: bool | None
    account_required: bool
    mounts: tuple[str, ...]
    not_mounted: tuple[str, ...]
    project: tuple[str, ...]
    scratch: tuple[str, ...]
    data: tuple[str, ...]
    purge_days: int | None
    jutil: bool
    modules: tuple[str, ...]
    architecture: str
    internet: bool | None
    billing: Billing
    monitoring: str | None
    devices: Devices
    detect: Detection
    unsure: frozenset[str]
    values: Mapping[str, Any] = field(repr=False, compare=False)

    def shape(self, partition: str | None) -> Partition | None:
        """The nodes that a job in `partition` gets; None: only Slurm knows."""
        name = partition if partition is not None else self.partition
        if name is None or not self.partitions:
            return self.node
        return self.partitions.get(name)

    def node_hour(self, nodes: Partition) -> float:
        """Units of `billing.unit` that one whole node costs per hour."""
        for said in (nodes.per_node_hour, self.billing.per_node_hour):
            if said is not None:
                return said
        if self.billing.unit == "node-h":
            return 1.0
        if self.billing.unit == "core-h":
            return float(nodes.cores)
        return nodes.gpus * self.billing.per_gpu_hour


def names() -> list[str]:
    """The profiles there are, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UserError: there is none; the nearest is named.
    """
    if name not in names():
        raise UserError(f"no profile {name!r}; {nearest(name, names())}")
    path = _FOLDER / f"{name}.toml"
    return parse(tomllib.loads(path.read_text(encoding="utf-8")), name, str(path))


def check(values: Mapping[str, Any], where: str, key: str = "") -> None:
    """Check the keys and types of (a part of) a profile's tables.

    Raises:
        UserError: file and key, what was found, what was expected.
    """
    rules.check(values, schema.PROFILE, where, key)


def override(profile: Profile, values: Mapping[str, Any], where: str = "[site]") -> Profile:
    """The profile with the tables of `values` laid over its own, key by key.

    A list replaces the list below it, and what `mounts` says here goes from `not_mounted` of the
    profile, and the other way round; an empty string takes a variable, the partition, the qos
    or the URL away. What is said here is no longer unsure.

    Raises:
        UserError: as `check`; keys are named as they stand in `rankup.toml`, below `site`.
    """
    check(values, where, "site")
    merged = rules.merge(profile.values, values)
    for key, other in (("mounts", "not_mounted"), ("not_mounted", "mounts")):
        if key in values and other not in values:  # what is said here wins over its contrary
            here = {Path(one) for one in values[key]}
            merged[other] = [one for one in merged.get(other, ()) if Path(one) not in here]
    if "unsure" not in values:
        said = {key for key, value in rules.dotted(values) if not isinstance(value, Mapping)}
        merged["unsure"] = [key for key in merged.get("unsure", ()) if key not in said]
    return parse(merged, profile.name, where, "site")


def parse(values: Mapping[str, Any], name: str, where: str, key: str = "") -> Profile:
    """A profile from the tables of its file, which `where` names in messages.

    Raises:
        UserError: as `check`, or a partition whose GPUs or cores are said nowhere.
    """
    check(values, where, key)
    prefix = f"{key}." if key else ""
    if "title" not in values:
        raise UserError(f"{where}: {prefix}title is missing")
    node = values.get("node", {})
    internet = values.get("internet")
    billing = values.get("billing", {})
    return Profile(
        name=name,
        title=values["title"],
        host_suffix=values.get("host_suffix", ""),
        environment={k: v for k, v in values.get("environment", {}).items() if v},
        list_gpus=values.get("list_gpus", False),
        srun=tuple(values.get("srun", ())),
        sbatch=tuple(values.get("sbatch", ())),
        partition=values.get("partition") or None,
        qos=values.get("qos") or None,
        node=_nodes("", node, internet, where, f"{prefix}node") if node else None,
        partitions={
            word: _nodes(word, {**node, **said}, internet, where, f"{prefix}partitions.{word}")
            for word, said in values.get("partitions", {}).items()
        },
        exclusive=values.get("exclusive"),
        account_required=values.get("account_required", False),
        mounts=tuple(values.get("mounts", ())),
        not_mounted=tuple(values.get("not_mounted", ())),
        project=tuple(values.get("project", ())),
        scratch=tuple(values.get("scratch", ())),
        data=tuple(values.get("data", ())),
        purge_days=values.get("purge_days"),
        jutil=values.get("jutil", False),
        modules=tuple(values.get("modules", ())),
        architecture=values.get("architecture", ""),
        internet=internet,
        billing=Billing(
            unit=cast(Unit, billing.get("unit", "GPU-h")),
            per_node_hour=billing.get("per_node_hour"),
            per_gpu_hour=billing.get("per_gpu_hour", 1.0),
        ),
        monitoring=values.get("monitoring") or None,
        devices=cast(Devices, values.get("devices", "cuda")),
        detect=_detection(values.get("detect", {})),
        unsure=frozenset(values.get("unsure", ())),
        values=values,
    )


def _nodes(
    name: str, said: Mapping[str, Any], internet: bool | None, where: str, key: str
) -> Partition:
    for needed in ("gpus", "cores"):
        if needed not in said:
            raise UserError(
                f"{where}: {key}.{needed} is missing; say how many a node has, here or in [node]"
            )
    return Partition(
        name=name,
        max_minutes=said.get("max_minutes"),
        gpus=said["gpus"],
        cores=said["cores"],
        memory_gb=said.get("memory_gb"),
        max_nodes=said.get("max_nodes"),
        internet=said.get("internet", internet),
        per_node_hour=said.get("per_node_hour"),
    )


def _detection(said: Mapping[str, Any]) -> Detection:
    return Detection(
        systemname=tuple(said.get("systemname", ())),
        environment={k: tuple(v) for k, v in said.get("environment", {}).items()},
        clusters=tuple(said.get("clusters", ())),
        hosts=tuple(said.get("hosts", ())),
        login=tuple(said.get("login", ())),
    )
