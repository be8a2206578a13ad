"""What the ranks have told, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plan import Outcome, journal

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Journal:
    """Of one rank, in order."""

    events: tuple[Event, ...]

    def of(self, *names: str) -> list[Event]:
        """The events of these kinds."""
        return [event for event in self.events if event["event"] in names]


@dataclass(frozen=True)
class Seen:
    """A run: how it ended and what its ranks told.

    Attributes:
        world: ranks; 0: the original.
    """

    world: int
    outcome: Outcome
    ranks: tuple[Journal, ...]

    @property
    def failed(self) -> bool:
        """Whether not all its ranks came to their end."""
        return self.outcome.why != "exit" or not all(one.finished for one in self.outcome.ranks)


@dataclass(frozen=True)
class Pass:
    """One way through a loader.

    Attributes:
        batches: what was drawn, in order; without the samples that only keep a rank in step.
        trained: a backward came of it.
        grad: it was drawn with gradients on.
    """

    dataset: int
    number: int
    grad: bool
    shuffles: bool
    sampler: str
    epoch: int | None
    where: str
    batches: tuple[tuple[Any, ...], ...]
    trained: bool

    @property
    def samples(self) -> list[Any]:
        """All of them."""
        return [one for batch in self.batches for one in batch]


def read(state: Path, run: str, world: int, outcome: Outcome) -> Seen:
    """A run of the state folder."""
    ranks = tuple(_read(Path(journal(str(state), run, rank))) for rank in range(max(1, world)))
    return Seen(world, outcome, ranks)


def passes(journal: Journal) -> list[Pass]:
    """All ways through all loaders."""
    found: dict[tuple[int, int], _Open] = {}
    since: list[_Open] = []  # whose batches were drawn since the last backward
    for event in journal.events:
        kind = event["event"]
        if kind == "iterate":
            found[event["dataset"], event["pass"]] = _Open(event)
        elif kind == "batch":
            one = found[event["dataset"], event["pass"]]
            one.batches.append(tuple(event["ids"]))
            since.append(one)
        elif kind == "iterated":
            found[event["dataset"], event["pass"]].ended = True
        elif kind == "backward":
            if since:
                since[-1].stepped(event["samples"])
            for one in since[:-1]:
                if one.grad and not one.ended and since.count(one) == 1:
                    one.beside(event["samples"])
            since = since[-1:]  # of a further backward too
    return [one.closed() for one in found.values() if one.batches]


class _Open:
    """A way through a loader that may go on."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self.batches: list[tuple[Any, ...]] = []
        self.ended = False
        self.grad = bool(event["grad"])
        self._trained = False
        self._beside: list[tuple[int, int]] = []  # batches, and their part in a step

    def stepped(self, samples: int) -> None:
        """A backward came of the last batch; of no samples where it kept a rank in step."""
        self._trained = True
        if samples == 0:
            self.batches[-1] = ()

    def beside(self, samples: int) -> None:
        """A backward came of a batch drawn after this one's last: `zip(this, other)`."""
        self._beside.append((len(self.batches) - 1, samples))

    def closed(self) -> Pass:
        event, batches = self._event, list(self.batches)
        # One batch to look at may be drawn before a step as well, and is not trained on.
        zipped = len(self._beside) > 1
        for place, samples in self._beside if zipped else ():
            if samples == 0:
                batches[place] = ()
        return Pass(
            *(event["dataset"], event["pass"], event["grad"], event["shuffles"]),
            *(event["sampler"], event["epoch"], event["where"]),
            *(tuple(batches), self._trained or zipped),
        )


def notes(seen: Sequence[Seen]) -> Iterator[str]:
    """What was made comparable or refused, each once."""
    told: set[str] = set()
    for run in seen:
        for rank in run.ranks:
            for event in rank.of("note"):
                if event["text"] not in told:
                    told.add(event["text"])
                    yield event["text"]


def _read(path: Path) -> Journal:
    events: list[Event] = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):  # the last line of one that was killed
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    events.append(event)
    own = next((event["pid"] for event in events if event["event"] == "start"), None)
    return Journal(tuple(event for event in events if event.get("pid") == own))
