"""The files of a script: itself, and the modules beside it that it imports."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .found import Import
from .look import look
from .scopes import File, Wanted
from .source import NotRead, parse

MOST_FILES = 200
MOST_BYTES = 4_000_000  # of all files together
SCRIPT = "__main__"


@dataclass(frozen=True)
class Project:
    """A script with its local modules.

    Attributes:
        files: by the name they are imported by; the script is `__main__`.
        imports: of modules that are not local.
        notes: what was not read, and why.
    """

    files: Mapping[str, File]
    imports: tuple[Import, ...]
    notes: tuple[str, ...]


def gather(script: Path) -> Project:
    """Read a script and, breadth first, what it imports from its own folder.

    Raises:
        NotRead: the script itself cannot be read.
    """
    root = script.parent
    files = {SCRIPT: _file(script, SCRIPT, "")}
    notes: list[str] = []
    waiting = deque([SCRIPT])
    left = MOST_BYTES - script.stat().st_size
    while waiting:
        for wanted in files[waiting.popleft()].wanted:
            for name, path in _local(root, wanted):
                if name in files or path == script:
                    continue
                left -= path.stat().st_size
                if len(files) >= MOST_FILES or left < 0:
                    notes.append(f"{len(files)} local modules are read; the others are not")
                    return Project(files, _imports(root, files), tuple(notes))
                package = name if path.name == "__init__.py" else name.rpartition(".")[0]
                try:
                    files[name] = _file(path, name, package)
                except NotRead as error:
                    files[name] = _nothing(path, name)
                    notes.append(str(error))
                waiting.append(name)
    return Project(files, _imports(root, files), tuple(notes))


def _file(path: Path, name: str, package: str) -> File:
    tree = parse(path)
    try:
        return look(tree, path, name, package)
    except RecursionError:
        raise NotRead(f"{path}: nested too deeply to be read") from None


def _nothing(path: Path, name: str) -> File:
    return look(ast.Module([], []), path, name, "")


def _local(root: Path, wanted: Wanted) -> Iterator[tuple[str, Path]]:
    """The local modules that an import loads: packages on the way, and names that are modules."""
    module = wanted.found.module
    parts = module.split(".") if module else []
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    if not parts or (root / parts[0]).is_dir():
        names += [f"{module}.{name}".lstrip(".") for name in wanted.names]
    for name in names:
        path = _module(root, name)
        if path is not None:
            yield name, path


def _module(root: Path, name: str) -> Path | None:
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    place = root.joinpath(*name.split("."))
    for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if path.is_file():
            return path
    return None


def _imports(root: Path, files: Mapping[str, File]) -> tuple[Import, ...]:
    """What is imported from elsewhere; an import is as optional, and as late, as its file is."""
    reached = {SCRIPT: (False, False)}
    waiting = deque([SCRIPT])
    while waiting:
        name = waiting.popleft()
        for wanted in files[name].wanted:
            optional = wanted.found.optional or reached[name][0]
            late = wanted.found.late or reached[name][1]
            for target, _ in _local(root, wanted):
                before = reached.get(target, (True, True))
                now = (before[0] and optional, before[1] and late)
                if target in files and (target not in reached or now != before):
                    reached[target] = now
                    waiting.append(target)
    found = []
    for name, file in files.items():
        above = reached.get(name, (True, True))
        for wanted in file.wanted:
            one = wanted.found
            first = one.module.partition(".")[0]
            if first and first not in files and not any(_local(root, wanted)):
                found.append(
                    replace(one, optional=one.optional or above[0], late=one.late or above[1])
                )
    return tuple(found)
