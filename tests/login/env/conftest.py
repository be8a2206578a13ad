"""Environments in a world of their own: an index of tiny wheels, a `module` command, a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankup import __version__

from . import index

# Like Lmod's: it uses variables that are not set, and commands that fail.
_MODULE = """\
module() {
    local unset=$NOT_SET_ANYWHERE
    false
    case $1 in
    purge) unset PYTHONPATH LOADED ;;
    load)
        if [ ! -d "$MODULES/${2%%/*}" ]; then
            echo "Lmod has detected the following error: unknown module: $2" >&2
            return 1
        fi
        LOADED=$LOADED:$2
        PYTHONPATH=$MODULES/${2%%/*}${PYTHONPATH:+:$PYTHONPATH}
        export LOADED PYTHONPATH
        ;;
    esac
}
"""


@dataclass(frozen=True)
class World:
    """A folder with an index, modules, a home and a project.

    Attributes:
        variables: of every process in it.
        source: the folder that `rankup` is installed in, and its wheel.
    """

    root: Path
    variables: dict[str, str]
    source: Path

    @property
    def project(self) -> Path:
        """The working directory of commands; its name has a space."""
        return self.root / "my project"

    @property
    def index(self) -> Path:
        return self.root / "index"

    def bash(
        self, script: str, *words: str | Path, timeout: float = 300, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a bash script given as text, with these words as $1, $2, ..."""
        return self.run("bash", "-c", script, "bash", *words, timeout=timeout, **variables)

    def rankup(
        self,
        *words: str | Path,
        timeout: float = 300,
        cwd: Path | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run `rankup WORDS` in a process of its own."""
        return self.run(*self.command, *words, timeout=timeout, cwd=cwd, **variables)

    @property
    def command(self) -> tuple[str, ...]:
        """What starts rankup from `source`."""
        start = f"import sys; sys.path.insert(0, {str(self.source)!r})"
        return (sys.executable, "-c", f"{start}; import rankup.cli as cli; cli.main()")

    def write_files(self, *options: str) -> None:
        """Write the files of `env`, without making its venv."""
        before = self.variables.get("BASH_ENV", os.devnull)
        stop = self.root / "stop.sh"
        stop.write_text(f'source {before}\n[ "$0" != setup.sh ] || exit 1\n')
        done = self.rankup("env", "create", *options, BASH_ENV=str(stop))
        assert (done.returncode, done.stdout) == (1, ""), done.stdout

    def run(
        self, *words: str | Path, timeout: float, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; what it has printed to either place stands in `stdout`."""
        return subprocess.run(
            [str(word) for word in words],
            cwd=cwd or self.project,
            env={**self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def require(self, folder: Path | str, lines: Sequence[str]) -> None:
        """Write the requirements.txt of an environment below the project: rankup and these."""
        path = self.project / folder
        path.mkdir(exist_ok=True)
        text = "".join(f"{line}\n" for line in (f"rankup=={__version__}", *lines))
        (path / "requirements.txt").write_text(text)


def make_world(root: Path, source: Path) -> World:
    """A world in an empty folder, whose index has the rankup of `source`."""
    for name in ("my project", "index", "home", "bin"):
        (root / name).mkdir()
    index.dependencies(root / "index")
    [own] = source.glob("*.whl")
    shutil.copy(own, root / "index")
    for version in ("1.0", "2.0"):
        index.wheel(root / "index", "shared", version)
    index.wheel(root / "index", "lightning", "1.0", ["torch>=2"])
    index.wheel(root / "index", "torch", "2.8.0")
    for name in ("Stages", "GCC", "OpenMPI", "CUDA", "Python", "PyTorch", "torchvision"):
        (root / "modules" / name).mkdir(parents=True)
    for name in ("shared-1.0", "torch-2.8.0"):
        found = root / "index" / f"{name}-py3-none-any.whl"
        index.unpacked(root / "modules" / "PyTorch", found)
    (root / "module.sh").write_text(_MODULE)
    python = getattr(sys, "_base_executable", sys.executable)
    (root / "bin" / "python3").symlink_to(os.path.realpath(python))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "HF_", "VIRTUAL_ENV", "PYTHON", "LMOD", "MODULE"))
    }
    return World(
        root,
        {
            **inherited,
            "PATH": f"{root / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(root / "home"),
            "MODULES": str(root / "modules"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(root / "index"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PROJECT": str(root / "p" / "project1"),
        },
        source,
    )


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rankup that was installed from its wheel, which lies beside it."""
    folder = tmp_path_factory.mktemp("installed")
    index.unpacked(folder, index.rankup(folder))
    return folder


@pytest.fixture
def world(tmp_path: Path, source: Path) -> World:
    """A world of one test."""
    return make_world(tmp_path, source)


@pytest.fixture(scope="session")
def made_world(tmp_path_factory: pytest.TempPathFactory, source: Path) -> World:
    """A world on JUWELS Booster whose `env` is of the kind `modules`.

    Tests leave it as it is; they are of the xdist group `env`.
    """
    found = make_world(tmp_path_factory.mktemp("made"), source)
    found.variables["BASH_ENV"] = str(found.root / "module.sh")
    (found.project / "rankup.toml").write_text('profile = "juwels-booster"\n')
    found.require("env", ["shared==2.0", "lightning"])
    done = found.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    return found
