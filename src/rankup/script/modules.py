"""A script with the local modules that it imports: what a name means in any of them.

A name may be another module's, or be imported from elsewhere: what that is called, what is imported
at all, and which function or class of these files a call runs.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from ..base.errors import UserError
from .names import Binding, Function, Scope, words_in
from .source import File, from_bytes, imports_in, module_names, reached, read, search_path
from .torch_names import RETURNS_SELF

_MOST_FILES = 200
_MOST_BYTES = 4_000_000  # of all local modules together
_MAIN = "__main__"
# Methods of so many library classes that a class of the script with one says nothing.
_COMMON_METHODS = RETURNS_SELF | {"step", "forward", "update"}

_CATCHES = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_PYTHONS = {"TYPE_CHECKING", "version_info", "platform", "implementation"}


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Import:
    """The import of a module that is not local, by the script or by one of its local modules.

    Attributes:
        module: dotted (`torch.nn`).
        optional: the script goes on without it (`try`/`except ImportError`), or never imports it
            (`if TYPE_CHECKING`).
        late: in a function, which may not be called.
        file: where it stands.
    """

    module: str
    line: int
    optional: bool
    late: bool = False
    file: Path = Path()


class Modules:
    """A script and its local modules.

    Attributes:
        files: the script first; one that is no Python is there as an empty file.
        notes: what was not read, and why, one line each.
    """

    def __init__(self, files: Sequence[File], notes: Sequence[str] = ()) -> None:
        self.files = tuple(files)
        self.notes = tuple(notes)
        tops = search_path(self.files[0])
        names = {one: module_names(one.path, tops) for one in reversed(self.files)}
        self._by_name = {name: one for one, several in names.items() for name in several if name}
        self._first_names = {name.split(".")[0] for name in self._by_name}
        self._names = {one: several[-1] for one, several in names.items()}
        self._names[self.files[0]] = _MAIN
        self._at = {
            os.path.abspath(one.path): next(filter(None, reversed(several)), "")
            for one, several in names.items()
        }

    def name(self, file: File) -> str:
        """The name a file is imported by; `__main__` of the script."""
        return self._names[file]

    def absolute(self, file: File, dotted: str) -> str:
        """A dotted name without leading dots, as seen from the package that a file belongs to."""
        rest = dotted.lstrip(".")
        level = len(dotted) - len(rest)
        if not level:
            return dotted
        folder, words = file.path.parent.joinpath(*[".."] * (level - 1)), rest.split(".")
        for end in range(len(words), 0, -1) if rest else ():
            base = folder.joinpath(*words[:end])
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                name = self._at.get(os.path.abspath(path))
                if name:
                    return ".".join([name, *words[end:]])
        parts = [part for part in self.name(file).split(".") if part and part != _MAIN]
        above = level if file.path.name != "__init__.py" else level - 1
        return ".".join([*parts[: max(0, len(parts) - above)], *([rest] if rest else [])])

    def find(self, dotted: str) -> tuple[File, list[str]] | None:
        """The local module that a dotted name begins with, and the words behind it."""
        parts = dotted.split(".")
        for end in range(len(parts), 0, -1) if parts[0] in self._first_names else ():
            file = self._by_name.get(".".join(parts[:end]))
            if file is not None:
                return file, parts[end:]
        return None

    def place(self, file: File, dotted: str) -> tuple[File, str] | None:
        """The other module, and the name in it, that an import in a file means."""
        found = self.find(self.absolute(file, dotted))
        if found is None or found[0] is file or len(found[1]) != 1:
            return None
        return found[0], found[1][0]

    # Definitions: the function or class that a name means, and who calls it.

    def definition(self, file: File, func: ast.AST) -> tuple[File, Definition] | None:
        """The function or class of these files that an expression names."""
        if isinstance(func, ast.Name):
            return self._named(file, func.id, file.names.scope(func))
        if not isinstance(func, ast.Attribute):
            return None
        if isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
            owner = file.names.enclosing(func, ast.ClassDef)
            found = self.member(file, owner, func.attr) if owner else None
            # `_train_epoch` of a base class is that of the one class that has it.
            whole = [one for one in self.methods.get(func.attr, ()) if not _abstract(one[1])]
            return whole[0] if found and _abstract(found[1]) and len(whole) == 1 else found
        if isinstance(func.value, ast.Call) and getattr(func.value.func, "id", "") == "super":
            owner = file.names.enclosing(func, ast.ClassDef)
            return self.member(file, owner, func.attr, inherited=True) if owner else None
        dotted = file.names.dotted(func)
        if dotted:
            return self._imported(file, dotted)
        methods = self.methods.get(func.attr, [])
        return methods[0] if len(methods) == 1 and func.attr not in _COMMON_METHODS else None

    def callee(self, file: File, call: ast.Call) -> tuple[File, Function] | None:
        """The function of these files that a call runs; of a class its `__init__`."""
        found = self.definition(file, call.func)
        return None if found is None else self.body(*found)

    def body(self, file: File, node: Definition) -> tuple[File, Function] | None:
        """The function that a call of a definition runs; of a class its `__init__`."""
        if isinstance(node, ast.ClassDef):
            return self.member(file, node, "__init__")
        return file, node

    @cached_property
    def callers(self) -> dict[ast.AST, list[tuple[File, ast.Call]]]:
        """The calls of each function of these files."""
        found: dict[ast.AST, list[tuple[File, ast.Call]]] = {}
        for file in self.files:
            for call in file.names.all(ast.Call):
                callee = self.callee(file, call)
                if callee is not None:
                    found.setdefault(callee[1], []).append((file, call))
        return found

    def bases(self, file: File, owner: ast.ClassDef) -> Iterator[str]:
        """Dotted names of what a class inherits from, through classes of these files."""
        for where, one in self.family(file, owner):
            for base in one.bases:
                dotted = where.names.dotted(base)
                if dotted:
                    yield dotted

    def family(self, file: File, owner: ast.ClassDef) -> Iterator[tuple[File, ast.ClassDef]]:
        """A class and the classes of these files that it inherits from."""
        waiting, seen = [(file, owner)], {owner}
        while waiting:
            where, at = waiting.pop(0)
            yield where, at
            for base in at.bases:
                found = self.definition(where, base)
                if found and isinstance(found[1], ast.ClassDef) and found[1] not in seen:
                    seen.add(found[1])
                    waiting.append((found[0], found[1]))

    @cached_property
    def methods(self) -> dict[str, list[tuple[File, Function]]]:
        """The methods of the classes of these files, by their names."""
        found: dict[str, list[tuple[File, Function]]] = {}
        for file in self.files:
            for owner in file.names.all(ast.ClassDef):
                for node in owner.body:
                    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        found.setdefault(node.name, []).append((file, node))
        return found

    def members(self, file: File, owner: ast.ClassDef, name: str) -> tuple[File, list[Binding]]:
        """The bindings of an attribute of a class, or of the first class above it that has some."""
        for where, at in self.family(file, owner):
            bound = where.names.members(at).get(name, [])
            found = [*bound, *where.names.attributes(at).get(name, ())]
            if found:
                return where, found
        return file, []

    def member(
        self, file: File, owner: ast.ClassDef, name: str, *, inherited: bool = False
    ) -> tuple[File, Function] | None:
        """The method of that name that a class of these files has or inherits."""
        for where, at in self.family(file, owner):
            for one in () if inherited and at is owner else where.names.members(at).get(name, ()):
                if isinstance(one.node, Function):
                    return where, one.node
        return None

    def _named(
        self, file: File, name: str, scope: Scope, seen: frozenset[tuple[File, str]] = frozenset()
    ) -> tuple[File, Definition] | None:
        _, bindings = file.names.bindings(name, scope)
        one = file.names.first_of(bindings, "function", "class", "import")
        if one is not None and one.kind == "import":
            return self._imported(file, one.dotted, seen)
        if one is not None:
            assert isinstance(one.node, Definition)
            return file, one.node
        if not bindings:
            for star in file.names.stars:
                found = self._imported(file, f"{star}.{name}", seen)
                if found:
                    return found
        return None

    def _imported(
        self, file: File, dotted: str, seen: frozenset[tuple[File, str]] = frozenset()
    ) -> tuple[File, Definition] | None:
        place = self.place(file, dotted)
        # Modules may import each other's names in a circle.
        if place is None or place in seen:
            return None
        return self._named(*place, place[0].tree, seen | {place})

    # Imports: the files that one of them reads, and what is not local.

    def module(self, file: File, dotted: str) -> File | None:
        """The file that is the module of a dotted name in an import, and no package around it."""
        return self._by_name.get(self.absolute(file, dotted))

    def modules_named(self, file: File) -> Iterator[File]:
        """The files that the imports of one name, without those of packages around them."""
        for node in imports_in(file):
            yield from self.modules_named_by(file, node)

    def modules_named_by(self, file: File, node: ast.Import | ast.ImportFrom) -> Iterator[File]:
        """The files that one import names, without those of packages around them."""
        found = (self.module(file, name) for name in chain.from_iterable(_modules_of(node)))
        yield from (one for one in found if one is not None)

    def imported(self, file: File, node: ast.Import | ast.ImportFrom) -> Iterator[File]:
        """The files that an import runs: `a`, `a.b` and `a.b.c` of `import a.b.c`."""
        for name in chain.from_iterable(_modules_of(node)):
            yield from self._on_the_way(self.absolute(file, name))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """The imports of modules that are not local.

        One in a local module is as optional, and as late, as every way to it.
        """
        wanted = {file: list(self._imports_of(file)) for file in self.files}

        def leads(passes: Callable[[Import], bool]) -> set[File]:
            """The files to which imports lead of which none is of a kind."""
            found, waiting = {self.files[0]}, [self.files[0]]
            while waiting:
                for one, _, targets in wanted[waiting.pop()]:
                    more = [] if passes(one) else [file for file in targets if file not in found]
                    found |= {*more}
                    waiting += more
            return found

        needed = leads(lambda one: one.optional)
        early = leads(lambda one: one.late)
        return tuple(
            replace(
                one, optional=one.optional or file not in needed, late=one.late or file not in early
            )
            for file in self.files
            for one, level, targets in wanted[file]
            if not level and not targets and self.find(one.module) is None
        )

    def _imports_of(self, file: File) -> Iterator[tuple[Import, int, list[File]]]:
        """Each import of a file, the number of its dots, and the local modules it loads."""
        for node in imports_in(file):
            for names in _modules_of(node):
                level = node.level if isinstance(node, ast.ImportFrom) else 0
                targets = [
                    local for name in names for local in self._on_the_way(self.absolute(file, name))
                ]
                optional, late = _standing(file, node)
                yield Import(names[0], node.lineno, optional, late, file.path), level, targets

    def _on_the_way(self, name: str) -> Iterator[File]:
        """The local modules that `import a.b.c` loads: `a`, `a.b` and `a.b.c`."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            file = self._by_name.get(".".join(parts[:end]))
            if file is not None:
                yield file


def _abstract(function: Function) -> bool:
    """True of a method that raises, whatever it is given: a class below has it."""
    return isinstance(function.body[-1], ast.Raise)


def gather(script: Path) -> Modules:
    """Read a script and, breadth first, the modules of its repository that it imports.

    Raises:
        UserError: the script itself cannot be read, or is not Python.
    """
    try:
        first = read(script)
    except OSError as error:
        raise UserError(f"{script}: {error.strerror}") from None
    if first.error is not None:
        raise UserError(_unread(first))
    files, notes, left = [first], list[str](), _MOST_BYTES
    for file in reached(first):
        left -= len(file.data)
        if len(files) >= _MOST_FILES or left < 0:
            notes.append(f"{len(files)} local modules are read; the others are not")
            break
        if file.error is not None:
            notes.append(_unread(file))
            file = from_bytes(file.path, b"")
        files.append(file)
    return Modules(files, notes)


def imports(script: Path) -> list[Import]:
    """Return what a script, and the local modules that it imports, import from elsewhere.

    Raises:
        UserError: as `gather`.
    """
    return list(gather(script).imports)


def _unread(file: File) -> str:
    """Why a file cannot be understood, in one line that names its place."""
    wrong = file.error
    assert wrong is not None
    hint = f"; {wrong.hint}" if wrong.hint else ""
    return f"{file.path}:{wrong.line}: {wrong.message}{hint}"


def _modules_of(node: ast.Import | ast.ImportFrom) -> list[list[str]]:
    """Each module of an import, with what is taken out of it, which may be modules as well."""
    if isinstance(node, ast.Import):
        return [[alias.name] for alias in node.names]
    base = "." * node.level + (node.module or "")
    dot = "" if base.endswith(".") else "."
    return [[base, *(f"{base}{dot}{alias.name}" for alias in node.names if alias.name != "*")]]


def _standing(file: File, node: ast.AST) -> tuple[bool, bool]:
    """The import may fail, or be left out, without harm; the import stands in a function."""
    optional = late = False
    below = node
    for up in file.names.up(node):
        match up:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                late = True
            case ast.If():
                optional = optional or _about_this_python(up.test)
            case ast.Try():
                # What is imported instead, in a handler, is needed only instead.
                tried = below in up.body or below in up.handlers
                optional = optional or (tried and any(_catches(one.type) for one in up.handlers))
        below = up
    return optional, late


def _catches(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(part, ast.Name) and part.id in _CATCHES for part in parts)


def _about_this_python(test: ast.expr) -> bool:
    """True of a condition about the interpreter, or that never holds in one that runs."""
    return bool(words_in(test) & _PYTHONS)
