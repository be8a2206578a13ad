"""Pipeline parallelism by hand: every rank holds some of the layers.

    torchrun --nproc-per-node 2 examples/pipeline.py

With rankup it is one flag, for the same model file:

    rankup run --nproc 2 language-model --strategy pp --pp-schedule 1f1b

What is split   the list of layers into W stages, one after another, and the batch into chunks.
                While stage 1 computes chunk 1, stage 0 already computes chunk 2. With one chunk
                only one rank would work at a time: "naive" model parallelism.
What is sent    between neighbours, from one rank to the next: a chunk's activations forward, their
                gradient backward. It is the least of all strategies, so it also suits slow links.
What it costs   at the start and the end of a step ranks wait: the bubble, (W-1)/(chunks+W-1) of
                the time. More chunks, less bubble; but each chunk is a smaller matrix product.
What it saves   weights, gradients and optimizer state become 1/W where stages are equally large.
                Of activations, GPipe (all forwards, then all backwards) keeps those of all chunks;
                1F1B starts backwards as soon as it can, and keeps those of W chunks at most.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from small_model import STEPS, batch, build, leave, loss_of
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

CHUNKS = 4


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world_size - 1

    # This rank's run of the layers: an nn.Sequential is the composition of its parts, so it can be
    # cut anywhere. Equal numbers of layers are only a start: embedding and head cost other than
    # a block does, and the slowest stage sets the pace. (rankup cuts by counted cost.)
    layers = build()
    if world_size > len(layers):
        raise SystemExit(
            f"{len(layers)} layers make at most {len(layers)} stages, not {world_size}"
        )
    cut = [n * len(layers) // world_size for n in range(world_size + 1)]
    module = layers[cut[rank] : cut[rank + 1]].to(device)
    print(f"rank {rank} keeps layers {cut[rank]} to {cut[rank + 1] - 1}", flush=True)

    # The stage knows its neighbours and does the sending; shapes are found out in the first step.
    # The schedule is the order of forwards and backwards over all chunks. It cuts the batch along
    # dimension 0, calls the loss for each chunk on the last stage, and divides the gradients
    # by the number of chunks, so that they are those of the mean over the whole batch.
    # For GPipe's order replace Schedule1F1B by ScheduleGPipe: same arguments, same gradients.
    stage = PipelineStage(module, rank, world_size, device)
    schedule = Schedule1F1B(stage, n_microbatches=CHUNKS, loss_fn=loss_of)

    # Every rank has an optimizer for its own layers.
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for step in range(STEPS):
        tokens, targets = (part.to(device) for part in batch(step))
        losses: list[Tensor] = []
        # Forward and backward of all chunks. The first stage takes the input and the last one the
        # targets; those between take neither, they get activations from their neighbours.
        inputs = (tokens,) if first else ()
        answers = {"target": targets, "losses": losses} if last else {}
        schedule.step(*inputs, **answers)
        # Nothing is reduced: no other rank holds these layers. The norm of all gradients, were they
        # clipped, would need one all-reduce of the stages' sums of squares.
        optimizer.step()
        optimizer.zero_grad()
        if last and step % 5 == 4:  # the loss exists on the last stage only, so it does the talking
            print(f"step {step + 1} loss {torch.stack(losses).mean().item():.6f}", flush=True)

    leave()


if __name__ == "__main__":
    main()
