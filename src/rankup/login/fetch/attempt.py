"""One start of a script: prepared, watched, and undone in every case."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...base.lock import LockLost
from ...site.caches import Caches
from . import alone, environment, events, explain, leftover, outputs, sources, state
from .events import Event
from .explain import Outcome, users_frames
from .follow import Follow
from .inside import spec as inside
from .leftover import Left
from .supervise import Ended, Interrupt, Limits, watch
from .undo import Undone, undo

_CHILD = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.login.fetch.inside.main import main; sys.exit(main())"
)
_STACKS_SECONDS = 5.0


@dataclass(frozen=True)
class Start:
    """What to start, and how.

    Attributes:
        script: absolute.
        area: where state folders go; the caller holds its lock.
        variables: the environment that it would have without us.
        network: `open`; `none`: in a namespace of its own; `blocked`: Python refuses connections.
        world: it is told to be the one rank of a world.
        walk: all samples are drawn, also where none is downloaded.
        offline: further variables.
        stdout: a descriptor for its output; None: ours.
        check: raises `LockLost` once another process has taken the area over.
    """

    script: Path
    args: tuple[str, ...]
    area: Path
    home: Path
    caches: Caches
    variables: Mapping[str, str]
    threads: int
    limits: Limits
    network: Literal["open", "none", "blocked"] = "open"
    pretend_gpu: bool = False
    world: bool = False
    walk: bool = False
    offline: Mapping[str, str] | None = None
    stdout: int | None = None
    check: Callable[[], None] = lambda: None

    @property
    def cache_folders(self) -> tuple[Path, ...]:
        """Where what a library downloads may lie."""
        return environment.cache_folders(self.variables, self.caches, self.home)


@dataclass(frozen=True)
class Attempt:
    """What came of it.

    Attributes:
        ignored: folders that were there for this start only.
        traceback: of the script's error, which was not shown yet.
        left: what it has made and left.
    """

    events: tuple[Event, ...]
    ended: Ended
    outcome: Outcome
    undone: Undone
    ignored: tuple[Path, ...]
    traceback: str
    left: Left


def run(start: Start, interrupt: Interrupt) -> Attempt:
    """Run the script until it has trained a step, or cannot; then put its files back.

    Raises:
        OSError: no state folder could be made, or no process started.
    """
    start.check()
    folders = start.cache_folders
    for cache in start.caches.entries:
        if cache.said_by != "default":
            cache.path.mkdir(parents=True, exist_ok=True)
    kept = state.make(start.area, folders)
    try:
        kept.write_spec(_spec(start, kept))
        ended, seen, place = _watch(start, kept, interrupt)
        start.check()
    except LockLost:
        raise  # whoever has taken over has put the files back, or the next fetch will
    except BaseException:
        seen = kept.journal.read_all()
        put_back(kept, seen, left_open(seen), keep_new=start.network == "open")
        raise
    traceback = _read(kept.folder / inside.TRACEBACK)
    outcome = explain.outcome(seen, ended, start.limits, place)
    cut = sources.cut_short(seen, last=outcome.cut and not sources.broken_off(seen))
    if cut and outcome.reached:
        outcome = explain.incomplete(seen)
    writing = ended.writing | left_open(seen) | cut
    undone = put_back(kept, seen, writing, keep_new=start.network == "open")
    ignored = (kept.folder, kept.temporary)
    left = leftover.of(seen, undone, kept.caches, ignored)
    return Attempt(seen, ended, outcome, undone, ignored, traceback, left)


def _spec(start: Start, kept: state.State) -> dict[str, object]:
    return {
        "script": str(start.script),
        "args": list(start.args),
        "temporary": str(kept.temporary),
        "mode": "fetch" if start.network == "open" else "proof",
        "block": start.network == "blocked",
        "pretend_gpu": start.pretend_gpu,
        "world": start.world,
        "walk": start.walk,
        "hold": True,
        "threads": start.threads,
        # Room for stacks and for what is asked for and never touched; the rest is weighed.
        "data_limit": start.limits.memory + start.limits.memory // 2,
    }


def _watch(
    start: Start, kept: state.State, interrupt: Interrupt
) -> tuple[Ended, tuple[Event, ...], str]:
    own = environment.child(
        start.variables, start.caches, kept.folder, kept.temporary, start.threads, start.home
    )
    journal = kept.journal
    place = ""

    def ask(pid: int) -> None:
        nonlocal place
        place = _where_now(kept.folder / inside.STACK, pid)

    follow = Follow(journal, kept.folder / state.ALIVE, quiet=start.network != "open")

    def look() -> bool:
        start.check()
        return follow()

    ended = watch(
        alone.command([sys.executable, "-c", _CHILD], network=start.network != "none"),
        {**own, **(start.offline or {})},
        start.limits,
        interrupt,
        mark=str(kept.folder),
        look=look,
        stuck=ask,
        stdout=start.stdout,
    )
    return ended, journal.read_all(), place


def _where_now(file: Path, pid: int) -> str:
    """The innermost frame of the user's code; the child writes its stacks when it is asked to.

    On a busy machine it needs a while to come to it, and writes a line in many pieces.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
        end = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < end:
            time.sleep(0.05)
            whole, _, _ = _read(file).rpartition("\n")
            if frames := users_frames(whole):
                return frames[0]
    return ""


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def left_open(seen: tuple[Event, ...]) -> frozenset[str]:
    """The files that were open for writing when the script was stopped."""
    return frozenset(path for event in events.of(seen, "stop") for path in event.texts("open"))


def put_back(
    kept: state.State,
    seen: tuple[Event, ...],
    writing: frozenset[str],
    *,
    keep_new: bool = True,
    but: Collection[str] = (),
) -> Undone:
    """Undo what a start has done, but to the paths `but`, and remove its state."""
    ignored = (kept.folder, kept.temporary)
    plan = outputs.plan(seen, writing, kept.caches, ignored, keep_new=keep_new)
    undone = undo(one for one in plan if one.path not in but)
    kept.remove()
    return undone
