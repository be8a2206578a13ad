"""Journals as a correct port leaves them, to be broken by tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankup.port.verify.protocol import Journal, Outcome, RankEnd, Run, Seen

Events = list[dict[str, Any]]
BATCHES = ((0, 1, 2, 3), (4, 5, 6))  # of 7 training samples, and of as many for evaluation
LOSS = {0: 2.0, 1: 1.0, 2: 4.0, 3: 1.5, 4: 0.5, 5: 3.0, 6: 2.5}


def loss(ids: tuple[int, ...]) -> float:
    """The mean over samples of which each has its own loss."""
    return sum(LOSS[one] for one in ids) / len(ids)


def rank(world: int, number: int, epochs: int = 2) -> Events:
    """What rank `number` of `world` records; of the original with a world of 0."""
    events: Events = [{"event": "start", "script": "/copy/x.py", "pid": 1}]
    size = max(1, world)
    count = 0
    for epoch in range(1, epochs + 1):
        for dataset, grad in ((0, True), (1, False)):
            at = f"x.py:{10 + dataset}"
            key = {"dataset": dataset, "pass": epoch, "grad": grad}
            sampler = {"sampler": "RandomSampler", "shuffles": True, "epoch": None}
            if not grad:
                sampler = {"sampler": "SequentialSampler", "shuffles": False, "epoch": None}
            events.append({"event": "iterate", **key, **sampler, "where": at})
            for batch in BATCHES:
                first, last = number * len(batch) // size, (number + 1) * len(batch) // size
                ids = batch[first:last]
                samples = [(one, f"content of {dataset}/{one}") for one in ids]
                events.append({"event": "batch", **key, "samples": samples})
                if not grad:
                    continue
                weights = {"samples": len(ids), "units": None, "idle": not ids}
                backward = {"event": "backward", **weights, "where": "x.py:12"}
                events.append({**backward, "loss": loss(ids)})
                count += 1
                step = {"optimizer": 0, "gradient": loss(batch), "parameters": 7 * count}
                events.append({"event": "step", **step, "options": [("lr", 0.1)]})
            events.append({"event": "iterated", **key})
        if number == 0:
            text = f"epoch {epoch}: loss 1.2345 at {3 * size} it/s"
            events.append({"event": "line", "text": text, "drew": [1, epoch]})
    if number == 0:
        events.append({"event": "open", "path": "m.pt", "where": "x.py:20"})
    events.insert(1, {"event": "initial", "optimizer": 0, "sums": [1, 2]})
    events.append({"event": "models", "found": [["Net", 99]]})
    events.append({"event": "end", "code": 0})
    return events


@dataclass
class Runs:
    """An original and its port on 2 ranks; tests change the events."""

    original: Events = field(default_factory=lambda: rank(0, 0))
    ranks: list[Events] = field(default_factory=lambda: [rank(2, 0), rank(2, 1)])
    compared: dict[str, Any] | None = field(
        default_factory=lambda: {"path": "m.pt", "models": 1, "values": 4, "wrong": []}
    )

    def seen(self) -> tuple[Seen, Seen]:
        """Both, as read back."""
        report = []
        if self.compared is not None:
            report = [{"event": "compared", "unseen": [], **self.compared}]
        original = Seen(ended("original"), (Journal(tuple(self.original)),))
        first, *others = self.ranks
        ranks = tuple(Journal(tuple(events)) for events in ([*first, *report], *others))
        return original, Seen(ended(str(len(ranks)), world=len(ranks)), ranks)

    def first(self, kind: str, number: int = 0, nth: int = 0) -> dict[str, Any]:
        """An event of a rank of the port, to be changed."""
        return [one for one in self.ranks[number] if one["event"] == kind][nth]


def ended(name: str, *ends: RankEnd, **fields: Any) -> Outcome:
    """A run that went well, or as given."""
    run = Run(name, name, **fields)
    ends = ends or tuple(RankEnd(0, True) for _ in range(run.ranks))
    return Outcome(run, "exit", 1.0, ends)
