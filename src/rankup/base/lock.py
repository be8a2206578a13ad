"""One worker at a time on a file that many nodes, jobs and users share, without flock.

Parallel file systems often come without flock, or with one that holds on a single node only. What
all of them have is that one of many creates a file. The holder renews its lock while it works; a
lock that is no longer renewed is taken over, and whoever lost it without knowing finds out before
it writes again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from . import holder
from .errors import RunFailed
from .holder import Holder

# What file systems say whose files have one name only: FAT, and some that users mount.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)


class LockFailed(RunFailed):
    """A lock cannot be had, or no longer."""


class LockLost(LockFailed):
    """Another process may have taken over: what the lock protects is no longer ours."""


class Taken(LockFailed):
    """Another process holds the lock, and it was not to be waited for."""


@dataclass(frozen=True)
class Pace:
    """Seconds: how often a lock is renewed, when it is stale, how often others look."""

    renew: float = 5.0
    stale: float = 60.0
    poll: float = 1.0


class Held:
    """A lock that this process holds."""

    def __init__(self, path: Path, me: Holder, pace: Pace) -> None:
        self._path, self._me, self._pace = path, me, pace
        self._renewed = time.monotonic()
        self._lost = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Make sure, before something is written, that nobody has taken the lock over.

        Raises:
            LockLost: somebody has, since this process stood still for too long; or may have, since
                it could not be renewed for as long.
        """
        if not self._lost and time.monotonic() - self._renewed > self._pace.stale / 2:
            self._touch()
        name = _target_name(self._path)
        if self._lost:
            raise LockLost(
                f"this process stood still for more than {self._pace.stale:g} s, and another one "
                f"has gone on with {name}; run it again"
            )
        if time.monotonic() - self._renewed > self._pace.stale:
            raise LockLost(
                f"the lock of {name} could not be renewed for more than {self._pace.stale:g} s, "
                f"so that another process may have gone on with it; run it again where "
                f"{self._path.parent} answers"
            )

    def release(self) -> None:
        """Let the next one in."""
        self._done.set()
        self._thread.join()
        self._touch()
        if not self._lost:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _renew(self) -> None:
        while not self._done.wait(self._pace.renew):
            self._touch()

    def _touch(self) -> None:
        try:
            found = _look(self._path)
            if found is None or found[0] != self._me:
                self._lost = True
            elif not self._lost:
                os.utime(self._path)
                self._renewed = time.monotonic()
        except OSError:  # the file system is away for a moment: the next time will tell
            pass


@contextlib.contextmanager
def held(
    target: Path,
    say: Callable[[str], None],
    pace: Pace | None = None,
    *,
    doing: str = "working on",
    wait: bool = True,
) -> Iterator[Held]:
    """Hold the lock of `target`, a hidden file beside it; waits, as long as it takes.

    Args:
        say: gets a line about who is waited for, when the waiting begins and each half minute.

        doing: what a holder does with the target, as `fetching`.
        wait: where False, a lock that is held is an error, and one that was left behind on this
            host is taken over.

    Raises:
        LockFailed: the lock cannot be read, and is none of ours.
        Taken: somebody holds it, and `wait` is False; says who, where and since when.
        OSError: the folder cannot be written to.
    """
    pace = pace or Pace()
    path = target.with_name(f".{target.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    me = holder.myself()
    said = -1e9
    last: tuple[Holder | None, float] | None = None
    since = 0.0  # that the lock is as it was last seen
    while not _create(path, me):
        found = _look(path)
        if found is None:  # just released
            if path.is_symlink():
                raise LockFailed(f"{path} is a link to nowhere, and no lock; remove it")
            time.sleep(pace.poll)
            continue
        who, renewed = found
        if found != last:
            last, since = found, time.monotonic()
        # One with a time in the future would never be old: it is stale where the time stands still.
        stands = time.monotonic() - since > pace.stale
        stale = stands or _stale(path, pace)
        if stale and _break(path, found, pace, stands=stands):
            continue
        if not wait and not stale:
            silent = _file_system_time(path) - renewed
            raise Taken(_taken(target, path, who, silent, doing, pace))
        if time.monotonic() - said > 30:
            said = time.monotonic()
            silent = _file_system_time(path) - renewed
            does = f"which is {doing} it now"
            if silent > 3 * pace.renew:
                does = f"silent for {silent:.0f} s; taken over once it is {pace.stale:g} s"
            elif silent < -pace.stale:
                does = f"with a time in the future; taken over if it stays so for {pace.stale:g} s"
            say(f"{target.name}: waiting for {holder.who(who)}, {does}")
        time.sleep(pace.poll)
    lock = Held(path, me, pace)
    try:
        yield lock
    finally:
        lock.release()


def _taken(
    target: Path, path: Path, who: Holder | None, silent: float, doing: str, pace: Pace
) -> str:
    since = f" since {holder.since(who)}" if who is not None and who.since else ""
    text = f"{target}: {holder.who(who)} is {doing} it{since}; wait for its end"
    if silent > 3 * pace.renew:
        text += (
            f", or, as it has been silent for {silent:.0f} s and may be gone, run it again once "
            f"that is {pace.stale:g} s"
        )
    return f"{text}. If that process is gone, remove its lock, {path}"


def _create(path: Path, me: Holder) -> bool:
    """Make the lock in one step, with its holder in it; False where there is one.

    Whoever is killed on the way leaves no lock that nobody can read, and that others would have to
    wait for until it is stale.
    """
    if os.path.lexists(path):
        return False
    own = path.with_name(f"{path.name}.{me.token}")
    try:
        _write(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), me)
        os.link(own, path)
    except FileExistsError:
        return own.stat().st_nlink == 2  # NFS may have done it when it was asked first
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_unlinked(path, me)
    finally:
        with contextlib.suppress(OSError):
            own.unlink()
    return True


def _create_unlinked(path: Path, me: Holder) -> bool:
    """The same where a file has one name only: empty for a moment."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        _write(descriptor, me)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _write(descriptor: int, me: Holder) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)  # whatever the umask says: others want to know whose it is
        json.dump(asdict(me), file)


def _look(path: Path) -> tuple[Holder | None, float] | None:
    """Holder and time of the last renewal; no holder where it cannot be read; None: no lock.

    Opened, not just asked for its status: so that NFS does not answer from its memory.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            renewed = os.fstat(file.fileno()).st_mtime
            text = file.read(4096)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise LockFailed(f"{path} is a folder, and no lock; remove it") from None
    except PermissionError:  # of somebody who cannot be named, but can be waited for
        with contextlib.suppress(FileNotFoundError):
            return None, path.stat().st_mtime
        return None
    return holder.parse(text), renewed


def _stale(path: Path, pace: Pace) -> bool:
    """Return True where the holder has ended, as far as this host sees, or renews no longer."""
    found = _look(path)
    if found is None:
        return False
    who, renewed = found
    if who is not None and who.host == holder.host() and holder.ended(who):
        return True
    return _file_system_time(path) - renewed > pace.stale


def _file_system_time(path: Path) -> float:
    """Return the file system's time: nodes' clocks differ from each other."""
    probe = path.with_name(f"{path.name}.time-{secrets.token_hex(4)}")
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _break(path: Path, judged: tuple[Holder | None, float], pace: Pace, *, stands: bool) -> bool:
    """Remove a stale lock, as it was seen; False where another one is at it.

    Many may have found it stale at once. Without a lock for the removal, the second of them would
    remove what the first has made in its place.

    Args:
        stands: its time has stood still for so long that it is stale.
    """
    removal = path.with_name(f"{path.name}.removal")
    try:
        os.close(os.open(removal, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if _file_system_time(path) - removal.stat().st_mtime > pace.stale:
                _set_aside(removal)  # killed within the milliseconds that a removal takes
        return False
    try:
        found = _look(path)
        if found is None or found[0] != judged[0]:
            return False
        if not (found == judged if stands else _stale(path, pace)):
            return False
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        path.rename(aside)
        moved = _look(aside)
        if moved is not None and moved[0] != judged[0]:
            # Its holder woke up and released it, and another one came, all since the last look.
            with contextlib.suppress(OSError):
                os.link(aside, path)
        aside.unlink(missing_ok=True)
    except FileNotFoundError:  # released meanwhile
        return True
    finally:
        removal.unlink(missing_ok=True)
    return True


def _set_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    path.rename(aside)
    aside.unlink(missing_ok=True)


def _target_name(path: Path) -> str:
    return path.name.removeprefix(".").removesuffix(".lock")
