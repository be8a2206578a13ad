"""What a job's programs come from: the environment of this Python, a script, or a container."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

from ..base.errors import UserError
from ..base.files import user_path
from ..site.profile import Profile


def own() -> tuple[str | None, str | None]:
    """How the job gets the Python that runs this: a script to source, or a folder for PATH."""
    prefix = Path(sys.prefix)
    # The template that JSC's users know keeps the environment in a folder beside activate.sh,
    # which loads the modules, too.
    for candidate in (prefix.parent / "activate.sh", prefix / "bin" / "activate"):
        if sys.prefix != sys.base_prefix and candidate.is_file() and _trusted(candidate):
            return str(candidate), None
    return None, str(Path(sys.executable).parent)


def of_project(project: Path) -> tuple[str | None, str]:
    """The `activate.sh` of the environment in `project`/env, where the job should have that one.

    It should where the Python that runs this is in no environment, or in one without torch. With it
    comes what to say about the choice, also where it was passed over.
    """
    here, _ = own()
    if here is not None and importlib.util.find_spec("torch") is not None:
        return None, ""
    script = project / "env" / "activate.sh"
    if not (script.is_file() and (script.parent / "venv" / "bin" / "python").exists()):
        return None, ""
    if not _trusted(script):
        return None, f"warning: {script} could be somebody else's work; not used"
    return str(script), f"note: the job gets the environment of {script}, not that of this Python"


def staleness(environment: str | None) -> str:
    """Why the job's environment is older than its requirements, and what to do; empty if it is not.

    Args:
        environment: the file that the job sources; None for this Python's.
    """
    from ..login import env

    script = own()[0] if environment is None else environment
    if script is None or not (why := env.staleness(Path(script))):
        return ""
    return f"{why}; run: {shlex.join(['rankup', 'env', 'create', str(Path(script).parent)])}"


def container(image: str | None, profile: Profile, inside: list[str]) -> tuple[str, ...]:
    """The words that start a program in an Apptainer image; none without one.

    Args:
        inside: folders to be seen in it, the run directory first.

    Raises:
        UserError: there is no such image, or a folder cannot be handed to Apptainer.
    """
    if image is None:
        return ()
    if "://" not in image:
        path = user_path(image, "--container")
        if not path.exists():
            raise UserError(
                f"--container {image} does not exist; compute nodes have no network, so pull it "
                "here first: apptainer pull IMAGE.sif docker://..."
            )
        image = str(path.resolve())
    gpus = {"cuda": ("--nv",), "rocm": ("--rocm",), "cpu": ()}[profile.devices]
    # Apptainer brings home and the working directory along, and nothing of scratch.
    binds = [folder for folder in dict.fromkeys(inside) if os.path.isdir(folder)]
    for folder in (*inside[:1], *binds):
        if any(c in folder for c in ":,"):
            raise UserError(f"{folder} cannot be seen in a container: its name has a ':' or ','")
    binds = list(dict.fromkeys((*inside[:1], *binds)))
    return ("apptainer", "exec", *gpus, "--bind", ",".join(binds), image)


def _trusted(path: Path) -> bool:
    """Whether nobody else could have put it there: it belongs to whom the environment belongs."""
    owners = {os.getuid(), 0, os.stat(sys.prefix).st_uid}
    return path.stat().st_uid in owners and not path.stat().st_mode & 0o002
