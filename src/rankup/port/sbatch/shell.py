"""A bash script as a list of commands, with where each stands.

Enough of the grammar to find what a job starts and which shell expands what; nothing is ever run.
"""

from __future__ import annotations

from dataclasses import dataclass

from .tokens import Word, is_assignment, tokens

_OPENS = {"if", "while", "until", "for", "case", "select", "{"}
_CLOSES = {"fi", "done", "esac", "}"}
_PASSED = {"then", "else", "elif", "do", "!", "time", "while", "until", "if", "{"}


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: assignments before the command, its name and its arguments; no redirections.
        line, end_line: of its first and its last word.
        start, end: offsets into the text.
        depth: of `if`, loops, groups and subshells around it; 0 at the top.
        function: the function whose body it stands in.
        after: the operator behind it: a line break, `;`, `&`, `|`, `&&`, `||`.
        before: the operator in front of it.
    """

    words: tuple[Word, ...]
    line: int
    end_line: int
    start: int
    end: int
    depth: int
    function: str | None
    before: str
    after: str

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(word.value for word in self.words)

    def name(self) -> str:
        """The command's own name, behind assignments; empty for assignments alone."""
        return next((word.value for word in self.words if not is_assignment(word)), "")


def commands(text: str) -> list[Command]:
    """Every simple command of a script, in order, those of functions and loops included.

    Raises:
        UnreadableError: a quote, a substitution or a here-document does not end.
    """
    found: list[Command] = []
    words: list[Word] = []
    open_now: list[str] = []
    functions: list[tuple[str, int]] = []
    before, naming, skip = "\n", "", False

    def close() -> None:
        if open_now:
            open_now.pop()
        if functions and len(open_now) <= functions[-1][1]:
            functions.pop()

    def opened(what: str) -> None:
        nonlocal naming
        if naming:
            functions.append((naming, len(open_now)))
            naming = ""
        open_now.append(what)

    for token in tokens(text):
        if isinstance(token, Word):
            if skip:  # the file of a redirection
                skip = False
                continue
            word = token.text
            if [one.text for one in words] == ["function"]:
                naming, words = token.value, []
                continue
            if not words and word in _CLOSES:
                close()
                before = word
                continue
            if not words and word in _OPENS:
                opened(word)
            if not words and word in _PASSED:
                before = word
                continue
            words.append(token)
            continue
        sign = token
        if sign[0] in "<>" or sign in ("&>", "&>>"):
            skip = True
            continue
        if sign == "(" and len(words) == 1 and not is_assignment(words[0]):
            naming, words = words[0].value, []
            continue
        if sign in ("(", ")") and naming and not words and not (sign == "(" and before == ")"):
            before = sign
            continue
        if words:
            where = functions[-1][0] if functions else None
            found.append(_command(words, len(open_now), where, before, sign))
            words = []
        if sign == "(":
            opened("(")
        elif sign == ")" and open_now[-1:] == ["("]:  # else: a pattern of `case`
            close()
        before = sign
    return found


def _command(
    words: list[Word], depth: int, function: str | None, before: str, after: str
) -> Command:
    last = words[-1]
    return Command(
        tuple(words),
        words[0].line,
        last.line + last.text.count("\n"),
        words[0].start,
        last.start + len(last.text),
        depth,
        function,
        before,
        after,
    )
