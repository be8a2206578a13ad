"""The Python of the ranks: the active environment's, the project's, or that of this process."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

from ..base.errors import UserError

_GET_TORCH = "load your site's PyTorch module, or pip install 'rankup[train]'"
# The current folder is no place to find it in: a script's ranks do not look there.
_LOOK = (
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; "
    "spec = u.find_spec('torch'); print(bool(spec and spec.origin))"
)


def active_environment() -> tuple[Path | None, str]:
    """Return the activated environment that the ranks get, and what to say of one passed over.

    It is one with torch and rankup; None stands for that of the Python that runs this.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        text = os.environ.get(name, "")
        if not os.path.isabs(text) or os.environ.get("CONDA_DEFAULT_ENV") == "base":
            continue
        prefix = Path(text)
        if prefix.resolve() == Path(sys.prefix).resolve():
            return None, ""
        python = prefix / "bin" / "python"
        if not python.exists():
            continue
        torch = _sees_torch(python)
        if torch is None:
            return None, f"the Python of the active environment {prefix} does not answer"
        if torch and (prefix / "bin" / "rankup-rank").exists():  # which starts a rank of a job
            return prefix, ""
        if torch:
            return None, (
                f"the active environment {prefix} has torch, and no rankup of its own: "
                f"{shlex.quote(str(python))} -m pip install rankup"
            )
    return None, ""


@cache
def _sees_torch(python: Path) -> bool | None:
    """Return whether another Python finds torch, wherever that lies; None without an answer."""
    try:
        done = subprocess.run(
            [str(python), "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split()[-1:] == [b"True"]


def python_of_ranks() -> str:
    """Return the Python that starts ranks on this machine: the active environment's, else this one.

    Raises:
        UserError: it has no torch.
    """
    active, passed_over = active_environment()
    if active is not None:
        print(f"note: the ranks run in the active environment {active}", file=sys.stderr)
        return str(active / "bin" / "python")
    require_torch()
    if passed_over:
        print(f"note: the ranks run in {sys.executable}; {passed_over}", file=sys.stderr)
    return sys.executable


def require_torch() -> None:
    """UserError where the Python that runs this has no torch."""
    if importlib.util.find_spec("torch") is None:
        more = active_environment()[1] or _GET_TORCH
        raise UserError(f"{sys.executable}, which runs this, has no torch; {more}")


def of_job(chosen: str | None, project: Path) -> tuple[str | None, list[str]]:
    """Return the file that a job sources for its Python, `chosen` or the project's, and notes.

    Raises:
        UserError: the job would get the Python that runs this, which has no torch.
    """
    notes = []
    if not chosen:
        chosen, note = of_project(project)
        notes += [note] if note else []
    if not chosen and active_environment()[0] is None:
        require_torch()
    stale = staleness(chosen)
    return chosen, [*notes, f"warning: {stale}"] if stale else notes


def own_environment() -> tuple[str | None, str | None]:
    """Return the way to the Python that runs this: a script to source, or a folder for PATH."""
    active, _ = active_environment()
    prefix = active or Path(sys.prefix)
    # The template that JSC's users know keeps the environment in a folder beside activate.sh,
    # which loads the modules, too.
    for candidate in (prefix.parent / "activate.sh", prefix / "bin" / "activate"):
        environment = active is not None or sys.prefix != sys.base_prefix
        if environment and candidate.is_file() and _trusted(candidate):
            return str(candidate), None
    return None, str(prefix / "bin" if active else Path(sys.executable).parent)


def of_project(project: Path) -> tuple[str | None, str]:
    """The `activate.sh` of the environment in `project`/env, where the job should have that one.

    It should where the Python that runs this is in no environment, or in one without torch. With it
    comes what to say about the choice, also where it was passed over.
    """
    active, note = active_environment()
    if active is not None:
        return None, f"note: the job gets the active environment {active}, not that of this Python"
    if note:
        note = f"note: the job gets {sys.executable}; {note}"
    here, _ = own_environment()
    if here is not None and importlib.util.find_spec("torch") is not None:
        return None, note
    script = project / "env" / "activate.sh"
    if not (script.is_file() and (script.parent / "venv" / "bin" / "python").exists()):
        return None, note
    if not _trusted(script):
        return None, f"warning: {script} could be somebody else's work; not used"
    return str(script), f"note: the job gets the environment of {script}, not that of this Python"


def staleness(environment: str | None) -> str:
    """Why the job's environment is older than its requirements, and what to do; empty if it is not.

    Args:
        environment: the file that the job sources; None for this Python's.
    """
    from ..login import env

    script = own_environment()[0] if environment is None else environment
    if script is None or not (why := env.staleness(Path(script))):
        return ""
    return f"{why}; run: {shlex.join(['rankup', 'env', 'create', str(Path(script).parent)])}"


def _trusted(path: Path) -> bool:
    """Return whether it belongs to whom the environment belongs, and so is nobody else's."""
    owners = {os.getuid(), 0, os.stat(sys.prefix).st_uid}
    return path.stat().st_uid in owners and not path.stat().st_mode & 0o002
