"""`rankup env check`: whether an environment is what its files ask for."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...base.findings import Finding, as_json, exit_code, show
from ...base.processes import end_group
from ...base.text import clean
from ..torch_module import REQUIREMENT
from . import codes, state, where
from .state import State

_INSIDE = Path(__file__).with_name("inside.py")
# Loading modules from a slow file system, and pip's own look, take seconds.
_TIMEOUT = 180.0


def check(folder: str | None, *, as_json: bool) -> int:
    """Print the findings; 1 where one is an error, else 0.

    Raises:
        UserError: there is no environment.
    """
    found = list(findings(where.existing(folder)))
    if as_json:
        print(_json(found))
    else:
        show(found, sys.stdout)
    return exit_code(found)


def findings(folder: Path) -> Iterator[Finding]:
    """All that is to be said of the environment in this folder."""
    stamps = state.read(folder)
    again = f"rankup env create {shlex.quote(str(folder))}"
    made = _made(folder, stamps, again)
    yield made
    if made.level == "error":
        return
    yield _age(folder, stamps, again)
    yield from _lock(folder, stamps)
    yield from _inside(folder, stamps, again)


def _made(folder: Path, stamps: State, again: str) -> Finding:
    venv = folder / "venv"
    if not venv.is_dir():
        return Finding(codes.FINISHED, "error", "venv", f"{venv} is not there", again)
    if not stamps.made or not stamps.installed:
        return Finding(codes.FINISHED, "error", "venv", f"{venv} is not finished", again)
    if why := state.elsewhere(folder, stamps.made):
        return Finding(codes.WORKS, "error", "venv", clean(f"{venv}: {why}"), again)
    made = clean(f"{stamps.kind}, Python {stamps.made.get('python', '')}")
    return Finding(codes.FINISHED, "ok", "venv", made)


def _age(folder: Path, stamps: State, again: str) -> Finding:
    names = state.changed(folder, stamps)
    if names:
        what = " and ".join(names)
        return Finding(codes.AGE, "warning", "files", f"{what} changed since it was made", again)
    return Finding(codes.AGE, "ok", "files", "nothing has changed since it was made")


def _lock(folder: Path, stamps: State) -> Iterator[Finding]:
    header = state.lock_header(folder)
    if header is None:
        return
    if header.get("requirements") == state.digest(folder):
        yield Finding(codes.LOCK, "ok", "lock", "requirements.lock fits requirements.txt")
        return
    yield Finding(
        codes.LOCK,
        "error",
        "lock",
        "requirements.lock was made from another requirements.txt",
        f"rankup env lock {shlex.quote(str(folder))}, or remove it",
    )


def _inside(folder: Path, stamps: State, again: str) -> Iterator[Finding]:
    """What only the environment's Python, with its modules, can say."""
    found, why = _ask(folder)
    if found is None:
        yield Finding(codes.WORKS, "error", "activate.sh", clean(why), again)
        return
    lines = [clean(line) for line in found["conflicts"]]
    for line in lines:
        todo = "ask for versions that go together in requirements.txt, then: " + again
        yield Finding(codes.CONFLICTS, "warning", "packages", line, todo)
    if not lines:
        yield Finding(codes.CONFLICTS, "ok", "packages", "pip finds no conflicts")
    yield from _torch(folder, stamps, found["torch"])
    missing = [one for one in found["requirements"] if not one["fits"]]
    for one in missing:
        has = f"{one['found']} is there" if one["found"] else "it is not installed"
        text = clean(f"requirements.txt asks for {one['text']}: {has}")
        yield Finding(codes.REQUIREMENTS, "error", "requirements", text, again)
    if not missing:
        count = len(found["requirements"])
        yield Finding(
            codes.REQUIREMENTS, "ok", "requirements", f"{count} asked for by name, all there"
        )


def _torch(folder: Path, stamps: State, found: list[Mapping[str, str]]) -> Iterator[Finding]:
    venv = (folder / "venv").resolve()
    own = [one for one in found if Path(one["folder"]).resolve().is_relative_to(venv)]
    others = [one for one in found if one not in own]
    if stamps.kind == "modules" and own and others:
        yield Finding(
            codes.TORCH,
            "warning",
            "torch",
            clean(
                f"twice: {own[0]['version']} in venv/, {others[0]['version']} from a module "
                f"({others[0]['folder']}); the first is imported"
            ),
            f"take PyTorch and torchvision out of modules.sh and ask for {REQUIREMENT} in "
            "requirements.txt, or take torch out of requirements.txt",
        )
    elif found:
        source = "venv/" if own else "a module"
        yield Finding(codes.TORCH, "ok", "torch", clean(f"{found[0]['version']} from {source}"))


def _ask(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """What `inside.py` prints in the environment; or None and why it does not."""
    files = [str(path) for path in state.requirement_files(folder / "requirements.txt")]
    script = 'source "$1" >&2 || exit 1; shift; exec python "$@"'
    words = [str(folder / "activate.sh"), str(_INSIDE), *(f for f in files if Path(f).is_file())]
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
        output, errors = process.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None, f"it took more than {_TIMEOUT:g} s to look into the environment"
    finally:
        end_group(process)
    if process.returncode:
        said = [line for line in errors.splitlines() if line.strip()]
        return None, said[-1] if said else f"exit code {process.returncode}"
    try:
        return json.loads(output.splitlines()[-1]), ""
    except (ValueError, IndexError):
        return None, "its Python prints something else than it was asked for"


_json = as_json
