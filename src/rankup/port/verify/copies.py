"""A copy of the user's project for each run, in which what is large is a link."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SMALL = 1 << 20  # bytes of a file that is copied
_ENTRIES = 4000  # of a copy; folders beyond are links as a whole
_LEFT_OUT = {".git", ".rankup", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"}


@dataclass(frozen=True)
class Project:
    """What a script takes for granted around itself.

    Attributes:
        root: is copied; absolute, without links.
        script, port: of both scripts, below the root.
        port_source: where the port lies, when that is elsewhere.
    """

    root: Path
    script: Path
    port: Path
    port_source: Path | None


def project_of(original: Path, port: Path, here: Path) -> Project:
    """The folder that the user works in, where the script lies there, else the script's own."""
    original, port, here = original.resolve(), port.resolve(), here.resolve()
    root = here if original.is_relative_to(here) else original.parent
    script = original.relative_to(root)
    if port.is_relative_to(root):
        return Project(root, script, port.relative_to(root), None)
    name = port.name if port.name != original.name else f"{port.stem}_port.py"
    return Project(root, script, script.with_name(name), port)


def make(project: Project, target: Path) -> None:
    """Fill `target`, which is made.

    Raises:
        OSError: something of the project cannot be read, or there is no room.
    """
    target.mkdir(parents=True)
    room = [_ENTRIES]
    chain = {project.root / parent for parent in (*project.script.parents, *project.port.parents)}
    _fill(project.root, target, chain, room)
    for path in (project.script, project.port):
        _own_file(project.root / path, target / path)
    if project.port_source is not None:
        _beside(project.port_source, target / project.port)


def _fill(source: Path, target: Path, chain: set[Path], room: list[int]) -> None:
    try:
        entries = sorted(os.scandir(source), key=lambda one: (not one.is_file(), one.name))
    except OSError:
        return
    whole = room[0] >= len(entries)
    room[0] -= len(entries) if whole else 0
    for entry in entries:
        path, new = Path(entry.path), target / entry.name
        if entry.name in _LEFT_OUT or (path / "pyvenv.cfg").exists():
            continue
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False) and (path in chain or (whole and room[0] > 0)):
                new.mkdir()
                _fill(path, new, chain, room)
            elif stat.S_ISDIR(entry.stat().st_mode):
                new.symlink_to(path.resolve())
            elif stat.S_ISREG(entry.stat().st_mode):
                small = entry.stat().st_size <= _SMALL
                if entry.name.endswith(".py") or (small and whole):
                    shutil.copyfile(path, new)
                else:
                    new.symlink_to(path.resolve())


def _own_file(source: Path, target: Path) -> None:
    if source.is_file():
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)


def _beside(port: Path, target: Path) -> None:
    """A port from elsewhere, with what it may import from there: modules, a vendored runtime."""
    shutil.copyfile(port, target)
    for path in port.parent.glob("*.py"):
        if not (target.parent / path.name).exists():
            shutil.copyfile(path, target.parent / path.name)
    for path in port.parent.glob("*rankup*"):
        if path.is_dir() and not (target.parent / path.name).exists():
            shutil.copytree(path, target.parent / path.name)
