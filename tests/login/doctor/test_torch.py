"""The torch that jobs get: found without importing it, too old, twice, or made for others."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import builds, codes, torch_checks
from rankup.login.doctor.builds import Build, Builds
from rankup.login.doctor.torch_checks import Here
from rankup.site import profile

JURECA = profile.load("jureca-dc")
JUPITER = profile.load("jupiter")
LUMI = profile.load("lumi-g")
GENERIC = profile.load("generic")
LOCAL = profile.load("local")
LAPTOP = Here("x86_64", 0, None, False)
X86, ARM = 62, 183


def make_torch(
    site: Path, version: str = "2.8.0+cu128", cuda: str | None = "12.8", machine: int = X86
) -> Path:
    """A torch as far as it can be seen without importing it."""
    lib = site / "torch" / "lib"
    lib.mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (site / "torch" / "version.py").write_text(
        "from typing import Optional\n"
        f"__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\nhip = None\n"
    )
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little")
    (lib / "libtorch_cpu.so").write_bytes(head + machine.to_bytes(2, "little") + bytes(44))
    return site


def checked(found: Builds) -> list[Finding]:
    return torch_checks.check_torch(found)


def test_a_build_is_read_from_its_files(tmp_path: Path) -> None:
    make_torch(tmp_path, machine=ARM)
    [found] = builds.find([str(tmp_path)]).all
    assert found == Build(tmp_path, "2.8.0+cu128", "12.8", "", "aarch64")


def test_the_real_torch_is_read_and_not_imported() -> None:
    found = builds.find(builds.this_path()).all[0]
    assert found.version == importlib.metadata.version("torch")
    assert found.machine == builds.elf_machine(Path(sys.executable).resolve())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "says no version"),
        (b"__version__ = ", "damaged"),
        (b"\xff\x00\xfe", "damaged"),
        (b"(" * 5000, "damaged"),
        (b"__version__ = open('x').read()", "says no version"),
    ],
)
def test_a_damaged_torch_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    make_torch(tmp_path)
    (tmp_path / "torch" / "version.py").write_bytes(content)
    [finding] = checked(builds.find([str(tmp_path)]))
    assert (finding.code, finding.level) == (codes.TORCH, "error")
    assert problem in finding.message


def test_one_that_only_a_finder_knows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_torch(tmp_path / "checkout")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(site / "torch/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    [found] = builds.find(builds.this_path()).all
    assert found.folder == site


def test_none_is_a_warning() -> None:
    [found] = checked(Builds((), {}))
    assert (found.code, found.level) == (codes.TORCH, "warning")


@pytest.mark.parametrize(
    ("version", "level"),
    [("2.6.0", "error"), ("1.13.1+cu117", "error"), ("2.7.1", "warning"), ("2.8.0", "ok")],
)
def test_too_old_for_fsdp2(version: str, level: str) -> None:
    [found] = checked(Builds((Build(Path("/m"), version),), {}))
    assert found.level == level
    if level == "error":
        assert found.todo.startswith("remove the module")
        assert "which wants 2.7" in found.message
        assert "torch>=2.8 in requirements.txt" in found.todo


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("torch==2.4.1", True),
        ("torch<2.7", True),
        ("torch~=2.5", True),
        ("torch>=2.1,<2.5", True),
        ("torch>=2.7", False),
        ("torch<3", False),
        ("torch==2.8.0+cu128  # pinned", False),
        ("torch", False),
        ("torchvision==0.19", False),
        ("torch-geometric==2.4", False),
    ],
)
def test_requirements_that_ask_for_an_old_one(tmp_path: Path, line: str, wrong: bool) -> None:
    (tmp_path / "requirements.txt").write_text(f"numpy\n{line}\n")
    files = torch_checks.read_files([tmp_path])
    found = torch_checks.check_files(files, tmp_path)
    places = [one.place for one in found if one.level == "error"]
    assert places == (["requirements.txt:2"] if wrong else [])


def test_twice_on_the_path_says_which_one_is_taken(tmp_path: Path) -> None:
    venv = make_torch(tmp_path / "venv")
    module = make_torch(tmp_path / "module", "2.5.1")
    found = checked(builds.find([str(venv), str(module), str(venv)]))
    assert [(one.code, one.level) for one in found] == [
        (codes.TORCH, "ok"),
        (codes.TORCH_TWICE, "warning"),
    ]
    assert f"2.8.0+cu128 in {venv} is taken, behind it 2.5.1 in {module}" in found[1].message


def test_a_torchvision_of_the_other_torch_is_an_error(tmp_path: Path) -> None:
    venv = make_torch(tmp_path / "venv")
    module = make_torch(tmp_path / "module", "2.5.1")
    (module / "torchvision").mkdir()
    (module / "torchvision" / "__init__.py").touch()
    found = checked(builds.find([str(venv), str(module)]))
    assert (found[1].code, found[1].level) == (codes.TORCH_TWICE, "error")
    assert "torchvision comes from" in found[1].message


def test_a_module_and_a_requirement_are_twice(tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.mkdir()
    (env / "modules.sh").write_text(
        "module purge\nmodule load Stages/2024  # not PyTorch\nmodule load GCC PyTorch/2.1.2\n"
    )
    (env / "requirements.txt").write_text("# torch is here\ntorch >= 2.7\n")
    files = torch_checks.read_files([tmp_path, env, env])
    [twice] = torch_checks.check_files(files, tmp_path)
    assert (twice.code, twice.level) == (codes.TORCH_TWICE, "warning")
    assert twice.place == "env/requirements.txt:2"
    assert "the module PyTorch/2.1.2 (env/modules.sh:3)" in twice.message
    assert twice.todo.startswith("take one out: PyTorch/2.1.2 of modules.sh and ask for torch>=2.8")


def test_files_that_are_no_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00torch\n" * 10)
    (tmp_path / "modules.sh").mkdir()
    with pytest.raises(OSError, match="directory"):  # becomes a finding
        torch_checks.read_files([tmp_path])


CPU = Build(Path("/v"), "2.8.0+cpu", machine="x86_64")
CUDA = Build(Path("/v"), "2.8.0+cu128", cuda="12.8", machine="x86_64")
ROCM = Build(Path("/v"), "2.8.0+rocm6.4", hip="6.4", machine="x86_64")


@pytest.mark.parametrize(
    ("build", "site", "here", "level"),
    [
        (CPU, JURECA, LAPTOP, "error"),
        (CUDA, JURECA, LAPTOP, "ok"),
        (ROCM, JURECA, LAPTOP, "error"),
        (CUDA, LUMI, LAPTOP, "error"),
        (ROCM, LUMI, LAPTOP, "ok"),
        (CPU, GENERIC, LAPTOP, "ok"),
        (CPU, GENERIC, replace(LAPTOP, queue_gpus=True), "warning"),
        (ROCM, GENERIC, replace(LAPTOP, queue_gpus=True), "ok"),
        (CPU, LOCAL, LAPTOP, "ok"),
        (CPU, LOCAL, replace(LAPTOP, gpus=1), "warning"),
        (CUDA, LOCAL, replace(LAPTOP, gpus=1, driver=(12, 4)), "ok"),
        (CUDA, LOCAL, replace(LAPTOP, gpus=1, driver=(11, 8)), "error"),
    ],
)
def test_built_for_these_gpus(build: Build, site: profile.Profile, here: Here, level: str) -> None:
    found = torch_checks.check_build(Builds((build,), {}), site, here)
    assert (found[0].code, found[0].level) == (codes.TORCH_DEVICE, level)


@pytest.mark.parametrize(
    ("machine", "site", "here", "level"),
    [
        ("x86_64", JURECA, "x86_64", "ok"),
        ("x86_64", JUPITER, "x86_64", "error"),
        ("aarch64", JUPITER, "aarch64", "ok"),
        ("aarch64", JURECA, "x86_64", "error"),
        ("aarch64", LOCAL, "aarch64", "ok"),
    ],
)
def test_built_for_these_processors(
    machine: str, site: profile.Profile, here: str, level: str
) -> None:
    found = torch_checks.check_build(
        Builds((replace(CUDA, machine=machine),), {}), site, replace(LAPTOP, machine=here)
    )
    assert (found[-1].code, found[-1].level) == (codes.TORCH_ARCHITECTURE, level)
