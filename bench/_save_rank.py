"""One rank of the measurement of checkpoints: the seconds for which a save blocks the loop.

A transformer of 44 million parameters and its Adam state, sharded over the ranks, is saved by the
loop's own `Saver`, asynchronously and synchronously in turns. Rank 0 prints a JSON line per save.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from _rank import die_with_parent
from rankup.parallel.build import Built, build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.collectives import all_reduce, barrier
from rankup.runtime.world import setup
from rankup.train.checkpoint import Saved, Saver
from rankup.train.plan import Place

SHAPE = Shape(vocab_size=256, seq_len=64, layers=14, dim=512, heads=8, dropout=0.0)
MODES = {"asynchronous": True, "synchronous": False}


def trained(built: Built) -> torch.optim.Optimizer:
    """Return an optimizer that has taken a step, so that its state is there."""
    optimizer = torch.optim.AdamW(built.model.parameters(), lr=1e-3)
    for parameter in built.model.parameters():
        assert isinstance(parameter, DTensor)
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def compute(matrix: torch.Tensor, seconds: float) -> int:
    """Multiply matrices for some seconds, as a training would; return the number of products."""
    until, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        torch.mm(matrix, matrix)
        number += 1
    return number


def on_disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    die_with_parent()
    spec: dict[str, Any] = json.loads(sys.argv[-1])
    torch.set_num_threads(1)
    world = setup()
    mesh = Mesh(Layout(dp_shard=world.world_size), world)
    built = build(lambda: Transformer(SHAPE), mesh, 0, Choices())
    optimizer = trained(built)
    root = Path(spec["directory"])
    savers = {mode: Saver(root / mode, 1, asynchronous) for mode, asynchronous in MODES.items()}
    matrix = torch.randn(256, 256)
    busy = 0.0
    for number in range(spec["rounds"] + 1):
        for mode in random.Random(number).sample(list(MODES), 2):
            saved = Saved(Place(number + 1, 0, number + 1), {}, None)
            barrier()
            began = time.perf_counter()
            savers[mode].save(built.model, optimizer, saved)
            waited = time.perf_counter() - began
            done = compute(matrix, 1.5 * busy) if MODES[mode] and busy else 0
            if why := savers[mode].wait():
                raise SystemExit(f"bench: the checkpoint was not written: {why}")
            whole = time.perf_counter() - began
            longest = all_reduce(waited, "max")
            if not MODES[mode]:
                busy = longest
            barrier()
            # What the same computing takes when nothing is written.
            began = time.perf_counter()
            for _ in range(done):
                torch.mm(matrix, matrix)
            alone = time.perf_counter() - began
            # The whole loss: what the save and the computing took together, less the computing.
            lost = all_reduce(whole - alone if done else waited, "max")
            bytes_saved = on_disk(root / mode)
            if number and world.is_root:  # the first round makes buffers and assigns shards
                found = {"mode": mode, "waited": longest, "lost": lost, "bytes": bytes_saved}
                print(json.dumps(found), flush=True)
    for saver in savers.values():
        saver.close()


if __name__ == "__main__":
    main()
