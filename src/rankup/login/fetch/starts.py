"""The starts of one fetch: each is told what the one before has missed, and finds what it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from . import attempt, events, leftover, said
from .attempt import Attempt, Start
from .follow import fresh_line
from .leftover import Left
from .progress import say
from .proof import Proved, prove
from .supervise import Interrupt
from .undo import Undone

_CLEARED = 3  # times; each finds one thing that an earlier start has left in the way
# Options of `rankup fetch` that nobody's script is likely to have: most are known to both.
_OURS = ("--only-proof", "--no-run", "--dataset", "--model", "--url", "--sha256", "--json")
_USAGE = 2  # the exit code of argparse


class Starts:
    """Runs the script, with a network and without.

    Attributes:
        start: how it is started; what it wanted to be told is added to it.
        first: the starts with a network, the last of which counts.
        left: what all of them have made, and is here.
    """

    def __init__(self, start: Start, interrupt: Interrupt) -> None:
        self.start = start
        self.first: list[Attempt] = []
        self.left = Left()
        self._interrupt = interrupt
        self._undone: list[Undone] = []
        self._cleared = 0

    def run(self) -> Attempt:
        """Start it with a network; once more where that may help."""
        while True:
            done = attempt.run(self.start, self._interrupt)
            again = self._once_more(done)
            self._take(done)
            self.first.append(done)
            if not again:
                self._show(done)
                for line in done.outcome.lines:
                    say(line)
                return done

    def prove(self, offline: Mapping[str, str]) -> Proved:
        """Start it without a network; once more where that may help."""
        self.start = replace(
            self.start, walk=any(events.of(one.events, "walk") for one in self.first[-1:])
        )
        while True:
            first = self.first[-1] if self.first else None
            proved = prove(self.start, offline, self._interrupt, first)
            done = proved.attempt
            again = proved.proof == "failed" and self._once_more(done)
            self._undone.append(done.undone)
            if not again:
                self._show(done)
                self._remove(leftover.written_again(self.left, done.events))
                return proved

    def tell_files(self) -> None:
        """Say what was put back or removed; each of it once."""
        for line in said.lines(self._undone, Path.cwd(), self.left.files):
            say(line)
        self._undone.clear()

    @property
    def changed(self) -> frozenset[str]:
        """Paths that are no result of the fetch: what was there before, and what was removed."""
        found = frozenset[str]()
        return found.union(*(one.restored | one.removed for one in self._undone))

    def _take(self, done: Attempt) -> None:
        self._undone.append(done.undone)
        self.left = self.left.and_then(done.left)

    def _remove(self, paths: list[str]) -> bool:
        """Remove what is the script's own; whether there was anything."""
        undone = leftover.remove(paths, self.left)
        self._undone.append(undone)
        return bool(undone.done)

    def _once_more(self, done: Attempt) -> bool:
        """Whether another start may come further; what for is said, and done."""
        start, outcome = self.start, done.outcome
        if outcome.reached or done.ended.why != "exit":
            return False
        if outcome.wants_gpu and not start.pretend_gpu:
            self.start = replace(start, pretend_gpu=True)
            how = "telling it that there is a GPU"
        elif outcome.wants_world and not start.world:
            self.start = replace(start, world=True)
            how = "as the one rank of a world"
        elif self._clear(done):
            how = "without what an earlier start has made"
        else:
            return False
        fresh_line()
        for line in outcome.lines:
            say(line)
        say(f"once more, {how}")
        return True

    def _clear(self, done: Attempt) -> bool:
        """Remove what was in the way of this start, and is the script's own."""
        self._cleared += 1
        paths = leftover.in_the_way(self.left, done.events, Path.cwd())
        return self._cleared <= _CLEARED and bool(paths) and self._remove(paths)

    def _show(self, done: Attempt) -> None:
        """What the child has kept to itself: the script's own traceback, and what stays of it."""
        if done.traceback and not done.outcome.reached:
            sys.stderr.write(done.traceback)
            sys.stderr.flush()
        fresh_line()
        options = [word for word in self.start.args if word.partition("=")[0] in _OURS]
        if done.ended.code == _USAGE and options:
            say(f"options of rankup stand before the script: rankup fetch {options[0]} ...")
        if done.ended.left:
            say(f"these processes could not be ended: {', '.join(map(str, done.ended.left))}")
