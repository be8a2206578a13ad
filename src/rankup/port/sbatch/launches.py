"""The Python programs and launchers that a batch script starts, on their own or through srun."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

from ..batch import options
from ..batch.shell import Command, UnreadableError, Word, commands, is_assignment, is_prefix

Variables = dict[str, Word]  # by their names, the words that set them

TORCHRUN = ("torchrun", "torchrun_jsc")
_OTHERS = ("accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "colossalai", "ray")
SHELLS = ("bash", "sh", "zsh", "dash")
# With --container-image srun is one, too.
_CONTAINERS = ("apptainer", "singularity", "docker", "podman", "shifter", "charliecloud", "srun")
# Programs that run another in an environment: `uv run python train.py`.
_RUNNERS = ("uv", "conda", "mamba", "micromamba", "poetry", "pipenv", "pixi", "hatch")
PROFILERS = ("nsys", "ncu", "rocprof", "rocprofv3", "vtune")
_PYTHON = re.compile(r"(?:.*/)?(?:i?python[0-9.]*|\$\{?PYTHON\w*\}?)$", re.IGNORECASE)
_VARIABLE = re.compile(r'"?\$\{(\w+)\[[@*]\]\}"?|\$\{?(\w+)\}?')
_NO_VALUE = frozenset(
    ("standalone", "no-python", "module", "m", "run-path", "use-env", "virtual-local-rank")
)
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch", "torchrun_jsc")
_HELPERS = ("pip", "venv", "ensurepip", "site", "compileall", "rankup")
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
        kind: `python`, `torchrun`, `torchrun_jsc`, or the name of another launcher; `code` for
            Python code in the line.
        words: the program's own words: interpreter, its options, script and arguments.
        script: the Python file, as it is written; None for a module or code in the line.
        srun: options of the srun it is under; None without one.
        options: of torchrun, by long name with hyphens; None where one takes no value.
        in_shell: it stands in the text of a `bash -c`.
        runner: a program that starts it: a container, `uv`, a profiler, …
        array: its words stand in a variable: `"${COMMAND[@]}"`, `$COMMAND`.
    """

    command: Command
    line: int
    kind: str = ""
    words: tuple[str, ...] = ()
    script: str | None = None
    srun: tuple[options.Option, ...] | None = None
    options: dict[str, str | None] = field(default_factory=dict)
    in_shell: bool = False
    runner: str = ""
    array: bool = False

    def option(self, *names: str) -> str | None:
        """Return the value of torchrun's option; None without one."""
        return next((self.options[name] for name in names if self.options.get(name)), None)

    def of_srun(self, name: str) -> str:
        """Return the value of srun's option; empty without one."""
        found = [one.value or "" for one in self.srun or () if one.name == name]
        return found[-1] if found else ""

    @property
    def name(self) -> str:
        """The script, or the words that start a module."""
        return self.script or " ".join(self.words[:3])

    @property
    def torchrun(self) -> bool:
        return self.kind in TORCHRUN

    @property
    def container(self) -> bool:
        return self.runner in _CONTAINERS


def launches(commands: Iterable[Command], functions: Collection[str]) -> Iterator[Launch]:
    """Yield every launch, in the order of the script; code in a line and helpers are left out."""
    known: Variables = {}
    for command in commands:
        words = list(dropwhile(is_prefix, command.words))
        if words and words[0].value in functions:  # what a function is given, it may start
            words = words[1:]
        for one in _of(words, Launch(command, command.line), known, 0):
            if one.kind != "code":
                yield one
        known |= {
            word.text.partition("=")[0]: word for word in command.words if is_assignment(word)
        }


def is_python(word: str) -> bool:
    """Return True for a Python interpreter."""
    return bool(_PYTHON.match(word))


def base_name(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]


def _expanded(word: Word, known: Variables) -> Sequence[Word]:
    """Return the words of a variable that holds a program: `"${COMMAND[@]}"`, `$COMMAND`."""
    match = _VARIABLE.fullmatch(word.text)
    assigned = known.get(match[1] or match[2]) if match else None
    if match is None or assigned is None:
        return (word,)
    items = assigned.items
    if match[2]:
        text = assigned.value.partition("=")[2].replace("\\\n", " ").strip()
        found, _ = commands(text.encode())
        items = found[0].words if len(found) == 1 else ()
    starts = any(one.value == "srun" or _program(one.value, "") for one in items)
    return items if starts else (word,)


def _of(words: Sequence[Word], around: Launch, known: Variables, level: int) -> Iterator[Launch]:
    """Yield the launches of a command; `around` has what stands in front of the program."""
    rest = [one for word in dropwhile(is_prefix, words) for one in _expanded(word, known)]
    around = replace(around, array=around.array or len(rest) > len(words))
    values: Sequence[str] = [word.value for word in rest]
    while values:
        name = base_name(values[0])
        if name == "srun":
            found, left = options.read(values[1:])
            image = any(one.name in ("container", "container-image") for one in found)
            around = replace(around, srun=tuple(found), runner="srun" if image else "")
        elif name in _WRAPPERS:
            _, left = options.read(values[1:], _WRAPPERS[name].__contains__, {})
            if name in ("timeout", "taskset"):
                left = left[1:]
            while name == "env" and left and re.match(r"\w+=", left[0]):
                left = left[1:]
        else:
            break
        rest, values = rest[len(rest) - len(left) :], left
    if not values:
        return
    name = base_name(values[0])
    if name in SHELLS:
        yield from _in_shell(rest, around, known, level)
    elif name in (*_CONTAINERS, *PROFILERS) or (name in _RUNNERS and "run" in values):
        inner = next((at for at, one in enumerate(values) if at and _program(one, name)), None)
        if inner is None or level >= _DEEPEST:
            return
        held = replace(around, runner=name)
        if values[inner].endswith(".py"):
            script = values[inner]
            yield replace(held, kind="python", words=tuple(values[inner:]), script=script)
        else:
            yield from _of(rest[inner:], held, known, level + 1)
    elif name in TORCHRUN:
        yield _torchrun(around, name, values, 1)
    elif name in _OTHERS:
        file = next((one for one in values[1:] if one.endswith(".py")), None)
        yield replace(around, kind=name, words=tuple(values), script=file)
    elif is_python(values[0]):
        yield _python(around, values)


def _program(word: str, runner: str) -> bool:
    """Return True for the program behind `uv run …` and the like; uv also starts a script."""
    known = (*TORCHRUN, *_OTHERS, *SHELLS)
    itself = runner == "uv" and word.endswith(".py")
    return itself or is_python(word) or base_name(word) in known


def _in_shell(
    words: Sequence[Word], around: Launch, known: Variables, level: int
) -> Iterator[Launch]:
    """Yield the launches of `bash -c TEXT`."""
    at = next((at for at, one in enumerate(words) if re.match(r"-\w*c", one.value)), len(words))
    if at + 1 >= len(words) or level >= _DEEPEST:
        return
    if not all(one.value.startswith("-") for one in words[1:at]):  # a script's own arguments
        return
    text = words[at + 1]
    try:
        found, _ = commands(text.value.encode())
    except UnreadableError:
        return
    for command in found:
        held = replace(around, line=text.line + command.line - 1, in_shell=True)
        yield from _of(command.words, held, known, level + 1)


def _torchrun(around: Launch, kind: str, values: Sequence[str], begin: int) -> Launch:
    """Return the launch of a torchrun, whose own options begin at `begin`."""
    read, rest = options.read(values[begin:], lambda name: name not in _NO_VALUE, {})
    found = {one.name: one.value for one in read}
    if "no-python" in found and rest and is_python(rest[0]):
        rest = [word for word in rest[1:] if word != "-u"]
    module = "module" in found or "m" in found
    script = None if module or not rest or rest[0].startswith("$") else rest[0]
    words = (*values[:begin], *rest)
    return replace(around, kind=kind, words=words, script=script, options=found)


def _python(around: Launch, values: Sequence[str]) -> Launch:
    """Return the launch of a Python; its kind is `code` for what trains nothing."""
    found, rest = options.read(values[1:], "cmWX".__contains__, {}, last="cm")
    around = replace(around, words=tuple(values))
    name, module = (found[-1].name, found[-1].value or "") if found else ("", "")
    if name == "m":
        if module in _TORCHRUN_MODULES:
            return _torchrun(around, "torchrun", values, len(values) - len(rest))
        first = module.partition(".")[0]
        if first in _HELPERS:
            return replace(around, kind="code")
        return replace(around, kind=first if first in _OTHERS else "python")
    if name == "c" or not rest or rest[0] == "-":
        return replace(around, kind="code")
    return replace(around, kind="python", script=rest[0])
