"""The five files: golden files per kind of site, what shellcheck says to all of them.

After a wanted change write the golden files anew, and read their diff:
RANKUP_GOLDEN=write .venv/bin/python -m pytest tests/login/env/test_texts.py
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.login.env import texts
from rankup.login.env.texts import Kind, Plan, moved_caches
from rankup.site import profile
from rankup.site.config import Config

from ...slurm.fixtures import require

GOLDEN = Path(__file__).with_name("golden")
_ME = getpass.getuser()  # stands in the folder of caches


def _plan(kind: Kind, site: str) -> Plan:
    found = profile.load(site)
    environment = {"PROJECT": "/p/project1/abc"}
    caches = moved_caches(Config(), found, environment, Path("/home/ann"))
    return Plan(
        kind=kind,
        name="my project",
        python="python3.12",
        title=found.title,
        rankup="rankup[train]==1.2.3",
        modules=found.modules,
        caches={
            name: f"{folder}/".replace(f"/{_ME}/", "/ann/")[:-1] for name, folder in caches.items()
        },
    )


SITES = {
    "local-wheels": ("wheels", "local"),
    "juwels-booster-modules": ("modules", "juwels-booster"),
    "juwels-booster-wheels": ("wheels", "juwels-booster"),
    "jupiter-modules": ("modules", "jupiter"),
}


def _files(name: str) -> dict[str, str]:
    kind, site = SITES[name]
    return texts.users(_plan("modules" if kind == "modules" else "wheels", site))


def test_the_users_files_are_those_of_the_golden_folders() -> None:
    found = {f"{name}/{file}": text for name in SITES for file, text in _files(name).items()}
    if os.environ.get("RANKUP_GOLDEN") == "write":
        for name, text in found.items():
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_text(text)
    golden = {
        str(path.relative_to(GOLDEN)): path.read_text()
        for path in GOLDEN.rglob("*")
        if path.is_file()
    }
    assert found == golden


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    require("" if shutil.which("shellcheck") else "shellcheck is not installed", os.environ)
    for name, text in texts.own().items():
        (tmp_path / name).write_text(text)
    files = sorted([*GOLDEN.rglob("*.sh"), *tmp_path.glob("*.sh")])
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("kind", texts.KINDS)
def test_torch_is_asked_for_where_no_module_has_it(kind: Kind) -> None:
    asked = "\ntorch>=2.8\n" in texts.users(_plan(kind, "juwels-booster"))["requirements.txt"]
    assert asked == (kind == "wheels")
    assert "\ntorch>=2.8\n" in texts.users(_plan(kind, "jupiter"))["requirements.txt"]


def test_a_folder_of_any_name_survives_config_sh(tmp_path: Path) -> None:
    folder = """/p/a b/"quoted"/$HOME/`id`/back\\slash/{brace}/it's"""
    plan = Plan("wheels", "it's $(me)", "python3", "A", "rankup", caches={"HF_HOME": folder})
    file = tmp_path / "config.sh"
    file.write_text(texts.users(plan)["config.sh"])
    script = 'set -eu; source "$1"; printf "%s\\n" "$HF_HOME" "$ENV_NAME"; env | grep -c ^HF_HOME='
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(file)],
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == f"{folder}\nit's $(me)\n1\n"


def test_a_line_break_in_a_folder_is_refused() -> None:
    with pytest.raises(UserError, match="control character"):
        texts.users(Plan("wheels", "a", "python3", "A", "rankup", caches={"HF_HOME": "/p/a\nb"}))


def test_a_changed_file_is_told_from_one_of_another_version() -> None:
    for text in texts.own().values():
        assert texts.unchanged(text)
        assert not texts.unchanged(text + "echo mine\n")
        assert not texts.unchanged(text.replace("#!/bin/bash\n", "#!/bin/bash\necho mine\n"))
    assert not texts.unchanged("python3 -m venv venv\n")


def test_in_an_active_environment_the_sites_caches_are_still_the_sites() -> None:
    """activate.sh has set all of them; what differs from the site is the user's own."""
    site = profile.load("juwels-booster")
    outside = {"PROJECT": "/p/project1/abc"}
    moved = moved_caches(Config(), site, outside)
    assert moved_caches(Config(), site, {**outside, **moved}) == moved
    mine = moved_caches(Config(), site, {**outside, **moved, "HF_HOME": "/mine"})
    assert mine == {name: folder for name, folder in moved.items() if name != "HF_HOME"}


@pytest.mark.parametrize(
    "name",
    [
        *("PyTorch", "pytorch/2.1.2", "PyTorch-bundle/2.1.0", "pytorch-gpu", "PyTorch-Lightning"),
        *("cray-python/pytorch", "ml-pytorch/2.1", "torchvision", "torchaudio/2.1", "pytorch2.8"),
        *("Horovod/0.28-PyTorch-2.1", "torch", "torch_geometric"),
    ],
)
def test_these_modules_bring_a_torch(name: str) -> None:
    assert texts.brings_torch(name)


@pytest.mark.parametrize("name", ["Python", "TensorFlow", "Stages/2026", "torchbearer", "torque"])
def test_these_modules_bring_none(name: str) -> None:
    assert not texts.brings_torch(name)
