"""Whether the torch that jobs get is new enough, there once, and built for this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.findings import Finding
from ...site.gpus import visible_gpus
from ...site.profile import Profile
from ..torch_module import REQUIREMENT, brings_torch, loaded
from . import codes
from .builds import Build, Builds

# Fully sharded training (FSDP2) as rankup uses it.
_OLDEST = (2, 7)
_RANKUP = (2, 8)
_MOST_BYTES = 64 * 1024
_REQUIRED = re.compile(r"torch(?:\[[\w,\s-]*\])?\s*(?:[=<>!~;@#\s].*)?", re.IGNORECASE)
_BELOW = re.compile(r"(==|~=|<=|<|===)\s*(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Here:
    """What the machine has.

    Attributes:
        machine: architecture of this node.
        gpus: that this node has.
        driver: the newest CUDA its driver takes, `(12, 8)`; None without one.
        queue_gpus: Slurm has nodes with GPUs.
    """

    machine: str
    gpus: int
    driver: tuple[int, int] | None
    queue_gpus: bool


@dataclass(frozen=True)
class Files:
    """What the files of an environment say of torch.

    Attributes:
        modules: (file, line, module) that brings a torch along.
        requirements: (file, line, requirement) of torch.
    """

    modules: tuple[tuple[Path, int, str], ...] = ()
    requirements: tuple[tuple[Path, int, str], ...] = ()


def gpus_and_cuda(environment: Mapping[str, str]) -> tuple[int, tuple[int, int] | None]:
    """GPUs that a process sees here, and the newest CUDA that the driver takes, as `(12, 8)`.

    Source: NVML; no GPUs and None without a driver.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0, None
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        version = 0
    finally:
        pynvml.nvmlShutdown()
    cuda = (version // 1000, version % 1000 // 10) if version else None
    return visible_gpus(environment), cuda


def read_files(folders: Sequence[Path]) -> Files:
    """Read `modules.sh` and `requirements.txt` of each folder; one that is not there says nothing.

    Raises:
        OSError: one is there and cannot be read.
    """
    modules = [
        (file, number, name)
        for file, number, text in _entries(folders, "modules.sh")
        for name in loaded(text)
        if brings_torch(name)
    ]
    requirements = [
        entry for entry in _entries(folders, "requirements.txt") if _REQUIRED.fullmatch(entry[2])
    ]
    return Files(tuple(modules), tuple(requirements))


def check_torch(builds: Builds) -> list[Finding]:
    """Whether there is a torch, whether it is new enough, and whether it is the only one."""
    return [*_version(builds), *_twice_installed(builds)]


def check_files(files: Files, project: Path) -> list[Finding]:
    """Whether the environment's files ask for a torch that is too old, or for two of them."""
    return [*_old_requirements(files, project), *_twice_in_files(files, project)]


def check_build(builds: Builds, profile: Profile, here: Here) -> list[Finding]:
    """Whether the torch that is imported is built for the GPUs and processors of this machine."""
    if not builds.all or builds.all[0].problem:
        return []
    build = builds.all[0]
    return [*_device(build, profile, here), *_architecture(build, profile, here)]


def _version(builds: Builds) -> list[Finding]:
    if not builds.all:
        todo = "`rankup env create`; or load the site's PyTorch; or pip install 'rankup[train]'"
        return [Finding(codes.TORCH, "warning", "torch", "this Python has none", todo)]
    build = builds.all[0]
    if build.problem:
        message = f"{build.folder}: {build.problem}, so it cannot be imported"
        todo = f"install it anew: pip install --force-reinstall '{REQUIREMENT}'"
        return [Finding(codes.TORCH, "error", "torch", message, todo)]
    number = _number(build.version)
    message = f"{build.version} in {build.folder}"
    if number is not None and number < _OLDEST:
        return [
            Finding(
                codes.TORCH,
                "error",
                "torch",
                f"{message} is too old for FSDP2, which wants 2.7",
                "remove the module (PyTorch in modules.sh), and ask for a newer one: "
                f"{REQUIREMENT} in requirements.txt",
            )
        ]
    if number is not None and number < _RANKUP:
        message += "; recipes of rankup want 2.8 or newer"
        return [Finding(codes.TORCH, "warning", "torch", message, f"pip install '{REQUIREMENT}'")]
    return [Finding(codes.TORCH, "ok", "torch", message)]


def _old_requirements(files: Files, project: Path) -> list[Finding]:
    found = []
    for file, line, text in files.requirements:
        newest = [
            (int(major), int(minor or 0), sign)
            for sign, major, minor in _BELOW.findall(text)
            if (int(major), int(minor or 0)) < _OLDEST
            or (sign == "<" and (int(major), int(minor or 0)) == _OLDEST)
        ]
        if newest:
            found.append(
                Finding(
                    codes.TORCH,
                    "error",
                    _place(file, line, project),
                    f"{text!r} is too old for FSDP2, which wants 2.7",
                    f"ask for {REQUIREMENT}, and see that modules.sh loads no PyTorch",
                )
            )
    return found


def _twice_installed(builds: Builds) -> list[Finding]:
    if len(builds.all) < 2:
        return []
    first, others = builds.all[0], builds.all[1:]
    behind = ", ".join(f"{one.version or 'a broken one'} in {one.folder}" for one in others)
    mixed = [
        f"{name} comes from {folder}"
        for name, folder in builds.companions.items()
        if folder != first.folder and any(folder == one.folder for one in others)
    ]
    message = f"two of them: {first.version} in {first.folder} is taken, behind it {behind}"
    if mixed:
        return [
            Finding(
                codes.TORCH_TWICE,
                "error",
                "torch",
                f"{message}; {' and '.join(mixed)}, built for another torch",
                "have one of them: remove the module that brings torch (modules.sh, PYTHONPATH) "
                f"and install {' and '.join(builds.companions)} beside the other",
            )
        ]
    return [
        Finding(
            codes.TORCH_TWICE,
            "warning",
            "torch",
            message,
            "have one: remove the module that brings torch (modules.sh, PYTHONPATH), or take torch "
            "out of requirements.txt and make the environment anew",
        )
    ]


def _twice_in_files(files: Files, project: Path) -> list[Finding]:
    if not files.modules or not files.requirements:
        return []
    file, line, name = files.modules[0]
    other, number, text = files.requirements[0]
    return [
        Finding(
            codes.TORCH_TWICE,
            "warning",
            _place(other, number, project),
            f"{text!r}, and the module {name} ({_place(file, line, project)}) brings one, too",
            f"take one out: {name} of {file.name} and ask for {REQUIREMENT}, or torch of "
            f"{other.name}",
        )
    ]


def _device(build: Build, profile: Profile, here: Here) -> list[Finding]:
    made_for = f"CUDA {build.cuda}" if build.cuda else f"ROCm {build.hip}" if build.hip else "CPUs"
    message = f"torch {build.version} is built for {made_for}"
    wanted = {"cuda": "CUDA", "rocm": "ROCm", "cpu": ""}[profile.devices]
    sure = profile.name != "local" and "devices" not in profile.unsure
    if wanted and not made_for.startswith(wanted):
        todo = f"install a build for {wanted}; PyTorch's page 'Get started' names the package index"
        if sure:
            level_message = f"{message}, and the GPUs of {profile.title} need {wanted}"
            return [Finding(codes.TORCH_DEVICE, "error", "torch", level_message, todo)]
        if (here.gpus or here.queue_gpus) and not build.hip:
            where = "this machine" if here.gpus else "this cluster"
            text = f"{message}, and {where} has GPUs"
            return [Finding(codes.TORCH_DEVICE, "warning", "torch", text, todo)]
    if build.cuda and here.driver is not None:
        newest = _number(build.cuda)
        said = ".".join(map(str, here.driver))
        # Within a major version an older driver runs what is newer.
        if newest is not None and newest[0] > here.driver[0]:
            text = f"{message}, and the driver of this node takes CUDA {said} at most"
            todo = f"install a build for CUDA {here.driver[0]}"
            return [Finding(codes.TORCH_DEVICE, "error", "torch", text, todo)]
        message += f"; the driver of this node takes {said}"
    return [Finding(codes.TORCH_DEVICE, "ok", "torch", message)]


def _architecture(build: Build, profile: Profile, here: Here) -> list[Finding]:
    if not build.machine:
        return []
    message = f"torch in {build.folder} is built for {build.machine}"
    if build.machine != here.machine:
        return [
            Finding(
                codes.TORCH_ARCHITECTURE,
                "error",
                "torch",
                f"{message}, this node is {here.machine}: it cannot be imported here",
                "make the environment anew on this machine: `rankup env create`",
            )
        ]
    if profile.architecture and build.machine != profile.architecture:
        return [
            Finding(
                codes.TORCH_ARCHITECTURE,
                "error",
                "torch",
                f"{message}, compute nodes of {profile.title} are {profile.architecture}",
                f"make the environment on a node that is {profile.architecture}: a login node of "
                "that machine, or a job",
            )
        ]
    return [Finding(codes.TORCH_ARCHITECTURE, "ok", "torch", f"{message}, as this node")]


def _number(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def _entries(folders: Sequence[Path], name: str) -> Iterator[tuple[Path, int, str]]:
    """(file, line, text without comment) of the files of that name."""
    for folder in dict.fromkeys(folders):
        file = folder / name
        try:
            with file.open("rb") as stream:
                lines = stream.read(_MOST_BYTES).decode(errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            continue
        for number, line in enumerate(lines, start=1):
            yield file, number, line.partition("#")[0].strip()


def _place(file: Path, line: int, project: Path) -> str:
    name = file.relative_to(project) if file.is_relative_to(project) else file
    return f"{name}:{line}"
