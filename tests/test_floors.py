"""The floors of DESIGN.md against the imports of every module under src/rankup."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("floors")  # one process reads all modules
SOURCE = Path(__file__).resolve().parent.parent / "src"

# An import goes down, or stays on its floor. "" is rankup/__init__.py: it hands on what runtime,
# parallel, data and site offer, so it stands beside the highest of them.
FLOORS = {
    **dict.fromkeys(("cli", "__main__"), 8),
    **dict.fromkeys(("launch", "demo", "agent", "worker"), 7),
    "port": 6,
    **dict.fromkeys(("login", "slurm", "monitor", "plan", "recipes"), 5),
    "train": 4,
    **dict.fromkeys(("parallel", "data", "script", "sandbox", ""), 3),
    **dict.fromkeys(("runtime", "site"), 2),
    "base": 1,
}

# A login node answers at once: importing these imports no torch.
QUICK = (
    *("", "__main__", "cli", "launch", "demo", "agent"),
    *("site", "slurm", "login", "monitor", "plan", "port", "script", "sandbox", "base"),
)
# Of the data room what opens, packs, looks at and stages, which stands in front of every job.
QUICK_DATA = tuple(
    f"rankup.data.{name}"
    for name in ("stage", "pack", "containers", "opened", "stamp", "inspect", "tokenize")
)
# Of these, some start what needs torch in the end, and may import it inside a function.
TORCH_IN_FUNCTIONS = ("launch", "demo", "agent", "port")


@dataclass(frozen=True)
class Import:
    """One import of `target`, a dotted module name, by `module`."""

    module: str
    target: str
    line: int
    # The name taken out of `target` where that is an attribute and no module.
    name: str
    at_import: bool  # runs when the module is imported: not in a function, not for types only

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of rankup; a package has the name of its folder."""
    found = {}
    for path in sorted(SOURCE.glob("rankup/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Every import statement of every module."""
    return tuple(
        found
        for module, path in modules().items()
        for found in _imports_of(
            module, path.name == "__init__.py", ast.parse(path.read_text(encoding="utf-8"))
        )
    )


def _imports_of(
    module: str, package: bool, node: ast.AST, at_import: bool = True
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        runs = at_import
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, "", runs)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(module, package, child)
            for alias in child.names:
                inner = f"{base}.{alias.name}"
                known = inner in modules()
                name = "" if known else alias.name
                yield Import(module, inner if known else base, child.lineno, name, runs)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for statement in child.body:
                yield from _imports_of(module, package, ast.Module([statement], []), False)
            rest = ast.Module(child.orelse, [])
            yield from _imports_of(module, package, rest, runs)
        else:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                runs = False
            yield from _imports_of(module, package, child, runs)


def _absolute(module: str, package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def room(module: str) -> str:
    """`rankup.data.pack` -> `data`; empty for rankup itself."""
    return module.partition(".")[2].partition(".")[0]


def own() -> list[Import]:
    """The imports of rankup by rankup."""
    return [found for found in imports() if found.target.split(".")[0] == "rankup"]


def test_every_room_has_a_floor() -> None:
    assert modules(), f"no module below {SOURCE}"
    unknown = sorted({room(module) for module in modules()} - set(FLOORS))
    assert not unknown, f"say in FLOORS, and in DESIGN.md, on which floor {unknown} stand"


def test_imports_never_go_up() -> None:
    # The version is a constant and no room: anyone may print it.
    wrong = [
        str(found)
        for found in own()
        if FLOORS[room(found.target)] > FLOORS[room(found.module)]
        and (found.target, found.name) != ("rankup", "__version__")
    ]
    assert not wrong, "\n".join(wrong)


def test_imported_modules_exist() -> None:
    missing = [str(found) for found in own() if found.target not in modules()]
    assert not missing, "\n".join(missing)


def test_runtime_needs_torch_and_the_standard_library_only() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    wrong = [
        str(found)
        for found in imports()
        if room(found.module) == "runtime"
        and not found.target.startswith("rankup.runtime")
        and (found.target.split(".")[0] == "rankup" or found.at_import)
        and found.target.split(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_circles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for found in own():
        if found.at_import:
            graph[found.module].add(found.target)
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        if module in way:
            circle = " -> ".join((*way[way.index(module) :], module))
            pytest.fail(f"a circle of imports: {circle}")
        if module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_quick_rooms_import_no_torch() -> None:
    wrong = [
        str(found)
        for found in imports()
        if _quick(found.module)
        and _is_torch(found.target)
        and (found.at_import or room(found.module) not in TORCH_IN_FUNCTIONS)
    ]
    assert not wrong, "\n".join(wrong)


def test_quick_rooms_import_nothing_that_imports_torch() -> None:
    heavy = {found.module for found in imports() if found.at_import and _is_torch(found.target)}
    # A module's packages are imported before it.
    needs = {module: {module.rpartition(".")[0]} & set(modules()) for module in modules()}
    for found in own():
        if found.at_import:
            needs[found.module].add(found.target)
    while more := {module for module in needs if needs[module] & heavy} - heavy:
        heavy |= more
    slow = sorted(module for module in heavy if _quick(module))
    assert not slow, f"these import torch through what they import: {slow}"


def test_importing_the_command_imports_no_torch() -> None:
    program = "import rankup, rankup.cli\nimport sys\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def _quick(module: str) -> bool:
    return room(module) in QUICK or any(f"{module}.".startswith(f"{one}.") for one in QUICK_DATA)


def _is_torch(target: str) -> bool:
    return target.split(".")[0] in ("torch", "torchvision")
