"""The places of a script of which `port` says that they show, or save, numbers of a part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

_PART = re.compile(r"\bpart\b")
_NAMES = re.compile(r"[A-Za-z_]\w*")
_WRITES = {"dump", "save", "write", "writelines", "writerow", "writerows"}


@dataclass(frozen=True)
class SaidFile:
    """A file of the original.

    Attributes:
        name: from the project's folder.
        remarks: what port leaves for a person to look at, with the lines.
    """

    name: str
    text: str
    remarks: tuple[tuple[int, str], ...] = ()

    @cached_property
    def lines(self) -> set[int]:
        """The lines that a remark on a part stands at."""
        return {line for line, text in self.remarks if _PART.search(text)}

    @cached_property
    def names(self) -> set[str]:
        """The names that such a remark is about: `out, y: of rank 0's part of the batch`."""
        found: set[str] = set()
        for _, text in self.remarks:
            if _PART.search(text):
                found |= set(_NAMES.findall(re.split(r": | (?:is|are) ", text, maxsplit=1)[0]))
        return found & self._used

    @cached_property
    def _used(self) -> set[str]:
        return {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.text)

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement of a line; of the head of a `with` all that is in it."""
        found = None
        for node in ast.walk(self._tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                found = node  # what lies deeper comes later
        return found

    def covers(self, line: int) -> bool:
        """True where a remark stands at the statement, or is about a name that it reads."""
        node = self.statement(line)
        if node is None or isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While):
            return line in self.lines
        if self.lines & set(range(node.lineno, (node.end_lineno or 0) + 1)):
            return True
        return any(isinstance(one, ast.Name) and one.id in self.names for one in ast.walk(node))

    @cached_property
    def written(self) -> bool:
        """True where a remark stands at a call that writes into a file which was opened before."""
        return any(
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _WRITES
            and self.lines & set(range(call.lineno, (call.end_lineno or 0) + 1))
            for call in ast.walk(self._tree)
        )


@dataclass(frozen=True)
class Said:
    """What port says of all files of a script; of a script that it does not port, nothing."""

    files: tuple[SaidFile, ...] = field(default=())

    def covers(self, calls: Iterable[Iterable[object]]) -> bool:
        """True where it says so of any of these calls, each a file and a line."""
        known = {one.name: one for one in self.files}
        return any(
            name in known and isinstance(line, int) and known[name].covers(line)
            for name, line in calls
        )

    @property
    def written(self) -> bool:
        """True where it says so of what is written into a file that is open."""
        return any(one.written for one in self.files)


NOTHING = Said()
