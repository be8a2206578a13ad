"""What this node has read and written on network file systems, as its own client counts it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ...site import mounts
from .reading import names, text

# Where Lustre's client keeps its counters, by version; the last one is often root's alone.
_LUSTRE = ("proc/fs/lustre/llite", "sys/fs/lustre/llite", "sys/kernel/debug/lustre/llite")
# Their counters are for root (mmpmon), or there are none.
_SILENT = ("gpfs", "beegfs", "ceph", "fuse.beegfs")


@dataclass(frozen=True)
class Counts:
    """Since the file system was mounted: bytes read, bytes written, operations asked of it."""

    read: float
    write: float
    operations: float


def lustre_counts(stats: str) -> Counts:
    """From `llite/<name>/stats`: `read_bytes 12 samples [bytes] <min> <max> <sum> …` and the like.

    Each call of a program counts as one operation, also one that the client's cache answers.
    """
    read = write = operations = 0
    for line in stats.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[2] != "samples":
            continue
        if fields[0] in ("read_bytes", "write_bytes") and len(fields) >= 7:
            if fields[0] == "read_bytes":
                read += int(fields[6])
            else:
                write += int(fields[6])
        elif fields[0] in ("read", "write"):  # newer clients: time that those calls took
            continue
        operations += int(fields[1])
    return Counts(read, write, operations)


def nfs_counts(mountstats: str) -> dict[str, Counts]:
    """From /proc/self/mountstats: by mount point what went over the wire, and requests sent."""
    found: dict[str, Counts] = {}
    for block in re.split(r"^device ", mountstats, flags=re.M)[1:]:
        first, _, rest = block.partition("\n")
        match = re.fullmatch(r".* mounted on (.*) with fstype nfs\S*( statvers=\S+)?", first)
        if match is None:
            continue
        counted = re.search(r"^\s*bytes:\s+((?:\d+\s*)+)$", rest, re.M)
        numbers = [int(word) for word in counted[1].split()] if counted else []
        if len(numbers) < 6:
            continue
        _, _, requests = rest.partition("per-op statistics")
        operations = sum(map(int, re.findall(r"^\s*[A-Z_0-9]+: (\d+) ", requests, re.M)))
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), match[1])
        found[point] = Counts(numbers[4], numbers[5], operations)
    return found


class FileSystems:
    """The network file systems that are mounted when the sampler starts."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        table = mounts.parse(text(os.path.join(root, "proc/self/mounts")) or "")
        self._silent = sorted({mount.point for mount in table if mount.kind in _SILENT})
        self._nfs = any(mount.kind.startswith("nfs") for mount in table)
        self._lustre = _lustre(root, table)

    def read(self) -> dict[str, Counts | None]:
        """By mount point; None where the file system does not say."""
        found: dict[str, Counts | None] = dict.fromkeys(self._silent)
        for point, path in self._lustre.items():
            stats = text(path)
            found[point] = lustre_counts(stats) if stats is not None else None
        if self._nfs:
            found |= nfs_counts(text(os.path.join(self._root, "proc/self/mountstats")) or "")
        return found


def _lustre(root: str, table: list[mounts.Mount]) -> dict[str, str]:
    """Mount point -> file of counters; "" for one whose counters are not to be seen."""
    files: dict[str, str] = {}
    for folder in (os.path.join(root, one) for one in _LUSTRE):
        for name in names(folder):  # "<file system>-<number of the mount>"
            files.setdefault(name.rpartition("-")[0], f"{folder}/{name}/stats")
    found = {}
    points = [mount for mount in table if mount.kind == "lustre"]
    for mount in sorted(points, key=lambda one: (len(one.point), one.point), reverse=True):
        # "10.0.0.1@o2ib:/name/folder"; of several mounts of one the shortest path stands for it.
        system = mount.source.rpartition(":/")[2].split("/")[0]
        found[system] = mount.point
    return {point: files.get(system, "") for system, point in found.items()}
