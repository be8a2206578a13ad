"""What a batch script starts: python, torchrun, `torchrun_jsc`, on its own or through srun."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import options
from .parsed import BatchScript
from .shell import Command, commands
from .tokens import UnreadableError, Word, is_assignment

TORCHRUN = ("torchrun", "torchrun_jsc")
_OTHERS = ("accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "colossalai", "ray")
_SHELLS = ("bash", "sh", "zsh", "dash")
_CONTAINERS = ("apptainer", "singularity", "docker", "podman", "shifter", "charliecloud")
# Programs that run another in an environment: `uv run python train.py`.
_RUNNERS = ("uv", "conda", "mamba", "micromamba", "poetry", "pipenv", "pixi", "hatch")
_PYTHON = re.compile(r"(?:.*/)?(?:i?python[0-9.]*|\$\{?PYTHON\w*\}?)$", re.IGNORECASE)
_NO_VALUE = {"standalone", "no-python", "module", "m", "run-path", "help", "h"}
_DEEPEST = 4  # shells in shells

# Wrappers that run what follows; the options of each that take a value of their own.
_WRAPPERS = {
    "exec": ("a",),
    "command": (),
    "nohup": (),
    "time": ("f", "o", "format", "output"),
    "env": ("u", "unset", "C", "chdir", "S"),
    "nice": ("n", "adjustment"),
    "ionice": ("c", "n"),
    "stdbuf": ("i", "o", "e"),
    "timeout": ("k", "s", "kill-after", "signal"),
    "numactl": ("N", "m", "C", "cpunodebind", "membind", "physcpubind"),
    "taskset": (),
    "unbuffer": (),
    "setsid": (),
    "srun": (),
}


@dataclass(frozen=True)
class Launch:
    """A line that starts a Python program, or one of its launchers.

    Attributes:
        command: of the batch script, in which it stands.
        line: of the program itself; a `bash -c` may go over several.
        kind: `python`, `torchrun`, `torchrun_jsc`, or the name of another launcher.
        srun: options of the srun it is under; None without one.
        options: of torchrun, by long name with hyphens; None where one takes no value.
        words: the program's own words: interpreter, its options, script and arguments.
        script: the Python file, as it is written; None for a module or code in the line.
        shell: how the text of a `bash -c` around it is quoted: `'`, `"`, or empty without one.
        container: it runs in a container.
    """

    command: Command
    line: int
    kind: str
    words: tuple[str, ...]
    script: str | None = None
    srun: tuple[options.Option, ...] | None = None
    options: dict[str, str | None] = field(default_factory=dict)
    shell: str = ""
    container: bool = False

    def option(self, *names: str) -> str | None:
        """The value of torchrun's option; None without one."""
        return next((self.options[name] for name in names if self.options.get(name)), None)

    @property
    def torchrun(self) -> bool:
        return self.kind in TORCHRUN


def launches(script: BatchScript) -> list[Launch]:
    """Every launch, in the order of the script."""
    found = []
    functions = {one.function for one in script.commands if one.function}
    for command in script.commands:
        start = _Start(command, command.line, None, "", False)
        words = command.words
        while words and is_assignment(words[0]):
            words = words[1:]
        if words and words[0].value in functions:  # what a function is given, it may start
            words = words[1:]
        found += list(_of(words, start, 0))
    return found


@dataclass(frozen=True)
class _Start:
    """What stands around a program."""

    command: Command
    line: int
    srun: tuple[options.Option, ...] | None
    shell: str
    container: bool

    def launch(
        self,
        kind: str,
        words: Sequence[str],
        script: str | None = None,
        of: dict[str, str | None] | None = None,
    ) -> Launch:
        return Launch(
            self.command, self.line, kind, tuple(words), script, self.srun, of or {}, self.shell,
            self.container,
        )  # fmt: skip


def _of(words: Sequence[Word], start: _Start, level: int) -> Iterator[Launch]:
    rest = list(words)
    while rest and is_assignment(rest[0]):
        rest.pop(0)
    values = [word.value for word in rest]
    while values:
        name = values[0].rpartition("/")[2]
        if name == "srun":
            found, left = options.read(values[1:])
            start = _Start(start.command, start.line, tuple(found), start.shell, start.container)
        elif name in _WRAPPERS:
            left = _behind_options(values[1:], _WRAPPERS[name])
            if name in ("timeout", "taskset") and left:
                left = left[1:]
            if name == "env":
                while left and re.match(r"\w+=", left[0]):
                    left = left[1:]
        else:
            break
        rest, values = rest[len(rest) - len(left) :], left
    if not values:
        return
    name = values[0].rpartition("/")[2]
    if name in _SHELLS:
        yield from _in_shell(rest, start, level)
    elif name in _CONTAINERS:
        inner = next((at for at, one in enumerate(values) if _program(one)), None)
        if inner is not None:
            held = _Start(start.command, start.line, start.srun, start.shell, True)
            yield from _of(rest[inner:], held, level)
    elif name in _RUNNERS and "run" in values:
        inner = next((at for at, one in enumerate(values) if _program(one)), None)
        if inner is not None:
            yield from _of(rest[inner:], start, level)
    elif name in TORCHRUN:
        yield _torchrun(start, name, values, 1)
    elif name in _OTHERS:
        yield start.launch(name, values, _file(values[1:]))
    elif _PYTHON.match(values[0]):
        yield _python(start, values)


def is_python(word: str) -> bool:
    """Whether a word is a Python interpreter."""
    return bool(_PYTHON.match(word))


def _program(word: str) -> bool:
    name = word.rpartition("/")[2]
    return bool(_PYTHON.match(word)) or name in (*TORCHRUN, *_OTHERS, *_SHELLS)


def _in_shell(words: Sequence[Word], start: _Start, level: int) -> Iterator[Launch]:
    """What `bash -c TEXT` starts."""
    at = 1
    while at < len(words) and words[at].value.startswith("-"):
        if "c" in words[at].value.lstrip("-") and not words[at].value.startswith("--"):
            break
        at += 1
    if at + 1 >= len(words) or level >= _DEEPEST or not words[at].value.startswith("-"):
        return
    text = words[at + 1]
    quotes = {quote for piece, quote in text.pieces if piece.strip()}
    shell = "'" if quotes == {"'"} else '"'
    inner = "".join(_as_read(piece, quote) for piece, quote in text.pieces)
    try:
        found = commands(inner)
    except UnreadableError:
        return
    for command in found:
        line = text.line + command.line - 1
        held = _Start(start.command, line, start.srun, shell, start.container)
        yield from _of(command.words, held, level + 1)


def _as_read(piece: str, quote: str) -> str:
    """The text that the inner shell gets; what the outer one expands stays as it is written."""
    if quote != '"':
        return piece
    return re.sub(r'\\([$`"\\])', r"\1", piece.replace("\\\n", ""))


def _behind_options(values: list[str], with_value: tuple[str, ...]) -> list[str]:
    left = list(values)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word.lstrip("-") in with_value and left:
            left.pop(0)
    return left


def _torchrun(start: _Start, kind: str, values: list[str], begin: int) -> Launch:
    """torchrun's own options, its script and the words behind that."""
    found: dict[str, str | None] = {}
    at = begin
    while at < len(values) and values[at].startswith("-"):
        word = values[at]
        at += 1
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if equals:
            found[name] = value
        elif name in _NO_VALUE or at >= len(values):
            found[name] = None
        else:
            found[name] = values[at]
            at += 1
    rest = values[at:]
    if "no-python" in found and rest and _PYTHON.match(rest[0]):
        rest = _python(start, rest).words[1:]  # type: ignore[assignment]
        rest = [word for word in rest if word != "-u"]
    module = "module" in found or "m" in found
    script = None if module or not rest or "$" in rest[0][:1] else rest[0]
    return start.launch(kind, values[:begin] + rest, script, found)


def _python(start: _Start, values: list[str]) -> Launch:
    at = 1
    while at < len(values) and values[at].startswith("-") and values[at] != "-":
        word = values[at]
        if word.startswith("-m") or word.startswith("-c"):
            module = word[2:] or (values[at + 1] if at + 1 < len(values) else "")
            if word.startswith("-m") and module in ("torch.distributed.run", "torchrun_jsc"):
                return _torchrun(start, "torchrun", values, at + (1 if word[2:] else 2))
            if word.startswith("-m") and module == "torch.distributed.launch":
                return _torchrun(start, "torchrun", values, at + (1 if word[2:] else 2))
            if word.startswith("-m") and module.partition(".")[0] in _OTHERS:
                return start.launch(module.partition(".")[0], values)
            kind = "python" if word.startswith("-m") else "code"
            return start.launch(kind, values)
        at += 2 if word in ("-W", "-X") else 1
    script = values[at] if at < len(values) and values[at] != "-" else None
    return start.launch("python" if script else "code", values, script)


def _file(values: Sequence[str]) -> str | None:
    return next((one for one in values if one.endswith(".py")), None)
