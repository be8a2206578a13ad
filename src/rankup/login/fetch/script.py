"""`rankup fetch SCRIPT`: run a copy until it trains, keep what came, prove that it suffices."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ...base import lock
from ...base.errors import EXIT_FAILED, UserError
from ...base.text import clean, say
from ...base.urls import public
from ...sandbox import copies, namespace
from ...sandbox.copies import Sandbox
from ...sandbox.events import Event, inside, of
from ...sandbox.watch import Interrupt, Limits, default_memory
from ...script.downloads import Download, read
from ...site import places
from ...site.caches import caches
from ...site.config import Config
from ...site.profile import Profile
from .. import offline, record
from ..record import Item, Record
from . import came, explain
from .request import Request, table
from .start import Attempt, Network, Start, attempt, clear_line, show

_LAZY = "its samples are downloaded one by one while batches are drawn"


def fetch(request: Request, config: Config, profile: Profile) -> tuple[Record, int]:
    """Fetch what a script downloads until it trains; return what is kept of it, and the exit code.

    What the script prints goes through, to stderr where the command's own output is JSON.

    Raises:
        UserError: there is no such script.
        OSError: no process could be started, or no folder made.
    """
    if request.script is None or not Path(request.script).is_file():
        raise UserError(f"no script {request.script!r} in {Path.cwd()}")
    project = config.project(Path.cwd()).resolve()
    script = Path(request.script).resolve()
    start = Start(
        script=script,
        args=request.args,
        roots=_roots(project, script),
        area=copies.area(project),
        caches=caches(config, profile, os.environ),
        threads=request.threads,
        limits=Limits(request.seconds, request.memory_bytes or default_memory()),
        stdout=2 if request.as_json else None,
    )
    # One after the other: the second one finds what the first has brought.
    with lock.held(start.area / "project", say, doing="fetching") as held:
        start = replace(start, check=held.check)
        copies.sweep(start.area)
        earlier = record.find(project, record.script_key(script, request.args))
        with Interrupt() as interrupt, ExitStack() as stack:
            return _Fetch(request, start, profile, earlier, interrupt, stack).run()


def _roots(project: Path, script: Path) -> tuple[Path, ...]:
    """Return the folders that the script may write to by relative paths."""
    here = Path.cwd().resolve()
    top = project if here.is_relative_to(project) else here
    return tuple(dict.fromkeys((top, here, script.parent)))


@dataclass
class _Fetch:
    """One fetch from its start to the record of it."""

    request: Request
    start: Start
    profile: Profile
    earlier: Record | None
    interrupt: Interrupt
    stack: ExitStack

    def __post_init__(self) -> None:
        self._items: tuple[Item, ...] = self.earlier.items if self.earlier else ()
        self._offline: Mapping[str, str] = self.earlier.offline if self.earlier else {}
        self._code = record.code_of(self.start.script)  # as it is started, whatever is edited then
        self._proof: record.Proof = "none"
        self._problems: list[str] = []

    def run(self) -> tuple[Record, int]:
        shown = clean(self.request.script or "")
        most = f"{self.request.time} at most"
        if self.request.only_proof:
            say(f"starting {shown} without a network, until it trains ({most})")
            return self._judge(self._prove(), ())
        say(f"running {shown} here, in a copy and without a GPU, until it trains ({most})")
        done = self._attempt(self.start)
        show(done, self.start)
        if done.outcome.why:
            say(done.outcome.why)
        others = self._move_in(done)
        for event in {event.text("what"): event for event in of(done.events, "refused")}.values():
            say(f"note: {explain.refused(event)}")
        if not done.outcome.reached or self._problems:
            self._show_items()
            why = [*filter(None, [done.outcome.why]), *self._problems]
            return self._record("none", "; ".join(why)), self._failed()
        self._offline = _offline(done.events)
        if lazy := of(done.events, "lazy"):
            self._show_items()
            note = f"{_LAZY} ({lazy[0].where}), and only the first ones are here"
            say(f"{note}: let it download all before it trains; if these are all, run this again")
            return self._record("none", note), EXIT_FAILED
        say(f"it trains (reached its {done.outcome.reached}); now without a network")
        proved = self._prove()
        if not proved.outcome.reached and others and proved.ended.why == "exit":
            say("once more, with what the script has made of what came")
            again = self._prove((done.box, others))
            if again.outcome.reached:
                self._move_in_others(others, again)
                proved = again
        return self._judge(proved, done.events)

    def _attempt(self, start: Start, extra: tuple[Sandbox, Sequence[str]] | None = None) -> Attempt:
        done = self.stack.enter_context(attempt(start, self.interrupt, extra))
        if start.pretend or not done.outcome.pretend:
            return done
        clear_line()
        say(done.outcome.why)
        say("once more, telling it that there is a GPU, and that it is the one rank of a world")
        self.start = replace(self.start, pretend=True)
        return self._attempt(replace(start, pretend=True), extra)

    def _prove(self, extra: tuple[Sandbox, Sequence[str]] | None = None) -> Attempt:
        """Start it where there is no network, in a namespace of its own if that is allowed.

        Args:
            extra: as in `attempt`.
        """
        why = namespace.refusal()
        if why:
            say(f"{why}; so Python refuses connections, and other programs are not held back")
        network: Network = "blocked" if why else "none"
        self._proof = "blocked" if why else "namespace"
        return self._attempt(replace(self.start, network=network, offline=self._offline), extra)

    def _move_in_others(self, others: Sequence[str], again: Attempt) -> None:
        """Move in those of the script's own new files that a second start takes as they are."""
        written = came.written(again.events)
        kept = [path for path in others if path not in written]
        self._problems += again.box.move_in(kept)
        own = [item for path in kept if (item := came.file_item(path))]
        self._items = came.with_earlier(tuple(own), self._items)

    def _judge(self, done: Attempt, before: Sequence[Event]) -> tuple[Record, int]:
        """Say what the start without a network shows; return the record and the exit code."""
        show(done, self.start)
        reached = done.outcome.reached
        if reached:
            self._items = came.without_outputs(self._items, done.events)
        if self.request.only_proof:
            self._offline = {**self._offline, **_offline(done.events)}
            for event in of(done.events, "problem"):
                say(f"not watched: {event.text('what')}: {event.text('error')}")
        else:
            self._show_items()
        if done.ended.why == "interrupt":
            say(done.outcome.why)
            return self._record("none", done.outcome.why), self._failed()
        if not reached:
            first = not self.request.only_proof
            brought = {one.source: one.path for one in self._items} if first else None
            lines = explain.missing(done.events, done.ended, self.start.limits, brought)
            say("it does not start without a network:")
            for line in lines:
                say(f"  {line}")
            # That our own limits ended it says something only where they let the first start pass.
            limited = self.request.only_proof and done.ended.why in ("time", "memory")
            return self._record("none" if limited else "failed", "; ".join(lines)), EXIT_FAILED
        start, seen = self.start, [*before, *done.events]
        wanted = [*explain.wanted(done.events).items()]
        notes = [f"it does without {explain.at(*one)}" for one in wanted[-5:]]
        missed = _unreached(start, seen, self._items)
        notes += [f"not reached by this start, and not here: {line}" for line in missed]
        for line in notes:
            say(f"note: {line}")
        how = "network namespace" if self._proof == "namespace" else "Python's connections blocked"
        at = f"reached its {reached} in {done.ended.seconds:.0f} s"
        self._print(f"proved: starts without a network ({how}), {at}")
        return self._record(self._proof, "; ".join(notes)), 0

    def _move_in(self, done: Attempt) -> list[str]:
        """Move in what came with a start; return the other new files of its copy."""
        folders = [path for path in self.start.cache_folders if path.is_dir()]
        folders += [path / "hub" for path in folders]
        files = came.made(done.events)
        known = {one.path for one in files}
        new = [path for path in done.box.new_files() if came.whole(path)]
        files += came.of_programs(done.events, [path for path in new if path not in known])
        files = [one for one in files if one.path not in {*self._code, *done.unfinished}]
        # What was there before, removed or written anew, stays as it was.
        files = [one for one in files if one.path in new or not done.box.holds(one.path)]
        needs = came.needed(files, folders)
        tops = {os.path.dirname(path) for path in needs} & came.new_folders(done.events)
        links = {path for path in new if done.box.inside(path).is_symlink()}
        moving = needs | {path for path in links if os.path.dirname(path) in tops}
        self._problems += done.box.move_in([path for path in new if path in moving])
        for line in self._problems:
            say(line)
        for path in sorted(came.written_by_name(done.events) - {*new, *done.unfinished}):
            if done.box.holds(path):
                say(
                    f"{path} was downloaded anew, since the script does not take what is there; "
                    "remove it, and fetch again"
                )
        for path in sorted(done.unfinished & known):
            outside = os.path.exists(path) and not done.box.holds(path)
            if outside and came.whole(path) and not inside(path, folders):
                say(f"{path} was not finished, and stays where it is: look at it")
        here = came.items([one for one in files if one.path in needs], done.events, folders)
        self._items = came.with_earlier(here, self._items)
        return [one.path for one in files if one.path in new and one.path not in moving | links]

    def _show_items(self) -> None:
        self._items = tuple(one for one in self._items if os.path.exists(one.path))
        for line in table("here now", self._items) if self._items else ():
            self._print(line)
        for path in (one.path for one in self._items):
            if places.mounted(self.profile, Path(path)) is False:
                say(f"warning: compute nodes do not see {path}; put it into the project or scratch")

    def _print(self, line: str) -> None:
        print(clean(line), file=sys.stderr if self.request.as_json else sys.stdout, flush=True)

    def _failed(self) -> int:
        number = self.interrupt.number
        return EXIT_FAILED if number is None else 128 + number

    def _record(self, proof: record.Proof, note: str) -> Record:
        if self.interrupt.number is not None and self.earlier is not None:
            return self.earlier  # a start that was broken off proves nothing new
        done = Record(
            key=record.script_key(self.start.script, self.start.args),
            items=self._items,
            variables=self.start.caches.variables(),
            offline=dict(self._offline),
            proof=proof,
            note=note,
            code=self._code,
        )
        if self.earlier is None or not self.earlier.outlasts(done):
            return done
        say(f"what was proved on {self.earlier.at} still counts: its files are here")
        return self.earlier


def _offline(events: Sequence[Event]) -> dict[str, str]:
    names = [name for event in of(events, "modules") for name in event.texts("names")]
    return offline.variables(names)


def _unreached(start: Start, events: Sequence[Event], items: Sequence[Item]) -> list[str]:
    """Return what the script would fetch, no start has asked for, and is not here, in lines.

    A start that ends at the first forward does not come by a validation or the end of an epoch;
    reading the script does. Only what is known by its name is told: a URL, or a data set or model
    of the hub.

    Args:
        events: of all starts.
    """
    try:
        found = read(start.script, start.args).downloads
    except UserError:
        return []  # it did start: what reading makes of it is no news
    had = {item.source for item in items} | {event.text("url") for event in of(events, "url")}
    had |= {word for event in of(events, "spawn") for word in event.texts("words")}
    hubs = [path for cache in start.cache_folders for path in (cache, cache / "hub")]

    def is_here(one: Download, name: str) -> bool:
        if os.path.exists(one.to or name):
            return True
        if one.what == "url":
            return public(name) in had or any(came.same_name(item.path, name) for item in items)
        return any([*hub.glob(f"*--{name.replace('/', '--')}")] for hub in hubs)

    missed = [
        one
        for one in found
        if one.known and one.name and one.what in ("url", "dataset", "model")
        if not is_here(one, one.name)
    ]
    lines = [
        f"{os.path.relpath(one.file.resolve(), start.script.parent)}:{one.line}: {one.how} of "
        + (public(one.wanted) if one.what == "url" else one.wanted)
        for one in missed
    ]
    return list(dict.fromkeys(lines))
