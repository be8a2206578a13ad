"""What the page shows of a recording, in the order that users of llview know: GPU, CPU, memory,
I/O, network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "host", "rank"]

GIB = 2.0**30


@dataclass(frozen=True)
class Channel:
    """One plot: a strip over time, and a heat map where there are several rows.

    Attributes:
        id: in the page.
        of: what has a row each.
        names: bands of the recording; a second one is the other direction of the same.
        labels: of those bands, where there are two.
        unit: that is shown: "%", "GiB", "bytes/s" (then with a fitting prefix), …
        factor: what is recorded is multiplied by it.
        ceiling: end of the scale: a number, "limit" (W), "memory", "clock" (of the largest GPU),
            "node memory"; None: the highest value seen.
        more: of less importance: folded up at first, and coarser.
        note: how to read it, one sentence.
    """

    id: str
    title: str
    of: Kind
    names: tuple[str, ...]
    unit: str
    factor: float = 1.0
    ceiling: float | str | None = None
    labels: tuple[str, ...] = ()
    more: bool = False
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        empty: what is said where none of its channels was recorded.
        quiet: what is said of channels in which nothing happened, `{}` being their titles.
    """

    id: str
    title: str
    channels: tuple[Channel, ...]
    empty: str
    quiet: str = "Nothing happened in: {}."


_READ_WRITE = ("read", "written")
_IN_OUT = ("received", "sent")

SECTIONS = (
    Section(
        "gpu",
        "GPU",
        (
            Channel(
                *("gpu-util", "Utilisation", "gpu", ("util",), "%"),
                ceiling=100.0,
                note="Share of time in which any kernel ran. A GPU that only waits for the others "
                "may show 100 %: read it together with the power.",
            ),
            Channel(
                *("gpu-power", "Power", "gpu", ("power",), "W"),
                ceiling="limit",
                note="What a GPU draws says how hard it works; the scale ends at its limit.",
            ),
            Channel(
                *("gpu-memory", "Memory", "gpu", ("memory",), "GiB", 1 / GIB),
                ceiling="memory",
                note="The scale ends at what the GPU has.",
            ),
            Channel(
                *("gpu-temperature", "Temperature", "gpu", ("temperature",), "°C"),
                more=True,
            ),
            Channel(
                *("gpu-clock", "SM clock", "gpu", ("clock",), "MHz"),
                ceiling="clock",
                more=True,
            ),
            Channel(
                *("gpu-throttle-heat", "Slowed down by heat", "gpu", ("throttle_heat",), "%", 100),
                ceiling=100.0,
                more=True,
                note="Share of time.",
            ),
            Channel(
                *("gpu-throttle-power", "Held at the power limit", "gpu"),
                *(("throttle_power",), "%", 100),
                ceiling=100.0,
                more=True,
                note="Share of time. A GPU that works hard may well touch its limit.",
            ),
            Channel(
                *("gpu-throttle-hardware", "Slowed down by its hardware", "gpu"),
                *(("throttle_hardware",), "%", 100),
                ceiling=100.0,
                more=True,
                note="Share of time: heat, a power brake or a fault.",
            ),
            Channel(
                *("gpu-pcie", "PCIe", "gpu", ("pcie_rx", "pcie_tx"), "bytes/s"),
                labels=("to the GPU", "from the GPU"),
                more=True,
            ),
            Channel(*("gpu-nvlink", "NVLink", "gpu", ("nvlink",), "bytes/s"), more=True),
            Channel(*("gpu-processes", "Processes", "gpu", ("processes",), ""), more=True),
        ),
        empty="No GPU was recorded: a run on CPU, or one whose GPUs could not be read.",
        quiet="Zero all the time: {}.",
    ),
    Section(
        "cpu",
        "CPU",
        (
            Channel(
                *("cpu-use", "Use of all usable cores", "host", ("cpu",), "%"),
                ceiling=100.0,
            ),
            Channel(
                *("cpu-ranks", "CPU of each rank", "rank", ("cpu",), "% of a core"),
                note="The training process alone; 100 % is one core.",
            ),
            Channel(
                *("cpu-workers", "CPU of each rank's data workers", "rank"),
                *(("workers_cpu",), "% of a core"),
                note="All worker processes of a rank together; 100 % is one core.",
            ),
            Channel(
                *("cpu-busiest", "Busiest core", "host", ("busiest",), "%"),
                ceiling=100.0,
                more=True,
            ),
            Channel(
                *("cpu-load", "Load", "host", ("load",), "processes"),
                more=True,
                note="Processes that run or wait to run, mean of a minute.",
            ),
        ),
        empty="No CPU was recorded.",
        quiet="Zero all the time: {}.",
    ),
    Section(
        "memory",
        "Memory",
        (
            Channel(
                *("memory-node", "Memory of each node", "host", ("memory",), "GiB", 1 / GIB),
                ceiling="node memory",
            ),
            Channel(
                *("memory-cgroup", "Counted against the job's limit", "host"),
                *(("cgroup",), "GiB", 1 / GIB),
                ceiling="node limit",
                more=True,
                note="What the cgroup counts; the kernel ends the job where this passes its limit.",
            ),
            Channel(
                *("memory-ranks", "Memory of each rank", "rank", ("memory",), "GiB", 1 / GIB),
                more=True,
            ),
            Channel(*("memory-swap", "Swap", "host", ("swap",), "GiB", 1 / GIB), more=True),
        ),
        empty="No memory was recorded.",
        quiet="Never used: {}.",
    ),
    Section(
        "io",
        "I/O",
        (
            Channel(
                *("io-fs", "Network file systems", "host", ("fs_read", "fs_write"), "bytes/s"),
                labels=_READ_WRITE,
            ),
            Channel(
                *("io-ranks", "Each rank with its workers", "rank", ("read", "write"), "bytes/s"),
                labels=_READ_WRITE,
                note="What they asked for; what was in memory already counts as well.",
            ),
            Channel(
                *("io-operations", "Operations on network file systems", "host"),
                *(("fs_operations",), "/s"),
                more=True,
            ),
            Channel(
                *("io-disk", "The nodes' own disks", "host", ("disk_read", "disk_write")),
                "bytes/s",
                labels=_READ_WRITE,
                more=True,
            ),
        ),
        empty="No reading or writing was recorded.",
        quiet="Neither read nor written: {}.",
    ),
    Section(
        "network",
        "Network",
        (
            Channel(
                *("network-ib", "InfiniBand", "host", ("ib_rx", "ib_tx"), "bytes/s"),
                labels=_IN_OUT,
            ),
            Channel(
                *("network-ip", "Ethernet and all else", "host", ("net_rx", "net_tx"), "bytes/s"),
                labels=_IN_OUT,
            ),
        ),
        empty="No network traffic was recorded.",
        quiet="No traffic: {}.",
    ),
)
