"""The tools of a fix: the script and its roles to read, edits and notes to write."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import UserError
from ...script.effects import asks_files, callee
from ...script.names import Function
from ...script.roles import LoopNode
from ...script.source import File
from ...script.torch_names import OUR_COLLECTIVES
from .edits import Edits
from .script import Script
from .training import Training


@dataclass(frozen=True)
class Options:
    """The options of `port`.

    Attributes:
        batch: `global`, or `per-gpu`.
        sync_bn: batch norm over the batches of all ranks.
        in_place: the ports take the places of their originals.
    """

    batch: str = "global"
    sync_bn: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Note:
    """A line of the report.

    Attributes:
        line: in the original; 0 for the whole file.
        fix: the fix that did it; empty where it is left for a person.
    """

    line: int
    text: str
    fix: str = ""


class NotPortable(UserError):  # noqa: N818
    """A file cannot be ported, or not beside its original.

    Attributes:
        files: those of which one would have to stay as it is.
    """

    def __init__(self, message: str, *files: File) -> None:
        super().__init__(message)
        self.files = files


@dataclass
class Context:
    """One file of a port under way.

    Attributes:
        port: those of all files that are changed, in the order of `Script.to_port`; a new one adds
            itself.
        sharded: the loops of evaluations of which each rank has its part.
        first: statements, calls and functions that rank 0 runs before the others, where no rank
            may wait for another.
        missing: those of them that run where a file is missing, and so on rank 0 alone.
        alike: expressions that have been made to have one value on all ranks.
        regions: the training loops and steps, which know their names of this rank's part.
        backwards: what has become of each backward.
        returns: of what a step returns, which values are of the whole batch.
    """

    script: Script
    training: Training
    options: Options
    edits: Edits
    notes: list[Note] = field(default_factory=list)
    fix: str = ""
    sharded: set[ast.AST] = field(default_factory=set)
    first: set[ast.AST] = field(default_factory=set)
    missing: set[ast.AST] = field(default_factory=set)
    alike: set[ast.AST] = field(default_factory=set)
    regions: list[Any] = field(default_factory=list)
    backwards: dict[ast.Call, Any] = field(default_factory=dict)
    returns: dict[ast.AST, list[bool]] = field(default_factory=dict)
    port: list[Context] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port.append(self)

    def called(self, call: ast.Call) -> tuple[Context, Function] | None:
        """The function in one of the files of this port that a call runs."""
        function = self.script.called(call)
        if function is not None or len(self.port) == 1:
            return None if function is None else (self, function)
        found = callee(self.script.flow, self.script.file, call)
        there = (one for one in self.port if found is not None and one.script.file is found[0])
        return next(((one, found[1]) for one in there if found is not None), None)

    def calls_of(self, function: Function) -> list[ast.Call]:
        """Where this file calls a function of one of the files of this port."""
        return self.script.calls_of.get(function, [])

    def done(self, node: ast.AST | None, text: str) -> None:
        """Report what the present fix did."""
        note = Note(self.script.line(node) if node else 0, text, self.fix)
        if note not in self.notes:
            self.notes.append(note)

    def leave(self, node: ast.AST | None, text: str, *, comment: bool = True) -> None:
        """Leave something for a person: a comment at the place, and a line in the report."""
        line = self.script.line(node) if node else 0
        note = Note(line, text)
        if note in self.notes:
            return
        self.notes.append(note)
        if node is not None and comment:
            statement = self.script.statement(node)
            start = self.script.span(self.script.row(statement)[0])[0]
            if self.script.begins_line(statement):
                self.edits.lines_before(start, f"# rankup: {text}")

    def around(self, node: ast.AST, before: str, after: str = ")") -> None:
        """Put a call around an expression."""
        self.edits.around(self.script.whole(node), before, after)

    def broadcast(self, node: ast.AST) -> bool:
        """Let rank 0 give a value to all; False where all ranks have one value already."""
        if node in self.alike:
            return False
        self.alike.add(node)
        self.around(node, "rankup.broadcast(")
        return True

    def replace(self, node: ast.AST, text: str) -> None:
        """Other text for an expression, where no other fix has changed it."""
        span = self.script.span(node)
        if not self.edits.taken(span):
            self.edits.replace(span, text)

    def before(self, node: ast.AST, *lines: str) -> None:
        """Whole lines before the statement that holds a node; in its row where others precede."""
        statement = self.script.statement(node)
        start = self.script.span(statement)[0]
        if statement is self.script.row(statement)[0]:
            self.edits.lines_before(start, *lines)
        else:
            self.edits.row_before(start, *lines)

    def after(self, statement: ast.AST, *lines: str) -> None:
        """Whole lines after a statement, at its indentation; in its row where others follow."""
        row = self.script.row(statement)
        end = self.script.span(statement)[1]
        if statement is not row[-1]:
            self.edits.row_after(end, *lines)
            return
        self.edits.lines_after(end, self.edits.indent(self.script.span(row[0])[0]), *lines)

    def remove(self, statement: ast.AST) -> None:
        """Take a statement of its own lines out; `pass` where its block would be empty."""
        start, end = self.script.span(statement)
        text = self.script.text
        alone = self.script.row(statement) == [statement] and self.script.first_on_line(start)
        if len(self.script.block(statement)) == 1 or not alone:
            self.edits.replace((start, end), "pass")
            return
        while start and text[start - 1] in " \t":
            start -= 1
        while end < len(text) and text[end] not in "\r\n":
            end += 1
        end += 2 if text[end : end + 2] == "\r\n" else 1
        self.edits.replace((start, min(end, len(text))), "")

    def alone(self, call: ast.Call) -> ast.Expr | None:
        """The statement that is this call and has its lines to itself; None where there is none."""
        only = self.script.parents[call]
        if not isinstance(only, ast.Expr) or self.script.row(only) != [only]:
            return None
        return only if self.script.first_on_line(self.script.span(only)[0]) else None

    def only_root(self, call: ast.Call, *, result: bool = True) -> bool:
        """Let rank 0 alone run a call; False where what it gives is used, or needs all ranks.

        Args:
            result: whether the call may be worth something but None.
        """
        called = [self.called(one) for one in self.script.inside(call, ast.Call)]
        if self.needs_all(call) or any(one[0].meets(one[1]) for one in called if one is not None):
            return False
        only = self.alone(call)
        if only is not None:
            self.edits.insert(self.script.span(only)[0], "if rankup.is_root_process(): ")
        elif isinstance(self.script.parents[call], ast.Expr):
            self.around(call, "rankup.is_root_process() and ", "")
        elif not result:
            self.around(call, "(", " if rankup.is_root_process() else None)")
        else:
            return False
        return True

    def guarded(self, call: ast.Call) -> bool:
        """True where rank 0 alone runs a call."""
        place = self.script.span(self.script.statement(call))
        return "rankup.is_root_process()" in self.edits.inside(place)

    def goes_first(self, node: ast.AST) -> bool:
        """True where rank 0 runs a place before the others come there."""
        return node in self.first or any(up in self.first for up in self.script.above(node))

    @property
    def uses_rankup(self) -> bool:
        """True where an edit calls something of rankup."""
        return "rankup." in self.edits.inside((0, len(self.script.text) + 1))

    def needs_all(self, node: ast.AST) -> bool:
        """True where all ranks have to come to what other fixes have put into an expression."""
        return _together(self.edits.inside(self.script.span(node)))

    def meets(self, block: ast.AST) -> bool:
        """True where all ranks have to come to what a statement does, here or in what it calls."""
        seen = set[ast.AST]()
        waiting: list[tuple[Context, ast.AST]] = [(self, block)]
        while waiting:
            where, node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            script = where.script
            if where.needs_all(node) or _together(where.edits.behind(script.span(node))):
                return True
            calls = script.inside(node, ast.Call)
            waiting += [one for call in calls if (one := where.called(call)) is not None]
        return False

    def asks_files(self, test: ast.AST | None) -> bool:
        """True where an expression, or what its names stand for, asks which files there are."""
        script = self.script
        return test is not None and asks_files(script.flow, script.file, test)

    def meeting(self, node: ast.AST) -> ast.AST | None:
        """The statement before or behind which all ranks come by, whatever files they find.

        It is the outermost one around a place that asks for files, which one rank may have changed
        before another asks; None where something leaves it on the way.
        """
        script, place = self.script, self.script.statement(node)
        if script.per_sample(node) or any(isinstance(up, ast.Lambda) for up in script.above(node)):
            return None
        for up in script.above(place):
            if isinstance(up, Function | ast.ClassDef | ast.Module):
                break
            head = getattr(up, "test", None) or getattr(up, "iter", None)
            if isinstance(up, ast.Try) or (isinstance(up, ast.stmt) and self.asks_files(head)):
                place = up
        leaving = (ast.Return, ast.Yield, ast.YieldFrom)
        if place is not node and any(True for _ in script.inside(place, *leaving, deep=False)):
            return None
        left = [
            one
            for one in script.inside(place, ast.Break, ast.Continue, deep=False)
            if not any(
                isinstance(up, LoopNode) and script.file.names.inside(up, place)
                for up in script.above(one)
            )
        ]
        return place if script.begins_line(place) and not left else None

    def indented(self, statement: ast.AST, head: str) -> None:
        """Put a statement into a block of its own, `with …:`."""
        row = self.script.row(statement)
        first, last = self.script.line(row[0]), self.script.file.last_line(row[-1])
        self.edits.lines_before(self.script.span(row[0])[0], head)
        keep: set[int] = set()
        for text in self.script.inside(row, ast.Constant, ast.JoinedStr):
            if not isinstance(text, ast.Constant) or isinstance(text.value, str | bytes):
                keep |= {*range(self.script.line(text) + 1, self.script.file.last_line(text) + 1)}
        self.edits.indent_lines(first, last, self._indentation, keep)

    @property
    def _indentation(self) -> str:
        """The indentation of a block in this script."""
        for owner in self.script.inside(self.script.tree, ast.stmt):
            body = getattr(owner, "body", None)
            if body and self.script.first_on_line(self.script.span(body[0])[0]):
                outer = self.edits.indent(self.script.span(owner)[0])
                return self.edits.indent(self.script.span(body[0])[0]).removeprefix(outer)
        return "    "


def _together(text: str) -> bool:
    return any(f"rankup.{name}(" in text for name in OUR_COLLECTIVES)
