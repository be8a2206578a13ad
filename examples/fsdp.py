"""Sharded data parallelism (FSDP2) by hand: every rank keeps a part of every parameter.

    torchrun --nproc-per-node 2 examples/fsdp.py

With rankup it is one flag, for the same model file:

    rankup run --nproc 2 language-model --strategy fsdp

What is split   the batch, as under DDP, and besides it each parameter, its gradient and its
                optimizer state: a rank keeps 1/W of the rows of each.
What is sent    before a block computes, its parameters are gathered from all ranks (all-gather),
                in the forward and again in the backward; after its backward the gradients are
                averaged and each rank keeps its part (reduce-scatter).
What it costs   three times the parameters sent per step, where DDP's all-reduce sends twice.
What it saves   16 bytes per parameter (weight 4, gradient 4, AdamW 8) become 16/W, plus one block
                at a time in full.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from small_model import SAMPLES, STEPS, Block, batch, build, leave, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    # torchrun starts W processes and tells each its number in the environment. LOCAL_RANK counts
    # on this node and picks the GPU; the rank counts over all nodes and picks the data.
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    if SAMPLES % world_size:
        raise SystemExit(f"{SAMPLES} samples cannot be dealt evenly to {world_size} ranks")

    # The model is small, so every rank builds it whole and throws away what it does not keep. One
    # that fits on no GPU is built on the device "meta", which takes no memory, and its values are
    # drawn after it was sharded.
    model = build()
    # Each block becomes a unit that is gathered, used and freed again: the smaller the units, the
    # less memory; the larger, the fewer and longer the messages. The last call makes a unit of
    # what the blocks leave over (embeddings, last norm, head).
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    # The parameters are now DTensors: `.shape` is the whole one's, `.to_local()` this rank's part.
    whole = sum(p.numel() for p in model.parameters())
    kept = sum(p.to_local().numel() for p in model.parameters())
    print(f"rank {rank} keeps {kept} of {whole} parameters", flush=True)

    # After sharding, never before: an optimizer made earlier would hold the old, whole parameters
    # and train what nobody uses. Made now, its state is sharded like them.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    mine = slice(rank * SAMPLES // world_size, (rank + 1) * SAMPLES // world_size)
    for step in range(STEPS):
        # The global batch is the same for any number of ranks, and cut by position.
        tokens, targets = (part[mine].to(device) for part in batch(step))
        # A forward is a collective here: each block waits for the others' shards. So all ranks
        # call it equally often, in evaluation as well; one that skips it leaves the rest hanging.
        loss = loss_of(model(tokens), targets)
        loss.backward()  # gathers the blocks again, in reverse; gradients leave by reduce-scatter
        # The true norm over all ranks: each adds its shards' squares, one number is all-reduced.
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).full_tensor()
        optimizer.step()  # every rank updates its own shard; nothing is sent
        optimizer.zero_grad()

        # FSDP averages gradients over ranks by itself, but a printed loss is this rank's alone.
        # The mean of means is right since all parts are equally large.
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1} loss {mean.item():.6f} norm {norm.item():.6f}", flush=True)

    leave()


if __name__ == "__main__":
    main()
