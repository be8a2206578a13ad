"""The node itself, from /proc and /sys: how busy each core is and which are the job's, memory and
what counts against the job's limit, and what disks, networks and network file systems have moved.

Files are read with as few system calls as can be: there are hundreds per sample.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...site import cgroup, mounts

_BLOCK, _SHORT = 1 << 16, 1 << 12  # bytes per read


def text(path: str, *, short: bool = False) -> str | None:
    """A whole file as text; None where there is none, or none for us.

    A quarter of what `Path.read_text` takes, which counts for some hundred files per sample.

    Args:
        short: the file comes in one read, as /proc/PID/stat does, which saves looking for its end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = part = os.read(descriptor, _SHORT if short else _BLOCK)
        while part and not short:
            part = os.read(descriptor, _BLOCK)
            content += part
    except OSError:  # a process that ended between the two calls
        return None
    finally:
        os.close(descriptor)
    return content.decode("utf-8", "replace")


def number(path: str) -> int | None:
    """The one integer of a file."""
    try:
        return int(text(path, short=True) or "")
    except ValueError:
        return None


def names(folder: str) -> list[str]:
    """The names in a folder, sorted; empty where there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


class Rates:
    """Counters that only grow, as what they grew by per second: the last value of each, by key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    def of(self, key: Hashable, value: float | None, seconds: float | None) -> float | None:
        """Growth per second since the last call with this key.

        None for the first one, for a counter that cannot be read, and for one that went back: it
        was reset or overflowed, and what it counted meanwhile is not known.
        """
        if value is None:
            self._last.pop(key, None)
            return None
        before = self._last.get(key)
        self._last[key] = value
        if before is None or not seconds or value < before:
            return None
        return (value - before) / seconds


_SCALE = "0123456789a"  # tenths, as in lines.py


def core_times(stat: str) -> dict[int, tuple[int, int]]:
    """From /proc/stat: per core (busy, all) in clock ticks since the machine started.

    Time that waits for a disk, or that another guest of the host took, is not busy.
    """
    found = {}
    for line in stat.split("\nintr", 1)[0].splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu" and len(fields) >= 8:
            user, nice, system, idle, waits, irq, soft, steal = map(int, fields[:8])
            busy = user + nice + system + irq + soft
            found[int(name[3:])] = busy, busy + idle + waits + steal
    return found


class Cores:
    """Use of the usable cores since the sample before."""

    def __init__(self, usable: tuple[int, ...], root: str = "/") -> None:
        self._usable = usable
        self._path = os.path.join(root, "proc/stat")
        self._before: dict[int, tuple[int, int]] = {}

    def read(self) -> tuple[float | None, float | None, str]:
        """% of all usable cores, of the busiest one, and a character per core.

        None, None and "" the first time.
        """
        now = core_times(text(self._path) or "")
        before, self._before = self._before, now
        used, spent, busiest, shown = 0, 0, 0.0, []
        for core in self._usable:
            busy, total = now.get(core, (0, 0))
            busy_before, total_before = before.get(core, (busy, total))
            busy, total = max(0, busy - busy_before), max(0, total - total_before)
            share = min(1.0, busy / total) if total else 0.0
            shown.append(_SCALE[round(10 * share)])
            busiest = max(busiest, share)
            used, spent = used + busy, spent + total
        if not spent:  # the first one, or a second one within a clock tick
            return None, None, ""
        return round(100 * used / spent, 1), round(100 * busiest, 1), "".join(shown)


def usable(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[int, ...]:
    """Numbers of the cores that the job may use, whatever the sampler itself is bound to.

    A job step of one core beside the training sees that core alone. The job's own cgroup, two
    levels up, says it best; where Slurm makes none (psslurm), a job that was given as many cores
    as there are has them all; else it is what this process may run on.
    """
    job = environment.get("SLURM_JOB_ID")
    if job:
        for group in _cpu_groups(root):
            for above in cgroup.upwards(group):
                if above.folder.name == f"job_{job}":
                    listed = _listed(above.folder)
                    if listed:
                        return listed
    everything = tuple(sorted(core_times(text(str(root / "proc/stat")) or "")))
    given = environment.get("SLURM_CPUS_ON_NODE", "")
    if everything and given.isascii() and given.isdigit() and int(given) >= len(everything):
        return everything
    return tuple(sorted(os.sched_getaffinity(0)))


def _cpu_groups(root: Path) -> list[cgroup.Group]:
    return cgroup.own(root, "cpuset")


def _listed(folder: Path) -> tuple[int, ...]:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        cores = numbers(text(str(folder / name)) or "")
        if cores:
            return cores
    return ()


def numbers(listed: str) -> tuple[int, ...]:
    """The kernel's short form of a set of numbers: "0-3,8" -> (0, 1, 2, 3, 8); empty if it is none.

    >>> numbers("0-3,8")
    (0, 1, 2, 3, 8)
    """
    found: set[int] = set()
    for part in listed.strip().split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if match is None:
            return ()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


@dataclass(frozen=True)
class Memory:
    """Bytes: in use without caches, in all, of swap in use and in all."""

    used: float
    total: float
    swap_used: float
    swap: float


def meminfo(content: str) -> Memory | None:
    """From /proc/meminfo; None where it lacks what is asked for."""
    found = {
        name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", content, re.M)
    }
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    swap = found.get("SwapTotal", 0)
    return Memory(
        used=found["MemTotal"] - found["MemAvailable"],
        total=found["MemTotal"],
        swap_used=swap - found.get("SwapFree", swap),
        swap=swap,
    )


def memory(root: str = "/") -> Memory | None:
    """Of this node, now."""
    return meminfo(text(os.path.join(root, "proc/meminfo")) or "")


class Limit:
    """The tightest memory limit that this process, and so the job's ranks beside it, is under.

    Attributes:
        size: bytes; None without a limit.
    """

    def __init__(self, environment: Mapping[str, str], root: Path = Path("/")) -> None:
        # Of equal limits (Slurm gives the job and each of its steps the same) the uppermost group
        # counts for all ranks; the lowest is the sampler's own.
        limits = [
            (found[0], -depth, group)
            for own in cgroup.own(root)
            for depth, group in enumerate(_of_job(own, environment.get("SLURM_JOB_ID")))
            if (found := group.memory()) is not None
        ]
        tightest = min(limits, key=lambda one: one[:2], default=None)
        self._group = tightest[2] if tightest else None
        sizes = [tightest[0]] if tightest else []
        self.size: float | None = min([*sizes, *_asked(environment)], default=None)

    def used(self) -> float | None:
        """Bytes that count against the cgroup's limit, without caches; None without one."""
        found = self._group.memory() if self._group else None
        return found[1] if found else None


def _of_job(own: cgroup.Group, job: str | None) -> list[cgroup.Group]:
    """A group and those above it, without those of the sampler's own step: ranks are in others."""
    groups = list(cgroup.upwards(own))
    names = [group.folder.name for group in groups]
    return groups[names.index(f"job_{job}") :] if f"job_{job}" in names else groups


def _asked(environment: Mapping[str, str]) -> list[int]:
    """Memory that the job has asked Slurm for per node, in bytes; 0 means all of the node's."""
    asked = environment.get("SLURM_MEM_PER_NODE", "")
    return [int(asked) << 20] if asked.isascii() and asked.isdigit() and int(asked) else []


_SECTOR = 512  # what /proc/diskstats counts in, whatever the disk's own is
_WORD = 4  # InfiniBand's data counters count in words of four bytes
_INFINIBAND = 32  # the kernel's ARPHRD_INFINIBAND

Pair = tuple[float, float]


def disk_bytes(diskstats: str, disks: Collection[str]) -> Pair:
    """From /proc/diskstats: bytes (read, written) of these devices together."""
    read = written = 0
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) >= 10 and fields[2] in disks:
            read += int(fields[5])
            written += int(fields[9])
    return read * _SECTOR, written * _SECTOR


def net_bytes(dev: str, interfaces: Collection[str]) -> Pair:
    """From /proc/net/dev: bytes (received, sent) by these interfaces together."""
    received = sent = 0
    for line in dev.splitlines():
        name, colon, counters = line.partition(":")
        fields = counters.split()
        if colon and len(fields) >= 9 and name.strip() in interfaces:
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


class Devices:
    """The devices that are counted, found once: whole disks, network interfaces, ports."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        blocks = os.path.join(root, "sys/block")
        # What has a device behind it; partitions, loops, RAID and LVM would count bytes twice.
        self._disks = [name for name in names(blocks) if os.path.exists(f"{blocks}/{name}/device")]
        self._interfaces = _interfaces(root)
        ports = os.path.join(root, "sys/class/infiniband")
        self._ports = [
            f"{ports}/{adapter}/ports/{port}/counters"
            for adapter in names(ports)
            for port in names(f"{ports}/{adapter}/ports")
        ]

    def disk(self) -> Pair | None:
        """Bytes (read, written); None where no disk is seen: a node without, or a container."""
        content = text(os.path.join(self._root, "proc/diskstats")) if self._disks else None
        return disk_bytes(content, self._disks) if content is not None else None

    def net(self) -> Pair | None:
        """Bytes (received, sent) without loopback and InfiniBand."""
        content = text(os.path.join(self._root, "proc/net/dev")) if self._interfaces else None
        return net_bytes(content, self._interfaces) if content is not None else None

    def infiniband(self) -> Pair | None:
        """Bytes (received, sent) of all ports, RDMA included; None without one that can be read."""
        received, sent = (
            [number(f"{port}/port_{way}_data") for port in self._ports] for way in ("rcv", "xmit")
        )
        read = [(a, b) for a, b in zip(received, sent, strict=True) if not (a is None or b is None)]
        if not read or len(read) < len(self._ports):  # part of them would look like a drop
            return None
        return _WORD * sum(a for a, _ in read), _WORD * sum(b for _, b in read)


def _interfaces(root: str) -> list[str]:
    """Network cards; where none shows itself (a container), whatever is no loopback."""
    folder = os.path.join(root, "sys/class/net")
    found = [
        name
        for name in names(folder)
        if name != "lo"
        and not name.startswith("ib")
        and number(f"{folder}/{name}/type") != _INFINIBAND
    ]
    # A bond and its cards, a bridge and what hangs on it, would count bytes twice.
    return [name for name in found if os.path.exists(f"{folder}/{name}/device")] or found


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
