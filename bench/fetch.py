"""Seconds of the login node's commands: `fetch` against curl, and `doctor`.

Claim `fetch.url`: seconds for a file of 1 GB from a server on this machine, with its sha256: ours
against curl and sha256sum, one after the other as people do it. Beside it, without a bar: a script
from its start to its first forward, by `rankup fetch` without the proof's start and by plain Python
that ends itself there; the difference is the cost of the hooks. Without curl the claim is skipped.

Warm: the file is in memory, and torch and rankup have been imported once before. The two take turns
in a random order.
"""

from __future__ import annotations

import hashlib
import http.server
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from common import (
    Effort,
    claim,
    has_programs,
    machine,
    median,
    paired,
    parse_effort,
    seconds,
    spread,
    table,
    take_turns,
)

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
    effort = parse_effort(__doc__ or "")
    print(machine() + "\n")
    # In memory where that is: else the disk is what is measured.
    with tempfile.TemporaryDirectory(prefix="rankup-bench-", dir=_fastest()) as folder:
        for line in bench(Path(folder), effort):
            print(line)


def bench(folder: Path, effort: Effort) -> list[str]:
    """Measure and print everything; return the claim lines."""
    rounds, size = effort.rounds, 200 if effort.quick else 1000
    rows, lines = [], []
    if has_programs("the claim fetch.url", "curl", "sha256sum"):
        ours, peer = download(folder, rounds, size)
        rows.append(_row(f"a file of {size} MiB", ours, peer))
        note = (
            f"{size} MiB over loopback with sha256, against curl && sha256sum -c; at most 0.6; "
            f"median of {rounds} turns; paired {paired(ours, peer)}"
        )
        lines.append(claim("fetch.url", median(ours), median(peer), "s", note, better="lower"))
    script = folder / "train.py"
    script.write_text(SCRIPT)
    if not effort.quick:
        hooked = partial(seconds, [RANKUP, "fetch", "--only-proof", script], folder=folder)
        plain = partial(seconds, [sys.executable, script, "--stop"], folder=folder)
        found = take_turns({"ours": hooked, "peer": plain}, rounds)
        rows.append(_row("a script's first forward", found["ours"], found["peer"]))
    table(["seconds of", "rankup fetch", "by hand", "ratio"], rows)
    quick = [["doctor"], ["doctor", "train.py"], ["fetch", "--no-run", "train.py"]]
    times = [
        (" ".join(one), [seconds([RANKUP, *one], folder=folder) for _ in range(rounds)])
        for one in quick
    ]
    cells = [[name, f"{median(all_):.3f}", spread(all_)] for name, all_ in times]
    table(["seconds of", "median", "quartiles"], cells)
    return lines


def download(folder: Path, rounds: int, size: int) -> tuple[list[float], list[float]]:
    """Return the seconds of rankup, and of curl and sha256sum, for a file of `size` MiB."""
    block = os.urandom(MEGABYTE)
    served, target = folder / "served", folder / "here.bin"
    served.mkdir()
    digest = hashlib.sha256()
    with (served / "data.bin").open("wb") as file:
        for _ in range(size):
            file.write(block)
            digest.update(block)

    def fetched(words: list[object]) -> float:
        target.unlink(missing_ok=True)
        return seconds(words, folder=folder)

    with _server(served) as address:
        url, sha256 = f"{address}/data.bin", digest.hexdigest()
        ours = [RANKUP, "fetch", "--url", url, "--to", target, "--sha256", sha256]
        by_hand = f"curl -sSf -o {target} {url} && echo {sha256} {target} | sha256sum -c"
        contestants = {
            "ours": partial(fetched, ours),
            "peer": partial(fetched, ["bash", "-c", by_hand]),
        }
        found = take_turns(contestants, rounds)
    return found["ours"], found["peer"]


def _fastest() -> str | None:
    memory = "/dev/shm"
    fits = os.path.isdir(memory) and shutil.disk_usage(memory).free > 4000 * MEGABYTE
    return memory if fits else None


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


def _row(what: str, ours: list[float], peer: list[float]) -> list[str]:
    first, second = median(ours), median(peer)
    return [what, f"{first:.2f}", f"{second:.2f}", f"{first / second:.2f}"]


if __name__ == "__main__":
    main()
