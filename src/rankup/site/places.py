"""Folders of a site: where scratch is, and what compute nodes see."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from .profile import Profile


def folder(
    templates: tuple[str, ...], environment: Mapping[str, str], project: str | None
) -> Path | None:
    """The first of a profile's templates that can be filled in.

    In a template `$NAME` is a variable and `{project}` the project, also within a variable's name
    (`$SCRATCH_{project}`); what is not set, or is no absolute path then, passes to the next.
    """
    known = project if project and re.fullmatch(r"\w[\w.-]*", project) else None
    for template in templates:
        if "{project}" in template and known is None:
            continue
        # Split first: a project is text, never part of the syntax.
        parts = re.split(r"\$((?:\w|\{project\})+)", template)
        filled = [part.replace("{project}", known or "") for part in parts]
        filled[1::2] = [environment.get(name, "") for name in filled[1::2]]
        path = "".join(filled)
        if all(filled[1::2]) and path.startswith("/"):
            return Path(path)
    return None


def scratch(
    profile: Profile, environment: Mapping[str, str], project: str | None = None
) -> Path | None:
    """The scratch folder of a project, or of the user; None where none is set."""
    return folder(profile.scratch, environment, project)


def mounted(profile: Profile, path: Path) -> bool | None:
    """Whether compute nodes see `path`, with links as they are and followed; None: not known."""
    judged = {_mounted(profile, one) for one in (os.path.abspath(path), os.path.realpath(path))}
    return False if False in judged else (None if None in judged else True)


def _mounted(profile: Profile, path: str) -> bool | None:
    def longest(prefixes: tuple[str, ...]) -> int:
        return max((len(one) for one in prefixes if Path(path).is_relative_to(one)), default=0)

    yes, no = longest(profile.mounts), longest(profile.not_mounted)
    if yes or no:
        return yes > no
    # A list that nobody has confirmed to be complete says nothing of what it lacks.
    return None if not profile.mounts or "mounts" in profile.unsure else False
