"""Whether this is a place to fetch on and to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...base.errors import UserError
from ...site import places
from ...site.profile import Profile

_NO_SITE = ("local", "generic")


def check_network(profile: Profile, environment: Mapping[str, str]) -> None:
    """Raises UserError in a job on nodes that are known to have no internet."""
    if not environment.get("SLURM_JOB_ID"):
        return
    nodes = profile.shape(environment.get("SLURM_JOB_PARTITION"))
    if nodes is not None and nodes.internet is False:
        raise UserError(
            f"this is job {environment['SLURM_JOB_ID']} on a compute node of {profile.title}, "
            "which has no internet; run rankup fetch on a login node"
        )


def with_hint(why: str, environment: Mapping[str, str]) -> str:
    """A reason for a failure, and where to try again: in a job the network is the first guess."""
    if environment.get("SLURM_JOB_ID"):
        return f"{why}; this is inside a job: on a login node there is a network"
    return why


def check_place(folder: Path, profile: Profile, home: Path, say: Callable[[str], None]) -> None:
    """Warn where a folder is small, and refuse it where jobs would not see it.

    Raises:
        UserError: compute nodes do not mount it.
    """
    if places.mounted(profile, folder) is False:
        raise UserError(
            f"compute nodes of {profile.title} do not see {folder}: name another folder, by "
            "--to, by `cache` in [fetch] of rankup.toml, or by $RANKUP_CACHE"
        )
    if profile.name not in _NO_SITE and folder.resolve().is_relative_to(home.resolve()):
        say(
            f"warning: {folder} is in $HOME, whose quota is small on {profile.title}; "
            "name another folder by $RANKUP_CACHE or `cache` in [fetch] of rankup.toml"
        )
