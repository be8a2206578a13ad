"""A Python file: its bytes, text, syntax tree and positions. What is wrong with it is data.

A file is parsed when it is first asked for its tree, and once.
"""

from __future__ import annotations

import ast
import io
import itertools
import os
import re
import shlex
import sys
import tokenize
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..base.errors import UserError
from ..base.text import clean
from . import fstrings
from .names import Names

# A file without any of these words trains nothing, and is not parsed.
_WORDS = re.compile(
    rb"\b(torch|fastai|transformers|lightning|pytorch_lightning|accelerate|rankup|distributed_utils)"
    rb"\b"
)
_LARGEST = 4 * 1024 * 1024  # bytes: a script that a person wrote is far below
_MOST_MODULES = 50  # of one script
# A folder with one of these is the root of a repository, from which its packages are imported.
_ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_MOST_LEVELS = 4  # from a script up to it
_MOST_STARS = 3  # from the file that imports a name to the one that uses it
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class ParseError:
    """Why a file cannot be understood, and what to do; line and column count from 1."""

    line: int
    column: int
    message: str
    hint: str = ""


@dataclass(frozen=True, eq=False)
class File:
    """One Python file.

    Attributes:
        path: as it was given, for messages.
        data: its bytes; empty where it could not be read.
        text: decoded, without a byte order mark.
        encoding: of the bytes, by their coding comment or UTF-8.
        unreadable: why there is no text, if so.
    """

    path: Path
    data: bytes
    text: str
    encoding: str
    unreadable: ParseError | None = None

    @cached_property
    def concerns_training(self) -> bool:
        """True where the text names PyTorch or a library around it; an unreadable file may."""
        return self.unreadable is not None or _WORDS.search(self.data) is not None

    @cached_property
    def _parsed(self) -> ast.Module | ParseError:
        parsed = self.unreadable or _parse(self.text)
        if isinstance(parsed, ast.Module):
            fstrings.correct(parsed, self.text, self._offset)
        return parsed

    @property
    def error(self) -> ParseError | None:
        """Why it cannot be understood: unreadable, or not valid Python."""
        return self._parsed if isinstance(self._parsed, ParseError) else None

    @property
    def tree(self) -> ast.Module:
        """The syntax tree.

        Raises:
            ValueError: there is an `error`.
        """
        if isinstance(self._parsed, ParseError):
            raise ValueError(f"{self.path}: {self._parsed.message}")
        return self._parsed

    @cached_property
    def names(self) -> Names:
        """Parents, scopes and bindings of the tree."""
        return Names(self.tree)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines of the text, without their ends."""
        return tuple(_LINE_END.split(self.text))

    @cached_property
    def _ascii(self) -> bool:
        return self.text.isascii()

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where in the text each line begins."""
        return (0, *(match.end() for match in _LINE_END.finditer(self.text)))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Begin and end of a node in `text`, in characters; a decorated function without them."""
        return (
            self._offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self._offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def code(self, node: ast.AST) -> str:
        """The text of a node as it was written."""
        start, end = self.span(node)
        return self.text[start:end]

    def line(self, node: ast.AST) -> tuple[int, int]:
        """Line and column of a node's begin, both from 1."""
        line: int = node.lineno  # type: ignore[attr-defined]
        start = self._offset(line, node.col_offset)  # type: ignore[attr-defined]
        return line, start - self.starts[line - 1] + 1

    def last_line(self, node: ast.AST) -> int:
        """The line in which a node ends, from 1."""
        line: int = node.end_lineno  # type: ignore[attr-defined]
        return line

    def guards(self, node: ast.AST) -> bool:
        """True of `if __name__ == "__main__":`, whose block runs where the file is started."""
        return isinstance(node, ast.If) and "__name__" in self.code(node.test)

    def only_started(self, node: ast.AST) -> bool:
        """True of a place that runs only where the file is started, not where it is imported."""
        return any(self.guards(up) for up in self.names.up(node))

    def place(self, node: ast.AST) -> str:
        """`FILE:LINE:COLUMN`, as findings have it."""
        line, column = self.line(node)
        return f"{clean(str(self.path))}:{line}:{column}"

    def short_place(self, node: ast.AST) -> str:
        """`FILE:LINE` without the folder, within a message about another file."""
        return f"{self.path.name}:{self.line(node)[0]}"

    def _offset(self, line: int, column: int) -> int:
        """The place in the text of what `ast` counts in bytes of UTF-8 within a line."""
        if not self._ascii:
            column = len(self.lines[line - 1].encode()[:column].decode(errors="ignore"))
        return self.starts[line - 1] + column


def refuse_notebook(path: Path) -> None:
    """Raise `UserError` for a notebook: a rank runs a script."""
    if path.suffix == ".ipynb":
        name = clean(str(path))
        raise UserError(
            f"{name} is a notebook, and a script is due: write it as one with "
            f"`jupyter nbconvert --to script {shlex.quote(name)}`, take out the lines that start "
            "with % or !, and give that"
        )


def read(path: Path) -> File:
    """Read a file; what is wrong with its content is in `File.error`.

    Raises:
        OSError: there is no such file, or no permission.
    """
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        size = f"more than {_LARGEST // 1024**2} MiB: not written by a person"
        return File(path, b"", "", "utf-8", ParseError(1, 1, size))
    return from_bytes(path, data)


def from_bytes(path: Path, data: bytes) -> File:
    """The file that these bytes would be."""
    encoding, text, error = _decode(data)
    return File(path, data, text, encoding, error)


def _decode(data: bytes) -> tuple[str, str, ParseError | None]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return encoding, data.decode(encoding).removeprefix("\ufeff"), None
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        line = data[: getattr(error, "start", 0)].count(b"\n") + 1
        message = f"the bytes are not of the encoding that they say: {clean(str(error))}"
        return "utf-8", "", ParseError(line, 1, message)


def _parse(text: str) -> ast.Module | ParseError:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes, which are not what was asked
            return ast.parse(text)
    except SyntaxError as error:
        return _explained(text, error)
    except (RecursionError, MemoryError):
        return ParseError(1, 1, "nested too deeply to be understood")
    except ValueError as error:
        return ParseError(1, 1, clean(str(error)))


def _explained(text: str, error: SyntaxError) -> ParseError:
    line, column = error.lineno or 1, max(1, error.offset or 1)
    lines = _LINE_END.split(text)
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if re.search(r"\basync\s*=", here):
        hint = "`async` is a keyword since Python 3.7: write non_blocking=True"
    elif re.match(r"\s*print\s+[^(=]", here):
        hint = "Python 2: run `2to3 -w` on it first"
    elif re.match(r"(<<<<<<<|=======|>>>>>>>)", here):
        hint = "a conflict of `git merge` is left: resolve it"
    else:
        hint = "mend it at this place; for syntax of a newer Python, run rankup with that one"
    return ParseError(line, column, f"no valid Python: {clean(error.msg or 'syntax error')}", hint)


def local_modules(script: File, known: dict[str, File] | None = None) -> tuple[File, ...]:
    """The modules of the script's repository that it imports, and those that they import in turn.

    What cannot be read or is no Python is left out: it is not what was asked about.

    Args:
        known: files read for other scripts, by their real path; those read here are added.
    """
    readable = (one for one in reached(script, known) if one.error is None)
    found = tuple(itertools.islice(readable, _MOST_MODULES))
    _hand_on_names([script, *found], search_path(script))
    return found


def reached(script: File, known: dict[str, File] | None = None) -> Iterator[File]:
    """Each module of the script's repository that an import leads to, breadth first.

    They are read, not imported; each once, also where they import each other.
    """
    known = {} if known is None else known
    seen = {os.path.realpath(script.path)}
    waiting = deque([script])
    tops = search_path(script)
    while waiting:
        at = waiting.popleft()
        for dotted in at.names.imported:
            for path in candidates(tops, at.path.parent, dotted):
                real = os.path.realpath(path)  # a loop of links is no error here
                if real in seen:
                    continue
                seen.add(real)
                try:
                    other = known[real] = known.get(real) or read(path)
                except OSError:
                    continue
                yield other
                if other.error is None:
                    waiting.append(other)


def imports_in(file: File) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, in the order of the text."""
    found: list[ast.Import | ast.ImportFrom] = [
        *file.names.all(ast.Import),
        *file.names.all(ast.ImportFrom),
    ]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def module_names(path: Path, tops: Sequence[Path]) -> list[str]:
    """`utils.files` of a file in a package of the script's folder, or of its repository.

    One of `src/net/` is `net` as well as `src.net`.
    """
    found = []
    for top in [top for top in tops if path.is_relative_to(top)] or [path.parent]:
        parts = list(path.relative_to(top).with_suffix("").parts)
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def _hand_on_names(files: Sequence[File], tops: Sequence[Path]) -> None:
    """Let `torch` mean what it means in `utils` where a file imports all names of that one."""
    known = {os.path.realpath(one.path): one for one in files}
    for _ in range(_MOST_STARS):
        for file in files:
            for star in file.names.stars:
                for path in candidates(tops, file.path.parent, star):
                    other = known.get(os.path.realpath(path))
                    if other is not None and other is not file:
                        file.names.starred.update(other.names.handed_on)


def search_path(script: File) -> tuple[Path, ...]:
    """Where the imports of a script start: its roots, and what it puts on `sys.path` as a literal.

    `sys.path.append("../lib")`, and what is joined of literals and the script's own folder.
    """
    folder, found = script.path.parent, list[Path]()
    changes = "sys.path" in script.text and script.error is None
    for call in script.names.all(ast.Call) if changes else ():
        if script.names.called(call) in ("sys.path.append", "sys.path.insert") and call.args:
            value = _path_of(script, call.args[-1])
            if value is not None:
                found.append(Path(os.path.normpath(folder / value)))
    first, *others = roots(folder)
    return tuple(dict.fromkeys((first, *found, *others)))


def _path_of(script: File, node: ast.expr) -> Path | None:
    """The path of a literal, of `__file__`, and of what `os.path` and `pathlib` make of them."""
    match node:
        case ast.Constant(value=str(text)):
            return Path(text)
        case ast.Name(id="__file__"):
            return Path(script.path.name)
        case ast.Attribute(value=inner, attr="parent"):
            path = _path_of(script, inner)
            return None if path is None else _above(path)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            parts = [_path_of(script, left), _path_of(script, right)]
            return None if None in parts else Path(*parts)  # type: ignore[arg-type]
        case ast.Call(func=ast.Attribute(value=inner, attr="resolve" | "absolute"), args=[]):
            return _path_of(script, inner)
        case ast.Call(func=func, args=[_, *_] as arguments):
            name = script.names.dotted(func)
            parts = [_path_of(script, one) for one in arguments]
            if None in parts:
                return None
            if name == "os.path.join":
                return Path(*parts)  # type: ignore[arg-type]
            if name == "os.path.dirname":
                return _above(parts[0])  # type: ignore[arg-type]
            same = ("os.path.abspath", "os.path.realpath", "builtins.str", "pathlib.Path")
            return parts[0] if name in same else None
    return None


def _above(path: Path) -> Path:
    """The folder around a path that is seen from the script's own."""
    return Path(os.path.normpath(path / ".."))


def roots(folder: Path) -> tuple[Path, ...]:
    """Where imports of a script may start: its folder, and those up to its repository's root."""
    found: list[Path] = []
    for at in (folder, *list(folder.absolute().parents)[:_MOST_LEVELS]):
        found.append(at)
        if any(os.path.exists(at / name) for name in _ROOT_MARKS):
            return (*found, at / "src")
    return (folder,)


def candidates(tops: Sequence[Path], own: Path, dotted: str) -> Iterator[Path]:
    """The files that `import dotted` may mean, of the first folder that has any.

    Args:
        tops: the folders in which an absolute import is sought.
        own: the folder of the file that imports.
    """
    level = len(dotted) - len(dotted.lstrip("."))
    parts = [part for part in dotted.lstrip(".").split(".") if part]
    if not parts or parts[0] == "rankup":
        return
    if level:
        for _ in range(level - 1):
            own = own.parent
        tops = (own,)
    for start in tops:
        if start != tops[0] and parts[0] in sys.stdlib_module_names:
            return  # only a file beside the script comes before the standard library
        found = False
        for length in range(len(parts), 0, -1):
            base = start.joinpath(*parts[:length])
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if os.path.isfile(path):  # False, too, in a loop of links
                    found = True
                    yield path
                    if is_port(path):
                        return  # what its package imports is used no more
        if found:
            return


def is_port(path: Path) -> bool:
    """True of a file that `port` has written beside its original."""
    original = path.stem.removesuffix("_dist")
    return original != path.stem and os.path.isfile(path.with_name(f"{original}.py"))
