"""What an environment was made of, and whether its files have changed since; read, never run.

`setup.sh` writes both stamps: `venv/.made` once the venv is whole, `venv/.installed` once all
packages are there. Each is lines of NAME=VALUE.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MADE = Path("venv") / ".made"
INSTALLED = Path("venv") / ".installed"
NONE = "-"  # of a file that is not there
_DEEPEST = 9
_NAMES_A_FILE = re.compile(rb"[ \t]*(?:-[rc]|--(?:requirement|constraint)[ \t=])[ \t]*([^\s#]+)")


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
    """The stamps of an environment."""
    return State(_stamp(folder / MADE), _stamp(folder / INSTALLED))


def elsewhere(folder: Path, made: Mapping[str, str]) -> str:
    """Why the venv does not work where it lies, or on this machine; empty where it does."""
    venv = folder / "venv"
    try:
        here = os.path.samefile(made.get("path", ""), venv)
    except OSError:
        here = False
    if not here:
        return f"it was made as {made.get('path')}, and moved or copied here"
    if made.get("machine") != platform.machine():
        return f"it was made for {made.get('machine')}, and this machine is {platform.machine()}"
    if not os.access(venv / "bin" / "python", os.X_OK):
        return f"its Python, {os.path.realpath(venv / 'bin' / 'python')}, is not there"
    return ""


def changed(folder: Path, state: State) -> list[str]:
    """The names of the files that are others than those the environment was made from."""
    now = {
        "requirements.txt": (state.installed.get("requirements"), digest(folder)),
        "requirements.lock": (state.installed.get("lock"), _sum(folder / "requirements.lock")),
    }
    if state.kind == "modules":
        now["modules.sh"] = (state.made.get("modules"), _sum(folder / "modules.sh"))
    return [name for name, (then, found) in now.items() if then != found]


def staleness(environment: Path) -> str:
    """One line: why an environment is older than its files; empty if it is not, or is not ours.

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


def digest(folder: Path) -> str:
    """sha256 of `requirements.txt` with all files that it names, in this order."""
    whole = hashlib.sha256()
    for path in requirement_files(folder / "requirements.txt"):
        whole.update(_bytes(path))
    return whole.hexdigest()


def requirement_files(path: Path, depth: int = 0) -> Iterator[Path]:
    """The file, and those that it names with `-r` and `-c`, as `_env_included` of parts/load.sh."""
    yield path
    if depth >= _DEEPEST:
        return
    for line in _bytes(path).split(b"\n"):
        if (match := _NAMES_A_FILE.match(line)) and b"://" not in match[1]:
            # bash drops null bytes.
            name = os.fsdecode(match[1].replace(b"\0", b""))
            yield from requirement_files(path.parent / name, depth + 1)


def lock_header(folder: Path) -> Mapping[str, str] | None:
    """`for` and `requirements` of `requirements.lock`; None without a lock."""
    path = folder / "requirements.lock"
    if not path.is_file():
        return None
    lines = (line.decode(errors="replace") for line in _bytes(path).split(b"\n")[:10])
    pairs = (line[2:].partition(": ") for line in lines if line.startswith("# "))
    return {name: value for name, _, value in pairs if name in ("for", "requirements")}


def _stamp(path: Path) -> dict[str, str]:
    lines = _bytes(path).decode(errors="replace").splitlines()
    return {name: value for name, found, value in (line.partition("=") for line in lines) if found}


def _sum(path: Path) -> str:
    return hashlib.sha256(_bytes(path)).hexdigest() if _readable(path) else NONE


def _bytes(path: Path) -> bytes:
    """Its content; nothing of what is no file, or cannot be read."""
    try:
        return path.read_bytes() if _readable(path) else b""
    except OSError:
        return b""


def _readable(path: Path) -> bool:
    """Whether it is a file, as `-f` and `-r` of bash; a pipe would be waited for."""
    return os.path.isfile(path) and os.access(path, os.R_OK)
