"""The machine that a plan is for: by flags, or the node of a site's profile."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.errors import UserError, nearest
from ..site import config
from ..site import profile as profiles
from ..site.profile import Profile
from .estimate import Estimate
from .machine import GB, MACHINES, Machine, machine, of_site

_WITH_TF32 = ("A100", "H100", "H200", "GH200")  # at half of the speed of bf16
_NIC = re.compile(r"(\d+(?:\.\d+)?)\s*([Gg]B/[sS]|(?i:Gbit/s)|Gb/s)")


@dataclass(frozen=True)
class Asked:
    """The machine as the command line names it; None where nothing was said."""

    site: str | None = None
    partition: str | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    nic: str | None = None


@dataclass(frozen=True)
class Site:
    """A machine, and what a job on it may ask for.

    Attributes:
        name: as it is shown.
        most_gpus: that a job gets; None where not known.
        most_minutes: of one attempt.
        whole_nodes: they are billed.
    """

    name: str
    machine: Machine
    partition: str | None = None
    most_gpus: int | None = None
    most_minutes: int | None = None
    whole_nodes: bool = True
    notes: tuple[str, ...] = ()

    def tf32(self) -> Site:
        """Return the machine where float32 products are in TF32, if its GPUs have that."""
        if not self.machine.gpu.startswith(_WITH_TF32):
            return self
        return replace(self, machine=replace(self.machine, fp32_flops=self.machine.peak_flops / 2))

    def cost(self, gpus: int, seconds: float) -> float:
        """Return what a run costs, in `machine.unit`."""
        per_node = self.machine.gpus_per_node
        billed = math.ceil(gpus / per_node) * per_node if self.whole_nodes else gpus
        return billed * seconds / 3600 * self.machine.core_hours_per_gpu_hour

    def token_cost(self, fit: Estimate) -> float:
        """Return what a token of a layout costs, in `machine.unit`."""
        gpus = fit.layout.gpus
        return self.cost(gpus, 1 / (fit.tokens_per_second_per_gpu * gpus))


def choose(asked: Asked) -> Site:
    """Return the machine that is asked for, else this one.

    Raises:
        UserError: it is not known; says what to give.
    """
    if asked.gpu is not None:
        if asked.site is not None or asked.partition is not None:
            other = f"--site {asked.site}" if asked.site else f"--partition {asked.partition}"
            raise UserError(f"--gpu {asked.gpu} and {other} both name a machine; give one of them")
        made = machine(asked.gpu, asked.gpus_per_node, _nic(asked.nic))
        return Site(f"{made.gpus_per_node} x {made.gpu} per node", made, whole_nodes=False)
    profile = profile_of(asked.site)
    return of_profile(profile, asked.partition, asked)


def of_profile(profile: Profile, partition: str | None, asked: Asked | None = None) -> Site:
    """Return the machine of a site's partition; the site's own one by default.

    Raises:
        UserError: there is no such partition, or its GPU is not known.
    """
    asked = asked or Asked()
    partition = partition or profile.partition
    if asked.partition is not None and profile.partitions and partition not in profile.partitions:
        raise UserError(
            f"--partition {partition}: {profile.title} has none of that name; "
            f"{nearest(str(partition), profile.partitions)}"
        )
    found, nodes = of_site(profile, partition), profile.shape(partition)
    if found is None:
        raise UserError(
            f"{_title(profile, partition)}: its GPUs are not known; name the machine "
            f"with --gpu {'|'.join(MACHINES)} [--gpus-per-node N --nic 25GB/s], or with --site "
            f"{'|'.join(_known_sites())}"
        )
    if asked.gpus_per_node or asked.nic:
        word = "--nic" if asked.nic else "--gpus-per-node"
        raise UserError(f"{word} goes with --gpu; {_title(profile, partition)} has its own")
    most = None if nodes is None or nodes.max_nodes is None else nodes.max_nodes * nodes.gpus
    return Site(
        _title(profile, partition),
        found,
        partition,
        most,
        None if nodes is None else nodes.max_minutes,
        bool(profile.exclusive),
    )


def profile_of(name: str | None) -> Profile:
    """Return the profile of a site by its name, or by how that begins; by default this one's.

    Raises:
        UserError: there is none.
    """
    settings = config.load(Path.cwd())
    if name is None:
        return profiles.choose(settings)[0]
    begun = [known for known in profiles.names() if known.startswith(name)]
    if len(begun) == 1:
        name = begun[0]
    if name not in profiles.names():
        raise UserError(
            f"--site {name}: no profile of that name; {nearest(name, profiles.names())}"
        )
    return profiles.load(name)


def _known_sites() -> list[str]:
    return [name for name in profiles.names() if of_site(profiles.load(name)) is not None]


def _title(profile: Profile, partition: str | None) -> str:
    return f"{profile.title}, partition {partition}" if partition else profile.title


def _nic(text: str | None) -> float | None:
    if text is None:
        return None
    match = _NIC.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise UserError(
            f"--nic {text!r} is no bandwidth; all adapters of a node together, as 25GB/s or "
            "200Gbit/s"
        )
    return float(match[1]) * GB / (1 if "B/" in match[2] else 8)
