"""A Jupyter kernel whose Python is that of the environment, modules included.

`kernel.sh` lies in the environment, where it also tells setup.sh to install ipykernel;
`kernel.json` lies where Jupyter looks, and names it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...base.errors import RunFailed, UserError
from ...base.files import write_atomic, write_json
from . import state

SCRIPT = "kernel.sh"
_TEXT = """\
#!/bin/bash
# Starts a Jupyter kernel in this environment. That this file is here tells setup.sh to install
# ipykernel.
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=/dev/null
source "$here/activate.sh" || exit 1
exec python -m ipykernel_launcher "$@"
"""


def write_script(folder: Path) -> None:
    """Write `kernel.sh` where it is not there."""
    path = folder / SCRIPT
    if not path.exists():
        write_atomic(path, _TEXT)
        path.chmod(0o755)


def register(folder: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Write `kernel.json` into the user's Jupyter folder, in the place of an older one; its folder.

    Raises:
        UserError: another environment's kernel has that name.
        RunFailed: it could not be written.
    """
    said = state.read(folder).installed.get("name", "") or folder.name
    # What Jupyter allows in the name of a kernel's folder.
    name = re.sub(r"[^a-z0-9._-]+", "-", said.lower()).strip("-.") or "env"
    target = _jupyter(os.environ if environment is None else environment) / "kernels" / name
    script = folder / SCRIPT
    _refuse_anothers(target / "kernel.json", script, said)
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_json(
            target / "kernel.json",
            {
                "argv": ["bash", str(script), "-f", "{connection_file}"],
                "display_name": f"{said} (rankup)",
                "language": "python",
                "metadata": {"debugger": True},
            },
        )
    except OSError as error:
        raise RunFailed(f"{target} cannot be written: {error.strerror}") from None
    return target


def _jupyter(environment: Mapping[str, str]) -> Path:
    if said := environment.get("JUPYTER_DATA_DIR"):
        return Path(said).expanduser()
    if said := environment.get("XDG_DATA_HOME"):
        return Path(said).expanduser() / "jupyter"
    return Path.home() / ".local" / "share" / "jupyter"


def _refuse_anothers(file: Path, script: Path, name: str) -> None:
    try:
        other = Path(json.loads(file.read_text(encoding="utf-8"))["argv"][1])
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        raise UserError(
            f"{file} is not from rankup; say another ENV_NAME in {script.parent / 'config.sh'}"
        ) from None
    if other != script and other.is_file():
        raise UserError(
            f"the kernel {name!r} belongs to {other.parent}; say another ENV_NAME in "
            f"{script.parent / 'config.sh'}"
        )
