"""The Python programs and launchers in the words of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import options

TORCHRUN = ("torchrun", "torchrun_jsc")
_LAUNCHERS = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "launch",
    "torchrun_jsc": "torchrun_jsc", "accelerate.commands.launch": "accelerate",
}  # fmt: skip
_OTHERS = (
    "deepspeed", "horovodrun", "mpirun", "mpiexec", "colossalai", "ray", "lightning", "fabric",
)  # fmt: skip
_PYTHON = re.compile(r"(?:i?python[0-9.]*|pypy3?)$", re.IGNORECASE)
_NO_VALUE = options.words("standalone no-python module m run-path use-env virtual-local-rank h")
_ACCELERATE_FLAGS = options.words(
    "multi-gpu cpu tpu use-deepspeed use-fsdp use-megatron-lm same-network module m no-python "
    "debug quiet q use-mps-device mps enable-cpu-affinity use-xpu ipex tpu-use-cluster "
    "no-tpu-cluster use-tp help h"
)
_HELPERS = ("pip", "venv", "virtualenv", "ensurepip", "site", "compileall", "rankup", "http")


@dataclass(frozen=True)
class Program:
    """A program that is started.

    Attributes:
        kind: `python`, `torchrun`, `torchrun_jsc`, `launch`, `accelerate` or another launcher.
        words: its own, with interpreter and arguments.
        script: the Python file; None for a module, or where that is not known.
        rest: the script or module, and what it is given.
        module: it is a module.
        options: of the launcher, by long name with hyphens; None where one takes no value.
        sure: all of its launcher's options are known.
        inside: containers, profilers and files that start it.
    """

    kind: str
    words: tuple[str, ...]
    script: str | None
    options: dict[str, str | None] = field(default_factory=dict)
    sure: bool = True
    inside: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    module: bool = False

    @property
    def elastic(self) -> bool:
        """A torchrun in either of its forms, or the older launcher."""
        return self.kind in (*TORCHRUN, "launch")

    @property
    def name(self) -> str:
        """The launcher and the script, or the words that start a module."""
        what = self.script or " ".join(self.words[:3])
        return what if self.kind == "python" or self.script is None else f"{self.kind} {what}"

    def option(self, *names: str) -> str | None:
        """The value of the launcher's option; None without one."""
        return next((self.options[name] for name in names if self.options.get(name)), None)


def program(words: Sequence[str], unknown: str, inside: Sequence[str] = ()) -> Program | None:
    """The Python program or launcher that a command starts; None for anything else."""
    if not words:
        return None
    name, held = words[0].rpartition("/")[2], tuple(inside)
    if name in TORCHRUN:
        return _launcher(name, words, 1, _NO_VALUE, unknown, held)
    if name == "accelerate":
        if list(words[1:2]) != ["launch"]:
            return None
        return _launcher(name, words, 2, _ACCELERATE_FLAGS, unknown, held)
    if name == "accelerate-launch":
        return _launcher("accelerate", words, 1, _ACCELERATE_FLAGS, unknown, held)
    if name in _OTHERS:
        file = next((one for one in words[1:] if one.endswith(".py")), None)
        return Program(name, tuple(words), file, inside=held)
    if not _PYTHON.match(name):
        return None
    found, rest = options.read(words[1:], "cmWX".__contains__, {}, last="cm")
    last, module = (found[-1].name, found[-1].value or "") if found else ("", "")
    if last == "m":
        if kind := _LAUNCHERS.get(module):
            flags = _ACCELERATE_FLAGS if kind == "accelerate" else _NO_VALUE
            return _launcher(kind, words, len(words) - len(rest), flags, unknown, held)
        first = module.partition(".")[0]
        if first in _HELPERS or unknown in module:
            return None
        kind, told = first if first in _OTHERS else "python", (module, *rest)
        return Program(kind, tuple(words), None, inside=held, rest=told, module=True)
    if last == "c" or not rest or rest[0] == "-":
        return None
    if rest[0].rpartition("/")[2] in TORCHRUN:  # python $(which torchrun)
        return _launcher("torchrun", rest, 1, _NO_VALUE, unknown, held)
    sure = unknown not in rest[0]
    return Program("python", tuple(words), rest[0], sure=sure, inside=held, rest=tuple(rest))


def _launcher(
    kind: str,
    words: Sequence[str],
    begin: int,
    flags: frozenset[str],
    unknown: str,
    inside: tuple[str, ...],
) -> Program:
    """A launcher, whose own options begin at `begin`."""
    read, rest = options.read(words[begin:], lambda name: name not in flags, {})
    found = {one.name: one.value for one in read}
    module = "module" in found or "m" in found
    if "no-python" in found:  # `--no-python env A=1 python -u train.py`
        rest = rest[next((at for at, one in enumerate(rest) if one.endswith(".py")), len(rest)) :]
    sure = not (rest and unknown in rest[0]) and all(unknown not in one for one in found)
    # A value in which words went wrong: `--nnodes train.py`.
    script = rest[0] if rest and not module and sure else None
    return Program(kind, tuple(words), script, found, sure, inside, tuple(rest), module)
