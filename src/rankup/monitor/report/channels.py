"""What a report shows of a recording, in the order that users of llview know: GPU, CPU, memory,
I/O, network; `page/channels.csv` is the table of it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

GIB = 2.0**30


@dataclass(frozen=True)
class Channel:
    """One plot: a strip over time, and a heat map where there are several rows.

    Attributes:
        id: in the page.
        of: what has a row each: "gpu", "host" or "rank".
        names: bands of the recording; a second one is the other direction of the same.
        labels: of those bands, where there are two.
        unit: that is shown: "%", "GiB", "bytes/s" (then with a fitting prefix), …
        factor: what is recorded is multiplied by it.
        ceiling: end of the scale: a number, "limit" (W), "memory", "clock" (of the largest GPU),
            "node memory", "node limit"; empty: the highest value seen.
        more: of less importance: folded up at first, and coarser.
        note: how to read it, one sentence.
    """

    id: str
    title: str
    of: str
    names: tuple[str, ...]
    unit: str
    factor: float
    ceiling: str
    labels: tuple[str, ...]
    more: bool
    note: str


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        empty: what is said where none of its channels was recorded.
        quiet: what is said of channels in which nothing happened, `{}` being their titles.
    """

    id: str
    title: str
    empty: str
    quiet: str
    channels: tuple[Channel, ...]


def _channels(section: str) -> tuple[Channel, ...]:
    file = resources.files("rankup.monitor.report").joinpath("page/channels.csv")
    rows = csv.DictReader(file.read_text("utf-8").splitlines())
    return tuple(_channel(row) for row in rows if row["section"] == section)


def _channel(row: dict[str, str]) -> Channel:
    factor = 1 / GIB if row["unit"] == "GiB" else float(row["factor"] or 1)
    labels = tuple(row["labels"].split("; ")) if row["labels"] else ("",)
    return Channel(
        id=row["id"],
        title=row["title"],
        of=row["of"],
        names=tuple(row["bands"].split()),
        unit=row["unit"],
        factor=factor,
        ceiling=row["ceiling"],
        labels=labels,
        more=bool(row["more"]),
        note=row["note"],
    )


SECTIONS = (
    Section(
        "gpu",
        "GPU",
        "No GPU was recorded: a run on CPU, or one whose GPUs could not be read.",
        "Zero all the time: {}.",
        _channels("gpu"),
    ),
    Section("cpu", "CPU", "No CPU was recorded.", "Zero all the time: {}.", _channels("cpu")),
    Section("memory", "Memory", "No memory was recorded.", "Never used: {}.", _channels("memory")),
    Section(
        "io",
        "I/O",
        "No reading or writing was recorded.",
        "Neither read nor written: {}.",
        _channels("io"),
    ),
    Section(
        "network",
        "Network",
        "No network traffic was recorded.",
        "No traffic: {}.",
        _channels("network"),
    ),
)
