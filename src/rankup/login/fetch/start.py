"""Starts of a script in a copy of its project: with a network, and without one as a proof."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...base.amounts import size
from ...base.text import say
from ...sandbox import namespace
from ...sandbox.copies import Sandbox, sandbox
from ...sandbox.events import Event, Journal
from ...sandbox.inside import spec
from ...sandbox.watch import (
    Ended,
    Interrupt,
    Limits,
    cache_folders,
    child_environment,
    watch,
)
from ...site.caches import Caches
from .. import offline
from . import came, explain
from .explain import Outcome, users_frames

_CHILD = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.sandbox.inside.main import main; sys.exit(main())"
)
_STACKS_SECONDS = 0.5  # before the end
_LINE_EVERY = 10.0  # seconds
Network = Literal["open", "none", "blocked"]
# Options of `rankup fetch` that nobody's script is likely to have: most are known to both.
_OURS = ("--only-proof", "--no-run", "--dataset", "--model", "--url", "--sha256", "--json")
_USAGE = 2  # the exit code of argparse


@dataclass(frozen=True)
class Start:
    """A script, and how it is started.

    Attributes:
        script: absolute, without links.
        roots: the folders that are copied; the current one lies in one of them.
        area: where the copies go; the caller holds its lock.
        network: `open`; `none`: in a namespace of its own; `blocked`: Python refuses connections.
        pretend: it is told that there is a GPU, and that it is the one rank of a world.
        stdout: a descriptor for its output; None: ours.
        check: raises `LockLost` once another process has taken the area over.
    """

    script: Path
    args: tuple[str, ...]
    roots: tuple[Path, ...]
    area: Path
    caches: Caches
    threads: int
    limits: Limits
    network: Network = "open"
    pretend: bool = False
    offline: Mapping[str, str] | None = None
    stdout: int | None = None
    check: Callable[[], None] = lambda: None

    @property
    def cache_folders(self) -> tuple[Path, ...]:
        """The folders where what a library downloads may lie."""
        return cache_folders(os.environ, self.caches, Path.home(), self.roots)


@dataclass(frozen=True)
class Attempt:
    """A start that has ended; its copy is there until its context is left.

    Attributes:
        traceback: of the script's error, which was not shown yet.
        unfinished: files that were being written at the end, or of which a part is missing.
    """

    box: Sandbox
    events: tuple[Event, ...]
    ended: Ended
    outcome: Outcome
    traceback: str
    unfinished: frozenset[str]


@contextmanager
def attempt(
    start: Start, interrupt: Interrupt, extra: tuple[Sandbox, Iterable[str]] | None = None
) -> Iterator[Attempt]:
    """Run the script in a new copy until it has trained a step, or cannot.

    Args:
        extra: new files of another copy that are put into this one.

    Raises:
        OSError: no copy could be made, or no process started.
    """
    start.check()
    for cache in start.caches.entries:
        if cache.said_by != "default":
            cache.path.mkdir(parents=True, exist_ok=True)
    with sandbox(start.area, start.roots, start.cache_folders) as box:
        if extra is not None:
            box.take_from(*extra)
        box.write_spec(_spec(start, box))
        ended, seen, place = _watch(start, box, interrupt)
        for path in box.changed():
            say(
                f"{path} was changed while the script ran, by another program or, through a link, "
                "by a library that writes without Python: look at it"
            )
        start.check()
        outcome = explain.outcome(seen, ended, start.limits, place)
        cut = came.cut_short(seen, last=outcome.cut and not came.broken_off(seen))
        if cut and outcome.reached:
            outcome = explain.incomplete(seen)
        copy = str(box.copy)
        writing = {path.removeprefix(copy) for path in ended.writing}
        traceback = _read(box.folder / spec.TRACEBACK)
        yield Attempt(box, seen, ended, outcome, traceback, frozenset(writing | cut))


def show(done: Attempt, start: Start) -> None:
    """Print what the child has kept to itself: the script's own traceback, and what stays of it."""
    if done.traceback and not done.outcome.reached:
        sys.stderr.write(done.traceback)
        sys.stderr.flush()
    clear_line()
    options = [word for word in start.args if word.partition("=")[0] in _OURS]
    if done.ended.code == _USAGE and options:
        say(f"options of rankup stand before the script: rankup fetch {options[0]} ...")
    if done.ended.left:
        say(f"these processes could not be ended: {', '.join(map(str, done.ended.left))}")


def _spec(start: Start, box: Sandbox) -> dict[str, object]:
    return {
        "script": str(box.inside(start.script)),
        "args": list(start.args),
        "shadow": str(box.copy),
        "free": [str(one) for one in start.cache_folders],
        "temporary": str(box.temporary),
        "block": start.network == "blocked",
        "pretend": start.pretend,
        "threads": start.threads,
        # Room for stacks and for what is asked for and never touched; the rest is weighed.
        "data_limit": start.limits.memory + start.limits.memory // 2,
        "deadline": time.time() + start.limits.seconds - _STACKS_SECONDS,
    }


def _watch(
    start: Start, box: Sandbox, interrupt: Interrupt
) -> tuple[Ended, tuple[Event, ...], str]:
    places = (box.folder, box.temporary)
    quiet = offline.silent()
    own = child_environment(os.environ, start.caches, *places, start.threads, Path.home(), quiet)
    journal = box.journal
    folder = box.inside(Path.cwd())
    follow = Follow(journal, box.inside, quiet=start.network != "open")

    def look() -> bool:
        start.check()
        return follow()

    ended = watch(
        namespace.command([sys.executable, "-c", _CHILD], network=start.network != "none"),
        {**own, **(start.offline or {}), "PWD": str(folder)},
        start.limits,
        interrupt,
        mark=str(box.folder),
        look=look,
        stdout=start.stdout,
        folder=folder,
    )
    frames = users_frames(_read(box.folder / spec.STACK)) if ended.why == "time" else []
    return ended, journal.read_all(), next(iter(frames), "")


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


class Follow:
    """Called often; reads the journal, and tells the user how much of the newest file is here.

    A line comes every ten seconds, with news only.

    Args:
        place: where a path of an event lies while the script runs.
    """

    def __init__(self, journal: Journal, place: Callable[[str], Path], *, quiet: bool) -> None:
        self._journal, self._place, self._quiet = journal, place, quiet
        self._at = time.monotonic()
        self._said = self._url = self._file = ""

    def __call__(self) -> bool:
        """Return True once a process has written that all is done."""
        found = self._journal.read()
        for event in found if not self._quiet else ():
            if event.kind == "problem":
                clear_line()
                say(f"not watched: {event.text('what')}: {event.text('error')}")
            elif event.kind == "url":
                self._url = event.text("url")
            elif event.kind == "open" and event.get("existed") is False:
                self._file = event.text("path")
            elif event.kind == "rename" and event.text("from") == self._file:
                self._file = event.text("to")
        if self._url and time.monotonic() - self._at > _LINE_EVERY:
            self._at = time.monotonic()
            self._tell()
        return any(event.kind == "stop" for event in found)

    def _tell(self) -> None:
        line = f"downloading {self._url}"
        for place in (self._place(self._file), Path(self._file)) if self._file else ():
            if place.is_file():
                line += f"; {size(place.stat().st_size)} of {place.name} so far"
                break
        if line != self._said:
            self._said = line
            clear_line()
            say(line)


def clear_line() -> None:
    """Remove what stands in the terminal's line, as a progress bar that the script has left."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
