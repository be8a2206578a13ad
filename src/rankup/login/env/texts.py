"""The five files of an environment, from its plan: what is known of the site and this machine.

`setup.sh` and `activate.sh` are constant bash, from `parts/`; the other three are the user's, and
here is what they start with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Literal

import rankup

from ...base.errors import UserError
from ...site import config as configuration
from ...site import profile as sites
from ...site.caches import ROOT_VARIABLE, caches
from ...site.config import Config
from ...site.profile import Profile

Kind = Literal["modules", "wheels"]
KINDS: tuple[Kind, ...] = ("modules", "wheels")
_HEADER = "# From rankup, which replaces this file as long as nobody has changed it. sha256 "
# What the recipes need; fully sharded training alone would go with 2.7.
REQUIREMENT = "torch>=2.8"
# PyTorch (JSC), pytorch (NERSC), PyTorch-bundle, ml-pytorch, cray-python/pytorch; and packages on
# top of it, whose modules load it: torchvision, PyTorch-Lightning, torch-geometric.
_BRINGS = re.compile(r"(?<![a-z])(?:(?:py)?torch|torch(?:vision|audio))(?![a-z])", re.IGNORECASE)
_START = re.compile(rf"#!/bin/bash\n{_HEADER}([0-9a-f]{{64}})\n")
# A site's `module` answers in a moment, or its file system hangs.
_MODULE_TIMEOUT = 20.0
_NO_NAMES = ("env", "venv", ".env", ".venv")


@dataclass(frozen=True)
class Plan:
    """The kind, the names and the contents of an environment.

    Attributes:
        name: shown in the prompt.
        python: the Python of the kind `wheels`: a path, or a name on PATH.
        title: of the site.
        rankup: the line of requirements.txt that asks for rankup.
        modules: what is loaded in the kind `modules`, in order.
        caches: variables that move caches, with their folders.
    """

    kind: Kind
    name: str
    python: str
    title: str
    rankup: str
    modules: tuple[str, ...] = ()
    caches: Mapping[str, str] = field(default_factory=dict)


def own() -> dict[str, str]:
    """Return `setup.sh` and `activate.sh`."""
    return {name: _signed(name) for name in ("setup.sh", "activate.sh")}


def unchanged(text: str) -> bool:
    """Return True where a file is as rankup wrote it, whichever rankup that was."""
    match = _START.match(text)
    return match is not None and match[1] == _digest(text[match.end() :])


def users(plan: Plan) -> dict[str, str]:
    """Return `config.sh`, `modules.sh` and `requirements.txt` as they start.

    Raises:
        UserError: a cache's folder cannot be written in one line of bash.
    """
    return {
        "config.sh": _config(plan),
        "modules.sh": _modules(plan),
        "requirements.txt": _requirements(plan),
    }


def brings_torch(module: str) -> bool:
    """Return True where a module of that name, with or without a version, has or loads torch."""
    return _BRINGS.search(module) is not None


def _signed(name: str) -> str:
    """The file of `parts/` with those that it includes, under a header with its hash."""
    package = resources.files(__package__)
    text = (package / "parts" / name).read_text(encoding="utf-8")
    for part, folder in (("load.sh", package / "parts"), ("requirements.py", package)):
        text = text.replace(f"@{part}@\n", (folder / part).read_text(encoding="utf-8"))
    return f"#!/bin/bash\n{_HEADER}{_digest(text)}\n{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _config(plan: Plan) -> str:
    lines = [
        "# shellcheck shell=bash disable=SC2034",
        "# Settings of this environment. setup.sh and activate.sh source this file; it is yours.",
        "",
        f"ENV_KIND={plan.kind} # modules: the site's modules and a venv; wheels: wheels only",
        f"ENV_NAME={shlex.quote(plan.name)} # in the prompt",
        f"ENV_PYTHON={shlex.quote(plan.python)} # for wheels; modules bring their own",
    ]
    if plan.caches:
        lines += [
            "",
            f"# $HOME is small: where caches lie on {plan.title}, if nothing else is set.",
        ]
    for name, folder in plan.caches.items():
        if not folder.isprintable():
            raise UserError(f"the cache {folder!r} ({name}) has a control character in its name")
        lines.append(f'[ -n "${{{name}:-}}" ] || {name}={shlex.quote(folder)}')
    if plan.caches:
        lines.append(f"export {' '.join(plan.caches)}")
    return "\n".join(lines) + "\n"


def _modules(plan: Plan) -> str:
    lines = [
        "# shellcheck shell=bash",
        "# Modules of this environment, for the kind modules; it is yours. Name versions, too:",
        "# others come when the site changes its defaults. `module spider NAME` lists them.",
        "",
    ]
    if plan.kind == "modules":
        lines.append("module purge")
        lines += [f"module load {shlex.quote(one)} || return" for one in plan.modules]
    else:
        lines += ["# module purge", "# module load Python || return"]
    return "\n".join(lines) + "\n"


def _requirements(plan: Plan) -> str:
    lines = [
        "# Packages of this environment, one per line; it is yours.",
        "# After a change: rankup env create",
        "",
        plan.rankup,
    ]
    if plan.kind == "wheels":
        lines.append(REQUIREMENT)
    elif any(brings_torch(one) for one in plan.modules):
        lines += [
            "# torch comes from modules.sh. Do not name it here as well: two builds of it in one",
            "# environment do not fit together. For a newer one take PyTorch and torchvision out",
            f"# of modules.sh, and write here: {REQUIREMENT}",
        ]
    else:
        lines += ["# modules.sh loads no PyTorch, so that it comes from here.", REQUIREMENT]
    return "\n".join(lines) + "\n"


def planned(path: Path, kind: Kind | None) -> Plan:
    """Return the plan of an environment here; without a kind, of the one that suits the site.

    Raises:
        UserError: `rankup.toml` is wrong, or the site has no modules for the kind `modules`.
    """
    config = configuration.load(Path.cwd())
    profile, _ = sites.choose(config)
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
        rankup=own_requirement(),
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
    unset = {one.variable: "" for one in caches(config, profile, environment).entries}
    bare = caches(config, profile, {**environment, **unset}, home)
    sites = {one.variable: str(one.path) for one in bare.entries if one.said_by == "site"}
    kept = {
        name: folder for name, folder in sites.items() if environment.get(name, "") in ("", folder)
    }
    if kept and bare.root is not None:
        kept[ROOT_VARIABLE] = str(bare.root)
    return kept


def own_requirement() -> str:
    """Return the line of requirements.txt that asks for the rankup that runs, from where it comes.

    A folder is installed as editable, so that what changes in it needs no installation.
    """
    package = Path(rankup.__file__).resolve().parent
    tree = package.parent.parent
    if package.parent.name == "src" and (tree / "pyproject.toml").is_file():
        return f"-e {tree.as_uri()}[train]"
    direct = metadata.distribution("rankup").read_text("direct_url.json")
    if not direct:
        return f"rankup[train]=={rankup.__version__}"
    origin = json.loads(direct)
    if "dir_info" in origin:
        return f"-e {origin['url']}[train]"
    version = origin.get("vcs_info")
    url = f"{version['vcs']}+{origin['url']}@{version['commit_id']}" if version else origin["url"]
    return f"rankup[train] @ {url}"


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
