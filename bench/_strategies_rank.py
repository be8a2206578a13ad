"""One rank of `strategies.py`'s teams: turns of contestants, or one strategy that is looked into.

Each line on its input names a contestant and a number of steps; the answer is a JSON line.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _rank import UNCOUNTED, Rank, Turns
from _strategies_loops import LOOPS, Watched, rankup_loop, watched

ANY = "any"  # the contestant of a team that runs one strategy alone
_BYTES_ACKED = 120  # its offset in struct tcp_info, linux/tcp.h; there since Linux 4.1


def sent() -> int:
    """Bytes that this process's TCP connections have delivered so far, gloo's among them."""
    total = 0
    for place in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own, closed meanwhile
            if not place.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(place.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("=Q", info, _BYTES_ACKED)[0]
    return total


def resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class One:
    """The contestant of a team that runs one strategy, and what it takes.

    Attributes:
        turns: its loop.
    """

    def __init__(self, rank: Rank) -> None:
        self._task: Watched | None = None
        self._before = resident()

        def run(boundary: Any) -> None:
            job = rank.job("one", boundary)
            self._task = watched(job)
            rankup_loop(job, self._task)

        self.turns = Turns(run)

    def slice(self, steps: int) -> dict[str, Any]:
        """Seconds and bytes sent per step; bytes held, and by how much the process has grown."""
        before = sent()
        seconds = self.turns.slice(steps)
        bytes_sent = (sent() - before) / (steps + UNCOUNTED)
        assert self._task is not None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        grown = max(0, peak - self._before)
        held = asdict(self._task.held())
        return {"seconds": seconds, "sent": bytes_sent, "grown": grown, **held}


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # no rank outlives the bench, however that ends
    rank = Rank.begin()
    one = One(rank) if rank.contestants == [ANY] else None
    turns = {} if one else {name: rank.turns(name, LOOPS[name]) for name in rank.contestants}
    for line in sys.stdin:
        name, steps = line.rsplit(maxsplit=1)
        found = one.slice(int(steps)) if one else {"seconds": turns[name].slice(int(steps))}
        print(json.dumps(found), file=rank.answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
