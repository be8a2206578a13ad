"""Steps that ranks take without meeting, and what happens when they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist

from ..parallel.build import Built
from ..parallel.copies import NUMBERS, Averaging, Cost, DiLoCo, Flat, ring_bytes
from ..runtime.deadline import Deadline
from .checkpoint import Carried
from .options import TrainOptions
from .plan import Step
from .step import Stepper
from .taken import Late, Taken

_ASK = 10  # steps of a round after which ranks ask each other


def rounds(steps: Iterable[Step], meets: Callable[[Step], bool]) -> Iterator[list[Step]]:
    """Cut a run's steps behind each at which all ranks meet."""
    held: list[Step] = []
    for step in steps:
        held.append(step)
        if meets(step):
            yield held
            held = []
    if held:
        yield held


class Together:
    """All ranks take each step together.

    Attributes:
        carried: what a checkpoint holds beside the model.
        at_once: a round's numbers are here when it ends; else they are read a step late.
    """

    at_once = False

    def __init__(self, stepper: Stepper, built: Built) -> None:
        self._stepper, self.carried = stepper, Carried()
        self._cost: Cost | None = None
        kind = stepper.options.compression.kind
        if built.has_buckets and kind != "powersgd":  # of which nobody counts the bytes
            each = 2 if kind == "bf16" else 4
            size = each * sum(p.numel() for p in stepper.parameters)
            sent = ring_bytes(size, built.mesh.world.world_size)
            self._cost = Cost(bytes_sent=sent, measured=False)

    def meets(self, step: Step) -> bool:
        """Whether a round ends with this step."""
        return True

    def take(self, steps: list[Step], stop: Deadline) -> list[Taken]:
        """All steps of a round, after which all ranks hold the same model."""
        taken = [self._stepper.take(step, stop) for step in steps]
        taken[-1].cost = self._cost
        return taken


class Apart:
    """Copies of the model take their steps by themselves, and meet every few of them.

    In a long round the ranks tell each other every few steps whether somebody wishes to stop, and
    read it as many steps later, so that nobody waits for a copy that is not far behind. Attributes
    as of `Together`.
    """

    at_once = True

    def __init__(self, stepper: Stepper, built: Built, options: TrainOptions, n: int) -> None:
        self._stepper, self._mesh, self._n = stepper, built.mesh, n
        flat = Flat(built.model, built.copies)
        group = built.mesh.copies
        self._exchange = Averaging(flat, group)
        if options.strategy == "diloco":
            self._exchange = DiLoCo(flat, group, options.outer_lr, options.outer_momentum)
        self.carried = Carried(built.mesh.dp_replicate, self._exchange)
        self._every = None if options.sync_every == "epoch" else int(options.sync_every)
        self._told = Cost()

    def meets(self, step: Step) -> bool:
        """Whether a round ends with this step."""
        if self._every is None:
            return step.after.consumed >= self._n
        return step.number % self._every == 0

    def take(self, steps: list[Step], stop: Deadline) -> list[Taken]:
        """All steps of a round, or the first of them where somebody wished to stop."""
        taken: list[Taken] = []
        asked: tuple[torch.Tensor, dist.Work] | None = None
        for step in steps:
            taken.append(self._stepper.take(step, stop))
            if len(taken) % _ASK == 0 and len(taken) < len(steps):
                stop.tick()
                wished = asked is not None and _answer(asked)
                asked = None if wished else self._ask(stop)
                if wished:
                    break
        if asked is not None:
            _answer(asked)
        self._exchange.meet()
        taken[-1].clock.stop()  # the exchange belongs to the step that it follows
        self._share_numbers(taken)
        return taken

    def _ask(self, stop: Deadline) -> tuple[torch.Tensor, dist.Work]:
        wish = torch.tensor([float(stop.wish)], device=self._mesh.world.device)
        return wish, dist.all_reduce(wish, dist.ReduceOp.MAX, async_op=True)

    def _share_numbers(self, taken: list[Taken]) -> None:
        """Bring the copies' numbers of the whole round together, in one small sum."""
        so_far = self._exchange.cost
        cost, self._told = so_far - self._told, so_far
        size = self._mesh.layout.dp_replicate
        rows = [one.late.read() for one in taken]
        for row in rows[:-1]:
            row[2] = 0.0  # who wishes to stop goes on wishing it: once is enough
        packed = torch.tensor(
            [*cost.numbers(), *(number for row in rows for number in row)],
            dtype=torch.float64,
            device=self._mesh.world.device,
        )
        dist.all_reduce(packed, group=self._mesh.copies)
        found = packed.cpu()
        for one, row in zip(taken, found[NUMBERS:].view(len(taken), -1), strict=True):
            row[-1] /= size  # norms of the copies' own gradients
            one.late, one.cost = Late(row), Cost(extra_memory=cost.extra_memory)
        taken[-1].cost = Cost(*(found[:NUMBERS] / size).tolist())


def _answer(asked: tuple[torch.Tensor, dist.Work]) -> bool:
    """Whether any rank wished to stop when they were asked; the same on all."""
    wish, work = asked
    work.wait()
    return bool(wish.item())


def taker(stepper: Stepper, built: Built, options: TrainOptions, n: int) -> Together | Apart:
    """How the run's steps are taken; an epoch has `n` samples."""
    if built.mesh.apart:
        return Apart(stepper, built, options, n)
    return Together(stepper, built)
