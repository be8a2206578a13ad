"""One start of a script: prepared, watched, and undone in every case."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...site.caches import Caches
from . import alone, environment, events, explain, outputs, sources, state
from .events import Event
from .explain import Outcome
from .follow import Follow
from .progress import say
from .supervise import Ended, Interrupt, Limits, watch

_CHILD = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.login.fetch.inside.main import main; sys.exit(main())"
)


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

    @property
    def cache_folders(self) -> tuple[Path, ...]:
        """Where what a library downloads may lie."""
        return environment.cache_folders(self.variables, self.caches, self.home)


@dataclass(frozen=True)
class Attempt:
    """What came of it.

    Attributes:
        ignored: folders that were there for this start only.
    """

    events: tuple[Event, ...]
    ended: Ended
    outcome: Outcome
    undone: outputs.Undone
    ignored: tuple[Path, ...]


def run(start: Start, interrupt: Interrupt) -> Attempt:
    """Run the script until it has trained a step, or cannot; then put its files back.

    Raises:
        OSError: no state folder could be made, or no process started.
    """
    folders = start.cache_folders
    for cache in start.caches.entries:
        if cache.said_by != "default":
            cache.path.mkdir(parents=True, exist_ok=True)
    kept = state.make(start.area, folders)
    try:
        kept.write_spec(_spec(start, kept))
        ended, seen, place = _watch(start, kept, interrupt)
    except BaseException:
        seen = kept.journal.read_all()
        _undo(kept, seen, _left_open(seen))
        raise
    outcome = explain.outcome(seen, ended, start.limits, place)
    cut = sources.cut_short(seen, last=outcome.cut and not sources.broken_off(seen))
    if cut and outcome.reached:
        outcome = explain.incomplete(seen)
    undone = _undo(kept, seen, ended.writing | _left_open(seen) | cut)
    return Attempt(seen, ended, outcome, undone, (kept.folder, kept.temporary))


def recover(area: Path, folder: Path) -> None:
    """Undo what fetches that were killed have left, and say so, with paths below `folder` short."""
    from .tree import Tree

    for left in state.abandoned(area):
        tree = Tree(None, str(left.folder))
        tree.freeze()
        writing = tree.writing()
        tree.kill()
        seen = left.journal.read_all()
        undone = _undo(left, seen, writing | _left_open(seen))
        if undone.done or undone.problems:
            say("an earlier fetch was killed; its script's files are put back:")
        for line in outputs.lines(undone, folder):
            say(line)
        last = [one for one in sources.made(seen) if Path(one.path).is_file()][-1:]
        for one in last if not any(event.kind == "stop" for event in seen) else ():
            if one.path not in undone.removed and not events.inside(one.path, left.caches):
                say(f"{one.path} came last before that, and may not be whole: look at it")


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
        place = _where_now(kept.folder / "stack.txt", pid)

    follow = Follow(journal, quiet=start.network != "open")
    ended = watch(
        alone.command([sys.executable, "-c", _CHILD], network=start.network != "none"),
        {**own, **(start.offline or {})},
        start.limits,
        interrupt,
        mark=str(kept.folder),
        look=follow,
        stuck=ask,
        stdout=start.stdout,
    )
    return ended, journal.read_all(), place


def _where_now(file: Path, pid: int) -> str:
    """The innermost frame of the user's code; the child writes its stacks when it is asked to."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
        for _ in range(20):
            time.sleep(0.05)
            with suppress(OSError):
                if text := file.read_text(encoding="utf-8", errors="replace"):
                    return next(iter(explain.users_frames(text)), "")
    return ""


def _left_open(seen: tuple[Event, ...]) -> frozenset[str]:
    return frozenset(path for event in events.of(seen, "stop") for path in event.texts("open"))


def _undo(kept: state.State, seen: tuple[Event, ...], writing: frozenset[str]) -> outputs.Undone:
    ignored = (kept.folder, kept.temporary)
    undone = outputs.undo(outputs.plan(seen, writing, kept.caches, ignored))
    kept.remove()
    return undone
