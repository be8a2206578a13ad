"""What a gossip run writes down: each worker its own steps, the speaker those of the run."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...base.amounts import some
from ...base.files import cut_json_lines, done_by
from ...base.text import say
from ...parallel.lowcomm.flat import Cost
from ...parallel.lowcomm.gossip.board import Board
from ..metrics import Metrics
from ..options import TrainOptions


@dataclass
class Tally:
    """One worker's counts in this attempt of the run.

    Attributes:
        shares, samples: that it has computed.
        in_hand: samples of the ticket that it has drawn and not done.
        bytes_sent: to other workers.
        waited: seconds for other workers: at the start, at the end, and for its tickets.
        extra_compute: seconds for flattening, encoding, decoding and mixing, in all threads.
        extra_memory: bytes held for it.
    """

    shares: int = 0
    samples: int = 0
    in_hand: int = 0
    bytes_sent: int = 0
    waited: float = 0.0
    extra_compute: float = 0.0
    extra_memory: int = 0

    @property
    def cost(self) -> Cost:
        """The cost of the exchange."""
        return Cost(self.bytes_sent, self.waited, self.extra_compute, self.extra_memory)

    def text(self) -> str:
        """As it goes onto the board."""
        return json.dumps(asdict(self))


def cut_back(directory: Path, trace: str | None, workers: int, resumed_at: int) -> None:
    """Cut the files of workers that there are no more, as the others cut their own."""
    kinds = [(directory, r"metrics-(\d+)\.jsonl")]
    if trace:
        path = Path(trace).expanduser()
        kinds.append((path.parent, re.escape(path.name) + r"\.(\d+)"))
    for folder, pattern in kinds:
        for file in folder.iterdir():
            named = re.fullmatch(pattern, file.name)
            if named and int(named[1]) >= workers:
                cut_json_lines(file, lambda record: done_by(record, resumed_at))


class RunLines:
    """`metrics.jsonl` and the lines for people, while this worker is the speaker.

    Args:
        board: where the first to open the file says so.
    """

    def __init__(self, board: Board, directory: Path, unit: str, options: TrainOptions) -> None:
        self._board, self._directory, self._unit = board, directory, unit
        self._options = options
        self._last = self._done = 0
        self._metrics: Metrics | None = None

    def begin(self, last: int, done: int) -> None:
        """The run is known now: its last step, and those done when this attempt began."""
        self._last, self._done = last, done

    def say(self, text: str) -> None:
        """A line for people, also before there is a record."""
        if self._metrics is None:
            say(text, "")
        else:
            self._metrics.say(text)

    def open(self) -> Metrics:
        """The run's record; who becomes the speaker later goes on where the one before was."""
        if self._metrics is None:
            mark = secrets.token_hex(4)
            first = self._board.swap("lines", "", mark) == mark
            kept = self._done if first else self._last
            self._metrics = Metrics(self._directory, self._unit, self._last, kept, self._options)
        return self._metrics

    def final(self, record: dict[str, Any]) -> None:
        """The last line of the run."""
        self.open().final(record)

    def checkpoint(self, step: int, seconds: float, ended: float) -> None:
        """Note a checkpoint, unless another one is the speaker by now."""
        if self._metrics is not None:
            self._metrics.checkpoint(step, seconds, ended)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def summary(
    tallies: Sequence[dict[str, Any]], averaged: Sequence[int], lost: Sequence[int], steps: int
) -> dict[str, Any]:
    """The workers in the `final` record; counts are of this attempt of the run.

    `exchange` has the mean over the workers, as for other strategies over the ranks.

    Args:
        steps: of this attempt.
        averaged: workers whose models are in the final one.
        lost: workers that did not come to the end.
    """

    def total(name: str) -> Any:
        return sum(tally.get(name, 0) for tally in tallies)

    each = max(1, len(tallies))
    exchange = {
        "bytes_sent": round(total("bytes_sent") / each),
        "bytes_per_step": round(total("bytes_sent") / each / max(1, steps)),
        "waited": round(total("waited") / each, 3),
        "extra_compute": round(total("extra_compute") / each, 3),
        "extra_memory": max((tally.get("extra_memory", 0) for tally in tallies), default=0),
    }
    return {
        "workers": len(tallies),
        "workers_lost": list(lost),
        "workers_averaged": list(averaged),
        "shares": [tally.get("shares", 0) for tally in tallies],
        "samples_drawn": total("samples") + total("in_hand"),
        "samples_lost": total("in_hand"),
        "exchange": exchange,
    }


def closing_lines(found: dict[str, Any], nodes: Sequence[str]) -> list[str]:
    """The same for people."""
    shares = found["shares"]
    lines = [
        f"gossip: {found['workers']} workers did {some(list(map(str, shares)), 16)} shares; "
        f"{len(found['workers_averaged'])} of them are in the final model"
    ]
    if found["workers_lost"]:
        who = some([f"{worker} (node {nodes[worker]})" for worker in found["workers_lost"]], 8)
        lines.append(
            f"lost: worker {who}, and {found['samples_lost']} of {found['samples_drawn']} samples "
            "that were drawn"
        )
    return lines
