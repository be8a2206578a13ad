"""One sampler per run and node."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path


def take(run: Path, node: str) -> socket.socket | None:
    """Be the sampler of a run on a node until the returned socket is closed; None: there is one.

    A name in the kernel's own space of sockets: it holds on every file system, whether that knows
    flock or not, it is the node's alone, and it goes with the process, however that ends.
    """
    what = f"{os.path.realpath(run)}\0{node}\0{os.getuid()}".encode("utf-8", "surrogateescape")
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(b"\0rankup-monitor-" + hashlib.sha256(what).hexdigest()[:32].encode())
    except OSError:
        held.close()
        return None
    return held
