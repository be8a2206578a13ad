"""A batch script, read: its directives, its commands, its variables, and what it starts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...base.errors import UserError
from ...base.files import open_regular
from ...script.roles import Script
from ...script.source import read
from ...script.understand import understand
from ..batch.options import Directive, Option, directive, gpus_of
from ..batch.shell import Command, UnreadableError, commands, is_assignment, rejected
from .launches import TORCHRUN, Launch, launches

LARGEST = 128 * 1024  # bytes; what people write is a hundredth of it
SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".batch", ".sub")
BASH = re.compile(r"#!.*\b(?:ba|da)?sh\b")
_SHELL_SCRIPT = re.compile(rb"#!\s*\S*(/env\s+)?\S*\b(ba|z|k|da)?sh\b")
_DIRECTIVE = re.compile(rb"^#+\s*SBATCH\b", re.MULTILINE)
_CONFLICT = re.compile(r"(<{7}|>{7}|\|{7})( |$)|={7}$")
_PLAIN = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


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

    @cached_property
    def values(self) -> dict[str, str]:
        """Variables that are set to a plain text once, at the top."""
        found: dict[str, str | None] = {}
        for command in self.commands:
            words = command.words
            if words[0].text in ("export", "readonly", "declare"):
                words = tuple(word for word in words if is_assignment(word))
            for word in words if all(map(is_assignment, words)) else ():
                name, _, value = word.value.partition("=")
                plain = not (command.depth or word.live or value[:1] == "(" or name in found)
                found[name] = value if plain else None
        return {name: value for name, value in found.items() if value is not None}

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Python programs that are started; helpers (`python -c`, `pip`) are left out."""
        return tuple(launches(self.commands, self.functions))

    @cached_property
    def seen(self) -> list[Launch]:
        """The launches of which the script or module is known."""
        return [one for one in self.launches if one.script is not None or "-m" in one.words]

    @cached_property
    def training(self) -> list[Launch]:
        """The same; where they start several scripts, those that train."""
        if len({one.name for one in self.seen}) == 1:
            return self.seen
        known = ((one, self.understood(one.script or "")) for one in self.seen)
        return [one for one, role in known if role is not None and role.trains]

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions that the script defines."""
        return frozenset(one.function for one in self.commands if one.function)

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

    def gpus(self) -> int | None:
        """Return the GPUs of a node that are asked for: 0 for none, None if unclear."""
        if (gres := self.asked("gres")) is not None and "gpu" in gres:
            return gpus_of(gres)
        for name, of in (("gpus-per-node", 1), ("gpus", self.nodes())):
            if (text := self.asked(name)) is not None:
                count = gpus_of(f"gpu:{text}")
                return None if count is None or not of or count % of else count // of
        if (text := self.asked("gpus-per-task")) is not None:
            count = gpus_of(f"gpu:{text}")
            tasks = self.tasks_per_node()
            return None if count is None or tasks is None else count * tasks
        return 0

    def nodes(self, launch: Launch | None = None) -> int | None:
        """Return the nodes of the job, or of a launch; None for a range or an unknown number."""
        if launch is not None:
            asked = "1" if launch.srun is None else launch.of_srun("nodes")
            return _whole(self.resolve(asked)) if asked else self.nodes()
        if self.asked("nodes") is None:
            tasks, each = self.number("ntasks"), self.number("ntasks-per-node")
            return -(-tasks // each) if tasks and each else 1
        return self.number("nodes")

    def tasks_per_node(self, launch: Launch | None = None) -> int | None:
        """Return the tasks that srun starts on each node; None where it cannot be told."""
        if launch is not None:
            if launch.srun is None:
                return 1
            if each := launch.of_srun("ntasks-per-node"):
                return _whole(self.resolve(each))
            if asked := launch.of_srun("ntasks"):
                count, nodes = _whole(self.resolve(asked)), self.nodes(launch)
                return max(1, count // nodes) if count and nodes else None
        if (given := self.number("ntasks-per-node")) is not None:
            return given
        total, nodes = self.number("ntasks"), self.nodes()
        if total is None:
            return 1
        return total // nodes if nodes and total % nodes == 0 else None

    def ranks(self, launch: Launch) -> int | None:
        """Return the ranks that torchrun starts on a node; None where the GPUs decide."""
        text = launch.option("nproc-per-node")
        return 1 if text is None else _whole(self.resolve(text))

    def spread(self, launch: Launch) -> bool:
        """Return True where another launcher than srun spreads it: mpirun, or a function."""
        own = launch.command.function is not None or launch.command.name() in self.functions
        return own or launch.kind not in ("python", *TORCHRUN)

    def sets(self, name: str) -> Command | None:
        """Return the first command that sets a variable."""
        return next((one for one in self.commands if one.sets(name)), None)

    def resolve(self, text: str) -> str:
        """Return the text with the variables put in whose value is known; the others stay."""

        def put(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return self._slurm(name) or self.values.get(name) or match[0]

        return _PLAIN.sub(put, text)

    def offset(self, byte: int) -> int:
        """Return the offset of one of its bytes in the text."""
        return len(self.text.encode()[:byte].decode())

    def find(self, name: str) -> Path | None:
        """Return a file that the job would find."""
        for folder in (*self.folders, *self._beside):
            with suppress(OSError, ValueError):
                if (folder / name).is_file():
                    return folder / name
        return None

    def content(self, name: str) -> bytes:
        """Return the first megabyte of a file that the job would find; empty without it."""
        path = self.find(self.resolve(name))
        if path is None:
            return b""
        try:
            with open_regular(path) as file:
                return file.read(1 << 20)
        except OSError:
            return b""

    def understood(self, name: str) -> Script | None:
        """Return what a Python script does that the job would find; None without it."""
        path = self.find(self.resolve(name))
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

    def _slurm(self, name: str) -> str | None:
        known: dict[str, Callable[[], int | str | None]] = {
            "SLURM_SUBMIT_DIR": lambda: ".",
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_GPUS_ON_NODE": self.gpus,
            "SLURM_GPUS_PER_NODE": self.gpus,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
        }
        value = known[name]() if name in known else None
        return str(value) if value else None


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
