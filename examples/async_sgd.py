"""Asynchronous SGD by hand: a parameter server, and workers that wait for nobody.

    torchrun --nproc-per-node 4 examples/async_sgd.py
    torchrun --nproc-per-node 4 examples/async_sgd.py --slow 0.3 --staleness 16

Rank 0 has the parameters that count; the other ranks are workers (Dean et al., 2012).

What is sent    A worker takes a step of its own optimizer, and sends what that changed: the update,
                after learning rate and momentum, so that the server has nothing to do but add. It
                gets the newest parameters back, and the number of a batch that nobody has had.
                4 bytes per parameter each way, for every batch.
What is late    While a worker computes, others' updates are added: its own was computed at
                parameters that are no more. `--staleness` bounds by how many (Ho et al., 2013): an
                update waits, and with it its worker, where another one would come too late.
What it brings  a slow worker holds up nobody within the bound, and computes fewer batches.
                `--slow` makes the last one slow.
What it costs   accuracy, the more the later updates come; and rank 0's link carries everything.
                The momenta of many workers add up, so each has less than one alone would.
What it is not  fault tolerant: a worker that was killed ends the run.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import count

import torch
import torch.distributed as dist
from small_model import batch, build, loss_of
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import rankup

RATE, MOMENTUM = 0.2, 0.5
HELD_OUT = 10**6  # a batch that nobody trains on
EVERY = 30  # updates between two lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--updates", type=int, default=180, help="of all workers")
    parser.add_argument("--staleness", type=int, default=6, help="updates that one may be late")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that the last one loses")
    given = parser.parse_args()
    world = rankup.setup()
    workers = world.world_size - 1
    if not 1 <= workers <= given.updates:
        raise SystemExit("give a server and a worker, two ranks, and an update for each worker")
    if given.staleness < workers - 1:
        raise SystemExit(f"{workers} workers at once: --staleness {workers - 1} at the least")
    # Parameters travel from host memory: a server answers whoever comes, which only gloo can.
    group = dist.new_group(backend="gloo")
    model = build().to(world.device)  # the same on all ranks
    if world.rank == 0:
        serve(model, given.updates, given.staleness, workers, group)
        rankup.save0(model.state_dict(), "async-sgd.pt")
    else:
        work(model, given.slow if world.rank == workers else 0.0, workers, group)


def serve(
    model: nn.Module, updates: int, staleness: int, workers: int, group: dist.ProcessGroup | None
) -> None:
    """Add updates as they come, and hand out the newest parameters."""
    newest = parameters_to_vector(model.parameters()).detach().cpu()
    message = torch.empty_like(newest)
    seen = dict.fromkeys(range(1, workers + 1), 0)  # the version that each computes with
    came: dict[int, Tensor] = {}  # updates that are not added yet
    late: Counter[int] = Counter()
    numbers = count(workers)  # of batches; the first ones are known to the workers
    version, held, began = 0, 0, time.perf_counter()

    def may_add(worker: int) -> bool:
        """Whether all others can still come in time, one after the other."""
        last = sorted(theirs + staleness for other, theirs in seen.items() if other != worker)
        return all(version + 1 + place <= latest for place, latest in enumerate(last))

    while seen:
        worker = dist.recv(message, group=group)  # whoever is first
        came[worker] = message.clone()
        held += not may_add(worker)
        while ready := sorted(filter(may_add, came), key=lambda worker: seen[worker]):
            worker = ready[0]
            newest += came.pop(worker)
            late[version - seen[worker]] += 1
            version += 1
            number = next(numbers)
            more = number < updates
            dist.send(torch.tensor(number if more else -1), worker, group=group)
            if more:
                dist.send(newest, worker, group=group)
                seen[worker] = version
            else:
                del seen[worker]
            if version % EVERY == 0:
                print(f"update {version} loss {held_out(model, newest):.3f}", flush=True)
    seconds, loss = time.perf_counter() - began, held_out(model, newest)
    print(f"{version} updates in {seconds:.1f} s, {held} of them held back; loss {loss:.3f}")
    print("late by " + ", ".join(f"{n}: {late[n] / version:.0%}" for n in sorted(late)))


def held_out(model: nn.Module, parameters: Tensor) -> float:
    """The loss of these parameters on data that nobody trains on."""
    device = next(model.parameters()).device
    vector_to_parameters(parameters.to(device), model.parameters())
    tokens, targets = (part.to(device) for part in batch(HELD_OUT))
    with torch.no_grad():
        return float(loss_of(model(tokens), targets))


def work(model: nn.Module, slow: float, workers: int, group: dist.ProcessGroup | None) -> None:
    """Compute, bring, fetch."""
    optimizer = torch.optim.SGD(model.parameters(), RATE / workers, momentum=MOMENTUM)
    device = next(model.parameters()).device
    before = parameters_to_vector(model.parameters()).detach()
    newest = torch.empty(len(before))
    number = torch.tensor(dist.get_rank() - 1)
    while number >= 0:
        tokens, targets = (part.to(device) for part in batch(int(number)))
        time.sleep(slow)
        optimizer.zero_grad()
        loss_of(model(tokens), targets).backward()
        optimizer.step()  # learning rate and momentum are this worker's
        update = parameters_to_vector(model.parameters()).detach() - before
        dist.send(update.cpu(), 0, group=group)
        dist.recv(number, 0, group=group)
        if number >= 0:
            dist.recv(newest, 0, group=group)
            before = newest.to(device, copy=True)
            vector_to_parameters(before.clone(), model.parameters())


if __name__ == "__main__":
    main()
