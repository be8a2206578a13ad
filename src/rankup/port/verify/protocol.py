"""Files that the parent and its child processes exchange: the plan, the journals, the outcomes.

The plan and the outcomes are JSON files of the state folder; each rank appends its events to a
journal there, which the parent reads back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...sandbox.events import Journal as JournalFile

JOURNALS = "journals"  # folder of the sandbox
FILE = "plan.json"
OUTCOMES = "outcomes.jsonl"
ORIGINAL = "original"
# Divisible by 2 and 3, so that a hand-written port can give each rank an equal part of a batch.
BATCH = 12
# The last of the batches: short with a part for each rank, two samples for each of three ranks, one
# sample, full.
SHORT, PAIRS, ONE, FULL = 31, 30, 25, 24
PAIR = 6  # samples of that last batch
EPOCHS, STEPS = 2, 12

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One start of a script.

    Attributes:
        name: also of its files in the state folder.
        title: in words.
        world: ranks; 0: the original, alone and without a launcher.
        script: in the copy.
        folder: the copy, which it may write to, and takes for its project.
        samples: the length of each data set.
        alike: the parts of a training batch are equal, so that a mean over one is that of all.
        free: random numbers, dropout, the order of samples and the clock are each rank's own.
        against: the original's run that it is compared with.
        gpu: `torch.cuda.is_available()` is true.
        batch: samples in a batch of 2 or more; 0: as the script says.
        varied: samples are of all parts of a data set, each of a scale of its own.
    """

    name: str
    title: str
    world: int = 0
    script: str = ""
    folder: str = ""
    samples: int = SHORT
    alike: bool = False
    free: bool = False
    against: str = ORIGINAL
    gpu: bool = False
    batch: int = BATCH
    varied: bool = True

    @property
    def ranks(self) -> int:
        """The number of processes."""
        return max(1, self.world)


# The ways to start the original; when it fails, the next one is tried.
TRIES: tuple[Mapping[str, Any], ...] = (
    {},
    {"varied": False},
    {"gpu": True},
    {"batch": 0},
    {"gpu": True, "batch": 0},
)


@dataclass(frozen=True)
class Plan:
    """The fields of `plan.json`.

    Attributes:
        state: folder of journals.
        temporary: the scripts' TMPDIR.
        stand_ins: folders put in front of the module path.
        seconds: limit of one run.
        runs: the original first.
        nice: how far the runs stand back behind other processes.
    """

    state: str
    temporary: str
    args: Sequence[str]
    stand_ins: Sequence[str]
    seconds: float
    runs: Sequence[Run]
    nice: int = 0

    def write(self) -> None:
        """Put it into the state folder."""
        Path(self.state, FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def load(state: str) -> Plan:
    """The plan in a state folder."""
    values = json.loads(Path(state, FILE).read_text(encoding="utf-8"))
    return Plan(**{**values, "runs": [Run(**one) for one in values["runs"]]})


@dataclass(frozen=True)
class RankEnd:
    """The end of one rank.

    Attributes:
        code: exit code, negative for a signal; None: it had to be ended.
        finished: its script came to its end.
        stderr: the last it wrote there.
    """

    code: int | None
    finished: bool
    stderr: str = ""


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        run: as it was made, which may be with other samples than planned.
        why: `exit`, or `time` when its limit was reached.
        seconds: from start to end.
    """

    run: Run
    why: str
    seconds: float
    ranks: tuple[RankEnd, ...]

    @property
    def failed(self) -> bool:
        """True when not all its ranks came to their end."""
        return self.why != "exit" or not all(one.finished for one in self.ranks)


def journal_path(state: str, run: str, rank: int) -> str:
    """The file of a rank's journal."""
    return os.path.join(state, f"{run}-{rank}.jsonl")


def write_outcome(state: str, outcome: Outcome) -> None:
    """Add it to the outcomes in the state folder."""
    with open(os.path.join(state, OUTCOMES), "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def read_outcomes(state: Path) -> Iterator[Outcome]:
    """The outcomes so far; none where no run came to its end."""
    with suppress(FileNotFoundError), (state / OUTCOMES).open(encoding="utf-8") as file:
        for values in map(json.loads, file):
            ranks = tuple(RankEnd(**one) for one in values.pop("ranks"))
            yield Outcome(Run(**values.pop("run")), ranks=ranks, **values)


@dataclass(frozen=True)
class Journal:
    """The events of one rank, in order."""

    events: tuple[Event, ...]

    def of(self, *names: str) -> list[Event]:
        """The events of these kinds."""
        return [event for event in self.events if event["event"] in names]

    def written(self) -> set[str]:
        """The files that the rank has written and left there."""
        found: set[str] = set()
        for event in self.of("open", "rename", "remove"):
            found.discard(event.get("from", event.get("path")))
            if event["event"] != "remove":
                found.add(event.get("to", event.get("path")))
        return found


@dataclass(frozen=True)
class Seen:
    """A run: how it ended and what its ranks recorded."""

    outcome: Outcome
    ranks: tuple[Journal, ...]

    @property
    def failed(self) -> bool:
        """As of the outcome."""
        return self.outcome.failed

    @property
    def run(self) -> Run:
        """The run as it was made."""
        return self.outcome.run

    @property
    def world(self) -> int:
        """The number of ranks; 0 for the original."""
        return self.run.world

    @property
    def texts(self) -> dict[str, list[str]]:
        """The lines of text files that any rank has written, by the original's names."""
        written = [event for rank in self.ranks for event in rank.of("content")]
        return {event["path"]: event["lines"] for event in written}


class Sample(NamedTuple):
    """A sample of a batch.

    Attributes:
        place: in the data set; of a stream, which has none, the content's hash.
        content: a hash; empty in a free run, where it is random.
    """

    place: int | str
    content: str


@dataclass(eq=False)
class Pass:
    """One way through a loader.

    Attributes:
        ended: nothing more is drawn.
        drawn: an event for each batch.
        used: places of batches of which a backward came.
        idle: places of batches that only keep a rank in step.
        beside: a place and whether it is idle, for each batch with a backward behind a batch of
            another loader: `zip(this, other)`.
    """

    dataset: int
    number: int
    shuffles: bool
    sampler: str
    epoch: int | None
    where: str
    ended: bool = False
    drawn: list[Event] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    idle: set[int] = field(default_factory=set)
    beside: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int]:
        """The data set, and the how many-th pass over it this is."""
        return self.dataset, self.number

    @property
    def trained(self) -> bool:
        """True where a backward came of it."""
        # One batch to look at may be drawn before a step as well, and is not trained on.
        alone = self.used - {place for place, _ in self.beside}
        return bool(alone) or len(self.beside) > 1

    @cached_property
    def batches(self) -> list[list[Sample]]:
        """The samples drawn, in order; none for a batch that counts for nothing."""
        return [
            [] if place in self.uncounted else [Sample(*one) for one in event["samples"]]
            for place, event in enumerate(self.drawn)
        ]

    @cached_property
    def uncounted(self) -> set[int]:
        """Places of batches that only keep a rank in step, also of `zip(this, other)`."""
        beside = {place for place, idle in self.beside if idle}
        return self.idle | beside if len(self.beside) > 1 else self.idle

    @property
    def samples(self) -> list[Sample]:
        """All samples."""
        return [one for batch in self.batches for one in batch]

    @property
    def places(self) -> list[int | str]:
        """The places of all samples."""
        return [one.place for one in self.samples]


def read(state: Path, outcome: Outcome) -> Seen:
    """A run of the state folder."""
    run = outcome.run
    paths = [journal_path(str(state), run.name, rank) for rank in range(run.ranks)]
    return Seen(outcome, tuple(map(read_journal, paths)))


def passes(journal: Journal) -> list[Pass]:
    """Return all ways through all loaders."""
    found: dict[tuple[int, int], Pass] = {}
    since: list[Pass] = []  # whose batches were drawn since the last backward
    for event in journal.of("iterate", "batch", "iterated", "backward"):
        if event["event"] == "backward":
            aside = [tuple(key) for key in event.get("aside", ())]
            for one in since[:-1]:
                used = not one.ended and one.key not in aside
                if one.drawn[-1]["grad"] and used and since.count(one) == 1:
                    one.beside.append((len(one.drawn) - 1, event["idle"]))
                    one.used.add(len(one.drawn) - 1)
            for one in since[-1:]:
                one.used.add(len(one.drawn) - 1)
                if event["idle"]:
                    one.idle.add(len(one.drawn) - 1)
            since = since[-1:]  # of a further backward too
            continue
        key = event["dataset"], event["pass"]
        if event["event"] == "iterate":
            names = ("shuffles", "sampler", "epoch", "where")
            found[key] = Pass(*key, *(event[name] for name in names))
        elif event["event"] == "batch":
            found[key].drawn.append(event)
            since.append(found[key])
        else:
            found[key].ended = True
    return [one for one in found.values() if one.drawn]


def read_journal(path: str) -> Journal:
    """Return the events of a rank, without those of the processes that it started."""
    events = JournalFile(Path(path)).read_all()
    own = next((event["pid"] for event in events if event["event"] == "start"), None)
    return Journal(tuple(event for event in events if event["pid"] == own))
