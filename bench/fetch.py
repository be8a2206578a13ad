"""The login node: how long `doctor` and an unchanged `env create` take, and what `fetch` costs.

Claim `fetch.url`: seconds for a file of 1 GB from a server on this machine, with its sha256: ours
against curl and sha256sum, one after the other as people do it. Beside it, without a bar: a script
from its start to its first forward, by `rankup fetch` without the proof's start and by plain Python
that ends itself there; what the hooks cost is the difference.

Warm: the file is in memory, and torch and rankup have been imported once before. The two take turns
in a random order.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import common

RANKUP = Path(sys.executable).parent / "rankup"
MEGABYTE = 1 << 20

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=64, shuffle=True):
    if "--stop" in sys.argv:
        os._exit(0)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def main() -> None:
    effort = common.arguments(__doc__ or "")
    rounds, size = (3, 200) if effort.quick else (9, 1000)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    # In memory where that is: else the disk is what is measured.
    with tempfile.TemporaryDirectory(prefix="rankup-bench-", dir=_fastest()) as folder:
        for line in bench(Path(folder), rounds, size):
            print(json.dumps(line))


def bench(folder: Path, rounds: int, size: int) -> list[dict[str, object]]:
    """Measure all, with a file of `size` MiB; the claims."""
    block = os.urandom(MEGABYTE)
    served = folder / "served"
    served.mkdir()
    digest = hashlib.sha256()
    with (served / "data.bin").open("wb") as file:
        for _ in range(size):
            file.write(block)
            digest.update(block)
    with _server(served) as address:
        url, target = f"{address}/data.bin", folder / "here.bin"
        words = [RANKUP, "fetch", "--url", url, "--to", target, "--sha256", digest.hexdigest()]
        by_hand = (
            f"curl -sSf -o {target} {url} && echo {digest.hexdigest()} {target} | sha256sum -c"
        )

        def ours() -> float:
            target.unlink(missing_ok=True)
            return _seconds(words, folder)

        def peer() -> float:
            target.unlink(missing_ok=True)
            return _seconds(["bash", "-c", by_hand], folder)

        fetched, curled = _turns(rounds, ours, peer)
    rows = [_row(f"a file of {size} MiB", fetched, curled)]
    script = folder / "train.py"
    script.write_text(SCRIPT)
    plain = [sys.executable, script, "--stop"]
    hooked = [RANKUP, "fetch", "--only-proof", script]
    rows.append(
        _row(
            "a script's first forward",
            *_turns(rounds, lambda: _seconds(hooked, folder), lambda: _seconds(plain, folder)),
        )
    )
    common.table(["seconds of", "rankup fetch", "by hand", "ratio"], rows)
    quick = [["doctor"], ["doctor", "train.py"], ["fetch", "--no-run", "train.py"]]
    times = [
        (" ".join(one), [_seconds([RANKUP, *one], folder) for _ in range(rounds)]) for one in quick
    ]
    common.table(
        ["seconds of", "median", "quartiles"],
        [[name, f"{common.median(all_):.3f}", common.spread(all_)] for name, all_ in times],
    )
    return [
        {
            "claim": "fetch.url",
            "ours": round(common.median(fetched), 3),
            "peer": round(common.median(curled), 3),
            "unit": "s",
            "better": "lower",
            "note": f"{size} MiB over loopback with sha256, against curl && sha256sum -c; "
            f"median of {rounds} turns",
        }
    ]


def _fastest() -> str | None:
    room = 4 * 1000 * MEGABYTE
    return (
        "/dev/shm"
        if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > room
        else None
    )


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _turns(
    rounds: int, ours: Callable[[], float], peer: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Times of both, after one of each that does not count."""
    ours(), peer()
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for which in random.sample((0, 1), 2):
            found[which].append((ours, peer)[which]())
    return found


def _row(what: str, ours: list[float], peer: list[float]) -> list[str]:
    first, second = common.median(ours), common.median(peer)
    return [what, f"{first:.2f}", f"{second:.2f}", f"{first / second:.2f}"]


def _seconds(words: list[object], folder: Path) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
