"""Which Python jobs get, and whether it is that of the project's environment."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.findings import Finding
from . import codes

_ACTIVATE = "activate.sh"
_VENV = "venv"


@dataclass(frozen=True)
class Python:
    """This Python.

    Attributes:
        prefix: the folder of its environment.
        venv: it is a virtual environment.
        active: `$VIRTUAL_ENV` or `$CONDA_PREFIX`, else None.
    """

    version: str
    executable: Path
    prefix: Path
    venv: bool
    active: Path | None


def this(environment: Mapping[str, str]) -> Python:
    """The Python that runs this."""
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    return Python(
        version=".".join(map(str, sys.version_info[:3])),
        executable=Path(sys.executable),
        prefix=Path(sys.prefix),
        venv=sys.prefix != sys.base_prefix,
        active=Path(active) if active else None,
    )


def check_python(python: Python) -> list[Finding]:
    """Version and environment; another one that is active is a warning."""
    kind = "virtual environment" if python.venv else "no virtual environment"
    message = f"{python.version}, {python.executable} ({kind})"
    if python.active is not None and not _same(python.active, python.prefix):
        return [
            Finding(
                codes.PYTHON,
                "warning",
                "Python",
                f"{message}; active is {python.active}, so jobs do not get what you see there",
                "install rankup into the active environment, or leave that one (`deactivate`)",
            )
        ]
    return [Finding(codes.PYTHON, "ok", "Python", message)]


def check_environment(
    project: Path, python: Python, staleness: Callable[[Path], str]
) -> list[Finding]:
    """Whether the project's `env`, or the one that is active, is made, and as its files ask.

    Args:
        staleness: why an environment is older than its files, else empty.
    """
    # An environment may lie elsewhere, under another name: the one that is active is known by its
    # files.
    own = python.prefix.parent
    folder = own if python.venv and (own / _ACTIVATE).is_file() else project / "env"
    if not (folder / _ACTIVATE).is_file():
        return []
    if not (folder / _VENV / "bin" / "python").exists():
        return [
            Finding(
                codes.ENVIRONMENT,
                "warning",
                "environment",
                f"{folder} has its files, and no venv",
                shlex.join(["rankup", "env", "create", str(folder)]),
            )
        ]
    if why := staleness(folder):
        todo = shlex.join(["rankup", "env", "create", str(folder)])
        return [Finding(codes.ENVIRONMENT, "warning", "environment", why, todo)]
    if not _same(folder / _VENV, python.prefix):
        return [
            Finding(
                codes.ENVIRONMENT,
                "warning",
                "environment",
                f"{folder} is there and not active: what is said here of packages is of "
                f"{python.prefix}",
                "the line that `rankup env` prints activates it; then ask doctor again",
            )
        ]
    return [Finding(codes.ENVIRONMENT, "ok", "environment", f"{folder} is active")]


def check_job(job: Mapping[str, Any]) -> list[Finding]:
    """What rankup.toml gives jobs in the place of this Python, and whether it is there."""
    found = []
    for key in ("container", "environment"):
        value = job.get(key)
        if value is None:
            continue
        if "://" not in value and not os.path.exists(value):
            message = f"[job] {key} = {value}: there is no such file"
            finding = Finding(codes.ENVIRONMENT, "error", "rankup.toml", message, "name one")
        else:
            message = f"jobs get {value} ([job] {key}); packages here are those of this Python"
            finding = Finding(codes.ENVIRONMENT, "ok", "rankup.toml", message)
        found.append(finding)
    return found


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
