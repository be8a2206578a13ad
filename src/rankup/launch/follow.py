"""A log that grows, and the view of it that ends with the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base.amounts import duration
from ..base.text import clean
from ..monitor.live import small
from ..site import rundir
from ..slurm import reasons
from ..slurm.client import Client
from . import attempts, cause
from .attempts import Attempt
from .logfile import OUTPUT, harmless, log_of, say, tail_lines
from .meant import TIMEOUT
from .status import steps

_POLL = 0.3  # seconds between looks at the file
_ASK = 10.0  # seconds between questions to Slurm, unless something has just happened
_ASK_PENDING = 15.0
_ASK_SOON = 1.0
_PROGRESS = 5.0  # seconds between states of a progress bar
_SMALL = 60.0  # between looks at what GPUs and steps do
_CHUNK = 1024 * 1024
# While Slurm requeues a job it may show it as failed for a moment.
_SURE = 1.5
_SURE_OF_A_STOPPED = 20.0  # which is to come back, as another job where the site does not requeue
_JUST_SUBMITTED = reasons.pending("None")
INTERRUPTED = 130


class Tail:
    """The lines that are appended to a file, which may not be there yet, or be cut meanwhile."""

    def __init__(self, file: Path, offset: int = 0) -> None:
        self.file = file
        self._offset = offset
        self._partial = b""
        self._progress = 0.0

    def read(self) -> list[str]:
        """The lines that are whole since last time; of a progress bar now and then its state."""
        try:
            size = self.file.stat().st_size
            lines = []
            if size < self._offset:
                self._offset, self._partial = 0, b""
                lines.append("… the log was cut; it goes on from its beginning …")
            with self.file.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read(_CHUNK)
        except OSError:
            return []
        self._offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        lines += [line.decode("utf-8", "replace") for line in whole]
        if b"\r" in self._partial and time.monotonic() - self._progress > _PROGRESS:
            self._progress = time.monotonic()
            lines.append(self._partial.decode("utf-8", "replace"))
            self._partial = b""
        if len(self._partial) > _CHUNK:
            lines.append(self.rest())
        return lines

    def rest(self) -> str:
        """A last line without an end."""
        text, self._partial = self._partial.decode("utf-8", "replace"), b""
        return text


@dataclass
class _View:
    """The run that is followed, and what has been printed about it."""

    path: Path
    client: Client
    raw: bool
    say: Callable[[str], None]
    attempt: Attempt | None = None
    tail: Tail | None = None
    said: str = ""
    last: str = ""
    looked: float = field(default_factory=time.monotonic)
    harmless: set[str] = field(default_factory=set)

    def ask(self, lines: int) -> None:
        """Look at the run: another job may have taken over, the reason may have changed."""
        found = attempts.of_run(self.path, rundir.read(self.path), self.client)
        self.attempt = attempts.last_job(found) or attempts.newest(found)
        if self.attempt is None:
            return
        news = self.attempt.words not in (self.said, _JUST_SUBMITTED)
        if self.attempt.state == "PENDING" and news:
            self.say(clean(f"job {self.attempt.job} waits: {self.attempt.words}"))
        self.said = self.attempt.words
        file = self._file(self.attempt)
        if self.tail is not None and self.tail.file == file:
            return
        if self.tail is not None:
            self.show(self.tail.read())
            self.say(f"job {self.attempt.job} goes on")
            self.tail = Tail(file)
            return
        size = file.stat().st_size if file.is_file() else 0
        shown = [line for line in tail_lines(file) if self.raw or not harmless(line)]
        self.show(shown[-lines:] if size and lines else [])
        self.tail = Tail(file, size)

    def _file(self, attempt: Attempt) -> Path:
        if attempt.job is None:
            return self.path / OUTPUT
        return log_of(self.path, attempt.job)

    def show(self, lines: Sequence[str]) -> None:
        for line in map(clean, lines):
            words = "" if self.raw else harmless(line)
            if not words:
                self.say(line)
                self.last = line
            elif words not in self.harmless:
                self.harmless.add(words)
                self.say(f"harmless: {words}")

    def look(self) -> None:
        """Now and then a line about steps and GPUs, of which the log itself may be silent."""
        running = self.attempt is not None and self.attempt.state == "RUNNING"
        if self.raw or not running or time.monotonic() - self.looked < _SMALL:
            return
        self.looked = time.monotonic()
        if line := small(self.path, steps(rundir.read(self.path))):
            self.say(f"· {line}")


def follow(
    path: Path,
    *,
    lines: int = 40,
    raw: bool = False,
    client: Client | None = None,
) -> int:
    """Show a run's log as it grows, over its requeues and chained jobs, until the run has ended.

    Ctrl-C ends the view and leaves the run alone.

    Args:
        lines: of what is there already.
        raw: leave nothing out.

    Returns:
        The job's exit code; 1 where it failed without one; 130 for a view that was ended.
    """
    view = _View(path, client or Client(timeout=TIMEOUT), raw, say)
    try:
        return _until_the_end(view, lines)
    except KeyboardInterrupt:
        say(f"the view has ended, the run goes on; again: rankup logs -f {path}")
        return INTERRUPTED


def _until_the_end(view: _View, lines: int) -> int:
    asked, noticed = 0.0, time.monotonic()
    ended_at: float | None = None
    written = 0
    while True:
        size = _size(view.path / rundir.ATTEMPTS)
        now = time.monotonic()
        if size != written:  # an attempt has begun or ended; Slurm knows a little later
            written, noticed = size, now
        pause = _ASK_PENDING if _waits(view.attempt) else _ASK
        if now - noticed < _ASK or ended_at is not None:
            pause = _ASK_SOON
        if view.attempt is None or now - asked >= pause:
            before = view.attempt
            view.ask(lines)
            asked = time.monotonic()
            if before is not None and _differs(before, view.attempt):
                noticed = asked
        ended = view.attempt is None or not view.attempt.live
        ended_at = (ended_at or time.monotonic()) if ended else None
        new = view.tail.read() if view.tail else []
        view.show(new)
        if ended_at is not None and not new:
            sure = _SURE_OF_A_STOPPED if _stopped(view) else _SURE
            if time.monotonic() - ended_at >= sure:  # the last lines may come a moment later, too
                break
        view.look()
        if not new:
            time.sleep(_POLL)
    if view.tail and (rest := view.tail.rest()):
        view.show([rest])
    return _end(view)


def _end(view: _View) -> int:
    attempt = view.attempt
    if attempt is None:
        say("this run has not been started")
        return 1
    name = f"job {attempt.job}" if attempt.job else "the run"
    if attempt.state == "COMPLETED":
        took = attempt.ended - attempt.started if attempt.ended and attempt.started else None
        say(f"{name}: COMPLETED{'' if took is None else f' in {duration(took)}'}")
        return 0
    found = cause.of_run(view.path, attempt.job)
    # The job script has asked for the cause itself, so that it stands in the log.
    if found and cause.shown(found).splitlines()[-1] != view.last:
        say(cause.shown(found))
    say(clean(f"{name}: {attempt.state}. {attempt.words}"))
    return attempt.exit_code or 1


def _stopped(view: _View) -> bool:
    """Return True where the job's last record is that it stopped with a checkpoint."""
    if view.attempt is None or view.attempt.job is None:
        return False
    records = [r for r in rundir.records(view.path) if "start" in r or "end" in r]
    return bool(records and records[-1].get("stopped"))


def _differs(before: Attempt, now: Attempt | None) -> bool:
    """Return True for another state or another job, after which more may follow soon."""
    return now is None or (before.job, before.state) != (now.job, now.state)


def _waits(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.state == "PENDING"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
