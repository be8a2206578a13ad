"""`rankup fetch SCRIPT`: run it until it trains, say what came, and prove that it suffices."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ...base import lock
from ...base.errors import EXIT_FAILED, UserError
from ...base.text import clean
from ...site import places
from ...site.caches import Caches, caches
from ...site.config import Config
from ...site.profile import Profile
from .. import code, offline, record
from ..record import Item, Record
from . import arrived, events, needed, said, state
from .attempt import Attempt, Start
from .progress import say
from .proof import Proved
from .recover import recover
from .request import Request
from .starts import Starts
from .supervise import Interrupt, Limits, default_memory
from .unreached import unreached

_NAMED = 5  # files that the script has made, by name


def fetch(request: Request, config: Config, profile: Profile) -> tuple[Record, int]:
    """Fetch what a script downloads until it trains; what is to be kept of it, and the exit code.

    What the script prints goes through, to stderr where the command's own output is JSON.

    Raises:
        UserError: there is no such script.
        OSError: no process could be started, or no folder made.
    """
    if request.script is None or not Path(request.script).is_file():
        raise UserError(f"no script {request.script!r} in {Path.cwd()}")
    own = caches(config, profile, os.environ)
    project = config.project(Path.cwd()).resolve()
    script = Path(request.script).resolve()
    start = Start(
        script=script,
        args=request.args,
        area=state.area(project),
        home=Path.home(),
        caches=own,
        variables=dict(os.environ),
        threads=request.threads,
        limits=Limits(request.seconds, request.memory_bytes or default_memory()),
        stdout=2 if request.as_json else None,
    )
    # Of two starts at once in a folder, each would take the other's outputs for old files.
    with lock.held(start.area / "project", say, doing="fetching") as held:
        start = replace(start, check=held.check)
        recover(start.area, Path.cwd())
        earlier = record.find(project, record.script_key(script, request.args))
        with Interrupt() as interrupt:
            return _Fetch(request, start, own, profile, earlier, interrupt).run()


class _Fetch:
    """One fetch from its start to the record of it."""

    def __init__(
        self,
        request: Request,
        start: Start,
        own: Caches,
        profile: Profile,
        earlier: Record | None,
        interrupt: Interrupt,
    ) -> None:
        self._request = request
        self._starts = Starts(start, interrupt)
        self._caches = own
        self._profile = profile
        self._earlier = earlier
        self._interrupt = interrupt
        self._items: tuple[Item, ...] = earlier.items if earlier else ()
        self._offline: Mapping[str, str] = earlier.offline if earlier else {}
        self._code = code.digests(start.script)  # as it is started, whatever is edited meanwhile

    def run(self) -> tuple[Record, int]:
        try:
            return self._run()
        finally:
            self._starts.tell_files()

    def _run(self) -> tuple[Record, int]:
        shown = clean(self._request.script or "")
        most = f"{self._request.time} at most"
        if self._request.only_proof:
            say(f"starting {shown} without a network, until it trains ({most})")
            return self._judge(self._starts.prove(self._offline))
        say(f"running {shown} here, without a GPU, until it trains ({most})")
        done = self._starts.run()
        for one in self._starts.first:
            self._items = self._came(one)
        if not done.outcome.reached:
            self._show_items()
            return self._record("none", "; ".join(done.outcome.lines)), self._failed()
        self._offline = _offline(done)
        say(f"it trains (reached its {done.outcome.reached}); now without a network")
        return self._judge(self._starts.prove(self._offline))

    def _judge(self, proved: Proved) -> tuple[Record, int]:
        done = proved.attempt
        if proved.proof in ("namespace", "blocked"):
            self._items = needed.without_outputs(self._items, done.events)
        if self._request.only_proof:
            self._offline = {**self._offline, **_offline(done)}
            for event in events.of(done.events, "problem"):
                say(f"not watched: {event.text('what')}: {event.text('error')}")
        else:
            self._show_items()
        self._starts.tell_files()
        if proved.proof == "none":
            for line in proved.lines:
                say(line)
            return self._record("none", proved.note), self._failed()
        if proved.proof == "failed":
            say("it does not start without a network:")
            for line in proved.lines:
                say(f"  {line}")
            # That our own limits ended it says something only where they let the first start pass.
            limited = self._request.only_proof and done.ended.why in ("time", "memory")
            return self._record("none" if limited else "failed", proved.note), EXIT_FAILED
        notes = [*proved.lines, *self._unreached(done)]
        for line in notes:
            say(f"note: {line}")
        how = "network namespace" if proved.proof == "namespace" else "Python's connections blocked"
        reached = f"reached its {done.outcome.reached} in {done.ended.seconds:.0f} s"
        self._print(f"proved: starts without a network ({how}), {reached}")
        return self._record(proved.proof, "; ".join(notes)), 0

    def _unreached(self, done: Attempt) -> list[str]:
        """What a job may want later, and would not find."""
        start = self._starts.start
        seen = [event for one in (*self._starts.first, done) for event in one.events]
        lines = unreached(start.script, start.args, seen, self._items, start.cache_folders)
        return [f"not reached by this start, and not here: {line}" for line in lines]

    def _came(self, done: Attempt) -> tuple[Item, ...]:
        folders = [path for path in self._starts.start.cache_folders if path.is_dir()]
        folders += [path / "hub" for path in folders]
        gone = done.undone.removed | done.undone.restored
        ignored = (*done.ignored, *map(Path, self._code))  # saved a moment ago, maybe
        new = arrived.items(done.events, gone, ignored, Path.cwd(), folders)
        return arrived.with_earlier(new, self._items)

    def _show_items(self) -> None:
        changed = self._starts.changed
        self._items = tuple(
            one for one in self._items if os.path.exists(one.path) and one.path not in changed
        )
        came = [one for one in self._items if one.needed]
        if came:
            self._print("here now:")
            for line in arrived.table(came):
                self._print(line)
        own = [said.shown(one.path, Path.cwd()) for one in self._items if not one.needed]
        if own:
            more = f" and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
            self._print(f"made by the script, kept: {', '.join(own[:_NAMED])}{more}")
        mounted = {one.path: places.mounted(self._profile, Path(one.path)) for one in self._items}
        for path in arrived.unseen_by_jobs(self._items, mounted):
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
            key=record.script_key(self._starts.start.script, self._starts.start.args),
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
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


def _offline(done: Attempt) -> dict[str, str]:
    names = [name for event in events.of(done.events, "modules") for name in event.texts("names")]
    return offline.variables(names)
