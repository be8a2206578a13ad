"""`rankup fetch SCRIPT`: run a copy until it trains, keep what came, prove that it suffices."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...base import lock
from ...base.errors import EXIT_FAILED, UserError
from ...base.files import no_space
from ...base.processes import python
from ...base.text import clean, say
from ...base.urls import public
from ...sandbox import copies, namespace
from ...sandbox.copies import Sandbox, sandbox
from ...sandbox.environment import cache_folders, child_environment, offline
from ...sandbox.events import Event, inside, of
from ...sandbox.inside import spec
from ...sandbox.watch import Ended, Interrupt, Limits, default_memory, watch
from ...script.downloads import Download, read
from ...site.caches import caches
from ...site.config import Config
from ...site.profile import Profile, seen_by_nodes
from .. import record
from ..record import Item, Record
from . import came, explain
from .explain import Outcome
from .request import FetchFailed, Request, table

_STACKS_SECONDS = 0.5  # before the end
_HARDLY = 1 << 20  # bytes; on a disk with less hardly anything can be written
_LAZY = "its samples are downloaded one by one while batches are drawn"
# Options of `rankup fetch` that nobody's script is likely to have: most are known to both.
_OURS = ("--only-proof", "--no-run", "--dataset", "--model", "--url", "--sha256", "--json")
_USAGE = 2  # the exit code of argparse


def fetch(request: Request, config: Config, profile: Profile) -> tuple[Record, int]:
    """Fetch what a script downloads until it trains; return what is kept of it, and the exit code.

    What the script prints goes through, to stderr where the command's own output is JSON.

    Raises:
        FetchFailed: a disk is full.
        OSError: no process could be started, or no folder made.
    """
    project = config.project(Path.cwd()).resolve()
    area = copies.area(project)
    try:
        # One after the other: the second one finds what the first has brought.
        with lock.held(area / "project", say, doing="fetching") as held:
            copies.sweep(area)
            with Interrupt() as interrupt, ExitStack() as stack:
                return _Fetch(request, config, profile, area, held.check, interrupt, stack).run()
    except OSError as error:
        if not no_space(error):
            raise
        full = _full((area, Path(tempfile.gettempdir()))) or [area]
        raise FetchFailed(explain.no_room((), full)) from None


@dataclass(frozen=True)
class _Attempt:
    """A start of the script that has ended; its copy is there until the fetch ends.

    Attributes:
        unfinished: files that were being written at the end, or of which a part is missing.
        room: that a disk is full, where it did not train; else empty.
    """

    box: Sandbox
    events: tuple[Event, ...]
    ended: Ended
    outcome: Outcome
    unfinished: frozenset[str]
    room: str


class _Fetch:
    """One fetch from its start to the record of it.

    Args:
        area: where the copies go; its lock is held.
        check: raises `LockLost` once another process has taken it over.
        stack: keeps the copies.
    """

    def __init__(
        self,
        request: Request,
        config: Config,
        profile: Profile,
        area: Path,
        check: Callable[[], None],
        interrupt: Interrupt,
        stack: ExitStack,
    ) -> None:
        self._request, self._profile = request, profile
        self._area, self._check, self._interrupt, self._stack = area, check, interrupt, stack
        self._script = Path(request.script or "").resolve()  # without links
        self._limits = Limits(request.seconds, request.memory_bytes or default_memory())
        here, project = Path.cwd().resolve(), config.project(Path.cwd()).resolve()
        top = project if here.is_relative_to(project) else here
        # The script may write to these by relative paths: they are copied.
        self._roots = tuple(dict.fromkeys((top, here, self._script.parent)))
        self._caches = caches(config, profile, os.environ)
        self._cache_folders = cache_folders(os.environ, self._caches, self._roots)
        self._key = record.script_key(self._script, request.args)
        self._code = record.code_of(self._script)  # as it is started, whatever is edited then
        self._earlier = record.find(project, self._key)
        self._items: tuple[Item, ...] = self._earlier.items if self._earlier else ()
        self._offline: Mapping[str, str] = self._earlier.offline if self._earlier else {}
        self._journals: list[str] = []  # of the starts so far
        self._pretend = False  # the script is told of a GPU, and that it is the rank of a world
        self._proof: record.Proof = "none"
        self._problems: list[str] = []

    def run(self) -> tuple[Record, int]:
        shown = clean(self._request.script or "")
        most = f"{self._request.time} at most"
        if self._request.only_proof:
            say(f"starting {shown} without a network, until it trains ({most})")
            return self._judge(self._prove(), ())
        say(f"running {shown} here, in a copy and without a GPU, until it trains ({most})")
        done = self._attempt()
        self._show(done)
        if done.outcome.why:
            say(done.outcome.why)
        others = self._move_in(done)
        for what, event in {e.text("what"): e for e in of(done.events, "refused")}.items():
            advice = "give it another place for its output"
            say(f"note: {what} was refused ({event.where}): {event.text('why')}; {advice}")
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
        lacks_files = not proved.outcome.reached and not proved.room
        if lacks_files and others and proved.ended.why == "exit":
            say("once more, with what the script has made of what came")
            again = self._prove((done.box, others))
            if again.outcome.reached:
                self._move_in_others(others, again)
                proved = again
        return self._judge(proved, done.events)

    def _attempt(
        self,
        without: record.Proof = "none",
        extra: tuple[Sandbox, Iterable[str]] | None = None,
    ) -> _Attempt:
        """Run the script in a new copy until it has trained a step, or cannot.

        Args:
            without: the way in which it has no network; `none`: it has one.
            extra: new files of another copy that are put into this one.

        Raises:
            OSError: no copy could be made, or no process started.
        """
        self._check()
        for cache in self._caches.entries:
            if cache.said_by != "default":
                cache.path.mkdir(parents=True, exist_ok=True)
        box = self._stack.enter_context(sandbox(self._area, self._roots, self._cache_folders))
        if extra is not None:
            box.take_from(*extra)
        ended, seen = self._watch(box, without)
        for path in box.changed():
            say(
                f"{path} was changed while the script ran, by another program or, through a link, "
                "by a library that writes without Python: look at it"
            )
        self._check()
        frames = explain.users_frames(_read(box.folder / spec.STACK))
        place = frames[0] if frames and ended.why == "time" else ""
        outcome = explain.outcome(seen, ended, self._limits, place)
        if outcome.pretend and not self._pretend:
            _clear_line()
            say(outcome.why)
            say("once more, telling it that there is a GPU, and that it is the one rank of a world")
            self._pretend = True
            return self._attempt(without, extra)
        room = ""
        if not outcome.reached:
            room = explain.no_room(seen, _full((self._area, box.temporary, *self._cache_folders)))
        if room:
            outcome = replace(outcome, why=f"{outcome.why}; {room}", cut=True)
        cut = came.cut_short(seen, last=outcome.cut and not came.broken_off(seen))
        if cut and outcome.reached:
            outcome = explain.incomplete(seen)
        writing = {path.removeprefix(str(box.copy)) for path in ended.writing}
        return _Attempt(box, seen, ended, outcome, frozenset(writing | cut), room)

    def _watch(self, box: Sandbox, without: record.Proof) -> tuple[Ended, tuple[Event, ...]]:
        threads, memory = self._request.threads, self._limits.memory
        request = spec.Spec(
            folder=str(box.folder),
            script=str(box.inside(self._script)),
            args=self._request.args,
            shadow=str(box.copy),
            earlier=self._journals,
            free=[str(one) for one in self._cache_folders],
            temporary=str(box.temporary),
            block=without == "blocked",
            pretend=self._pretend,
            threads=threads,
            # Room for stacks and for what is asked for and never touched; the rest is weighed.
            data_limit=memory + memory // 2,
            deadline=time.time() + self._limits.seconds - _STACKS_SECONDS,
        )
        box.ask(request)
        own = child_environment(os.environ, self._caches, box.folder, box.temporary, threads)
        told = self._offline if without != "none" else {}
        folder = box.inside(Path.cwd())
        journal = box.journal

        def look() -> bool:
            self._check()
            return any(event.kind == "stop" for event in journal.read())

        ended = watch(
            namespace.command(python("rankup.sandbox.inside.main"), network=without != "namespace"),
            {**own, **told, "PWD": str(folder)},
            self._limits,
            self._interrupt,
            look=look,
            stdout=2 if self._request.as_json else None,
            folder=folder,
        )
        self._journals.append(str(box.folder / spec.EVENTS))
        return ended, journal.read_all()

    def _prove(self, extra: tuple[Sandbox, Sequence[str]] | None = None) -> _Attempt:
        """Start it where there is no network, in a namespace of its own if that is allowed.

        Args:
            extra: as in `_attempt`.
        """
        why = namespace.refusal()
        if why:
            say(f"{why}; so Python refuses connections, and other programs are not held back")
        self._proof = "blocked" if why else "namespace"
        return self._attempt(self._proof, extra)

    def _show(self, done: _Attempt) -> None:
        """Print what the child has kept to itself: the script's own traceback, and what stays."""
        if not done.outcome.reached:
            sys.stderr.write(_read(done.box.folder / spec.TRACEBACK))
            sys.stderr.flush()
        _clear_line()
        options = [word for word in self._request.args if word.partition("=")[0] in _OURS]
        if done.ended.code == _USAGE and options:
            say(f"options of rankup stand before the script: rankup fetch {options[0]} ...")
        for event in of(done.events, "problem"):
            say(f"not watched: {event.text('what')}: {event.text('error')}")
        if done.ended.left:
            say(f"these processes could not be ended: {', '.join(map(str, done.ended.left))}")

    def _move_in_others(self, others: Sequence[str], again: _Attempt) -> None:
        """Move in those of the script's own new files that a second start takes as they are."""
        written = came.written(again.events)
        kept = [path for path in others if path not in written]
        self._problems += again.box.move_in(kept)
        own = [item for path in kept if (item := came.file_item(path))]
        self._items = came.with_earlier(tuple(own), self._items)

    def _judge(self, done: _Attempt, before: Sequence[Event]) -> tuple[Record, int]:
        """Say what the start without a network shows; return the record and the exit code."""
        self._show(done)
        reached = done.outcome.reached
        if reached:
            self._items = came.without_outputs(self._items, done.events)
        if self._request.only_proof:
            self._offline = {**self._offline, **_offline(done.events)}
        else:
            self._show_items()
        if done.ended.why == "interrupt":
            say(done.outcome.why)
            return self._record("none", done.outcome.why), self._failed()
        if not reached:
            here = [one for one in self._items if os.path.exists(one.path)]
            brought = {one.source: one.path for one in here}
            lines = explain.missing(done.events, done.ended, self._limits, brought)
            lines += filter(None, [done.room])
            say("it does not start without a network:")
            for line in lines:
                say(f"  {line}")
            # That our own limits ended it says something only where they let the first start pass.
            limited = self._request.only_proof and done.ended.why in ("time", "memory")
            proof: record.Proof = "none" if limited or done.room else "failed"
            return self._record(proof, "; ".join(lines)), EXIT_FAILED
        wanted = [*explain.wanted(done.events).items()]
        notes = [f"it does without {explain.at(*one)}" for one in wanted[-5:]]
        missed = self._unreached([*before, *done.events])
        notes += [f"not reached by this start, and not here: {line}" for line in missed]
        for line in notes:
            say(f"note: {line}")
        at = f"reached its {reached} in {done.ended.seconds:.0f} s"
        self._print(f"proved: starts without a network ({record.HOW[self._proof]}), {at}")
        return self._record(self._proof, "; ".join(notes)), 0

    def _move_in(self, done: _Attempt) -> list[str]:
        """Move in what came with a start; return the other new files of its copy."""
        folders = [path for path in self._cache_folders if path.is_dir()]
        folders += [path / "hub" for path in folders]
        new = {path for path in done.box.new_files() if came.whole(path)}
        links = {path for path in new if done.box.inside(path).is_symlink()}
        made = came.made(done.events)
        own_links = links & {one.path for one in made}
        files = [one for one in made if one.path not in links]
        known = {one.path for one in files}
        files += came.of_programs(done.events, sorted(new - known))
        never = {*self._code, *done.unfinished}
        # What was there before, removed or written anew, stays as it was.
        files = [
            one
            for one in files
            if one.path not in never and (one.path in new or not done.box.holds(one.path))
        ]
        needs = came.needed(files, folders)
        leads_to = {path: done.box.target(path) for path in own_links - never}
        above = {str(folder) for path in needs for folder in Path(path).parents}
        came_here = needs | {folder for folder in above if not os.path.exists(folder)}
        moving = needs | {path for path, target in leads_to.items() if target in came_here}
        self._problems += done.box.move_in(sorted(new & moving))
        for line in self._problems:
            say(line)
        for path in sorted(came.written_by_name(done.events) - new - done.unfinished):
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
        own = dict.fromkeys([*(one.path for one in files if one.path in new), *leads_to])
        return [path for path in own if path not in moving]

    def _show_items(self) -> None:
        self._items = tuple(one for one in self._items if os.path.exists(one.path))
        for line in table("here now", self._items) if self._items else ():
            self._print(line)
        for path in (one.path for one in self._items):
            if seen_by_nodes(self._profile, Path(path)) is False:
                say(f"warning: compute nodes do not see {path}; put it into the project or scratch")

    def _print(self, line: str) -> None:
        print(clean(line), file=sys.stderr if self._request.as_json else sys.stdout, flush=True)

    def _failed(self) -> int:
        number = self._interrupt.number
        return EXIT_FAILED if number is None else 128 + number

    def _record(self, proof: record.Proof, note: str) -> Record:
        if self._interrupt.number is not None and self._earlier is not None:
            return self._earlier  # a start that was broken off proves nothing new
        done = Record(
            key=self._key,
            items=self._items,
            variables=self._caches.variables(),
            offline=dict(self._offline),
            proof=proof,
            note=note,
            code=self._code,
        )
        if self._earlier is None or not self._earlier.outlasts(done):
            return done
        say(f"what was proved on {self._earlier.at} still counts: its files are here")
        return self._earlier

    def _unreached(self, events: Sequence[Event]) -> list[str]:
        """Return what the script would fetch, no start has asked for, and is not here, in lines.

        A start that ends at the first forward does not come by a validation or the end of an
        epoch; reading the script does. Only what is known by its name is told: a URL, or a data set
        or model of the hub.

        Args:
            events: of all starts.
        """
        try:
            found = read(self._script, self._request.args).downloads
        except UserError:
            return []  # it did start: what reading makes of it is no news
        had = {item.source for item in self._items} | {
            event.text("url") for event in of(events, "url")
        }
        had |= {word for event in of(events, "spawn") for word in event.texts("words")}
        hubs = [path for cache in self._cache_folders for path in (cache, cache / "hub")]

        def is_here(one: Download, name: str) -> bool:
            if os.path.exists(one.to or name):
                return True
            if one.what == "url":
                return public(name) in had or any(
                    came.same_name(item.path, name) for item in self._items
                )
            return any([*hub.glob(f"*--{name.replace('/', '--')}")] for hub in hubs)

        missed = [
            one
            for one in found
            if one.known and one.name and one.what in ("url", "dataset", "model")
            if not is_here(one, one.name)
        ]
        lines = [
            f"{os.path.relpath(one.file.resolve(), self._script.parent)}:{one.line}: {one.how} of "
            + (public(one.wanted) if one.what == "url" else one.wanted)
            for one in missed
        ]
        return list(dict.fromkeys(lines))


def _full(folders: Iterable[Path]) -> list[Path]:
    """Return those of these folders whose disks are full, one of each disk."""
    found: dict[int, Path] = {}
    for folder in folders:
        with suppress(OSError):
            if shutil.disk_usage(folder).free < _HARDLY:
                found.setdefault(folder.stat().st_dev, folder)
    return [*found.values()]


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _clear_line() -> None:
    """Remove what stands in the terminal's line, as a progress bar that the script has left."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _offline(events: Sequence[Event]) -> dict[str, str]:
    names = [name for event in of(events, "modules") for name in event.texts("names")]
    return offline(names)
