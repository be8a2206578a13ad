"""The folder that a fetch of a script keeps while it runs, so that a killed one can be undone.

    <project>/.rankup/fetch-<pid>-<token>/
        owner.json      where its temporary files are, and which folders are caches
        spec.json       what the child is to do
        events.jsonl    what it did, files set aside included

A project that cannot be written to has it in the user's own folder for such things. Whoever works
there holds the area's lock, so that every folder found under it is one of a fetch that was killed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...base.files import write_atomic, write_json
from . import events
from .inside import spec as inside

OWNER = "owner.json"
_MARKER = ".of-fetch"  # in the script's TMPDIR
ALIVE = "alive"  # touched while the fetch runs


@dataclass(frozen=True)
class State:
    """A fetch that runs, or was killed.

    Attributes:
        folder: private to the user.
        temporary: the script's TMPDIR. It is short: sockets that lie there have room for 108 bytes.
        caches: folders in which libraries keep what they download.
    """

    folder: Path
    temporary: Path
    caches: tuple[Path, ...]

    @property
    def journal(self) -> events.Journal:
        """What the script did so far, from its start."""
        return events.Journal(self.folder / events.FILE)

    def write_spec(self, values: Mapping[str, object]) -> None:
        """Say what the child is to do."""
        write_json(self.folder / inside.SPEC, values, private=True)

    def remove(self) -> None:
        """Remove both folders; that the owner's file goes last keeps a half removed one known."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        for entry in self.folder.iterdir():
            if entry.name != OWNER:
                _remove(entry)
        shutil.rmtree(self.folder, ignore_errors=True)


def area(project: Path) -> Path:
    """Where state folders of fetches in this project lie; made if need be.

    Raises:
        UserError: there is something else of its name.
        OSError: neither the project nor the user's own folder can be written to.
    """
    ours = project / ".rankup"
    if ours.is_symlink() or (ours.exists() and not ours.is_dir()):
        what = "a link" if ours.is_symlink() else "no folder"
        raise UserError(f"{ours} is {what}; remove it: rankup keeps there what was fetched")
    with suppress(OSError):
        ours.mkdir(parents=True, exist_ok=True)
        if not (ours / ".gitignore").exists():
            write_atomic(ours / ".gitignore", "*\n")
        if os.access(ours, os.W_OK | os.X_OK):
            return ours.resolve()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) if runtime else Path(tempfile.gettempdir())
    own = own / f"rankup-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    if own.is_symlink() or own.stat().st_uid != os.getuid():
        raise PermissionError(f"{own} is somebody else's; set TMPDIR to a folder of yours")
    return own.resolve()


def make(area: Path, caches: tuple[Path, ...]) -> State:
    """A new state folder in the area, and the script's folder for temporary files."""
    folder = area / f"fetch-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    temporary = Path(tempfile.mkdtemp(prefix="rankup-")).resolve()
    (temporary / _MARKER).write_text(folder.name, encoding="utf-8")
    owner = {
        "temporary": str(temporary),
        "caches": [str(one) for one in caches],
        "folder": str(folder),
        "inode": folder.stat().st_ino,
    }
    write_json(folder / OWNER, owner, private=True)
    return State(folder, temporary, caches)


def abandoned(area: Path) -> Iterator[State]:
    """The state folders of fetches that were killed; the caller holds the area's lock.

    Those that were copied or moved here are passed over: what they name lies elsewhere.
    """
    for folder in sorted(area.glob("fetch-*-*")):
        if not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        if (left := of(folder)) is not None:
            yield left
        elif not is_foreign(folder):
            _remove(folder)  # killed before its script was started


def of(folder: Path) -> State | None:
    """The state in a folder; None where it was not complete yet, or was not made here.

    Nothing is changed.
    """
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        temporary, caches = Path(owner["temporary"]), tuple(map(Path, owner["caches"]))
        if not _is_here(owner, folder):
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    # Nothing else is removed, whatever the file says.
    return State(folder, temporary if _is_ours(temporary, folder) else folder / "tmp", caches)


def is_foreign(folder: Path) -> bool:
    """Whether a state folder was made in another place, or by nobody."""
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:
        return True
    return not isinstance(owner, dict) or not _is_here(owner, folder)


def _is_here(owner: Mapping[str, object], folder: Path) -> bool:
    # Not the device: its number differs from node to node.
    return owner.get("folder") == str(folder.resolve()) and owner.get("inode") == (
        folder.stat().st_ino
    )


def _is_ours(temporary: Path, folder: Path) -> bool:
    """Whether `make` has made it for this state."""
    try:
        mine = temporary.lstat().st_uid == os.getuid() and not temporary.is_symlink()
        marker = (temporary / _MARKER).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return mine and temporary.is_absolute() and marker == folder.name


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
