"""What a fix works with: the script and its roles to read, edits and notes to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from .edits import Edits, Span
from .script import Script
from .training import Loop, Training

if TYPE_CHECKING:
    from .split import Split


@dataclass(frozen=True)
class Options:
    """What was asked of `port`.

    Attributes:
        batch: `global`, or `per-gpu`.
        strategy: `ddp`, or `fsdp`.
        sync_bn: batch norm over the batches of all ranks.
        without: names of fixes to leave out.
    """

    batch: str = "global"
    strategy: str = "ddp"
    sync_bn: bool = False
    without: frozenset[str] = frozenset()


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


@dataclass
class Context:
    """One port under way.

    Attributes:
        split: how the model is split, where that was asked for.
    """

    script: Script
    training: Training
    options: Options
    edits: Edits
    notes: list[Note] = field(default_factory=list)
    fix: str = ""
    split: Split | None = None
    derived: dict[cst.CSTNode, set[str]] = field(default_factory=dict)

    def dealt(self, loop: Loop) -> bool:
        """Whether the ranks have different batches in a loop.

        Not where it evaluates sample by sample: one rank would have all of them.
        """
        if loop.source is None or loop.trains:
            return True
        loader = self.training.loader_of(loop.source)
        return loader is not None and not self.one_by_one(loader)

    def serves_both(self, loader: cst.CSTNode) -> bool:
        """Whether a loop that trains and evaluates goes over a loader."""
        return any(
            one is loader or one in self.script.above(loader)
            for loop in self.training.loops
            if loop.evaluates
            for one in self.training.loaders_of(loop)
        )

    def one_by_one(self, loader: cst.CSTNode) -> bool:
        """Whether a loader only evaluates, in batches of one sample."""
        script, training = self.script, self.training
        if self.split is not None or not isinstance(loader, cst.Call):
            return False
        size = script.argument(loader, "batch_size", 1)
        if size is None or script.code(size.value) != "1":
            return False
        loops = [one for one in training.loops if loader in training.loaders_of(one)]
        return bool(loops) and not any(one.trains for one in loops)

    def done(self, node: cst.CSTNode | None, text: str) -> None:
        """Report what the present fix did."""
        self.notes.append(Note(self.script.line(node) if node else 0, text, self.fix))

    def leave(self, node: cst.CSTNode | None, text: str, *, comment: bool = True) -> None:
        """Leave something for a person: a comment at the place, and a line in the report."""
        line = self.script.line(node) if node else 0
        note = Note(line, text)
        if note in self.notes:
            return
        self.notes.append(note)
        if node is not None and comment:
            statement = self.script.statement(node)
            start = self.script.span(statement).start
            if self.edits.first_on_line(start):
                self.edits.lines_before(start, f"# rankup: {text}")

    def around(self, node: cst.CSTNode, before: str, after: str = ")") -> None:
        """Put a call around an expression."""
        self.edits.around(self.script.whole(node), before, after)

    def replace(self, node: cst.CSTNode, text: str) -> None:
        """Other text for an expression, where no other fix has changed it."""
        span = self.script.span(node)
        if not self.edits.taken(span):
            self.edits.replace(span, text)

    def before(self, node: cst.CSTNode, *lines: str) -> None:
        """Whole lines before the statement that holds a node."""
        self.edits.lines_before(self.script.span(self.script.statement(node)).start, *lines)

    def after(self, statement: cst.CSTNode, *lines: str) -> None:
        """Whole lines after a statement, at its indentation."""
        span = self.script.span(statement)
        self.edits.lines_after(span.end, self.edits.indent(span.start), *lines)

    def remove(self, statement: cst.CSTNode) -> None:
        """Take a statement of its own lines out; `pass` where its block would be empty."""
        span = self.script.span(statement)
        if len(self.script.block(statement)) == 1 or not self._alone(span):
            self.edits.replace(span, "pass")
            return
        text, start, end = self.script.text, span.start, span.end
        while start and text[start - 1] in " \t":
            start -= 1
        while end < len(text) and text[end] not in "\r\n":
            end += 1
        end += 2 if text[end : end + 2] == "\r\n" else 1
        self.edits.replace(Span(start, min(end, len(text))), "")

    def only_root(self, call: cst.Call) -> bool:
        """Let rank 0 alone run a statement that is one call; False where it is more than that."""
        statement = self.script.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return False
        only = statement.body[0]
        if not isinstance(only, cst.Expr) or only.value is not call:
            return False
        self.edits.insert(self.script.span(statement).start, "if rankup.is_root_process(): ")
        return True

    def indented(self, statement: cst.CSTNode, head: str) -> None:
        """Put a statement into a block of its own, `with …:`."""
        lines = self.script.lines(statement)
        self.edits.lines_before(self.script.span(statement).start, head)
        keep: set[int] = set()
        for kind in (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString):
            for text in self.script.inside(statement, kind):
                keep |= set(self.script.lines(text)[1:])
        # LibCST lets a block end on its own last line, or on the one behind it.
        body = self.script.text[: self.script.span(statement).end].rstrip()
        last = max(lines[0], self.edits.line(len(body) - 1))
        self.edits.indent_lines(lines[0], last, self.script.module.default_indent, keep)

    def _alone(self, span: Span) -> bool:
        text, end = self.script.text, span.end
        while end < len(text) and text[end] in " \t":
            end += 1
        tail = end >= len(text) or text[end] in "\r\n#"
        return self.edits.first_on_line(span.start) and tail
