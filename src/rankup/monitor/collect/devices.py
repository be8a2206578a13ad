"""Bytes that the node's disks, network and InfiniBand ports have moved since it started."""

from __future__ import annotations

import os
from collections.abc import Collection

from .reading import names, number, text

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
