"""Tensor parallelism by hand: the ranks share every matrix product.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

With rankup it is one flag, for the same model file:

    rankup run --nproc 2 language-model --strategy tp

What is split   the matrices. A pair of linears y = B(f(A x)) is cut so that nothing is sent between
                the two: A by its outputs (column-parallel), so that a rank has some of the hidden
                values; B by its inputs (row-parallel), which takes just those. Attention is such a
                pair too: query, key and value by outputs, which are whole heads, then `out`.
                The batch is not split: all ranks compute the same samples.
What is sent    what B gives is a sum of which each rank has one term: an all-reduce of the
                activations, after attention and after the perceptron; in the backward as many,
                where the gradients of x meet in front of A.
What it costs   four all-reduces of (samples x tokens x width) per block and step, and everyone
                waits for each. That wants the fast links within a node: keep W at most its GPUs.
What it saves   weights, gradients, optimizer state and hidden activations of the cut layers
                become 1/W. What is not cut (norms, embeddings) every rank has in full.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from small_model import BLOCKS, HEAD, STEPS, WIDTH, batch, build, leave, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("tp",))
    if (WIDTH // HEAD) % world_size:
        raise SystemExit(f"{WIDTH // HEAD} heads cannot be dealt evenly to {world_size} ranks")

    # All ranks draw the same whole model; `parallelize_module` leaves each its part.
    model = build().to(device)
    # The plan is plain data: names of modules and how each is cut. A column-parallel linear takes
    # a whole input and gives its part of the output; a row-parallel one takes that part and
    # gives the whole output, by an all-reduce.
    # Query, key and value share one input: prepared once for the three, their gradients are summed
    # before they are sent, in one all-reduce instead of three.
    whole = Replicate()
    shared = PrepareModuleInput(
        input_layouts=whole, desired_input_layouts=whole, use_local_output=False
    )
    block = {
        "attention": shared,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    # Blocks are layers 1 ... BLOCKS of the nn.Sequential. The head, the last layer, is cut by the
    # vocabulary; its logits are gathered here, since the loss wants all of them. (rankup computes
    # the loss on the cut logits instead: for a large vocabulary they are the largest tensor.)
    plan = {f"{n}.{name}": cut for n in range(1, BLOCKS + 1) for name, cut in block.items()}
    plan[f"{BLOCKS + 1}.out"] = ColwiseParallel(output_layouts=whole)
    parallelize_module(model, mesh, plan)

    # Attention needs no change: it counts heads by their size, and so finds its share of them. Code
    # that writes `view(..., number_of_heads, -1)` would cut each head in pieces instead.
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    number = sum(p.numel() for p in model.parameters())
    kept = sum(p.numel() for p in parts)
    print(f"rank {rank} keeps {kept} of {number} parameters", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        # The same batch on every rank: W ranks compute it together, each a part of each product.
        tokens, targets = (part.to(device) for part in batch(step))
        loss = loss_of(model(tokens), targets)
        loss.backward()
        # No gradient is sent: a cut weight's gradient is complete on the rank that holds it, and
        # norms and embeddings, kept whole by all, got equal gradients, since x is equal on all.
        # (So dropout must draw the same mask on all ranks where x is whole.)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 5 == 4:  # the loss is equal on all ranks
            print(f"step {step + 1} loss {loss.item():.6f}", flush=True)

    leave()


if __name__ == "__main__":
    main()
