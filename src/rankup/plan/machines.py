"""The machine that a plan is for: by flags, as calibrated here, or the node of a site's profile."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..base.errors import UserError, nearest
from ..site import caches, config
from ..site import profile as profiles
from ..site.profile import Profile
from .calibrate import machines_of
from .estimate import Estimate
from .machine import GB, MACHINES, Machine, machine, of_site

_WITH_TF32 = ("A100", "H100", "H200", "GH200")  # at half of the speed of bf16
# Raised by `read` for what cannot be read, or was measured too noisily for a machine.
UNUSABLE = (OSError, ArithmeticError, LookupError, ValueError, TypeError, StopIteration)
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
        machine: by default; `of` is the one for a number of GPUs.
        calibrated: by ranks per node.
        most_gpus: that a job gets; None where not known.
        most_minutes: of one attempt.
        whole_nodes: they are billed.
    """

    name: str
    machine: Machine
    calibrated: Mapping[int, Machine] = field(default_factory=dict)
    partition: str | None = None
    most_gpus: int | None = None
    most_minutes: int | None = None
    whole_nodes: bool = True
    notes: tuple[str, ...] = ()

    def of(self, gpus: int) -> Machine:
        """Return the machine as it is for jobs of so many GPUs."""
        per_node = min(gpus, self.machine.gpus_per_node)
        near = min(self.calibrated, key=lambda n: abs(math.log(n / per_node)), default=None)
        return self.machine if near is None else self.calibrated[near]

    def tf32(self) -> Site:
        """Return the machine where float32 products are in TF32, if its GPUs have that."""
        if self.machine.calibrated or not self.machine.gpu.startswith(_WITH_TF32):
            return self
        return replace(self, machine=replace(self.machine, fp32_flops=self.machine.peak_flops / 2))

    def cost(self, gpus: int, seconds: float) -> float:
        """Return what a run costs, in `machine.unit`."""
        per_node = self.machine.gpus_per_node
        billed = math.ceil(gpus / per_node) * per_node if self.whole_nodes else gpus
        return billed * seconds / 3600 * self.machine.core_hours_per_gpu_hour

    def token_cost(self, one: Estimate) -> float:
        """Return what a token of a layout costs, in `machine.unit`."""
        gpus = one.layout.gpus
        return self.cost(gpus, 1 / (one.tokens_per_second_per_gpu * gpus))


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
    measured = calibrated(profile, partition)
    if measured:
        priced = found or Machine("", 0, 0, 0, unit="core-h")
        price = {"core_hours_per_gpu_hour": priced.core_hours_per_gpu_hour, "unit": priced.unit}
        measured = {n: replace(one, **price) for n, one in measured.items()}  # type: ignore[arg-type]
        found = measured[max(measured)]
    if found is None:
        raise UserError(
            f"{_title(profile, partition)}: its GPUs are not known; name the machine "
            f"with --gpu {'|'.join(MACHINES)} [--gpus-per-node N --nic 25GB/s], or with --site "
            f"{'|'.join(_known_sites())}; or measure this one: rankup plan --calibrate"
        )
    if asked.gpus_per_node or asked.nic:
        word = "--nic" if asked.nic else "--gpus-per-node"
        raise UserError(f"{word} goes with --gpu; {_title(profile, partition)} has its own")
    most = None if nodes is None or nodes.max_nodes is None else nodes.max_nodes * nodes.gpus
    return Site(
        _title(profile, partition),
        found,
        measured,
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


def calibration_file(profile: Profile, partition: str | None) -> Path:
    """Return the file that `rankup plan --calibrate` writes about a partition of this site."""
    own = caches.caches(config.load(Path.cwd()), profile, os.environ).own
    place = partition or profile.partition
    if place is None:
        place = os.uname().nodename if profile.name == "local" else "default"
    return own / "plan" / f"{profile.name}-{place}.json"


def read(path: Path) -> dict[int, Machine]:
    """Return the machine that was measured, by ranks per node; raises one of `UNUSABLE`."""
    return machines_of(json.loads(path.read_text(encoding="utf-8")))


def calibrated(profile: Profile, partition: str | None) -> dict[int, Machine]:
    """Return the machine as it was measured, by ranks per node; empty where it was not.

    Raises:
        UserError: the file is none of ours.
    """
    path = calibration_file(profile, partition)
    if not path.is_file():
        return {}
    try:
        return read(path)
    except UNUSABLE as error:
        raise UserError(
            f"{path} is not what `rankup plan --calibrate` writes ({error!r}); remove it, or "
            "calibrate again"
        ) from None
