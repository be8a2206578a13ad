"""`rankup env check`: whether an environment is what its files ask for."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...base import findings
from ...base.findings import Finding
from ...base.processes import end_group, ended_as_an_exception
from ...base.text import clean
from ..question import error, ok, question, warning
from . import requirements, state
from .texts import REQUIREMENT

_INSIDE = Path(__file__).with_name("inside.py")
# Loading modules from a slow file system, and pip's own look, take seconds.
_TIMEOUT = 180.0


class Environment:
    """An environment, with what only its own Python can say.

    Attributes:
        stamps: what it was made of.
        create: the command that brings it up to date.
        failure: why its own Python says nothing; empty while it has not been asked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamps = state.read(folder)
        self.create = f"rankup env create {shlex.quote(str(folder))}"
        self.failure = ""

    @cached_property
    def inside(self) -> dict[str, Any] | None:
        """The object that `inside.py` prints in the activated environment; None where it cannot."""
        if self.stamps.elsewhere:
            return None
        words = [self.folder / "activate.sh", _INSIDE]
        script = 'source "$1" >&2 || exit 1; shift; exec python "$@"'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, said = process.communicate(timeout=_TIMEOUT)
            found: dict[str, Any] = json.loads(output.splitlines()[-1])
        except subprocess.TimeoutExpired:
            self.failure = f"it took more than {_TIMEOUT:g} s to look into the environment"
        except (ValueError, IndexError):
            lines = [line for line in said.splitlines() if line.strip()]
            self.failure = lines[-1] if lines else f"exit code {process.returncode}"
        else:
            return found
        finally:
            end_group(process)
        return None


@question("RK540", "the environment is there and finished", "venv")
def finished(it: Environment) -> Iterator[Finding]:
    """The environment's `venv/`, and both stamps that `setup.sh` writes last: `venv/.made` once the
    venv is whole, `venv/.installed` once all packages are in it. Without the second one somebody
    killed the installation half way, or it is still going on. Some packages are missing then, or
    are half there, and a job fails at an import.

    ```text
    ERROR venv  /p/project1/abc/ann/env/venv is not finished [RK540]
                -> rankup env create /p/project1/abc/ann/env
    ```

    `rankup env create` goes on where it was interrupted.
    """
    venv = it.folder / "venv"
    if not venv.is_dir():
        yield error(f"{venv} is not there", it.create)
    elif not it.stamps.made or not it.stamps.installed:
        yield error(f"{venv} is not finished", it.create)
    elif not it.stamps.elsewhere:
        yield ok(f"{it.stamps.kind}, Python {it.stamps.made.get('python', '')}")


@question("RK541", "the environment works where it lies", "venv")
def works(it: Environment) -> Iterator[Finding]:
    """The path and the architecture in `venv/.made`, the Python that the venv was made with, and
    `activate.sh`: with the kind `modules`, every module can be loaded.

    A venv cannot be moved or copied: its programs name its old folder in their first line, so that
    a copy runs the original's Python, or nothing. A Python that was updated away leaves a link to
    nowhere.

    ```text
    ERROR venv  /p/project1/abc/bob/env/venv: it was made as /p/project1/abc/ann/env/venv, and moved or copied here [RK541]
                -> rankup env create /p/project1/abc/bob/env
    ```

    `rankup env create` recognises it and makes the venv again; with the package caches filled that
    takes a minute. Where a module is missing, `module spider NAME` lists the versions that there
    are: write one into `modules.sh`.
    """  # noqa: E501
    if why := it.stamps.elsewhere:
        yield error(f"{it.folder / 'venv'}: {why}", it.create)
    elif it.inside is None:
        yield error(it.failure, it.create, "activate.sh")


@question("RK542", "the environment is as old as its files", "files")
def age(it: Environment) -> Iterator[Finding]:
    """The hashes of `requirements.txt` (with the files it names by `-r` and `-c`, and the
    `pyproject.toml` of folders it names by `-e`), `requirements.lock` and, for the kind `modules`,
    `modules.sh`, against those that the environment was made from. Where they differ, a job would
    run with the older packages. Also the
    hash of `requirements.txt` at the top of `requirements.lock`: `setup.sh` refuses a lock that was
    made from other requirements, since it would leave out what was added since.

    ```text
    WARN  files  requirements.txt changed since it was made [RK542]
                 -> rankup env create /p/project1/abc/ann/env
    ERROR lock   requirements.lock was made from another requirements.txt [RK542]
                 -> rankup env lock /p/project1/abc/ann/env, or remove it
    ```

    `rankup env create`; with a lock `rankup env lock` first, or remove it to install whatever is
    newest. A package more is installed into the venv; a package less, or another module, makes it
    anew.
    """
    path = it.folder / "requirements.lock"
    digest = requirements.digest(it.folder / "requirements.txt")
    top = requirements.content(path).split(b"\n")[:10]
    if path.is_file() and f"# requirements: {digest}".encode() not in top:
        todo = f"rankup env lock {shlex.quote(str(it.folder))}, or remove it"
        yield error("requirements.lock was made from another requirements.txt", todo, "lock")
    if names := it.stamps.changed:
        yield warning(f"{' and '.join(names)} changed since it was made", it.create)
    else:
        yield ok("nothing has changed since it was made")


@question("RK544", "packages that do not go together", "packages")
def conflicts(it: Environment) -> Iterator[Finding]:
    """The lines of `pip check` in the activated environment: a package requires another that is not
    there in a version that it accepts. What a module's packages lack among themselves is left out.
    A package may fail at import or, worse, compute something else.

    ```text
    WARN  packages  torchvision 0.23.0 has requirement torch==2.8.0, but you have torch 2.9.1. [RK544]
                    -> ask for versions that go together in requirements.txt, then: rankup env create /p/project1/abc/ann/env
    ```

    Give the package of which there is the wrong version a bound in `requirements.txt`, or take the
    module that brings the other one out of `modules.sh`.
    """  # noqa: E501
    if it.inside is None:
        return
    for line in it.inside["conflicts"]:
        todo = "ask for versions that go together in requirements.txt, then: " + it.create
        yield warning(line, todo)
    if not it.inside["conflicts"]:
        yield ok("pip finds no conflicts")


@question("RK545", "one torch, which can be imported", "torch")
def torch(it: Environment) -> Iterator[Finding]:
    """Each `torch` that the activated environment's Python finds: in `venv/` and in a module. The
    one in the venv is imported, and the module's torchvision, Apex or flash-attention were compiled
    for the other. This is the most frequent trouble of the course's participants. And whether
    `import torch` works, with the libraries of the modules that are loaded.

    ```text
    WARN  torch  twice: 2.9.1 in venv/, 2.8.0 from a module (/p/software/PyTorch/2.8.0/lib/python3.12/site-packages); the first is imported [RK545]
                 -> take PyTorch and torchvision out of modules.sh and ask for torch>=2.8 in requirements.txt, or take torch out of requirements.txt
    ERROR torch  2.9.1 cannot be imported: ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory [RK545]
                 -> see what modules.sh loads beside it, or remove venv/ and run: rankup env create /p/project1/abc/ann/env
    ```

    One of both, then `rankup env create`. Take the module out where you need a newer torch than the
    site has.
    """  # noqa: E501
    if it.inside is None:
        return
    found = it.inside["torch"]
    venv = (it.folder / "venv").resolve()
    own = [one for one in found if Path(one["folder"]).resolve().is_relative_to(venv)]
    others = [one for one in found if one not in own]
    if it.stamps.kind == "modules" and own and others:
        yield warning(
            f"twice: {own[0]['version']} in venv/, {others[0]['version']} from a module "
            f"({others[0]['folder']}); the first is imported",
            f"take PyTorch and torchvision out of modules.sh and ask for {REQUIREMENT} in "
            "requirements.txt, or take torch out of requirements.txt",
        )
    elif found and not it.inside["broken"]:
        yield ok(f"{found[0]['version']} from {'venv/' if own else 'a module'}")
    if found and (why := it.inside["broken"]):
        todo = f"see what modules.sh loads beside it, or remove venv/ and run: {it.create}"
        yield error(f"{found[0]['version']} cannot be imported: {why}", todo)


QUESTIONS = (finished, works, age, conflicts, torch)


def check(folder: str | None, *, as_json: bool) -> int:
    """Print the findings; 1 where one is an error, else 0.

    Raises:
        UserError: there is no environment.
    """
    it = Environment(state.existing(folder))
    found = finished.findings(it)
    if findings.exit_code(found) == 0:
        with ended_as_an_exception():  # so that also then no process is left
            found = [finding for one in QUESTIONS for finding in one.findings(it)]
    found = [replace(one, message=clean(one.message)) for one in found]
    if as_json:
        print(findings.as_json(found))
    else:
        findings.show(found, sys.stdout)
    return findings.exit_code(found)
