"""Which machine this is, how that is known, and whether this is one of its login nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...base.errors import UserError
from ...base.findings import Finding
from ...site import detect
from ...site.config import Config
from ...site.profile import Profile
from . import codes

# A wrong one of these makes a job fail or wait; the others cost a word in a message, or Slurm
# knows better.
_MATTER = ("devices", "mounts", "internet", "environment", "host_suffix", "exclusive")
_MATTER_OF_NODES = ("gpus", "cores", "internet")


@dataclass(frozen=True)
class Machine:
    """What this machine is taken for.

    Attributes:
        clue: what gave it away.
        login: it has the name of a login node.
        job: id of the Slurm job that this runs in, else empty.
        problem: why `[site]` of rankup.toml was not used, else empty.
    """

    profile: Profile
    clue: str
    hostname: str
    login: bool
    job: str
    problem: str = ""


def find(
    config: Config,
    environment: Mapping[str, str],
    hostname: str,
    cluster_name: Callable[[], str | None],
) -> Machine:
    """The machine; a mistake in `[site]` is kept as `problem`, and the detected profile taken."""
    problem = ""
    try:
        profile, clue = detect.choose(config, environment, hostname, cluster_name=cluster_name)
    except UserError as error:
        problem = str(error)
        config = replace(config, site={})
        profile, clue = detect.choose(config, environment, hostname, cluster_name=cluster_name)
    job = environment.get("SLURM_JOB_ID", "")
    login = detect.on_login_node(environment, hostname)
    return Machine(profile, clue, hostname, login, job, problem)


def check_machine(machine: Machine) -> list[Finding]:
    """Machine, profile and clue; what of the profile is not sure; login node or not."""
    profile = machine.profile
    found = [
        Finding(
            codes.MACHINE,
            "ok",
            "machine",
            f"{profile.title}: profile {profile.name} ({machine.clue})",
        )
    ]
    unsure = sorted(key for key in profile.unsure if _matters(key, profile.partition))
    if unsure:
        found.append(
            Finding(
                codes.UNSURE,
                "ok",
                "profile",
                f"nobody has confirmed: {', '.join(unsure)}",
                "docs/profiles.md says how to check a fact, and how to say it in rankup.toml",
            )
        )
    if profile.name != "local":
        found.append(Finding(codes.LOGIN_NODE, "ok", "this node", _node(machine)))
    return found


def check_configuration(config: Config, problem: str) -> list[Finding]:
    """What is wrong with rankup.toml, or where it is."""
    if problem:
        return [
            Finding(
                codes.CONFIGURATION,
                "error",
                "rankup.toml",
                problem,
                "correct the file: `rankup run` does not start with it",
            )
        ]
    if config.file is None:
        return []
    return [Finding(codes.CONFIGURATION, "ok", "rankup.toml", str(config.file))]


def _matters(key: str, partition: str | None) -> bool:
    first, *rest = key.split(".")
    if first == "node" or (first == "partitions" and rest[:1] == [partition]):
        return rest in ([], [partition]) or rest[-1] in _MATTER_OF_NODES
    return first in _MATTER


def _node(machine: Machine) -> str:
    if machine.job:
        return f"{machine.hostname} is a node of job {machine.job}"
    if machine.login:
        return f"{machine.hostname} is a login node: shared, so nothing is trained here"
    return f"{machine.hostname} has no name of a login node"
