"""One worker at a time on a file that many nodes, jobs and users share, without flock.

Parallel file systems often come without flock, or with one that holds on a single node only. What
all of them have is that one of many creates a file. The holder renews its lock while it works; a
lock that is no longer renewed is taken over, and whoever lost it without knowing finds out before
it writes again.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .failed import FetchFailed


@dataclass(frozen=True)
class Pace:
    """Seconds: how often a lock is renewed, when it is stale, how often others look."""

    renew: float = 5.0
    stale: float = 60.0
    poll: float = 1.0


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
        token: random, of this one lock.
        host: node, boot and process namespace, within which `pid` means something.
        start: of the process, in clock ticks since boot: numbers of processes are used again.
    """

    token: str
    node: str
    host: str
    pid: int
    start: int
    user: str


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
            FetchFailed: somebody has, since this process stood still for too long.
        """
        if not self._lost and time.monotonic() - self._renewed > self._pace.stale / 2:
            self._touch()
        if self._lost:
            raise FetchFailed(
                f"this process stood still for more than {self._pace.stale:g} s, and another one "
                f"has gone on with {_target_name(self._path)}; run it again"
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
def held(target: Path, say: Callable[[str], None], pace: Pace | None = None) -> Iterator[Held]:
    """Hold the lock of `target`, a hidden file beside it; waits, as long as it takes.

    Args:
        say: gets a line about who is waited for, when the waiting begins and each half minute.

    Raises:
        OSError: the folder cannot be written to.
    """
    pace = pace or Pace()
    path = target.with_name(f".{target.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    me = _myself()
    said = -1e9
    while not _create(path, me):
        found = _look(path)
        if found is None:  # just released
            continue
        holder, _ = found
        if _stale(path, pace) and _break(path, holder, pace):
            continue
        if time.monotonic() - said > 30:
            said = time.monotonic()
            say(f"{target.name}: waiting for {_who(holder)}, which is fetching it now")
        time.sleep(pace.poll)
    lock = Held(path, me, pace)
    try:
        yield lock
    finally:
        lock.release()


def _create(path: Path, me: Holder) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(me), file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _look(path: Path) -> tuple[Holder | None, float] | None:
    """Holder and time of the last renewal; no holder while it is being written; None: no lock.

    Opened, not just asked for its status: so that NFS does not answer from its memory.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            renewed = os.fstat(file.fileno()).st_mtime
            text = file.read(4096)
    except FileNotFoundError:
        return None
    try:
        return Holder(**json.loads(text)), renewed
    except (ValueError, TypeError):
        return None, renewed


def _stale(path: Path, pace: Pace) -> bool:
    """Whether the holder has ended, as far as this host can see, or no longer renews the lock."""
    found = _look(path)
    if found is None:
        return False
    holder, renewed = found
    if holder is not None and holder.host == _host() and _ended(holder):
        return True
    return _file_system_time(path) - renewed > pace.stale


def _file_system_time(path: Path) -> float:
    """What the file system takes for the time: nodes' clocks differ from each other."""
    probe = path.with_name(f"{path.name}.time-{secrets.token_hex(4)}")
    try:
        probe.touch(exist_ok=False)
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _break(path: Path, judged: Holder | None, pace: Pace) -> bool:
    """Remove the stale lock of `judged`; False where another one is at it.

    Many may have found it stale at once. Without a lock for the removal, the second of them would
    remove what the first has made in its place.
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
        if found is None or found[0] != judged or not _stale(path, pace):
            return False
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        path.rename(aside)
        moved = _look(aside)
        if moved is not None and moved[0] != judged:
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


def _myself() -> Holder:
    pid = os.getpid()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        user = str(os.getuid())
    return Holder(secrets.token_hex(8), os.uname().nodename, _host(), pid, _start(pid) or 0, user)


def _host() -> str:
    """Within this, a process number means one process: a boot of a node, and its namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"unknown/{os.uname().nodename}/{secrets.token_hex(8)}"


def _ended(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # another user's, so it is there
        pass
    start = _start(holder.pid)
    return start is not None and start != holder.start


def _start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; -1 for a zombie, None where hidden."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        words = text.rpartition(")")[2].split()
        return -1 if words[0] in ("Z", "X") else int(words[19])
    except (OSError, IndexError, ValueError):
        return None


def _who(holder: Holder | None) -> str:
    if holder is None:
        return "another process"
    return f"process {holder.pid} of {holder.user} on {holder.node}"


def _target_name(path: Path) -> str:
    return path.name.removeprefix(".").removesuffix(".lock")
