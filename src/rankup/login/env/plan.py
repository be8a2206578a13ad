"""The plan of a new environment, from the site, this machine and the user's settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ...base.errors import UserError
from ...site import config as configuration
from ...site import detect
from ...site.caches import ROOT_VARIABLE, caches
from ...site.config import Config
from ...site.profile import Profile
from .texts import Kind, Plan

# A site's `module` answers in a moment, or its file system hangs.
_MODULE_TIMEOUT = 20.0
_NO_NAMES = ("env", "venv", ".env", ".venv")


def make(path: Path, kind: Kind | None) -> Plan:
    """Return the plan of an environment here; without a kind, of the one that suits the site.

    Raises:
        UserError: `rankup.toml` is wrong, or the site has no modules for the kind `modules`.
    """
    config = configuration.load(Path.cwd())
    profile, _ = detect.choose(config, os.environ, os.uname().nodename)
    if kind == "modules" and not profile.modules:
        raise UserError(
            f"no modules are known for {profile.title}; say which in rankup.toml: [site] "
            'modules = ["Python", "PyTorch"], or take --kind wheels'
        )
    usual: Kind = "modules" if profile.modules and _has_modules() else "wheels"
    return Plan(
        kind=kind or usual,
        # "env" says nothing in a prompt: the project's name does.
        name=(path.parent.name if path.name in _NO_NAMES else path.name) or path.name,
        python=_python(),
        title=profile.title,
        modules=profile.modules,
        caches=moved_caches(config, profile, os.environ),
    )


def moved_caches(
    config: Config, profile: Profile, environment: Mapping[str, str], home: Path | None = None
) -> dict[str, str]:
    """Return variable -> folder of the caches that the site has elsewhere than in `$HOME`.

    What the user has set is not among them. In an environment that is active they are all set, and
    then to what the site says: these are not the user's.
    """
    bare = caches(config, profile, {**environment, **_none_set(config, profile, environment)}, home)
    sites = {one.variable: str(one.path) for one in bare.entries if one.said_by == "site"}
    kept = {
        name: folder for name, folder in sites.items() if environment.get(name, "") in ("", folder)
    }
    if kept and bare.root is not None:
        kept[ROOT_VARIABLE] = str(bare.root)
    return kept


def _none_set(config: Config, profile: Profile, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of caches, all empty."""
    return {one.variable: "" for one in caches(config, profile, environment).entries}


def _python() -> str:
    """The Python that runs this, by name where PATH has just this one, else by its path."""
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return name if os.path.realpath(shutil.which(name) or "") == base else base


def _has_modules() -> bool:
    if os.environ.get("LMOD_CMD") or os.environ.get("MODULESHOME"):
        return True
    try:
        # A function of bash, so that only bash knows of it.
        done = subprocess.run(
            ["bash", "-c", "type module"],  # noqa: S607
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MODULE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
