"""One file of the web, whole or not at all; what came of it before an interruption is kept.

The target's name appears only once the length and the checksum are right.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...base import lock
from ...base.urls import public
from . import progress
from .http import Broken, Reply, Unreached, Unsatisfiable, ask
from .part import Part, digest
from .result import FetchFailed

_BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Patience:
    """How long a server is borne with.

    Attributes:
        stall: seconds without a byte, after which a connection is given up.
        pauses: seconds before each further attempt; they start anew when something has come.
        longest: seconds that a server may ask to wait before the next attempt.
    """

    stall: float = 60.0
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    longest: float = 120.0
    lock: lock.Pace = field(default_factory=lock.Pace)


@dataclass(frozen=True)
class Downloaded:
    """A file that is there.

    Attributes:
        sha256: empty where the file was there already and none was asked for.
        fresh: it came now.
    """

    path: Path
    bytes: int
    sha256: str
    fresh: bool


@dataclass(frozen=True)
class _Source:
    url: str
    authorization: str

    def __str__(self) -> str:
        return public(self.url)


def download(
    url: str,
    target: Path,
    *,
    sha256: str = "",
    replace: bool = False,
    authorization: str = "",
    name: str = "",
    patience: Patience | None = None,
    say: Callable[[str], None] = progress.say,
) -> Downloaded:
    """Make `target` the file behind `url`; one that is there already is taken as it is.

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
    if (found := _present(target, sha256, replace)) is not None:
        return found
    _make_folder(target)
    with lock.held(target, say, patience.lock, doing="fetching") as held:
        if (found := _present(target, sha256, replace)) is not None:
            return found
        part = Part(target, url, trusted=bool(sha256))
        part.make_ours()
        held.check()
        source = _Source(url, authorization)
        with progress.shown(name or target.name) as show:
            _complete(source, part, held, patience, show, say)
            came = digest(part.path)
        if sha256 and came != sha256:
            part.remove()
            raise FetchFailed(
                f"{public(url)}: wrong checksum: the sha256 of what came is {came}, "
                f"{sha256} was asked for; it is removed"
            )
        held.check()
        size = part.path.stat().st_size
        part.finish(target)
    return Downloaded(target, size, came, fresh=True)


def _make_folder(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        there = next(one for one in target.parents if one.exists())
        raise FetchFailed(
            f"{target} cannot be made: {there} is a file; name another place with --to"
        ) from None


def _present(target: Path, sha256: str, replace: bool) -> Downloaded | None:
    if not target.exists():
        return None
    if not target.is_file():
        raise FetchFailed(f"{target} is there and no file; name another one with --to")
    has = digest(target) if sha256 else ""
    if has == sha256:
        return Downloaded(target, target.stat().st_size, has, fresh=False)
    if replace:
        return None
    raise FetchFailed(
        f"{target} is there and has another checksum: sha256 {has}, {sha256} was asked for; "
        "remove it, or name another file with --to"
    )


def _complete(
    source: _Source,
    part: Part,
    held: lock.Held,
    patience: Patience,
    show: progress.Progress,
    say: Callable[[str], None],
) -> None:
    """Make the part as long as the file, in as many attempts as it takes."""
    pauses = iter(patience.pauses)
    best, unreached = part.usable()[0], False
    while True:
        try:
            _attempt(source, part, held, patience.stall, show)
            return
        except Unsatisfiable:
            part.remove()
            why, asked = "what was kept is of another version", 0.0
        except Broken as broken:
            why, asked = str(broken), broken.after
            if isinstance(broken, Unreached):  # patience would be no more than waiting
                pauses = iter([*pauses][: 0 if unreached else 1])
                unreached = True
        size = part.usable()[0]
        if size > best:
            best, pauses = size, iter(patience.pauses)
        pause = next(pauses, None)
        if pause is None or asked > patience.longest:
            again = f" in {asked:.0f} s" if asked > patience.longest else ""
            raise FetchFailed(f"{source}: {why}; run it again{again}{_kept(part.kept())}")
        pause = max(pause, asked)
        say(f"{source}: {why}; trying again in {pause:g} s")
        time.sleep(pause)


def _attempt(
    source: _Source, part: Part, held: lock.Held, stall: float, show: progress.Progress
) -> None:
    size, version, total = part.usable()
    if total is not None and size == total > 0:
        return  # ended between the last byte and the name
    with ask(source.url, size, version, stall, source.authorization) as reply:
        held.check()
        if reply.start == 0:
            size = 0
            part.begin(reply.version, reply.total)
        elif (version.etag and version.etag != reply.version.etag) or (
            total is not None and reply.total not in (None, total)
        ):
            raise Unsatisfiable
        total = reply.total if reply.total is not None else total
        _check_space(part, source, size, total)
        size = _receive(reply, part, size, total, held, show)
    if total is not None and size < total:
        raise Broken(f"the connection was cut after {size} of {total} bytes")


def _receive(
    reply: Reply,
    part: Part,
    size: int,
    total: int | None,
    held: lock.Held,
    show: progress.Progress,
) -> int:
    """Write what comes, each block at once, so that nothing of it is lost; the new size."""
    with part.path.open("r+b", buffering=0) as file:
        file.seek(size)
        show(size, total)
        while total is None or size < total:
            block = reply.read(_BLOCK if total is None else min(_BLOCK, total - size))
            if not block:
                break
            held.check()
            rest = memoryview(block)
            while rest:  # a disk that is almost full takes a part of it
                try:
                    written = file.write(rest)
                except OSError as error:
                    raise _unwritten(error, part, size) from None
                size += written
                rest = rest[written:]
            show(size, total)
    return size


def _check_space(part: Part, source: _Source, size: int, total: int | None) -> None:
    found = os.statvfs(part.path.parent)
    free = found.f_bavail * found.f_frsize
    if total is not None and total - size > free:
        raise FetchFailed(
            f"{source} has {total} bytes, {total - size} of them still to come, and "
            f"{part.path.parent} has room for {free}; make room there, or name another place: "
            f"--to, or `cache` in [fetch] of rankup.toml{_kept(size)}"
        )


def _unwritten(error: OSError, part: Part, size: int) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "is full" if error.errno == errno.ENOSPC else "is at your quota"
        return FetchFailed(
            f"{part.path.parent} {what}; make room there and run it again{_kept(size)}"
        )
    return error


def _kept(size: int) -> str:
    return f" ({size} bytes are kept)" if size else ""
