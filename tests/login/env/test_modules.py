"""The kind `modules`: the site's modules, and a venv that wins over them."""

from __future__ import annotations

import json
import shlex

import pytest

from rankup.login.env import inside

from . import index
from .conftest import World

pytestmark = pytest.mark.xdist_group("env")
_SHOW = 'python -c "import shared, torch; print(shared.VERSION, torch.VERSION, torch.__file__)"'


def test_a_site_with_modules_gets_that_kind_and_its_venv_wins_over_them(
    made_world: World,
) -> None:
    """Of `shared` 1.0 is in the module and 2.0 in requirements.txt; torch only in the module."""
    assert "ENV_KIND=modules" in (made_world.project / "env" / "config.sh").read_text()
    made = (made_world.project / "env" / "venv" / ".made").read_text()
    assert "kind=modules\n" in made
    done = made_world.bash(f"set -eu; source env/activate.sh; {_SHOW}")
    torch = made_world.root / "modules" / "PyTorch" / "torch" / "__init__.py"
    assert done.stdout == f"2.0 2.8.0 {torch}\n"
    assert not list((made_world.project / "env").rglob("site-packages/torch"))


def test_activation_works_under_strict_options_and_gives_them_back(made_world: World) -> None:
    done = made_world.bash(
        'set -euo pipefail; before=$-; cd /; source "$1"; [ "$before" = "$-" ]; shopt -qo pipefail;'
        ' echo "$LOADED"; declare -F | grep _env_ || echo "no function is left"; compgen -v ENV_ ||'
        ' echo "no variable is left"',
        made_world.project / "env" / "activate.sh",
    )
    loaded = ":Stages/2026:GCC:OpenMPI:CUDA:Python:PyTorch:torchvision"
    assert done.stdout == f"{loaded}\nno function is left\nno variable is left\n"


def test_caches_lie_in_the_project_but_where_the_user_says(made_world: World) -> None:
    """A second activation changes nothing."""
    show = (
        'set -eu; source env/activate.sh; first="$PATH $PYTHONPATH"; source env/activate.sh;'
        ' [ "$first" = "$PATH $PYTHONPATH" ]; echo $HF_HOME $TORCH_HOME'
    )
    done = made_world.bash(show, HF_HOME="/mine")
    hf, torch = done.stdout.split()
    assert hf == "/mine"
    assert torch.startswith(made_world.variables["PROJECT"])
    assert torch.endswith("/cache/torch")


def test_without_module_the_message_says_so(made_world: World) -> None:
    done = made_world.bash("set -eu; source env/activate.sh; echo went on", BASH_ENV="")
    assert done.returncode == 1
    assert "there is no 'module' command here" in done.stdout
    assert "went on" not in done.stdout


def test_a_module_that_is_not_there_ends_the_activation(made_world: World) -> None:
    nowhere = made_world.root / "home"
    done = made_world.bash("set -eu; source env/activate.sh; echo on", MODULES=str(nowhere))
    assert done.returncode == 1
    assert "unknown module: Stages/2026" in done.stdout
    assert "modules.sh failed" in done.stdout
    assert "\non\n" not in done.stdout


def test_check_finds_all_well(made_world: World) -> None:
    done = made_world.rankup("env", "check", "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert {one["level"] for one in found} == {"ok"}
    assert {one["code"] for one in found} == {"RK540", "RK542", "RK544", "RK545"}
    [torch] = [one for one in found if one["code"] == "RK545"]
    assert torch["message"] == "2.8.0 from a module"


def test_check_takes_nothing_of_the_current_folder_for_a_library(made_world: World) -> None:
    mine = made_world.project / "random.py"
    mine.write_text("raise SystemExit('mine')\n")
    try:
        done = made_world.bash(f"source env/activate.sh; python {shlex.quote(inside.__file__)}")
    finally:
        mine.unlink()
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["conflicts"], found["broken"]) == ([], "")


def test_check_names_a_torch_that_cannot_be_imported(made_world: World) -> None:
    file = made_world.root / "modules" / "PyTorch" / "torch" / "__init__.py"
    text = file.read_text()
    try:
        file.write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')\n")
        done = made_world.rankup("env", "check")
    finally:
        file.write_text(text)
    assert done.returncode == 1
    assert "2.8.0 cannot be imported: ImportError: libcudnn.so.9: cannot open" in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [("exit", "it calls exit, or was killed"), ("false", "Its last command has to succeed")],
)
def test_a_file_of_settings_that_fails_or_ends_the_shell_is_named(
    made_world: World, line: str, said: str
) -> None:
    """`exit` ends setup.sh, a job or a login shell without a word, and with exit code 0."""
    file = made_world.project / "env" / "config.sh"
    text = file.read_text()
    try:
        file.write_text(f"{text}{line}\n")
        for words in (("create",), ("check",)):
            done = made_world.rankup("env", *words)
            assert done.returncode == 1, done.stdout
            assert str(file) in done.stdout
            assert said in done.stdout
        done = made_world.bash("trap 'echo mine' EXIT; source env/activate.sh; trap")
    finally:
        file.write_text(text)
    assert said in done.stdout
    assert done.stdout.endswith("mine\n")
    assert not (file.parent / ".lock").exists()


def test_a_file_of_settings_keeps_its_words_and_its_trap(made_world: World) -> None:
    """The third word became the shell's trap, and a trap of the file was dropped."""
    file = made_world.project / "env" / "config.sh"
    text = file.read_text()
    try:
        file.write_text(f"{text}set -- a b 'echo third'\n")
        words = made_world.bash("source env/activate.sh; echo on")
        file.write_text(f"{text}trap 'echo bye' EXIT\n")
        trap = made_world.bash("source env/activate.sh; echo on")
    finally:
        file.write_text(text)
    assert words.stdout.endswith("on\n")
    assert trap.stdout.endswith("on\nbye\n")


@pytest.mark.slow
def test_torch_from_a_module_and_from_requirements_is_found(world: World) -> None:
    world.variables["BASH_ENV"] = str(world.root / "module.sh")
    (world.project / "rankup.toml").write_text('profile = "juwels-booster"\n')
    index.wheel(world.index, "torch", "2.9.0")
    world.require("env", ["torch>=2.9", "shared==2.0", "zlib-ng; python_version < '3'"])
    assert world.rankup("env", "create").returncode == 0
    done = world.rankup("env", "check")
    assert done.returncode == 0, done.stdout  # a warning
    module = world.root / "modules" / "PyTorch"
    assert f"twice: 2.9.0 in venv/, 2.8.0 from a module ({module})" in done.stdout
    assert "RK545" in done.stdout
