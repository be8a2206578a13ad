"""The sampler of a run on one node, from its head line to its end."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...base.text import say
from ..lines import FOLDER, GPU, STOP, Head
from ..thresholds import LIMITS, UNUSED, advice, untouched
from . import STARTER, node, ranks
from .node import Node, Sample, granted, open_source
from .writer import Writer

_ENDING = frozenset({signal.SIGTERM})
_ENDED = ("Z", "X")  # nobody has waited for it yet
_LOOK = 1.0  # seconds between looks at the stop file and the parent


class Ending:
    """Looks for a reason to end: a stop file, a dead parent, SIGTERM, no run directory any more.

    Signals that end it are blocked and taken between samples, so that none tears a line.

    Args:
        parent: number of the process without which there is no job, of this user or above this
            one; by default the one that started this.
    """

    def __init__(self, run: Path, parent: int | None = None) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        self._run = str(run)
        self._stop = str(run / FOLDER / STOP)
        self._parent = STARTER if parent is None else parent
        # Another process may get the number of one that has ended: the start tells them apart.
        self._start = None if parent is None else _start(parent)
        # One that is there already was meant for an earlier attempt; which of two times is later is
        # not to be asked, since the clock of the file system is not the node's.
        self._stale = _identity(self._stop)

    def reason(self) -> str | None:
        """Why to end now, in words; None: there is no reason."""
        stop = _identity(self._stop)
        if stop is not None and stop != self._stale:
            return "stop file"
        if os.getppid() != self._parent and not self._elsewhere():
            return "the process that started it has ended"
        return None

    def _elsewhere(self) -> bool:
        """True if the parent that was named is there, though it did not start this process."""
        return self._start is not None and _start(self._parent) == self._start

    def gone(self) -> bool:
        """True if the run directory was removed; asked once per sample."""
        try:
            os.stat(self._run)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a file system that does not answer for a while
            return False
        return False

    def wait(self, until: float) -> str | None:
        """Sleep until a monotonic time; ends early with a reason to end."""
        while True:
            left = until - time.monotonic()
            taken = signal.sigtimedwait(_ENDING, max(0.0, min(_LOOK, left)))
            if taken is not None:
                return "SIGTERM"
            why = self.reason()
            if why is not None or left <= _LOOK:
                return why


def _start(pid: int) -> int | None:
    """When a process that still runs was started, by the kernel's count; None for no such one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    found = ranks.parse(pid, stat)
    return found.start if found and found.state not in _ENDED else None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


SECONDS = LIMITS.unused_soon
_UTIL, _MEMORY, _PROCESSES = (GPU.index(name) for name in ("util", "memory", "processes"))


class Watch:
    """Follows the samples of a node until it has spoken, which it does once.

    Args:
        billed: whether there is a job that is billed.
        whole_node: whether it is billed for all GPUs of the node, granted or not.
    """

    def __init__(self, head: Head, *, billed: bool, whole_node: bool = False) -> None:
        self._head, self._billed = head, billed
        self._paid = [whole_node or gpu.granted is not False for gpu in head.gpus]
        self._worked: set[int] = set()
        self._silent = False

    def see(self, rows: Sequence[Sequence[float | None]], seconds: float | None) -> str | None:
        """Return what is to be said after this sample, lines of text; mostly None.

        Args:
            rows: of `lines.GPU`, of all GPUs in the order of the head.
            seconds: for which ranks have been running on this node; None while there are none.
        """
        for place, row in enumerate(rows):
            util = row[_UTIL]
            if util is not None and util > LIMITS.unused_util:
                self._worked.add(place)
        if self._silent or seconds is None or seconds < SECONDS or not rows:
            return None
        unused = [place for place, row in enumerate(rows) if self._is_unused(place, row)]
        paid = sum(self._paid)
        if not unused:
            return None
        self._silent = True
        return self._words([self._head.gpus[place].index for place in unused], paid, seconds)

    def _is_unused(self, place: int, row: Sequence[float | None]) -> bool:
        if not self._paid[place] or place in self._worked:
            return False
        return untouched(row[_UTIL], row[_MEMORY], row[_PROCESSES])

    def _words(self, unused: list[int], paid: int, seconds: float) -> str:
        many = len(unused) > 1
        which = ", ".join(map(str, unused[:-1])) + f" and {unused[-1]}" if many else f"{unused[0]}"
        have = "have" if many else "has"
        cost = (
            f" although this job is billed for {'them' if many else 'it'}" if self._billed else ""
        )
        first = (
            f"GPU {which} of node {self._head.node} {have} done nothing for {seconds:.0f} s{cost}: "
            f"{paid - len(unused)} of {paid} GPUs {'is' if paid - len(unused) == 1 else 'are'} "
            f"in use ({UNUSED})"
        )
        return f"{first}\n  -> {advice(len(unused), paid, self._head.ranks, paid)}"


_NICE = 10
EVERY = 2.0  # seconds, at first
# From so many seconds on, so many times as far apart.
_STRETCHED = ((2 * 3600.0, 5.0), (600.0, 2.5))
BUDGET = 0.004  # CPU seconds per second
_LONGEST = 60.0
_WEIGHT = 0.2  # of the newest sample in the mean


@dataclass(frozen=True)
class Options:
    """What a sampler is told.

    Attributes:
        run: the run directory.
        every: seconds between samples, at first.
        ranks: that the run starts on this node; None where nobody says.
        attempt: tells the starts of a run apart; by default as `lines.Head` says.
        parent: number of the process without which there is no job, which need not be the one
            that started the sampler; by default it is.
        whole_node: whether the job is billed for all of its GPUs, granted or not.
    """

    run: Path
    every: float = EVERY
    ranks: int | None = None
    attempt: str | None = None
    parent: int | None = None
    whole_node: bool = False

    def __post_init__(self) -> None:
        if not 0.1 <= self.every <= 3600:
            raise UserError(f"--every {self.every:g} is no number of seconds from 0.1 to 3600")
        if not self.run.is_dir():
            raise UserError(f"{str(self.run)!r} is no run directory; its path is the argument")


def sample_run(options: Options, environment: Mapping[str, str], root: Path = Path("/")) -> int:
    """Sample until the job ends; the exit code.

    Raises:
        OSError: the run directory cannot be written, or another user's file is in the way.
    """
    ending = Ending(options.run, options.parent)
    name = node.name(environment)
    held = take(options.run, name)
    if held is None:
        say(f"another sampler watches this run on {name} already; this one ends")
        return 0
    with held:
        folder = options.run / FOLDER
        folder.mkdir(exist_ok=True)
        os.nice(_NICE)
        loop = _Loop(options, environment, Writer(folder, name), root)
        loop.until(ending)
    return 0


class _Loop:
    """Samples in turn, each written at once."""

    def __init__(
        self, options: Options, environment: Mapping[str, str], writer: Writer, root: Path
    ) -> None:
        source, error = open_source()
        gpus = granted(source.gpus(), environment) if source else ()
        self._node = Node(options.run, environment, source, gpus, root)
        self._head = self._node.head(
            every=options.every,
            attempt=options.attempt,
            ranks=options.ranks,
            gpu_error=error if gpus else error or "the driver sees no GPU",
        )
        billed = "SLURM_JOB_ID" in environment
        self._watch = Watch(self._head, billed=billed, whole_node=options.whole_node)
        self._writer = writer
        self._headless = True
        self._said: set[str] = set()
        self._began = time.monotonic()
        self._ranks_since: float | None = None

    def until(self, ending: Ending) -> None:
        """Sample until there is a reason to end, and write that down."""
        pace = Pace(self._head.every)
        spent = time.process_time()
        last: float | None = None
        why = ending.reason()
        while why is None:
            now = time.monotonic()
            self._once(now, None if last is None else now - last)
            last = now
            used, spent = time.process_time() - spent, time.process_time()
            pace.spent(used)
            why = ending.wait(now + pace.interval(now - self._began))
            if why is None and ending.gone():
                self._writer.close()
                return
        line = {"kind": "end", "t": round(time.time(), 3), "why": why}
        self._journal({**line, "cpu": round(time.process_time(), 3)})
        self._writer.close()

    def _once(self, now: float, seconds: float | None) -> None:
        try:
            sample = self._node.read(time.time(), seconds)
        except Exception as error:
            # Whatever a node shows that nobody has seen before costs its sample, not all others.
            self._note(f"a sample failed: {type(error).__name__}: {error}")
            return
        self._write(lambda now: self._writer.sample(sample.rows, now))
        for note in sample.notes:
            self._note(note)
        said = self._watch.see(sample.gpu, self._running(sample, now))
        if said is not None:
            say(said)
            self._note(said, UNUSED)

    def _running(self, sample: Sample, now: float) -> float | None:
        """Seconds for which there have been ranks; where none are expected, the job."""
        if not sample.ranks:
            self._ranks_since = None
            return None if self._head.ranks else now - self._began
        if self._ranks_since is None:
            self._ranks_since = now
        return now - self._ranks_since

    def _note(self, text: str, code: str = "") -> None:
        if text not in self._said:
            self._said.add(text)
            line = {"kind": "note", "t": round(time.time(), 3), "code": code, "text": text}
            self._journal(line)

    def _journal(self, line: dict[str, object]) -> None:
        self._write(lambda now: self._writer.journal(line, now))

    def _write(self, write: Callable[[float], bool]) -> None:
        writer, now = self._writer, time.monotonic()
        if self._headless:
            self._headless = not writer.journal(self._head.line(), now)
        if not self._headless and write(now):
            if writer.dropped:
                lost, writer.dropped = writer.dropped, 0
                self._note(f"{lost} lines could not be written: {writer.why}")
        elif "full" not in self._said:
            self._said.add("full")
            say(f"what this node does is not recorded for now: {writer.why}; the run goes on")


class Pace:
    """Seconds between samples.

    Args:
        every: at first; 2.5 times that after ten minutes, 5 times after two hours.
    """

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._mean: float | None = None

    def spent(self, cpu: float) -> None:
        """Tell the CPU seconds that a sample took, everything included."""
        self._mean = cpu if self._mean is None else self._mean + _WEIGHT * (cpu - self._mean)

    def interval(self, elapsed: float) -> float:
        """Seconds to the next sample, so many after the first one."""
        times = next((factor for start, factor in _STRETCHED if elapsed >= start), 1.0)
        return max(times * self._every, min(_LONGEST, (self._mean or 0.0) / BUDGET))


def take(run: Path, node: str) -> socket.socket | None:
    """Be the sampler of a run on a node until the returned socket is closed; None: there is one.

    A name in the kernel's own space of sockets: it holds on every file system, whether that knows
    flock or not, it is the node's alone, and it goes with the process, however that ends.
    """
    what = f"{os.path.realpath(run)}\0{node}\0{os.getuid()}".encode("utf-8", "surrogateescape")
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(b"\0rankup-monitor-" + hashlib.sha256(what).hexdigest()[:32].encode())
    except OSError:
        held.close()
        return None
    return held
