"""A run on this machine: torchrun in a session of its own, stopped together, failing clearly."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..base import processes
from ..base.processes import starting
from ..monitor.lines import FOLDER, STOP
from ..site import rundir
from ..site.gpus import usable_cores, visible_gpus
from ..site.rundir import Job
from . import failure
from .logfile import OUTPUT
from .worker import AGENT, PARENT

_PATIENCE = 5.0  # seconds that the last sample may take
_ONE_WISH = 1.0  # seconds in which a second SIGTERM is the first one's
_QUIET = 0.5  # seconds after which a process that was left running has nothing to say
MOST_KEPT = 100 * 10**6  # bytes of what a run prints
_RESERVE = 64 * 2**10  # bytes of those that a full disk gets back
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def start(
    job: Job,
    directory: Path,
    nproc: int,
    resume: bool,
    extra: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> int:
    """Run `job` on `nproc` ranks of this machine and wait for it.

    The first Ctrl-C (or SIGTERM) is handed to the ranks, who save and stop; the second ends them.

    Returns:
        The job's exit code; 128 + the signal's number for a run that was asked to stop.
    """
    environment = {
        **os.environ,
        # torchrun would set 1, which leaves most cores idle.
        "OMP_NUM_THREADS": _threads(nproc),
        # Ranks have one order of a set of texts.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        **_allocator(),
        "RANKUP_RUN_DIR": str(directory),
        PARENT: str(os.getpid()),
        "RANKUP_RESUME": "1" if resume else "0",
        **(extra or {}),
    }
    command = [*_launcher(job, nproc, python), *job.words]
    failure.forget(directory / "log")

    def act(agent: int, number: int, again: bool) -> bool:
        ranks = [] if again else _ranks(agent)
        if not ranks:  # without ranks there is nothing that could save
            _kill_tree(agent)
        for pid in ranks:
            _send(pid, number)
        return bool(ranks)

    return wait(command, environment, act, cwd=job.cwd, last=_kill_tree, log=directory / OUTPUT)


def wait(
    command: Sequence[str],
    environment: Mapping[str, str],
    act: Callable[[int, int, bool], bool],
    *,
    last: Callable[[int], None],
    log: Path,
    cwd: str | None = None,
    numbers: Sequence[int] = _FORWARDED,
) -> int:
    """Run a command in a session of its own and wait for it; its exit code.

    That of a command ended by a signal is 128 + its number, and so is that of one which ended well
    after it was asked to stop. A handler only notes the signal; what is done about it is done here.

    Args:
        act: called with the process, a signal that came, and whether it is not the first one;
            returns True where it asked the ranks to stop. Signals that come meanwhile are the same
            wish, and so is SIGTERM within a second: `timeout` sends it to the process and to its
            group.
        log: what the command prints is shown, and appended to this file.
        last: called with the process where it still runs and this function is left by an error.
        numbers: the signals; those that are ignored (`nohup`) stay so.
    """
    events: SimpleQueue[int | None] = SimpleQueue()  # its `put` may be called by a handler
    before = {
        number: signal.signal(number, lambda number, frame: events.put(number))
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    process, first, began = None, None, 0.0
    try:
        with _kept(log) as (out, errors):
            # A session of its own keeps the terminal's Ctrl-C from reaching the ranks unordered.
            process = subprocess.Popen(
                command, env=environment, cwd=cwd, start_new_session=True, stdout=out, stderr=errors
            )
            threading.Thread(target=_await, args=(process, events), daemon=True).start()
            while (number := _next(events)) is not None:
                if first == number == signal.SIGTERM and time.monotonic() < began + _ONE_WISH:
                    continue
                asked = act(process.pid, number, first is not None)
                if first is None:
                    first, began = number, time.monotonic()
                    _drain(events)
                if asked:
                    said = "asking the ranks to stop (once more ends them now)"
                    print(f"\n{said}", file=sys.stderr, flush=True)
            code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process is not None and process.poll() is None:
            last(process.pid)
    if first is not None and code <= 0:
        return 128 + first
    return 128 - code if code < 0 else code


def ended(directory: Path, code: int) -> dict[str, Any]:
    """Return what `job.json` says of the end of an attempt that has been waited for."""
    found: dict[str, Any] = {"code": code, "ended": rundir.now()}
    return {**found, "stopped": True} if (directory / "requeue").exists() else found


@contextlib.contextmanager
def _kept(log: Path) -> Iterator[tuple[int, int]]:
    """The places of a process's output and errors: both are shown, and appended to `log`."""
    if sys.stdout:
        sys.stdout.flush()
    kept = _Kept(log)
    streams = [_Stream(1 if sys.stdout else None, kept), _Stream(2 if sys.stderr else None, kept)]
    try:
        yield streams[0].end, streams[1].end
    finally:
        _finish(streams)
        kept.close()
        for stream in streams:
            if stream.is_alive():
                stream.leave()


class _Kept:
    """The file that keeps what is printed, for its owner; of a flood, or on a full disk, a part."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._begin = os.fstat(self.file).st_size
        self._lock = threading.Lock()
        self._room, self._why, self._full = MOST_KEPT, "", False

    def write(self, data: bytes) -> None:
        """Append it, unless that has ended."""
        with self._lock:
            if self._why:
                return
            try:
                while data and self._room > 0:
                    count = os.write(self.file, data[: self._room])
                    self._room -= count
                    data = data[count:]
            except OSError as error:
                self._full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                self._why = error.strerror or str(error)
            if data and not self._why:
                self._why = f"it has {MOST_KEPT // 10**6} MB of this start"

    def close(self) -> None:
        """Say what is not kept; a full disk gets back what the record of the run's end needs.

        The file itself stays open: a process that was left running may print on.
        """
        if self._full:
            size = os.fstat(self.file).st_size
            with contextlib.suppress(OSError):
                os.truncate(self.file, max(self._begin, size - _RESERVE))
        if self._why:
            said = f"note: {self._log} does not keep all that was printed: {self._why}"
            print(said, file=sys.stderr)


class _Stream(threading.Thread):
    """Copies what comes from a process to a descriptor of this one, and to a file.

    The process finds a terminal where there is one, so that a progress bar and colours stay.
    """

    def __init__(self, shown: int | None, kept: _Kept) -> None:
        super().__init__(daemon=True)
        self._shown, self._kept = shown, kept
        self.busy = False
        if shown is not None and os.isatty(shown):
            self._read, self.end = os.openpty()
            tty.setraw(self.end)  # a line's end is for the terminal itself to translate
            size = fcntl.ioctl(shown, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.end, termios.TIOCSWINSZ, size)
        else:
            self._read, self.end = os.pipe()
        self.start()

    def run(self) -> None:
        """Copy up to the end."""
        with contextlib.suppress(OSError):  # how a terminal says that the other end is closed
            while data := os.read(self._read, 1 << 16):
                self.busy = True
                self._kept.write(data)
                with contextlib.suppress(OSError):  # a closed pipe: the file goes on
                    while data and self._shown is not None:
                        data = data[os.write(self._shown, data) :]
                self.busy = False

    def leave(self) -> None:
        """Have a process copy to the file what comes after this one: nobody may die of that."""
        with contextlib.suppress(OSError):
            subprocess.Popen(
                ["cat"],  # noqa: S607 - the user's own
                stdin=self._read,
                stdout=self._kept.file,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def _finish(streams: Sequence[_Stream]) -> None:
    """Wait for what the process has written; not for one that it left running."""
    for stream in streams:
        os.close(stream.end)
    quiet, latest = (time.monotonic() + most for most in (_QUIET, _PATIENCE))
    while any(stream.is_alive() for stream in streams):
        now = time.monotonic()
        if now > latest or (now > quiet and not any(stream.busy for stream in streams)):
            return
        time.sleep(0.01)


def _next(events: SimpleQueue[int | None]) -> int | None:
    while True:  # a signal that the kernel hands to another thread wakes nobody
        with contextlib.suppress(Empty):
            return events.get(timeout=0.1)


def _drain(events: SimpleQueue[int | None]) -> None:
    """Forget the signals that have come; not that the process has ended."""
    while not events.empty():
        if events.get() is None:
            events.put(None)
            return


def _await(process: subprocess.Popen[bytes], events: SimpleQueue[int | None]) -> None:
    process.wait()
    events.put(None)


def _launcher(job: Job, nproc: int, python: str) -> list[str]:
    """Return what starts the ranks of `job`, up to its target."""
    # All programs start without the current folder on their path, as a script would. Behind `--`
    # torchrun takes no word for its own.
    worker = ["-c", starting("rankup.launch.worker")]
    options = ["--standalone", f"--nproc-per-node={nproc}", "--no-python", "--"]
    return [python, *worker, AGENT, *options, python, "-u", *worker]


def shown(job: Job, nproc: int) -> str:
    """The command that does the same without rankup."""
    rank = "rankup-rank" if job.kind == "recipe" else "python"
    words = ["torchrun", "--standalone", f"--nproc-per-node={nproc}", "--no-python", "--", rank]
    return shlex.join([*words, *job.words])


def _threads(nproc: int) -> str:
    """Threads of a rank: what the user has set, else the cores shared out."""
    given = os.environ.get("OMP_NUM_THREADS")
    if given is not None and given.isdigit() and int(given) > 0:
        return given
    if given is not None:
        print(f"warning: OMP_NUM_THREADS={given!r} is not a number, ignored", file=sys.stderr)
    return str(max(1, usable_cores() // nproc))


def _allocator() -> dict[str, str]:
    """Let torch give GPU memory that is freed to tensors of any size, unless the user has set how.

    Else what was cut for one size is lost for others, and a run that fits ends out of memory.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    if any(name in os.environ for name in names) or not visible_gpus(os.environ):
        return {}
    return {names[0]: "expandable_segments:True"}


def _ranks(agent: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(agent).children()]
    except psutil.NoSuchProcess:
        return []


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_tree(agent: int) -> None:
    """Kill torchrun and all that it started; torchrun gives each rank a session of its own."""
    import psutil

    try:
        root = psutil.Process(agent)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        _send(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def sampled(directory: Path, ranks: int, wish: bool) -> Iterator[None]:
    """Sample this machine into `<directory>/monitor` during the block.

    That nothing can be sampled costs the report, never the run.
    """
    if not wish:
        yield
        return
    process = _start_sampler(directory, ranks)
    try:
        yield
    finally:
        if process is not None:
            _stop_sampler(process)


def _start_sampler(directory: Path, ranks: int) -> subprocess.Popen[bytes] | None:
    command = processes.python(
        "rankup.monitor.collect.main",
        str(directory),
        "--ranks",
        str(ranks),
        "--parent",
        str(os.getpid()),  # which may have ended before it looks itself
    )
    try:
        (directory / FOLDER / STOP).unlink(missing_ok=True)
        # Of a session of its own: the terminal's Ctrl-C asks the ranks to save, and it goes on.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        print(f"warning: no sampler, so no GPU figures: {error}", file=sys.stderr)
        return None


def _stop_sampler(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever
            process.wait(_PATIENCE)
