"""The folder of an environment, and its stamps against its files as they are now; read, never run.

An environment is `./env`, or the nearest one above.

`setup.sh` writes both stamps: `venv/.made` once the venv is whole, `venv/.installed` once all
packages are there. Each is lines of NAME=VALUE.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...base.files import user_path
from .requirements import content, digest

MADE = Path("venv") / ".made"
INSTALLED = Path("venv") / ".installed"
NONE = "-"  # of a file that is not there
DEFAULT = "env"
# As in parts/setup.sh.
_IMPOSSIBLE = frozenset(':$`"\\')


@dataclass(frozen=True)
class State:
    """The folder of an environment, and both stamps, each empty where it is not there."""

    folder: Path
    made: Mapping[str, str]
    installed: Mapping[str, str]

    @property
    def kind(self) -> str:
        """`modules` or `wheels`; empty where not known."""
        return self.made.get("kind", "")

    @property
    def elsewhere(self) -> str:
        """Why the venv does not work where it lies, or on this machine; empty where it does."""
        made, venv = self.made, self.folder / "venv"
        python = venv / "bin" / "python"
        try:
            here = os.path.samefile(made.get("path", ""), venv)
        except (OSError, ValueError):  # a null byte in it
            here = False
        if not here:
            return f"it was made as {made.get('path')}, and moved or copied here"
        machine = platform.machine()
        if made.get("machine") != machine:
            return f"it was made for {made.get('machine')}, and this machine is {machine}"
        if not os.access(python, os.X_OK):
            return f"its Python, {os.path.realpath(python)}, is not there"
        return ""

    @property
    def changed(self) -> list[str]:
        """The names of the files that are others than those the environment was made from."""
        folder, done = self.folder, self.installed
        now = {
            "requirements.txt": (done.get("requirements"), digest(folder / "requirements.txt")),
            "requirements.lock": (done.get("lock"), _sum(folder / "requirements.lock")),
        }
        if self.kind == "modules":
            now["modules.sh"] = (self.made.get("modules"), _sum(folder / "modules.sh"))
        return [name for name, (then, found) in now.items() if then != found]


def read(folder: Path) -> State:
    """Return the state of an environment."""
    return State(folder, _stamp(folder / MADE), _stamp(folder / INSTALLED))


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
    if why := state.elsewhere:
        return f"{folder}: {why}"
    if names := state.changed:
        return f"{folder} is older than its {' and '.join(names)}"
    return ""


def _stamp(path: Path) -> dict[str, str]:
    lines = content(path).decode(errors="replace").splitlines()
    return {name: value for name, found, value in (line.partition("=") for line in lines) if found}


def _sum(path: Path) -> str:
    return hashlib.sha256(content(path)).hexdigest() if os.path.isfile(path) else NONE


def named(folder: str | None) -> Path:
    """Return the absolute path of the folder that a user has named.

    Without a name it is `./env`; in an environment without one that environment.

    Raises:
        UserError: it cannot be the folder of an environment.
    """
    if folder is None:
        here = Path.cwd()
        folder = str(here) if _is_environment(here) and not (here / DEFAULT).exists() else DEFAULT
    path = Path(os.path.abspath(user_path(folder, "FOLDER")))
    if _IMPOSSIBLE.intersection(str(path)) or not str(path).isprintable():
        raise UserError(
            f"{str(path)!r}: the path has a ':', which cannot stand in PATH, or one of $ ` \" \\ "
            "or a control character, which venv's own activate would run; name another folder"
        )
    return path


def existing(folder: str | None) -> Path:
    """Return the folder that a user has named; without a name the nearest environment.

    Raises:
        UserError: there is no environment; what makes one is named.
    """
    found = _nearest(Path.cwd()) if folder is None else named(folder)
    if found is None:
        raise UserError(
            f"no environment: neither {Path.cwd()} nor a folder above it has "
            f"{DEFAULT}/activate.sh; make one with: rankup env create"
        )
    if not (found / "activate.sh").is_file():
        raise UserError(
            f"{found} is no environment: it has no activate.sh; make it one with: "
            f"rankup env create {shlex.quote(str(folder))}"
        )
    return found


def line_to_source(folder: str | None) -> str:
    """Return the line that activates an environment in bash: `source /abs/path/env/activate.sh`.

    Raises:
        UserError: there is none.
    """
    return f"source {shlex.quote(str(existing(folder) / 'activate.sh'))}"


def _nearest(start: Path) -> Path | None:
    for above in (start, *start.parents):
        for folder in (above / DEFAULT, above):
            if _is_environment(folder) and _trusted(folder):
                return folder
    return None


def _is_environment(folder: Path) -> bool:
    return (folder / "activate.sh").is_file() and (folder / "config.sh").is_file()


def _trusted(folder: Path) -> bool:
    """True where only its owner could have put it there: not where anybody may write, as `/tmp`."""
    owners = (os.getuid(), 0)
    if (folder / "activate.sh").stat().st_uid in owners:
        return True
    return not any(one.stat().st_mode & stat.S_IWOTH for one in (folder, folder.parent))
