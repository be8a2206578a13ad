"""One file of the web, whole or not at all; what came of it before an interruption is kept.

The target's name appears only once the length and the checksum are right. Until then `NAME.part`
holds the bytes, and `NAME.part.json` says of what they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

import httpx

from ...base import lock
from ...base.files import fsync_directory, replacing, write_json
from ...base.text import say
from ...base.urls import identity, public
from ..record import Item
from . import progress
from .http import Broken, Changed, Unreached, Version, ask
from .request import FetchFailed

_BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Patience:
    """How long a server is borne with.

    Attributes:
        stall: seconds without a byte, after which a connection is given up.
        connect: seconds for each address of a host, and for the handshake.
        pauses: seconds before each further attempt; they start anew when something has come.
        longest: seconds that a server may ask to wait before the next attempt.
    """

    stall: float = 60.0
    connect: float = 10.0
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    longest: float = 120.0
    lock: lock.Pace = field(default_factory=lock.Pace)


def download(
    url: str,
    target: Path,
    *,
    sha256: str = "",
    replace: bool = False,
    authorization: str = "",
    name: str = "",
    patience: Patience | None = None,
) -> Item:
    """Make `target` the file behind `url`; one that is there already is taken as it is.

    Returns:
        The file; without a checksum where it was there already and none was asked for.

    Args:
        sha256: what the file must have, also one that is there; empty: anything.
        replace: fetch anew, instead of an error, where the file that is there has another one.
        authorization: a header for the server of `url` alone.
        name: what a user calls it; by default that of the file.

    Raises:
        FetchFailed: it did not come; the message says why, and what is kept.
        OSError: the folder cannot be written to.
    """
    patience = patience or Patience()
    sha256 = sha256.lower()
    # Before the lock: a cache that others keep may be there for reading only.
    if (found := _present(url, target, sha256, replace)) is not None:
        return found
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock.held(target, say, patience.lock, doing="fetching") as held:
        if (found := _present(url, target, sha256, replace)) is not None:
            return found
        part = _Part(target, url, trusted=bool(sha256), held=held)
        with progress.shown(name or target.name) as show:
            _complete(part, url, authorization, patience, show)
            came = part.digest()
        if sha256 and came != sha256:
            part.remove()
            raise FetchFailed(
                f"{public(url)}: wrong checksum: the sha256 of what came is {came}, "
                f"{sha256} was asked for; it is removed"
            )
        part.finish(target)
    return Item(target.name, public(url), str(target), part.size, 1, came)


def _present(url: str, target: Path, sha256: str, replace: bool) -> Item | None:
    if not target.exists():
        return None
    if not target.is_file():
        raise FetchFailed(f"{target} is there and no file; name another one with --to")
    has = _sha256(target) if sha256 else ""
    if has == sha256:
        return Item(target.name, public(url), str(target), target.stat().st_size, 1, has)
    if replace:
        return None
    raise FetchFailed(
        f"{target} is there and has another checksum: sha256 {has}, {sha256} was asked for; "
        "remove it, or name another file with --to"
    )


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


class _Part:
    """The beginning of `target` from `url`, while its lock is held.

    Args:
        trusted: the whole will be held against a checksum, so that the rest may be asked for also
            where the server has no word for the version.

    Attributes:
        size: bytes that are there, of this `version`.
    """

    def __init__(self, target: Path, url: str, trusted: bool, held: lock.Held) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")
        self._identity, self._trusted, self._held = identity(url), trusted, held
        self.size, self.version = 0, Version()
        self._hash, self._hashed = hashlib.sha256(), 0  # of the first bytes
        self._make_ours()
        # Another user may have written it: what is no note of ours is as good as none.
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            note = json.loads(self._note.read_text(encoding="utf-8"))
            version, size = Version(**note["version"]), self.path.stat().st_size
            words = "".join((version.etag, version.modified))
            sound = words.isascii() and words.isprintable() and note["url"] == self._identity
            if sound and size <= (version.total or size):
                self.size, self.version = size, version

    @property
    def resumable(self) -> bool:
        """True where it would be noticed if the rest were another version's."""
        return self._trusted or bool(self.version.etag or self.version.modified)

    def _make_ours(self) -> None:
        """Put a copy in the place of what another user has begun, and could not be gone on with.

        What may not be read either is dropped.
        """
        if not self.path.exists() or os.access(self.path, os.R_OK | os.W_OK):
            return
        try:
            with self.path.open("rb") as theirs, replacing(self.path) as ours:
                shutil.copyfileobj(theirs, ours, _BLOCK)
        except PermissionError:
            self.remove()
        self._held.check()

    def begin(self, version: Version) -> None:
        """Forget what there was; from here on it is this version.

        The bytes go first: should this end in between, nothing is taken for something else. They go
        to a new file: the old one may be another user's, or still be open in a process that has
        lost its lock.
        """
        self._held.check()
        self.remove()
        with self.path.open("xb"):
            pass
        self.version = version
        write_json(self._note, {"url": self._identity, "version": asdict(version)})

    def append(self, file: BinaryIO, block: bytes) -> None:
        """Write at once, so that nothing of it is lost."""
        self._held.check()
        rest = memoryview(block)
        while rest:  # a disk that is almost full takes a part of it
            written = file.write(rest)
            if self._hashed == self.size:
                self._hash.update(rest[:written])
                self._hashed += written
            self.size += written
            rest = rest[written:]

    def digest(self) -> str:
        """Return the sha256 of all bytes; what an earlier fetch has left is read once more."""
        return self._hash.hexdigest() if self._hashed == self.size else _sha256(self.path)

    def remove(self) -> None:
        """Keep nothing."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)
        self.size, self.version = 0, Version()
        self._hash, self._hashed = hashlib.sha256(), 0

    def finish(self, target: Path) -> None:
        """Give the file its name, for good."""
        self._held.check()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        fsync_directory(target.parent)
        self._note.unlink(missing_ok=True)

    def __str__(self) -> str:
        return f" ({self.size} bytes are kept)" if self.size and self.resumable else ""


def _complete(
    part: _Part, url: str, authorization: str, patience: Patience, show: progress.Progress
) -> None:
    """Make the part as long as the file, in as many attempts as it takes."""
    best, failed, unreached = part.size, 0, 0
    while True:
        try:
            return _attempt(part, url, authorization, patience, show)
        except Broken as broken:
            if isinstance(broken, Changed):
                part.remove()
            if part.size > best:
                best, failed, unreached = part.size, 0, 0
            failed += 1
            unreached += isinstance(broken, Unreached)  # more patience would only be waiting
            late = broken.after > patience.longest
            if late or unreached > 1 or failed > len(patience.pauses):
                again = f"run it again in {broken.after:.0f} s" if late else "run it again"
                raise FetchFailed(f"{public(url)}: {broken}; {again}{part}") from None
            pause = max(patience.pauses[failed - 1], broken.after)
            why = str(broken)
        say(f"{public(url)}: {why}; trying again in {pause:g} s")
        time.sleep(pause)


def _attempt(
    part: _Part, url: str, authorization: str, patience: Patience, show: progress.Progress
) -> None:
    if not part.resumable:
        part.remove()
    if part.size and part.size == part.version.total:
        return  # ended between the last byte and the name
    timeout = httpx.Timeout(patience.stall, connect=min(patience.connect, patience.stall))
    with ask(url, part.size, part.version, timeout, authorization) as reply:
        total = reply.version.total
        _check_space(part, url, reply.start, total)
        if reply.start == 0:
            part.begin(reply.version)
        with part.path.open("r+b", buffering=0) as file:
            file.seek(part.size)
            show(part.size, total)
            for block in reply.blocks:
                part.append(file, block)
                show(part.size, total)


def _check_space(part: _Part, url: str, start: int, total: int | None) -> None:
    # What is there of another version goes first.
    free = shutil.disk_usage(part.path.parent).free + (part.size if start == 0 else 0)
    if total is not None and total - start > free:
        raise FetchFailed(
            f"{public(url)} has {total} bytes, {total - start} of them still to come, and "
            f"{part.path.parent} has room for {free}; make room there, or name another place: "
            f"--to, or `cache` in [fetch] of rankup.toml{part}"
        )
