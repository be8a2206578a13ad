"""The words and operators of a bash script, with where each stands, its quotes told apart."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPERATORS = ("&&", "||", ";;", "|&", "&>>", "&>", ";", "&", "|", "(", ")")
_BARE = re.compile(r"[^\\'\"`$<>()\s;&|]+")
_REDIRECTION = re.compile(r"[<>]{1,2}&?\|?")
# `<<END`, `<<-'END'`, and no `<<<`.
_DOCUMENT = re.compile(r"<<(?!<)(?P<tabs>-?)[ \t]*(?P<quote>[\"']?)(?P<word>\w+)(?P=quote)")
_EXPANSION = re.compile(r"\\.|`|\$\(|\$\{|\$\w+|\$[?#@*$!-]", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_DEEPEST = 40  # levels of substitutions in substitutions


class UnreadableError(ValueError):
    """What is written is no bash; `at` is the offset where it begins."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


@dataclass(frozen=True)
class Word:
    """A word as it is written.

    Attributes:
        pieces: (text, quote): quote is `'`, `"`, or empty for what stands bare; of what a
            backslash or a single quote protects, the text alone.
    """

    text: str
    line: int
    start: int
    pieces: tuple[tuple[str, str], ...]

    @property
    def value(self) -> str:
        """Without its quotes; what the shell would expand stays as it is written."""
        return "".join(text for text, _ in self.pieces)

    @property
    def live(self) -> str:
        """What of it the shell that reads the script expands: `$A`, `${A}`, `$(…)`, in order."""
        return " ".join(
            one for text, quote in self.pieces if quote != "'" for one in _expansions(text)
        )


def is_assignment(word: Word) -> bool:
    """Whether a word is `NAME=…`."""
    return bool(_ASSIGNMENT.match(word.text))


def tokens(text: str) -> Iterator[Word | str]:
    """Words and operators, line breaks among them, without comments and here-documents."""
    at, line, size = 0, 1, len(text)
    documents: list[tuple[str, bool, int]] = []  # delimiter, <<-, offset
    wants_delimiter = None
    while at < size:
        char = text[at]
        if char in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):
            at, line = at + 2, line + 1
        elif char == "\n":
            yield "\n"
            at, line = at + 1, line + 1
            for delimiter, indented, since in documents:
                at, line = _after_document(text, at, line, delimiter, indented, since)
            documents = []
        elif char == "#":
            end = text.find("\n", at)
            at = size if end < 0 else end
        elif text.startswith("<<<", at):
            at += 3
            yield "<<<"
        elif text.startswith("<<", at):
            indented = text.startswith("<<-", at)
            at += 3 if indented else 2
            wants_delimiter = indented
        elif char in "<>" and text[at + 1 : at + 2] != "(":
            match = _REDIRECTION.match(text, at)
            assert match
            at = match.end()
            yield match[0]
        elif sign := next((one for one in _OPERATORS if text.startswith(one, at)), ""):
            at += len(sign)
            yield sign
        else:
            word, at = _word(text, at, line)
            line += word.text.count("\n")
            if wants_delimiter is not None:
                documents.append((word.value, wants_delimiter, word.start))
                wants_delimiter = None
            elif word.text.isdigit() and text[at : at + 1] in ("<", ">"):
                continue  # 2>&1
            else:
                yield word
    if documents:
        raise UnreadableError(
            documents[0][2], f"the here-document up to {documents[0][0]!r} has no end"
        )
    yield "\n"


def _after_document(
    text: str, at: int, line: int, delimiter: str, indented: bool, since: int
) -> tuple[int, int]:
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        row = text[at:end].rstrip("\r")
        at, line = min(end + 1, len(text)), line + 1
        if (row.lstrip("\t") if indented else row) == delimiter:
            return at, line
    raise UnreadableError(since, f"the here-document up to {delimiter!r} has no end")


def _word(text: str, start: int, line: int) -> tuple[Word, int]:
    at, size = start, len(text)
    pieces: list[tuple[str, str]] = []

    def add(piece: str, quote: str) -> None:
        pieces.append((piece, quote))

    while at < size:
        char = text[at]
        if char == "\\":
            if text.startswith("\\\n", at):
                at += 2
                continue
            add(text[at + 1 : at + 2], "'")
            at += 2
        elif char == "'" or text.startswith("$'", at):
            begin = at + (1 if char == "'" else 2)
            end = text.find("'", begin)
            if end < 0:
                raise UnreadableError(at, "a ' has no partner")
            add(text[begin:end], "'")
            at = end + 1
        elif char == '"':
            end = _end_of_double(text, at, 0)
            add(text[at + 1 : end - 1], '"')
            at = end
        elif char == "`" or text[at : at + 2] in ("$(", "${", "<(", ">("):
            end = _end_of_substitution(text, at, 0)
            add(text[at:end], "")
            at = end
        elif char == "(" and text[start:at].endswith("=") and _ASSIGNMENT.match(text[start:at]):
            end = _balanced(text, at + 1, "()", 0)
            add(text[at:end], "")
            at = end
        elif char in " \t\r\n;&|()<>":
            break
        else:
            run = _BARE.match(text, at)
            end = run.end() if run else at + 1
            add(text[at:end], "")
            at = end
    merged = (
        ("".join(piece for piece, _ in group), quote)
        for quote, group in itertools.groupby(pieces, key=operator.itemgetter(1))
    )
    return Word(text[start:at], line, start, tuple(merged)), at


def _end_of_double(text: str, at: int, level: int) -> int:
    """Behind the quote that ends the one at `at`."""
    begin = at
    at += 1
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char == '"':
            return at + 1
        elif char == "`" or text[at : at + 2] in ("$(", "${"):
            at = _end_of_substitution(text, at, level + 1)
        else:
            at += 1
    raise UnreadableError(begin, 'a " has no partner')


def _end_of_substitution(text: str, at: int, level: int) -> int:
    if level > _DEEPEST:
        raise UnreadableError(at, f"more than {_DEEPEST} substitutions are in one another")
    if text[at] == "`":
        end = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL).match(text, at + 1)
        if end is None:
            raise UnreadableError(at, "a ` has no partner")
        return end.end()
    return _balanced(text, at + 2, "{}" if text[at + 1] == "{" else "()", level)


def _balanced(text: str, at: int, pair: str, level: int) -> int:
    """Behind the bracket that closes one that was opened before `at`."""
    begin, depth = at, 1
    # In `$((1 << n))` it shifts.
    commands = pair == "()" and text[at : at + 1] != "("
    documents: list[re.Match[str]] = []  # here-documents that begin behind this line
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        document = _DOCUMENT.match(text, at) if commands else None
        if document is not None:
            documents.append(document)
            at = document.end()
            continue
        if char == "\n" and documents:
            at = _end_of_documents(text, at + 1, documents)
            documents = []
            continue
        if char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                break
            at = end + 1
            continue
        if char == '"':
            at = _end_of_double(text, at, level + 1)
            continue
        if char == "`" or text[at : at + 2] in ("$(", "${"):
            at = _end_of_substitution(text, at, level + 1)
            continue
        if char == "#" and pair == "()" and text[at - 1] in " \t\n":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        depth += (char == pair[0]) - (char == pair[1])
        at += 1
        if depth == 0:
            return at
    raise UnreadableError(begin, f"a {pair[0]} has no partner")


def _end_of_documents(text: str, at: int, documents: list[re.Match[str]]) -> int:
    """Behind the last line of here-documents of which the first begins at `at`."""
    for one in documents:
        tabs = r"\t*" if one["tabs"] else ""
        end = re.compile(rf"^{tabs}{re.escape(one['word'])}$", re.MULTILINE).search(text, at)
        if end is None:
            raise UnreadableError(one.start(), f"the text behind <<{one['word']} has no end")
        at = end.end()
    return at


def _expansions(text: str) -> Iterator[str]:
    at = 0
    while match := _EXPANSION.search(text, at):
        at = match.end()
        if match[0] == "`" or match[0] in ("$(", "${"):
            try:
                at = _end_of_substitution(text, match.start(), 0)
            except UnreadableError:  # the text of a `bash -c`, whose quotes are another shell's
                at = len(text)
        if match[0][0] != "\\":
            yield text[match.start() : at]
