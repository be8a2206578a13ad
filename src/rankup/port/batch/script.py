"""A batch script, read: its directives, its commands, its variables, and what it starts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...base.errors import UserError
from ...base.files import open_regular
from ...script.roles import Script
from ...script.source import read
from ...script.understand import understand
from .options import Directive, Option, directive
from .shell import Command, UnreadableError, commands, rejected

LARGEST = 128 * 1024  # bytes; what people write is a hundredth of it
SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".batch", ".sub")
BASH = re.compile(r"#!.*\b(?:ba|da)?sh\b")
_SHELL_SCRIPT = re.compile(rb"#!\s*\S*(/env\s+)?\S*\b(ba|z|k|da)?sh\b")
_DIRECTIVE = re.compile(rb"^#+\s*SBATCH\b", re.MULTILINE)
_CONFLICT = re.compile(r"(<{7}|>{7}|\|{7})( |$)|={7}$")
_HETERO = re.compile(r"^#SBATCH\s+(?:hetjob|packjob)\b", re.MULTILINE)


@dataclass(frozen=True)
class BatchScript:
    """A batch script, read.

    Attributes:
        conflicts: lines with git's conflict markers; the commands are not read then.
        first: line of the first command, behind which sbatch reads no directive.
        rejected: line and message of bash, which cannot read it; there are no commands then.
        unread: lines of statements that are bash, but that the parser here cannot read.
    """

    path: Path
    text: str
    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    conflicts: tuple[int, ...]
    first: int | None
    commands: tuple[Command, ...] = ()
    rejected: tuple[int, str] | None = None
    unread: tuple[int, ...] = ()

    @cached_property
    def starts(self) -> list[int]:
        """The offset at which each line begins."""
        return _starts(self.lines)

    @property
    def hetero(self) -> bool:
        """A job of several parts, each with directives of its own."""
        return bool(_HETERO.search(self.text))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options that sbatch reads, in order."""
        return tuple(option for one in self.directives if one.read for option in one.options)

    def option(self, *names: str) -> Option | None:
        """Return the last of them with one of these long names."""
        return next((one for one in reversed(self.options) if one.name in names), None)

    def asked(self, *names: str) -> str | None:
        """Return its value; None without one."""
        found = self.option(*names)
        return None if found is None else found.value or ""

    def number(self, name: str) -> int | None:
        """Return the same as a whole number; None where there is none, or no plain one."""
        return _whole((self.asked(name) or "").strip())

    def find(self, name: str) -> Path | None:
        """Return a file that the job would find."""
        for folder in (*self.folders, *self._beside):
            with suppress(OSError, ValueError):
                if (folder / name).is_file():
                    return folder / name
        return None

    def content(self, name: str) -> bytes:
        """Return the first megabyte of a file that the job would find; empty without it."""
        path = self.find(name)
        if path is None:
            return b""
        try:
            with open_regular(path) as file:
                return file.read(1 << 20)
        except OSError:
            return b""

    def understood(self, name: str) -> Script | None:
        """Return what a Python script does that the job would find; None without it."""
        path = self.find(name)
        try:
            return understand(read(path)) if path else None
        except (OSError, RecursionError):
            return None

    @cached_property
    def folders(self) -> Sequence[Path]:
        """The folders that the job may start in."""
        chdir = self.asked("chdir", "workdir") or ""
        return self._beside if "$" in chdir else [start / chdir for start in self._beside]

    @cached_property
    def _beside(self) -> Sequence[Path]:
        return (self.path.resolve().parent, Path.cwd())


def is_batch(path: Path) -> bool:
    """Return True for a file for sbatch: by its name, as a shell script, or by its directives."""
    if path.suffix in (".py", ".ipynb", ".pyw"):
        return False
    if path.suffix in SUFFIXES:
        return True
    try:
        with open_regular(path) as file:
            head = file.read(4096)
    except OSError:
        return False
    return bool(_SHELL_SCRIPT.match(head) or _DIRECTIVE.search(head))


def load(path: Path) -> BatchScript:
    """Read a batch script.

    Raises:
        UserError: it is not there, not a file of text, or far too long or deep to be one.
    """
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; name a batch script") from None
    if len(data) > LARGEST:
        raise UserError(f"{path} is longer than {LARGEST // 1024} KiB; that is no batch script")
    if b"\0" in data:
        raise UserError(f"{path} is not text; name a batch script, or a Python script (.py)")
    try:
        return parse(path, data.decode())
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; store it as UTF-8 text") from None
    except UnreadableError as error:
        raise UserError(f"{path}: {error}; that is no batch script") from None


def parse(path: Path, text: str) -> BatchScript:
    """Return the parts of a batch script; `path` is only kept.

    Raises:
        UnreadableError: it is nested too deeply, or takes too long to parse.
    """
    lines = tuple(text.split("\n"))  # a CR at their end is a finding
    conflicts = tuple(
        number for number, line in enumerate(lines, 1) if _CONFLICT.match(line.rstrip("\r"))
    )
    found: list[Command] = []
    unread: list[int] = []
    wrong = None
    if not conflicts:
        data = text.replace("\r\n", "\n").encode()
        # zsh and ksh have words of their own, of which bash knows nothing.
        if not lines[0].startswith("#!") or BASH.match(lines[0]):
            wrong = rejected(data)
        if wrong is None:
            found, unread = commands(data)
    first = _first(lines)
    directives = tuple(
        one
        for number, (line, start) in enumerate(zip(lines, _starts(lines), strict=True), 1)
        if (one := directive(number, start, line, first is None or number < first))
    )
    return BatchScript(
        path, text, lines, directives, conflicts, first, tuple(found), wrong, tuple(unread)
    )


def _starts(lines: Sequence[str]) -> list[int]:
    return [0, *itertools.accumulate(len(line) + 1 for line in lines[:-1])]


def _first(lines: Sequence[str]) -> int | None:
    """Return the line at which sbatch stops: neither empty nor a comment."""
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#") and not _CONFLICT.match(line):
            return number
    return None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
