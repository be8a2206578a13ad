"""The job of `rankup plan --calibrate`: seconds of products, blocks, optimizer and exchanges.

Ranks run this file as a script. Everything is timed with 1, 2, 4, … of the ranks of each node at
work while the others stand still, since ranks share the memory, the links and the network of their
node; rank 0 writes one JSON file. `plan/calibrate.py` makes a machine of it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import rankup
from rankup.parallel.build import Built, build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.recipes.models.transformer import Block, Shape, Transformer
from rankup.runtime.world import World
from rankup.site.gpus import usable_cores

# Sizes on a GPU, and on a CPU, of which a product has a thousandth of the speed.
_PRODUCTS = {
    "cuda": [(4096, n, k) for n, k in ((1024, 1024), (4096, 1024), (4096, 4096), (12288, 4096))],
    "cpu": [(256, n, k) for n, k in ((64, 64), (256, 64), (256, 256), (1024, 256), (1024, 512))],
}
# Width, heads, sequence, batch of a transformer's block.
_BLOCKS = {
    "cuda": [(1024, 16, 1024, 4), (2048, 16, 2048, 2), (4096, 32, 2048, 1)],
    "cpu": [(128, 4, 64, 4), (256, 4, 64, 4), (256, 4, 64, 8), (384, 6, 64, 8)],
}
_SMALLEST = (64, 1, 8, 1)  # a block that only takes the time of its launches
_PARAMETERS = {"cuda": 100_000_000, "cpu": 2_000_000}
_BYTES = {"cuda": [2**k for k in range(12, 29, 2)], "cpu": [2**k for k in range(12, 23, 2)]}
_LEAST, _MOST = 5, 200  # times that each is done


class Measure:
    """The measurements that `ranks` ranks of each node do at once; the others call nothing of this.

    Args:
        group: of the ranks at work.
        clock: `time.perf_counter`, or `time.process_time` on a machine that others use, too.
        seconds: for each measurement.
    """

    def __init__(
        self, world: World, ranks: int, group: Any, clock: Callable[[], float], seconds: float
    ) -> None:
        self.ranks, self._world, self._group = ranks, world, group
        self._clock, self._seconds = clock, seconds
        self.device = world.device.type
        half = self.device == "cuda" and torch.cuda.is_bf16_supported()
        self.dtype = torch.bfloat16 if half else torch.float32

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield all measurements; each is the median over its repetitions, the mean over ranks."""
        for m, n, k in _PRODUCTS[self.device]:
            a, b = self._random(m, k), self._random(k, n)
            yield self.row("product", lambda a=a, b=b: a @ b, m=m, n=n, k=k)  # type: ignore[misc]
        for width, heads, length, batch in (*_BLOCKS[self.device], _SMALLEST):
            yield from self._block(width, heads, length, batch)
        yield self._optimizer(_PARAMETERS[self.device])
        size = dist.get_world_size(self._group)
        if size > 1:
            for count in _BYTES[self.device]:
                yield from self._exchanges(count, size)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self._world.device, dtype=self.dtype)

    def _block(self, width: int, heads: int, length: int, batch: int) -> Iterator[dict[str, Any]]:
        sizes = {"hidden": width, "heads": heads, "seq": length, "batch": batch}
        block = Block(Shape(1, length, 1, width, heads, 0.1)).to(self._world.device, self.dtype)
        x = self._random(batch, length, width).requires_grad_()
        q = self._random(batch, heads, length, width // heads)
        attend = torch.nn.functional.scaled_dot_product_attention

        def forward() -> None:
            with torch.no_grad():
                block(x)

        yield self.row("attention", lambda: attend(q, q, q, is_causal=True), **sizes)
        yield self.row("forward", forward, **sizes)
        yield self.row("block", lambda: block(x).sum().backward(), **sizes)

    def _optimizer(self, parameters: int) -> dict[str, Any]:
        weights = [torch.zeros(parameters // 8, device=self._world.device) for _ in range(8)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        step = torch.optim.AdamW(weights, lr=1e-3).step
        return self.row("optimizer", step, parameters=parameters // 8 * 8)

    def _exchanges(self, count: int, size: int) -> Iterator[dict[str, Any]]:
        """Messages of `count` bytes in all, as nccl-tests counts them."""
        device, group = self._world.device, self._group
        whole = torch.zeros(-(-count // (4 * size)) * size, device=device)
        part = whole[: len(whole) // size].clone()
        sizes = {"bytes": 4 * len(whole), "group": size}
        yield self.row("all-reduce", lambda: dist.all_reduce(whole, group=group), **sizes)
        yield self.row(
            "all-gather", lambda: dist.all_gather_into_tensor(whole, part, group=group), **sizes
        )
        yield self.row(
            "reduce-scatter", lambda: dist.reduce_scatter_tensor(part, whole, group=group), **sizes
        )
        ranks = dist.get_process_group_ranks(group) if group is not None else [*range(size)]
        place = ranks.index(self._world.rank)

        def send() -> None:
            """Half of the ranks send, the other half receives."""
            other = ranks[place ^ 1]
            (dist.recv if place % 2 else dist.send)(whole, other, group=group)

        yield self.row("send", send, **sizes)

    def row(self, kind: str, act: Callable[[], Any], **sizes: int) -> dict[str, Any]:
        """Return the measurement of an act."""
        once = max(self._timed(act), self._timed(act))  # the first one also warms up
        times = self._agreed(self._seconds / max(once, 1e-6), "max")
        found = median(self._timed(act) for _ in range(int(min(_MOST, max(_LEAST, times)))))
        mean = self._agreed(found, "sum") / dist.get_world_size(self._group)
        return {"ranks": self.ranks, "kind": kind, **sizes, "seconds": mean}

    def _timed(self, act: Callable[[], Any]) -> float:
        begin = self._clock()
        act()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return self._clock() - begin

    def _agreed(self, value: float, how: str) -> float:
        found = torch.tensor(value, device=self._world.device, dtype=torch.float64)
        reduce = dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM
        dist.all_reduce(found, reduce, group=self._group)
        return float(found)


def main() -> None:
    """Measure on all ranks; rank 0 writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each measurement")
    parser.add_argument("--threads", type=int, help="of a rank on a CPU; default its cores' share")
    parser.add_argument("--cpu-clock", action="store_true", help="count seconds of the processor")
    asked = parser.parse_args()
    # torch renames its collectives; both names do the same.
    warnings.filterwarnings("ignore", category=FutureWarning)
    world = rankup.setup()
    per_node = world.local_world_size
    clock = time.process_time if asked.cpu_clock else time.perf_counter
    rows: list[dict[str, Any]] = []
    counts = [2**k for k in range(per_node.bit_length()) if 2**k < per_node] + [per_node]
    for ranks in counts:
        nodes = world.world_size // per_node
        members = [node * per_node + one for node in range(nodes) for one in range(ranks)]
        group = dist.new_group(members) if world.world_size > 1 else None
        if world.rank in members:
            if world.device.type == "cpu":
                torch.set_num_threads(asked.threads or max(1, usable_cores() // ranks))
            rows += Measure(world, ranks, group, clock, asked.seconds).rows()
        rankup.barrier()
    rows += _split(world, clock, asked.seconds)
    if world.is_root:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        new = asked.out.with_name(f".{asked.out.name}.{os.getpid()}")
        new.write_text(json.dumps({**_machine(world), "rows": rows}, indent=1), encoding="utf-8")
        new.replace(asked.out)
    rankup.destroy_process_group()


def _split(world: World, clock: Callable[[], float], seconds: float) -> list[dict[str, Any]]:
    """Models of two depths, sharded over all ranks, and cut over two of them and over a node's."""
    per_node = world.local_world_size
    rows: list[dict[str, Any]] = []
    if per_node == 1:
        return rows
    measure = Measure(world, per_node, None, clock, seconds)
    width, heads, length, batch = _BLOCKS[measure.device][1]
    sizes = {"hidden": width, "heads": heads, "seq": length, "batch": batch, "vocab": 256}
    tokens = torch.zeros(batch, length, dtype=torch.int64, device=world.device)
    cuts = [tp for tp in sorted({2, per_node}) if heads % tp == 0 and per_node % tp == 0]
    ways = [Layout(tp=tp, dp_replicate=world.world_size // tp) for tp in cuts]
    for layout in (Layout(dp_shard=world.world_size), *ways):
        mesh, kind = Mesh(layout, world), "tp" if layout.tp > 1 else "fsdp"
        for layers in (2, 6):
            shape = Shape(256, length, layers, width, heads, 0.1)
            half = Choices(half="bfloat16" if measure.dtype == torch.bfloat16 else None)
            built = build(lambda shape=shape: Transformer(shape), mesh, 0, half)  # type: ignore[misc]

            def act(built: Built = built) -> None:
                with built.computing():
                    built.replica(tokens).float().mean().backward()

            row = measure.row(kind, act, layers=layers, tp=layout.tp, **sizes)
            rows.append({**row, "group": world.world_size})
    return rows


def _machine(world: World) -> dict[str, Any]:
    device = world.device
    gpu = device.type == "cuda"
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world.local_world_size
    return {
        "device": torch.cuda.get_device_name(device) if gpu else "CPU",
        "memory": torch.cuda.get_device_properties(device).total_memory if gpu else host,
        "per_node": world.local_world_size,
        "nodes": world.world_size // world.local_world_size,
        "precision": "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32",
        "torch": torch.__version__,
        "time": time.time(),
    }


if __name__ == "__main__":
    main()
