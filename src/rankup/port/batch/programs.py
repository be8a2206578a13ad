"""The Python programs and launchers in the words of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import options

_TORCHRUN = ("torchrun", "torchrun_jsc")
_LAUNCHERS = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "launch",
    "torchrun_jsc": "torchrun_jsc", "accelerate.commands.launch": "accelerate",
}  # fmt: skip
_OTHERS = (
    "deepspeed", "horovodrun", "mpirun", "mpiexec", "colossalai", "ray", "lightning", "fabric",
)  # fmt: skip
_PYTHON = re.compile(r"(?:i?python[0-9.]*|pypy3?)$", re.IGNORECASE)
_FLAGS = frozenset(("standalone", "no-python", "module", "m", "run-path", "use-env",
                    "virtual-local-rank", "h"))  # fmt: skip
_ACCELERATE_FLAGS = frozenset(
    ("multi-gpu", "cpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "same-network",
     "module", "m", "no-python", "debug", "quiet", "q", "use-mps-device", "mps",
     "enable-cpu-affinity", "use-xpu", "ipex", "tpu-use-cluster", "no-tpu-cluster", "use-tp",
     "help", "h")
)  # fmt: skip
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
    inside: tuple[str, ...] = ()
    options: dict[str, str | None] = field(default_factory=dict)
    sure: bool = True
    rest: tuple[str, ...] = ()
    module: bool = False

    @property
    def elastic(self) -> bool:
        """A torchrun in either of its forms, or the older launcher."""
        return self.kind in (*_TORCHRUN, "launch")

    @property
    def launches(self) -> bool:
        """A launcher whose options are understood."""
        return self.elastic or self.kind == "accelerate"

    @property
    def name(self) -> str:
        """The launcher and the script, or the words that start a module."""
        what = self.script or " ".join(self.words[:3])
        return what if self.kind == "python" or self.script is None else f"{self.kind} {what}"

    def option(self, name: str) -> str | None:
        """The value of the launcher's option; None without one."""
        return self.options.get(name) or None


def program(words: Sequence[str], unknown: str, inside: tuple[str, ...] = ()) -> Program | None:
    """The Python program or launcher that a command starts; None for anything else."""
    if not words:
        return None
    name = words[0].rpartition("/")[2]
    if name in _TORCHRUN:
        return _launcher(name, words, 1, unknown, inside)
    if name == "accelerate-launch" or (name == "accelerate" and words[1:2] == ["launch"]):
        return _launcher("accelerate", words, 1 + (name == "accelerate"), unknown, inside)
    if name in _OTHERS:
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        return Program(name, tuple(words), script, inside)
    if not _PYTHON.match(name):
        return None
    read, rest = options.read(words[1:], "cmWX".__contains__, {}, last="cm")
    last, module = (read[-1].name, read[-1].value or "") if read else ("", "")
    if last == "m":
        if kind := _LAUNCHERS.get(module):
            return _launcher(kind, words, len(words) - len(rest), unknown, inside)
        first = module.partition(".")[0]
        if first in _HELPERS or unknown in module:
            return None
        kind = first if first in _OTHERS else "python"
        return Program(kind, tuple(words), None, inside, rest=(module, *rest), module=True)
    if last == "c" or not rest or rest[0] == "-":
        return None
    if rest[0].rpartition("/")[2] in _TORCHRUN:  # python $(which torchrun)
        return _launcher("torchrun", rest, 1, unknown, inside)
    sure = unknown not in rest[0]
    return Program("python", tuple(words), rest[0], inside, sure=sure, rest=tuple(rest))


def _launcher(
    kind: str, words: Sequence[str], begin: int, unknown: str, inside: tuple[str, ...]
) -> Program:
    """A launcher, whose own options begin at `begin`."""
    flags = _ACCELERATE_FLAGS if kind == "accelerate" else _FLAGS
    read, rest = options.read(words[begin:], lambda name: name not in flags, {})
    given = {option.name: option.value for option in read}
    module = "module" in given or "m" in given
    if "no-python" in given:  # `--no-python env A=1 python -u train.py`
        rest = rest[next((at for at, word in enumerate(rest) if word.endswith(".py")), len(rest)) :]
    sure = not (rest and unknown in rest[0]) and all(unknown not in name for name in given)
    # A value in which words went wrong: `--nnodes train.py`.
    script = rest[0] if rest and not module and sure else None
    return Program(kind, tuple(words), script, inside, given, sure, tuple(rest), module)
