"""Where caches lie: off `$HOME`, and where compute nodes find what was downloaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...base.findings import Finding
from ...site import places
from ...site.caches import ROOT_VARIABLE, Cache, Caches
from ...site.profile import Profile
from . import codes

# A job reads these; the others are for building, or are made anew on every node.
_READ_IN_JOBS = ("HF_HOME", "TORCH_HOME", "FASTAI_HOME", ROOT_VARIABLE)
_SAID_BY = {
    "environment": "set in your environment",
    "site": "rankup sets it, here and in jobs",
    "default": "the program's default",
}


def check_caches(profile: Profile, caches: Caches, home: Path) -> list[Finding]:
    """Each cache with where it is and who says so; a line for all that are alike."""
    own = Cache("rankup", ROOT_VARIABLE, caches.own, "default" if caches.root is None else "site")
    entries = (*caches.entries, own)
    unseen = [one for one in entries if _unseen(profile, one)]
    at_home = [
        one
        for one in entries
        if one not in unseen and profile.name != "local" and _below(one.path, home)
    ]
    fine = [one for one in entries if one not in unseen and one not in at_home]
    found = []
    for said_by in _SAID_BY:
        some = [one for one in unseen if one.said_by == said_by]
        if some:
            found.append(
                Finding(
                    codes.CACHES,
                    "error",
                    "caches",
                    f"compute nodes do not mount {_listed(some, home)} ({_SAID_BY[said_by]})",
                    _elsewhere(profile, caches, some),
                )
            )
        some = [one for one in at_home if one.said_by == said_by]
        if some:
            found.append(
                Finding(
                    codes.CACHES,
                    "warning",
                    "caches",
                    f"in $HOME, which is small: {_listed(some, home)} ({_SAID_BY[said_by]})",
                    _elsewhere(profile, caches, some),
                )
            )
        some = [one for one in fine if one.said_by == said_by]
        if some:
            message = f"{_listed(some, home)} ({_SAID_BY[said_by]})"
            found.append(Finding(codes.CACHES, "ok", "caches", message))
    if caches.refining:
        also = ", ".join(f"{name}={value}" for name, value in sorted(caches.refining.items()))
        found.append(Finding(codes.CACHES, "ok", "caches", f"also set: {also}"))
    return found


def _unseen(profile: Profile, cache: Cache) -> bool:
    if cache.variable not in _READ_IN_JOBS or profile.name == "local":
        return False
    return places.mounted(profile, cache.path) is False


def _below(path: Path, home: Path) -> bool:
    # $HOME may be a link, and a cache in it one that leads out of it.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home))


def _listed(caches: Sequence[Cache], home: Path) -> str:
    def short(path: Path) -> str:
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

    parents = {one.path.parent for one in caches}
    if len(parents) == 1 and len(caches) > 1:
        programs = ", ".join(one.program for one in caches)
        return f"{programs} in {short(parents.pop())}"
    return ", ".join(f"{one.program} {short(one.path)}" for one in caches)


def _elsewhere(profile: Profile, caches: Caches, some: Sequence[Cache]) -> str:
    """What to set; a variable of the environment wins over rankup.toml, so it has to go first."""
    lines = []
    if said := [one.variable for one in some if one.said_by == "environment"]:
        lines.append(f"unset {' '.join(said)}")
    if caches.root is None or any(one.said_by != "environment" for one in some):
        if profile.jutil:
            lines.append("jutil env activate -p PROJECT")
        lines.append('or in rankup.toml: [fetch] cache = "/a/folder/in/scratch"')
    return "; ".join(lines).removeprefix("or ")
