"""`rankup fetch SCRIPT`: run it until it trains, say what came, and prove that it suffices."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ...base.errors import EXIT_FAILED, UserError
from ...base.text import clean
from ...site import places
from ...site.caches import Caches, caches
from ...site.config import Config
from ...site.profile import Profile
from .. import offline, record
from ..record import Item, Record
from . import arrived, attempt, events, lock, outputs, state
from .attempt import Attempt, Start
from .progress import say
from .proof import Proved, prove
from .request import Request
from .supervise import Interrupt, Limits, default_memory


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
    with lock.held(start.area / "project", say):
        attempt.recover(start.area, Path.cwd())
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
        self._start = start
        self._caches = own
        self._profile = profile
        self._earlier = earlier
        self._interrupt = interrupt
        self._items: tuple[Item, ...] = earlier.items if earlier else ()
        self._offline: Mapping[str, str] = earlier.offline if earlier else {}

    def run(self) -> tuple[Record, int]:
        if not self._request.only_proof:
            done = self._first()
            self._items = self._came(done)
            if not done.outcome.reached:
                self._show_items()
                return self._record("none", "; ".join(done.outcome.lines)), self._failed()
            self._offline = _offline(done)
            lazy = bool(events.of(done.events, "walk"))
            self._start = replace(self._start, walk=lazy)
            say(f"it trains (reached its {done.outcome.reached}); now without a network")
        return self._judge(self._prove())

    def _first(self) -> Attempt:
        """The start with a network; once more where the script wants to be told something."""
        done = self._tried(attempt.run(self._start, self._interrupt))
        while self._told(done):
            done = self._tried(attempt.run(self._start, self._interrupt))
        return done

    def _prove(self) -> Proved:
        proved = prove(self._start, self._offline, self._interrupt)
        while proved.proof == "failed" and self._told(proved.attempt):
            proved = prove(self._start, self._offline, self._interrupt)
        return proved

    def _told(self, done: Attempt) -> bool:
        """Whether another start would be told something that this one wanted to hear."""
        if done.outcome.wants_gpu and not self._start.pretend_gpu:
            say("once more, telling it that there is a GPU")
            self._start = replace(self._start, pretend_gpu=True)
            return True
        if done.outcome.wants_world and not self._start.world:
            say("once more, as the one rank of a world")
            self._start = replace(self._start, world=True)
            return True
        return False

    def _tried(self, done: Attempt) -> Attempt:
        for event in events.of(done.events, "problem"):
            say(f"not watched: {event.text('what')}: {event.text('error')}")
        for line in done.outcome.lines:
            say(line)
        for line in outputs.lines(done.undone, Path.cwd()):
            say(line)
        if done.ended.left:
            say(f"these processes could not be ended: {', '.join(map(str, done.ended.left))}")
        return done

    def _judge(self, proved: Proved) -> tuple[Record, int]:
        done = proved.attempt
        for line in outputs.lines(done.undone, Path.cwd()):
            say(line)
        if proved.proof in ("namespace", "blocked"):
            self._items = arrived.without_outputs(self._items, done.events)
        if not self._request.only_proof:
            self._show_items()
        if proved.proof == "none":
            return self._record("none", proved.note), self._failed()
        if self._request.only_proof:
            self._offline = {**self._offline, **_offline(done)}
        if proved.proof == "failed":
            say("it does not start without a network:")
            for line in proved.lines:
                say(f"  {line}")
            return self._record("failed", proved.note), EXIT_FAILED
        for line in proved.lines:
            say(f"note: {line}")
        how = "network namespace" if proved.proof == "namespace" else "Python's connections blocked"
        reached = f"reached its {done.outcome.reached} in {done.ended.seconds:.0f} s"
        self._print(f"proved: starts without a network ({how}), {reached}")
        return self._record(proved.proof, proved.note), 0

    def _came(self, done: Attempt) -> tuple[Item, ...]:
        hubs = [path for path in self._start.cache_folders if path.is_dir()]
        hubs += [path / "hub" for path in hubs]
        gone = done.undone.removed
        new = arrived.items(done.events, gone, done.ignored, Path.cwd(), hubs)
        return arrived.with_earlier(new, self._items)

    def _show_items(self) -> None:
        if not self._items:
            return
        self._print("here now, from the network or made by the script:")
        for line in arrived.table(self._items):
            self._print(line)
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
        return Record(
            key=record.script_key(self._start.script, self._start.args),
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            items=self._items,
            variables=self._caches.variables(),
            offline=dict(self._offline),
            proof=proof,
            note=note,
        )


def _offline(done: Attempt) -> dict[str, str]:
    names = [name for event in events.of(done.events, "modules") for name in event.texts("names")]
    return offline.variables(names)
