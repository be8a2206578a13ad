"""A batch script, read: its lines, its directives, and the files that its job would find."""

from __future__ import annotations

import re
import shutil
import subprocess
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

LARGEST = 128 * 1024  # bytes; what people write is a hundredth of it
_SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".batch", ".sub")
_BASH = re.compile(r"#!.*\b(?:ba|da)?sh\b")
_SHELL_SCRIPT = re.compile(rb"#!\s*\S*(/env\s+)?\S*\b(ba|z|k|da)?sh\b")
_DIRECTIVE = re.compile(rb"^#+\s*SBATCH\b", re.MULTILINE)
_CONFLICT = re.compile(r"(<{7}|>{7}|\|{7})( |$)|={7}$")
_HETERO = re.compile(r"^#SBATCH\s+(?:hetjob|packjob)\b", re.MULTILINE)
_HERE_DOCUMENT = re.compile(r"^[^#]*(?<!<)<<-?\s*[\\'\"]?(\w+)")
_REJECTED = re.compile(r"line (\d+): (.*)")


@dataclass(frozen=True)
class BatchScript:
    """A batch script, read.

    Attributes:
        conflicts: lines with git's conflict markers.
        first: line of the first command, behind which sbatch reads no directive.
        rejected: line and message of bash, which cannot read it.
    """

    path: Path
    text: str
    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    conflicts: tuple[int, ...]
    first: int | None
    rejected: tuple[int, str] | None = None

    @property
    def hetero(self) -> bool:
        """A job of several parts, each with directives of its own."""
        return bool(_HETERO.search(self.text))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options that sbatch reads, in order."""
        return tuple(option for line in self.directives if line.read for option in line.options)

    def option(self, *names: str) -> Option | None:
        """Return the last of them with one of these long names."""
        return next((option for option in reversed(self.options) if option.name in names), None)

    def line_of(self, pattern: str, otherwise: int, begin: int = 1) -> int:
        """The first line from `begin` on with a pattern."""
        lines = enumerate(self.lines[begin - 1 :], begin)
        hits = (at for at, text in lines if re.search(pattern, text) and text[:1] != "#")
        return next(hits, otherwise)

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
        option = self.option("chdir", "workdir")
        chdir = (option and option.value) or ""
        return self._beside if "$" in chdir else [start / chdir for start in self._beside]

    @cached_property
    def _beside(self) -> Sequence[Path]:
        return (self.path.resolve().parent, Path.cwd())


def is_batch(path: Path) -> bool:
    """Return True for a file for sbatch: by its name, as a shell script, or by its directives."""
    if path.suffix in (".py", ".ipynb", ".pyw"):
        return False
    if path.suffix in _SUFFIXES:
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
        UserError: it is not there, not a file of text, or far too long to be one.
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
        text = data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; store it as UTF-8 text") from None
    lines = tuple(text.split("\n"))  # a CR at their end is a finding
    numbered = list(enumerate(lines, 1))
    conflicts = tuple(at for at, line in numbered if _CONFLICT.match(line.rstrip("\r")))
    commands = (
        at for at, line in numbered
        if line.strip() and not line.lstrip().startswith("#") and not _CONFLICT.match(line)
    )  # fmt: skip
    first = next(commands, None)
    held = _in_here_documents(lines)
    directives = (
        directive(at, line, first is None or at < first) for at, line in numbered if at not in held
    )
    wrong = None
    # zsh and ksh have words of their own, of which bash knows nothing.
    if not conflicts and (not lines[0].startswith("#!") or _BASH.match(lines[0])):
        wrong = rejected(text.replace("\r\n", "\n"))
    kept = tuple(line for line in directives if line is not None)
    return BatchScript(path, text, lines, kept, conflicts, first, wrong)


def _in_here_documents(lines: Sequence[str]) -> set[int]:
    """The lines of here-documents: what another sbatch reads has directives of its own."""
    held, end = set[int](), ""
    for at, line in enumerate(lines, 1):
        if end:
            held.add(at)
            end = "" if line.strip() == end else end
        elif match := _HERE_DOCUMENT.search(line):
            end = match[1]
    return held


def rejected(text: str, *, strictly: bool = False) -> tuple[int, str] | None:
    """Return the line at which bash itself cannot read a script, and its words; None if it can.

    Args:
        strictly: a here-document without an end, of which bash only warns, is rejected, too.
    """
    bash = shutil.which("bash")
    if bash is None:
        return None
    try:
        # `-n` runs nothing, and without BASH_ENV no other file is read.
        result = subprocess.run(
            [bash, "--norc", "--noprofile", "-n"],
            input=text.encode(),
            env={"LC_ALL": "C"},
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return 1, "bash does not come to an end with it"
    if result.returncode == 0 and not (strictly and result.stderr):
        return None
    match = _REJECTED.search(result.stderr.decode(errors="replace"))
    return (int(match[1]), match[2]) if match else (1, "bash crashes when it reads it")
