"""The commands of a bash script, read from its syntax tree; nothing of it is run."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_REJECTED = re.compile(r"line (\d+): (.*)")
_SECONDS = 1.0  # of the CPU to parse; a script of 128 KiB takes a tenth of it
_CHUNK = 512  # bytes; the text of a node costs the copy of one
_DEEPEST = 200  # levels of blocks in blocks

_EXPANSIONS = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_SIMPLE = {
    "command", "declaration_command", "unset_command", "test_command", "variable_assignment",
    "variable_assignments",
}  # fmt: skip
_DECLARE = {"export", "declare", "typeset", "readonly", "local", "unset"}
_BLOCKS = {
    "if_statement", "while_statement", "for_statement", "c_style_for_statement", "case_statement",
    "compound_statement", "subshell",
}  # fmt: skip
_PARTS = {
    "program", "elif_clause", "else_clause", "do_group", "case_item", "function_definition",
}  # fmt: skip
_JOINED = {"list", "pipeline", "negated_command", "redirected_statement", "heredoc_redirect"}
_HOLDING = _SIMPLE | _BLOCKS | _PARTS | _JOINED
_TESTING = {"list", "negated_command", "&&", "||"}


class UnreadableError(ValueError):
    """The script is nested too deeply or takes too long to parse."""


@dataclass(frozen=True)
class Word:
    """A word of a command.

    Attributes:
        text: as it is written.
        start, end: offsets of its bytes in the script.
        value: what the command gets; what the shell would expand stays as it is written.
        live: what of it the shell that reads the script expands: `$A`, `${A}`, `$(…)`.
        items: the words of an array that it assigns.
    """

    text: str
    line: int
    start: int
    end: int
    value: str
    live: str
    items: tuple[Word, ...] = ()

    @property
    def end_line(self) -> int:
        return self.line + self.text.count("\n")


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: assignments before the command, its name and its arguments; no redirections.
        first, last: lines of the statement that it is part of, with pipes and here-documents.
        until: offset of that statement's end.
        depth: of `if`, loops, groups and subshells around it; 0 at the top.
        function: the function whose body it stands in.
        background: it, or a block around it, is started with `&`.
        piped: its output goes into another command.
        tested: its exit code decides about another command (`&&`, `||`), or is negated.
    """

    words: tuple[Word, ...]
    first: int
    last: int
    until: int
    depth: int = 0
    function: str | None = None
    background: bool = False
    piped: bool = False
    tested: bool = False

    @property
    def line(self) -> int:
        return self.words[0].line

    @property
    def end_line(self) -> int:
        return self.words[-1].end_line

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(word.value for word in self.words)

    def sets(self, name: str) -> bool:
        """Return True where it sets a variable."""
        return any(word.text.startswith(f"{name}=") for word in self.words)

    def name(self) -> str:
        """The command's own name, behind assignments and `time`; empty without one."""
        return next((word.value for word in self.words if not is_prefix(word)), "")


def is_assignment(word: Word) -> bool:
    """Return True for a word `NAME=…`."""
    return bool(_ASSIGNMENT.match(word.text))


def is_prefix(word: Word) -> bool:
    """Return True for what may stand in front of a command's name."""
    return is_assignment(word) or word.text in ("time", "-p")


def commands(data: bytes) -> tuple[list[Command], list[int]]:
    """Return every simple command in order, and the lines of statements that cannot be parsed.

    Commands of functions and loops are included, those in `$(…)` are not. The parser does not
    know all of bash: a statement that it cannot parse gives no commands.

    Raises:
        UnreadableError: it is nested too deeply, or takes too long.
    """
    root = _parse(data)
    if root.type != "program":
        return [], [1]
    unread = [one.start_point.row + 1 for one in root.named_children if one.has_error]
    try:
        return list(_commands(root, Command((), 1, 1, 0), 0)), unread
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None


def statements(data: bytes) -> list[tuple[int, int, str]]:
    """The statements of a script that stand in no other: where each begins and ends, and its text.

    Raises:
        UnreadableError: it takes too long to parse.
    """
    found = [one for one in _parse(data).children if one.is_named and one.type != "comment"]
    return [(one.start_byte, one.end_byte, _text(one)) for one in found]


def rejected(data: bytes) -> tuple[int, str] | None:
    """Return the line at which bash itself cannot read a script, and its words; None if it can."""
    bash = shutil.which("bash")
    if bash is None:
        return None
    try:
        # `-n` runs nothing, and without BASH_ENV no other file is read.
        result = subprocess.run(
            [bash, "--norc", "--noprofile", "-n"],
            input=data,
            env={"LC_ALL": "C"},
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return 1, "bash does not come to an end with it"
    if result.returncode == 0:
        return None
    match = _REJECTED.search(result.stderr.decode(errors="replace"))
    return (int(match[1]), match[2]) if match else (1, "bash crashes when it reads it")


def _parse(data: bytes) -> Node:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    end = time.thread_time() + _SECONDS
    parser = Parser(Language(tree_sitter_bash.language()))
    try:
        tree = parser.parse(
            lambda offset, _: data[offset : offset + _CHUNK],
            progress_callback=lambda *_: time.thread_time() > end,
        )
    except ValueError:
        raise UnreadableError("it takes too long to parse") from None
    return tree.root_node


def _commands(
    node: Node, around: Command, level: int, more: tuple[Word, ...] = ()
) -> Iterator[Command]:
    """Yield the commands in a node.

    Args:
        around: a command without words, with what the nodes around give to each command in them.
        more: words of the command that stand behind its redirections.
    """
    if level > _DEEPEST:
        raise UnreadableError(f"it has more than {_DEEPEST} blocks in one another")
    if node.type in _SIMPLE:
        if words := (*_words(node), *more):
            yield replace(around, words=words)
        return
    redirects = (
        node.children_by_field_name("redirect") if node.type == "redirected_statement" else []
    )
    joined = {node.type}.union(*([part.type for part in one.children] for one in redirects))
    inside = replace(
        around,
        depth=around.depth + (node.type in _BLOCKS),
        tested=around.tested or bool(joined & _TESTING),
        piped=around.piped or "pipeline" in joined,
    )
    if node.type == "function_definition" and (name := node.child_by_field_name("name")):
        inside = replace(inside, function=_text(name))
    more = tuple(word for one in redirects for word in _behind(one))
    for child, after in itertools.zip_longest(node.children, node.children[1:]):
        if child.type not in _HOLDING or (node.type == "program" and child.has_error):
            continue
        given = inside
        if node.type in _BLOCKS or node.type in _PARTS:
            first, last = child.start_point.row + 1, child.end_point.row + 1
            given = replace(given, first=first, last=last, until=child.end_byte)
        if child.type == "heredoc_redirect" or (node.type == "pipeline" and after is None):
            given = replace(given, piped=around.piped)
        if after is not None and after.type == "&":
            given = replace(given, background=True)
        yield from _commands(child, given, level + 1, more if child.type == "command" else ())


def _behind(redirect: Node) -> Iterator[Word]:
    """Yield the words of a command that stand behind one of its redirections."""
    if redirect.type == "file_redirect":
        yield from map(_word, redirect.children_by_field_name("destination")[1:])
    elif redirect.type == "heredoc_redirect":
        yield from map(_word, redirect.children_by_field_name("argument"))
        for one in redirect.children_by_field_name("redirect"):
            yield from _behind(one)


def _words(node: Node) -> Iterator[Word]:
    if node.type in ("variable_assignment", "test_command"):
        yield _word(node)
        return
    for child in node.children:
        if child.type.endswith("_redirect"):
            yield from _behind(child)
        elif child.type != "comment" and (child.is_named or child.type in _DECLARE):
            yield _word(child)


def _word(node: Node) -> Word:
    value = node.child_by_field_name("value")
    array = value.named_children if value is not None and value.type == "array" else ()
    return Word(
        text=_text(node),
        line=node.start_point.row + 1,
        start=node.start_byte,
        end=node.end_byte,
        value=_value(node),
        live=" ".join(_live(node)),
        items=tuple(_word(one) for one in array if one.type != "comment"),
    )


def _value(node: Node) -> str:
    text = _text(node)
    assigned = node.child_by_field_name("value")
    if node.type == "variable_assignment" and assigned is not None:
        return text[: len(text) - len(_text(assigned))] + _value(assigned)
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "ansi_c_string":
        return text[2:-1]
    if node.type in ("string", "translated_string"):
        inner = text[text.index('"') + 1 : -1].replace("\\\n", "")
        return re.sub(r'\\([$`"\\])', r"\1", inner)
    if node.type in ("concatenation", "command_name"):
        return "".join(map(_value, node.children))
    if node.type in ("word", "extglob_pattern"):
        return re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))
    return text


def _live(node: Node) -> Iterator[str]:
    if node.type in _EXPANSIONS:
        yield _text(node)
    else:
        for child in node.children:
            yield from _live(child)


def _text(node: Node) -> str:
    return (node.text or b"").decode()
