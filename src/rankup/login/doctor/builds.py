"""The torch that would be imported, and others behind it, found without importing any."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 64 * 1024
# Their compiled parts are made for one version of torch.
_COMPANIONS = ("torchvision", "torchaudio")
# e_machine of an ELF file (System V ABI and its supplements).
_MACHINES = {3: "i386", 21: "ppc64le", 22: "s390x", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


@dataclass(frozen=True)
class Build:
    """A torch.

    Attributes:
        folder: what holds it: a `site-packages`.
        version: with what it was built for: `2.8.0+cu128`; empty where not known.
        cuda, hip: versions that it was built for; empty: not for those.
        machine: architecture of its libraries; empty where not known (no ELF).
        problem: why it cannot be imported, as far as that shows; else empty.
    """

    folder: Path
    version: str
    cuda: str = ""
    hip: str = ""
    machine: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Builds:
    """All torches that Python's path leads to, the one that is imported first.

    Attributes:
        companions: the folder that torchvision and torchaudio would be imported from.
    """

    all: tuple[Build, ...]
    companions: Mapping[str, Path]


def this_path() -> list[str]:
    """The folders that this Python takes a torch from; last the one that only a finder knows."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    origin = spec.origin if spec is not None else None
    return [*sys.path, *([str(Path(origin).parent.parent)] if origin else [])]


def find(path: Sequence[str]) -> Builds:
    """Look in the folders of a Python's path, in their order."""
    folders = list(dict.fromkeys(Path(os.path.realpath(entry or ".")) for entry in path))
    found = [_read(folder) for folder in folders if (folder / "torch").is_dir()]
    companions: dict[str, Path] = {}
    for name in _COMPANIONS:
        for folder in folders:
            if (folder / name / "__init__.py").exists():
                companions.setdefault(name, folder)
    return Builds(tuple(one for one in found if one is not None), companions)


def elf_machine(file: Path) -> str:
    """The architecture that an ELF file is for; empty where it is none."""
    try:
        with file.open("rb") as stream:
            head = stream.read(20)
    except OSError:
        return ""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    return _MACHINES.get(number, f"ELF machine {number}")


def _read(folder: Path) -> Build | None:
    torch = folder / "torch"
    if not (torch / "__init__.py").exists():
        # A folder of that name, such as a checkout's, is none; one with parts of torch is broken.
        if not (torch / "lib").is_dir():
            return None
        return Build(folder, "", problem="torch/__init__.py is missing")
    try:
        with (torch / "version.py").open("rb") as stream:
            values = _constants(stream.read(_MOST_BYTES))
    except OSError as error:
        return Build(folder, "", problem=f"torch/version.py: {error.strerror}")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Build(folder, "", problem="torch/version.py is damaged")
    version = values.get("__version__", "")
    return Build(
        folder=folder,
        version=version,
        cuda=values.get("cuda", ""),
        hip=values.get("hip", "") or values.get("rocm", ""),
        machine=_machine(torch),
        problem="" if version else "torch/version.py says no version",
    )


def _constants(text: bytes) -> dict[str, str]:
    """Names that a module sets to a string, without running it."""
    found = {}
    for node in ast.parse(text).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                found[target.id] = value.value if isinstance(value.value, str) else ""
    return found


def _machine(torch: Path) -> str:
    libraries = [torch / "lib" / "libtorch_cpu.so", *sorted(torch.glob("_C*.so"))]
    return next((machine for file in libraries if (machine := elf_machine(file))), "")
