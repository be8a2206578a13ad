"""The folder that an environment is: `./env`, or the nearest one above."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from ...base.errors import UserError
from ...base.files import user_path

DEFAULT = "env"
# As in parts/setup.sh.
_IMPOSSIBLE = frozenset(':$`"\\')


def named(folder: str | None) -> Path:
    """Return the absolute path of the folder that a user has named, `./env` without a name.

    Raises:
        UserError: it cannot be the folder of an environment.
    """
    path = Path(os.path.abspath(user_path(DEFAULT if folder is None else folder, "FOLDER")))
    if _IMPOSSIBLE.intersection(str(path)) or not str(path).isprintable():
        raise UserError(
            f"{str(path)!r}: the path has a ':', which cannot stand in PATH, or one of $ ` \" \\ "
            "or a control character, which venv's own activate would run; name another folder"
        )
    return path


def existing(folder: str | None) -> Path:
    """Return the folder that a user has named; without a name the nearest environment.

    Raises:
        UserError: there is no environment; what makes one is named.
    """
    found = _nearest(Path.cwd()) if folder is None else named(folder)
    if found is None:
        raise UserError(
            f"no environment: neither {Path.cwd()} nor a folder above it has "
            f"{DEFAULT}/activate.sh; make one with: rankup env create"
        )
    if not (found / "activate.sh").is_file():
        raise UserError(
            f"{found} is no environment: it has no activate.sh; make it one with: "
            f"rankup env create {shlex.quote(str(folder))}"
        )
    return found


def line_to_source(folder: str | None) -> str:
    """Return the line that activates an environment in bash: `source /abs/path/env/activate.sh`.

    Raises:
        UserError: there is none.
    """
    return f"source {shlex.quote(str(existing(folder) / 'activate.sh'))}"


def _nearest(start: Path) -> Path | None:
    for above in (start, *start.parents):
        for folder in (above / DEFAULT, above):
            if _is_environment(folder) and _trusted(folder):
                return folder
    return None


def _is_environment(folder: Path) -> bool:
    return (folder / "activate.sh").is_file() and (folder / "config.sh").is_file()


def _trusted(folder: Path) -> bool:
    """True where only its owner could have put it there: not where anybody may write, as `/tmp`."""
    owners = (os.getuid(), 0)
    if (folder / "activate.sh").stat().st_uid in owners:
        return True
    return not any(one.stat().st_mode & stat.S_IWOTH for one in (folder, folder.parent))
