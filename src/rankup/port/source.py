"""A Python file as it lies there: bytes, text, syntax tree; trouble is data, no exception.

    source = read(Path("train.py"))
    if source.trouble is None and source.concerns_training:
        source.module            # LibCST, exactly the bytes of the file
        source.index             # parents, scopes, calls, dotted names (port/index.py)
        source.line_of(node)     # (line, column), both from 1
        source.metadata(ScopeProvider)   # LibCST's own metadata, where the index is not enough
        neighbours(source)       # the modules of its own folder that it imports, in turn

Nothing is parsed before it is asked for; `concerns_training` is a search in the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from ..base.text import clean
from .index import Index
from .parsing import Trouble, parse

# A file without any of these words trains nothing, and is not parsed.
_WORDS = re.compile(
    rb"\b(torch|fastai|transformers|lightning|pytorch_lightning|accelerate|rankup|distributed_utils)"
    rb"\b"
)
_LARGEST = 4 * 1024 * 1024  # bytes: a script that a person wrote is far below


@dataclass(frozen=True, eq=False)
class Source:
    """One Python file.

    Attributes:
        path: as it was given, for messages.
        data: its bytes; empty where it could not be read.
        text: decoded; without a byte order mark.
        encoding: of the bytes, as Python takes it.
        newline: the one it uses most, `"\\n"`, `"\\r\\n"` or `"\\r"`.
        unreadable: why there is no text, if so.
    """

    path: Path
    data: bytes
    text: str
    encoding: str
    newline: str
    unreadable: Trouble | None = None

    @cached_property
    def concerns_training(self) -> bool:
        """Whether the text has a word without which nothing here can be meant."""
        return _WORDS.search(self.data) is not None

    @cached_property
    def _parsed(self) -> cst.Module | Trouble:
        return self.unreadable or parse(self.text)

    @property
    def trouble(self) -> Trouble | None:
        """Why it cannot be understood: unreadable or no Python; parses on first use."""
        return self._parsed if isinstance(self._parsed, Trouble) else None

    @property
    def module(self) -> cst.Module:
        """The tree.

        Raises:
            ValueError: there is `trouble`.
        """
        if isinstance(self._parsed, Trouble):
            raise ValueError(f"{self.path}: {self._parsed.message}")
        return self._parsed

    @cached_property
    def index(self) -> Index:
        return Index(self.module)

    @cached_property
    def _wrapper(self) -> MetadataWrapper:
        return MetadataWrapper(self.module, unsafe_skip_copy=True)  # fresh from the parser

    def metadata(self, provider: Any) -> Mapping[cst.CSTNode, Any]:
        """What a metadata provider of LibCST says of each node; computed once."""
        return self._wrapper.resolve(provider)

    def line_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column of a node's start, both from 1."""
        start = self.metadata(PositionProvider)[node].start
        return start.line, start.column + 1

    def last_line_of(self, node: cst.CSTNode) -> int:
        return self.metadata(PositionProvider)[node].end.line

    def place(self, node: cst.CSTNode) -> str:
        """`FILE:LINE:COLUMN`, as findings have it."""
        line, column = self.line_of(node)
        return f"{clean(str(self.path))}:{line}:{column}"

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node."""
        return self.module.code_for_node(node)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        return tuple(re.split(r"\r\n|\r|\n", self.text))


def read(path: Path) -> Source:
    """Read a file; what goes wrong is in `Source.trouble`.

    Raises:
        OSError: there is no such file, or no permission. A folder is no such file.
    """
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        too_large = Trouble(1, 1, f"more than {_LARGEST // 1024**2} MiB: not written by a person")
        return Source(path, b"torch", "", "utf-8", "\n", too_large)
    return from_bytes(path, data)


def from_bytes(path: Path, data: bytes) -> Source:
    """The source of bytes that are not (yet) in a file."""
    encoding, text, trouble = _decode(data)
    return Source(path, data, text, encoding, _newline(data), trouble)


def _decode(data: bytes) -> tuple[str, str, Trouble | None]:
    import io
    import tokenize

    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        return "utf-8", "", Trouble(line, 1, "a NUL byte: no Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except SyntaxError as error:
        return "utf-8", "", Trouble(1, 1, clean(str(error)))
    except (UnicodeDecodeError, LookupError) as error:
        at = getattr(error, "start", 0)
        line = data[:at].count(b"\n") + 1
        return "utf-8", "", Trouble(line, 1, f"the bytes are not the encoding said: {error}")
    return encoding, text.removeprefix("\ufeff"), None


def _newline(data: bytes) -> str:
    windows = data.count(b"\r\n")
    counts = {"\n": data.count(b"\n") - windows, "\r\n": windows}
    counts["\r"] = data.count(b"\r") - windows
    return max(counts, key=lambda name: counts[name])


def neighbours(source: Source) -> tuple[Source, ...]:
    """The modules of the script's own folder that it imports, and those that they import.

    Read, not imported; each once, also where they import each other. What cannot be read, is no
    Python, or has nothing to do with training is left out: it is not what was asked about.
    """
    folder = source.path.parent
    seen = {_real(source.path)}
    found: list[Source] = []
    waiting = [source]
    while waiting and len(found) < 50:
        at = waiting.pop(0)
        for dotted in at.index.imported:
            for path in candidates(folder, at.path.parent, dotted):
                real = _real(path)
                if real in seen:
                    continue
                seen.add(real)
                try:
                    other = read(path)
                except OSError:
                    continue
                if other.concerns_training and other.trouble is None:
                    found.append(other)
                    waiting.append(other)
    return tuple(found)


def _real(path: Path) -> str:
    return os.path.realpath(path)  # a loop of links is no error here


def candidates(folder: Path, own: Path, dotted: str) -> list[Path]:
    """Files that `import dotted` may mean: beside the script, or relative to the importing file."""
    level = len(dotted) - len(dotted.lstrip("."))
    start = folder if level == 0 else own
    for _ in range(level - 1):
        start = start.parent
    names = [name for name in dotted.lstrip(".").split(".") if name]
    if not names or names[0] == "rankup":  # the runtime that `port --vendor` has copied
        return []
    bases = [start.joinpath(*names[:k]) for k in range(len(names), 0, -1)]
    paths = [path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py")]
    return [path for path in paths if os.path.isfile(path)]  # False, too, in a loop of links
