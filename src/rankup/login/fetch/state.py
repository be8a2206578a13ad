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

from ...base.files import write_atomic, write_json
from . import events

OWNER = "owner.json"
SPEC = "spec.json"


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
        write_json(self.folder / SPEC, values, private=True)

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
        OSError: neither the project nor the user's own folder can be written to.
    """
    ours = project / ".rankup"
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
    owner = {"temporary": str(temporary), "caches": [str(one) for one in caches]}
    write_json(folder / OWNER, owner, private=True)
    return State(folder, temporary, caches)


def abandoned(area: Path) -> Iterator[State]:
    """The state folders of fetches that were killed; the caller holds the area's lock."""
    for folder in sorted(area.glob("fetch-*-*")):
        if not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        try:
            owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
            temporary, caches = Path(owner["temporary"]), tuple(map(Path, owner["caches"]))
        except (OSError, ValueError, TypeError, KeyError):
            _remove(folder)  # killed before its script was started
            continue
        # Nothing else is removed, whatever the file says.
        sound = temporary.name.startswith("rankup-") and temporary.is_absolute()
        yield State(folder, temporary if sound else folder / "tmp", caches)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
