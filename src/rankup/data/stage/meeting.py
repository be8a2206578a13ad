"""How the nodes of a step find each other: each writes into a folder where it listens."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...base import holder
from ...base.files import write_json
from ...base.text import clean as shown

MEET = 120.0  # seconds within which a peer has to say where it listens
LINGER = 60.0  # seconds without a request after which nobody is waited for any more


@dataclass(frozen=True)
class Step:
    """The nodes that stage together, and this one of them.

    Attributes:
        me, nodes: number of this node, and how many there are.
        name: of this node.
        folder: where they meet, seen by all.
        meet, linger: see `MEET` and `LINGER`.
    """

    me: int
    nodes: int
    name: str
    folder: Path
    meet: float = MEET
    linger: float = LINGER


@dataclass(frozen=True)
class Peer:
    """Where another node listens, and the token that it answers to."""

    node: int
    name: str
    addresses: tuple[str, ...]
    port: int
    token: bytes


class Gone(Exception):  # noqa: N818 - says why
    """A peer is of no use."""


class Away(Gone):
    """It has not come at all."""


def found(folder: Path, node: int, plan: str) -> Peer:
    """Where a node listens.

    Args:
        plan: what this node copies, which has to be the same.

    Raises:
        FileNotFoundError: it has not said so yet.
        Gone: what is there is of no use.
    """
    path = folder / f"node-{node}.json"
    about = os.lstat(path)
    if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode):
        raise Gone(f"{path} is not yours")
    try:
        text = json.loads(path.read_bytes())
        if text["plan"] != plan:
            raise Gone("it copies something else: the source, or --fraction, is not the same")
        addresses = tuple(str(one) for one in text["addresses"])
        if text["host"] == holder.host():
            addresses = ("127.0.0.1",)
        return Peer(
            node,
            shown(str(text["name"])),
            addresses,
            int(text["port"]),
            bytes.fromhex(text["token"]),
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Gone(f"{path} makes no sense") from None


def publish(of: Step, folder: Path, plan: str, port: int, token: bytes) -> None:
    """Say where this node listens; for this user alone."""
    said = {
        "name": of.name,
        "host": holder.host(),
        "addresses": addresses(os.environ),
        "port": port,
        "token": token.hex(),
        "plan": plan,
    }
    write_json(folder / f"node-{of.me}.json", said, private=True)


def addresses(environment: Mapping[str, str]) -> list[str]:
    """IPv4 addresses of this node for its peers, those of the fast network first."""
    import psutil

    named = environment.get("NCCL_SOCKET_IFNAME", "").lstrip("=").split(",")[0]
    up = {name for name, about in psutil.net_if_stats().items() if about.isup}
    found = [
        (not (named and name.startswith(named)), not name.startswith(("ib", "hsn")), one.address)
        for name, entries in sorted(psutil.net_if_addrs().items())
        for one in entries
        if name in up and one.family == socket.AF_INET and not one.address.startswith("127.")
        if not name.startswith(("docker", "virbr", "veth", "cni", "br-"))
    ]
    return [address for *_, address in sorted(found, key=lambda row: row[:2])]
