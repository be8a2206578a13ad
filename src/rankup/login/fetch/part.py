"""What has come of a file so far, and what the server said of it then.

`NAME.part` holds the bytes, `NAME.part.json` says of what they are; both lie beside the target, so
that the last step is a rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...base.files import fsync_directory, write_json
from ...base.urls import identity
from .http import Version

_BLOCK = 1 << 20  # bytes


class Part:
    """The beginning of `target` from `url`.

    Args:
        trusted: the whole will be held against a checksum, so that the rest may be asked for also
            where the server has no word for the version.
    """

    def __init__(self, target: Path, url: str, trusted: bool) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._said = target.with_name(f"{target.name}.part.json")
        self._identity, self._trusted = identity(url), trusted
        self._lost = 0

    def usable(self) -> tuple[int, Version, int | None]:
        """Bytes that can be gone on from, of which version, and of how many in all, if known."""
        try:
            size = self.path.stat().st_size
            said = json.loads(self._said.read_text(encoding="utf-8"))
            version = Version(**said["version"])
            total: int | None = said["total"]
            same = said["url"] == self._identity
        except (OSError, ValueError, TypeError, KeyError):
            return 0, Version(), None
        if not same or not (version or self._trusted) or (total is not None and size > total):
            return 0, Version(), None
        return size, version, total

    def make_ours(self) -> None:
        """Put a copy in the place of what another user has begun, and could not be gone on with.

        What may not be read either is dropped.
        """
        if not self.path.exists() or os.access(self.path, os.R_OK | os.W_OK):
            return
        copy = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            shutil.copyfile(self.path, copy)
            copy.replace(self.path)
        except PermissionError:
            self.remove()
        finally:
            copy.unlink(missing_ok=True)

    def kept(self) -> int:
        """Bytes that a next attempt will not have to fetch again, as far as can be told.

        None of them where the server has sent the whole although the rest was asked for.
        """
        return 0 if self._lost else self.usable()[0]

    def begin(self, version: Version, total: int | None) -> None:
        """Forget what there was; from here on it is this version.

        The bytes go first: should this end in between, nothing is taken for something else. They go
        to a new file: the old one may be another user's, or still be open in a process that has
        lost its lock.
        """
        self._lost = max(self._lost, self.usable()[0])
        self.path.unlink(missing_ok=True)
        with self.path.open("xb"):
            pass
        said: dict[str, Any] = {"url": self._identity, "total": total, "version": asdict(version)}
        write_json(self._said, said)

    def remove(self) -> None:
        """Keep nothing."""
        self.path.unlink(missing_ok=True)
        self._said.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Give the file its name, for good."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        fsync_directory(target.parent)
        self._said.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """The sha256 of a file."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()
