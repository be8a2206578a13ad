"""Decentralised SGD by hand: every rank has a model of its own, and talks to its neighbours.

    torchrun --nproc-per-node 4 examples/gossip.py
    torchrun --nproc-per-node 4 examples/gossip.py --whole

There is no server and no sum over all ranks: the ranks stand in a ring, and each moves towards its
two neighbours after every step. So all models drift to their mean while they learn (Lian et al.,
2017), here with compressed messages (CHOCO-SGD, Koloskova et al., 2019).

What is sent    Each rank keeps an image of its model that its neighbours keep, too. It sends how
                far the model has gone from it, as whole numbers of 8 bits with a scale for each
                256 values: 1.02 bytes per parameter to each neighbour, not 4. What the rounding
                leaves out stays in the distance from the image, and goes with the next message:
                error feedback. `--whole` sends float32, to compare.
What it brings  as many bytes per rank however many ranks there are, on links between neighbours.
What it costs   models that differ until the end, where their mean is taken; memory for the images;
                and news needs W / 2 steps to the other side of the ring.
What it is not  fault tolerant: who waits for a rank that was killed fails, and torchrun ends all.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from small_model import batch, build, loss_of
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import rankup

RATE, MOMENTUM = 0.2, 0.9
BLOCK = 256  # values that share a scale
HELD_OUT = 10**6  # a batch that nobody trains on
EVERY = 20  # steps between two lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--whole", action="store_true", help="send float32, not int8")
    given = parser.parse_args()
    world = rankup.setup()
    size, device = world.world_size, world.device
    neighbours = sorted({(world.rank - 1) % size, (world.rank + 1) % size} - {world.rank})
    model = build().to(device)  # the same on all ranks
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    values = parameters_to_vector(model.parameters()).detach()
    images = {rank: values.clone() for rank in (world.rank, *neighbours)}
    sent = 0
    for step in range(1, given.steps + 1):
        tokens, targets = (part.to(device) for part in batch(step * size + world.rank))
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()

        values = parameters_to_vector(model.parameters()).detach()
        mine = encode(values - images[world.rank], given.whole)
        messages = exchange(mine, neighbours)
        for rank, message in {world.rank: mine, **messages}.items():
            images[rank] += decode(message, len(values), given.whole)
        sent += mine.nbytes * len(neighbours)
        # Towards the neighbours, by images that both sides know: so the mean stays where it is.
        for rank in neighbours:
            values += (images[rank] - images[world.rank]) / (1 + len(neighbours))
        vector_to_parameters(values, model.parameters())

        if step % EVERY == 0:
            mean = rankup.all_reduce(values / size)
            apart = rankup.all_reduce(float((values - mean).norm() / mean.norm()), "max")
            rankup.print0(f"step {step} loss {loss.item():.4f} apart {apart:.2e}", flush=True)

    vector_to_parameters(rankup.all_reduce(values / size), model.parameters())
    tokens, targets = (part.to(device) for part in batch(HELD_OUT))
    with torch.no_grad():
        loss = loss_of(model(tokens), targets)
    each = sent / given.steps / len(values)
    rankup.print0(f"the mean of all models: loss {loss.item():.4f}")
    rankup.print0(f"a rank sent {each:.2f} bytes per parameter and step")
    rankup.save0(model.state_dict(), "gossip.pt")


def exchange(message: Tensor, neighbours: list[int]) -> dict[int, Tensor]:
    """Give a message to each neighbour, and return theirs. Nobody else is waited for."""
    found = {rank: torch.empty_like(message) for rank in neighbours}
    calls = [dist.P2POp(dist.isend, message, rank) for rank in neighbours]
    calls += [dist.P2POp(dist.irecv, found[rank], rank) for rank in neighbours]
    for work in dist.batch_isend_irecv(calls) if calls else ():
        work.wait()
    return found


def encode(values: Tensor, whole: bool) -> Tensor:
    """The bytes of a message: a scale for each block, and values as multiples of it."""
    if whole:
        return values.view(torch.uint8)
    blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    numbers = (blocks / scales).round().to(torch.int8)
    return torch.cat([scales.view(torch.uint8).flatten(), numbers.view(torch.uint8).flatten()])


def decode(message: Tensor, size: int, whole: bool) -> Tensor:
    """The values of a message, float32 of shape (size,)."""
    if whole:
        return message.view(torch.float32)
    blocks = -(-size // BLOCK)
    scales, numbers = message[: 4 * blocks], message[4 * blocks :]
    values = numbers.view(torch.int8).view(blocks, BLOCK) * scales.view(torch.float32)[:, None]
    return values.flatten()[:size]


if __name__ == "__main__":
    main()
