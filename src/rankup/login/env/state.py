"""The stamps of an environment, against its files as they are now; read, never run.

`setup.sh` writes both stamps: `venv/.made` once the venv is whole, `venv/.installed` once all
packages are there. Each is lines of NAME=VALUE.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .requirements import content, digest

MADE = Path("venv") / ".made"
INSTALLED = Path("venv") / ".installed"
NONE = "-"  # of a file that is not there


@dataclass(frozen=True)
class State:
    """Both stamps, each empty where it is not there."""

    made: Mapping[str, str]
    installed: Mapping[str, str]

    @property
    def kind(self) -> str:
        """`modules` or `wheels`; empty where not known."""
        return self.made.get("kind", "")


def read(folder: Path) -> State:
    """Return the stamps of an environment."""
    return State(_stamp(folder / MADE), _stamp(folder / INSTALLED))


def elsewhere(folder: Path, made: Mapping[str, str]) -> str:
    """Return why the venv does not work where it lies, or on this machine; empty where it does."""
    venv = folder / "venv"
    try:
        here = os.path.samefile(made.get("path", ""), venv)
    except (OSError, ValueError):  # a null byte in it
        here = False
    if not here:
        return f"it was made as {made.get('path')}, and moved or copied here"
    if made.get("machine") != platform.machine():
        return f"it was made for {made.get('machine')}, and this machine is {platform.machine()}"
    if not os.access(venv / "bin" / "python", os.X_OK):
        return f"its Python, {os.path.realpath(venv / 'bin' / 'python')}, is not there"
    return ""


def changed(folder: Path, state: State) -> list[str]:
    """Return the names of the files that are others than those the environment was made from."""
    now = {
        "requirements.txt": (
            state.installed.get("requirements"),
            digest(folder / "requirements.txt"),
        ),
        "requirements.lock": (state.installed.get("lock"), _sum(folder / "requirements.lock")),
    }
    if state.kind == "modules":
        now["modules.sh"] = (state.made.get("modules"), _sum(folder / "modules.sh"))
    return [name for name, (then, found) in now.items() if then != found]


def staleness(environment: Path) -> str:
    """Return one line: why an environment is older than its files; empty where it is not.

    `rankup env create` with its folder mends it.

    Args:
        environment: its folder, or its `activate.sh`.
    """
    folder = environment.parent if environment.is_file() else environment
    state = read(folder)
    if not state.made:
        return ""
    if not state.installed:
        return f"{folder} is not finished"
    if why := elsewhere(folder, state.made):
        return f"{folder}: {why}"
    if names := changed(folder, state):
        return f"{folder} is older than its {' and '.join(names)}"
    return ""


def _stamp(path: Path) -> dict[str, str]:
    lines = content(path).decode(errors="replace").splitlines()
    return {name: value for name, found, value in (line.partition("=") for line in lines) if found}


def _sum(path: Path) -> str:
    return hashlib.sha256(content(path)).hexdigest() if os.path.isfile(path) else NONE
