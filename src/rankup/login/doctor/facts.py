"""What several checks want to know, each asked once: the project, the machine, Slurm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...base.errors import UserError
from ...site import caches as cache_places
from ...site import config as configuration
from ...site import places
from ...site.profile import Profile
from ...slurm.client import Client
from ...slurm.partitions import Partition
from . import machine, python, space
from .asking import Clock, Late, Question

# A controller that is silent must not keep the profile, and all that hangs on it, from being known.
_CONTROLLER_SHARE = 0.57  # of the time there is


class Facts:
    """Facts of this project on this machine; those that take time are asked from now on.

    Attributes:
        clock: a little ahead of that of the checks, so that a check can still say what was late.
        problem: what is wrong with rankup.toml, else empty.

    Raises:
        UserError: the folder that this runs in is gone.
    """

    def __init__(self, clock: Clock, client: Client) -> None:
        self.clock = clock
        self.client = client
        self.environment: Mapping[str, str] = client.environment or {}
        self.here = _here()
        self.config, self.problem = configuration.for_views(self.here)
        self.project = self.config.project(self.here)
        self.python = python.this(self.environment)
        self.presence = Question("Slurm's controller", clock, client.presence)
        self._cluster = Question("Slurm's configuration", clock, self._ask_cluster)
        self.machine = Question("the profile", clock, self._ask_machine)
        self.partitions = Question("Slurm's partitions", clock, self._ask_partitions)

    @property
    def profile(self) -> Profile:
        """The profile of this machine."""
        return self.machine.answer().profile

    def account(self) -> tuple[str | None, str]:
        """The account of jobs and where it is set, as `rankup run` takes it."""
        if account := self.config.job.get("account"):
            return account, str(self.config.file)
        for name in ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"):
            if account := self.environment.get(name):
                return account, f"${name}"
        return None, ""

    def caches(self) -> cache_places.Caches:
        """Where caches lie."""
        return cache_places.caches(self.config, self.profile, self.environment)

    def folders(self) -> list[space.Folder]:
        """The folders that matter."""
        caches = self.caches()
        return space.folders(self.config, self.profile, caches, self.environment, self.here)

    def scratch(self) -> Path | None:
        """The scratch folder of the project."""
        return places.scratch(self.profile, self.environment, self.config.job.get("account"))

    def partition(self) -> str | None:
        """The partition that a job goes to, where rankup.toml or the profile names one."""
        return self.config.job.get("partition") or self.profile.partition

    def slurm_answers(self) -> bool:
        """Whether there is a controller to be asked."""
        return self.presence.answer() == "answers"

    def internet(self) -> bool | None:
        """Whether compute nodes have any, in the partition that a job goes to."""
        shape = self.profile.shape(self.partition())
        return self.profile.internet if shape is None else shape.internet

    def _ask_cluster(self) -> str | None:
        return self.client.cluster_name() if self.slurm_answers() else None

    def _ask_partitions(self) -> dict[str, Partition]:
        return self.client.partitions() if self.slurm_answers() else {}

    def _ask_machine(self) -> machine.Machine:
        silent = []

        def cluster_name() -> str | None:
            """None without a Slurm; empty where one is silent."""
            try:
                if self.presence.answer(self._controller_seconds()) == "absent":
                    return None
                if self.slurm_answers():
                    return self._cluster.answer(self._controller_seconds()) or ""
            except (Late, UserError):
                pass
            silent.append(True)
            return ""

        hostname = os.uname().nodename
        found = machine.find(self.config, self.environment, hostname, cluster_name)
        return replace(found, clue="Slurm is here, and does not answer") if silent else found

    def _controller_seconds(self) -> float:
        return max(0.0, _CONTROLLER_SHARE * self.clock.limit - self.clock.passed())


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("the folder you are in is no longer there; cd to one that is") from None
