"""Steps that ranks take without meeting, and what happens when they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist

from ..parallel.build import Built
from ..parallel.lowcomm.copies import Averaging, DiLoCo
from ..parallel.lowcomm.flat import NUMBERS, Cost, Flat, Owed, ring_bytes
from .checkpoint import Carried
from .options import TrainOptions
from .plan import Step
from .step import Stepper
from .stop import Stop
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
        self._stepper, self._exchange = stepper, built.exchange
        world = built.mesh.world
        self.carried = Carried()
        if built.exchange is not None:
            owed = Owed(built.exchange, "gradient", world.rank, world.world_size)
            self.carried = Carried(exchange=owed)
        size = sum(p.numel() * p.element_size() for p in stepper.parameters)
        self._whole = Cost(bytes_sent=ring_bytes(size, world.world_size), measured=False)
        self._has_buckets = built.has_buckets

    def meets(self, step: Step) -> bool:
        """Whether a round ends with this step."""
        return True

    def take(self, steps: list[Step], stop: Stop) -> list[Taken]:
        """All steps of a round, after which all ranks hold the same model."""
        before = self._so_far()  # what a resumed run spends to settle is no step's
        taken = [self._stepper.take(step, stop) for step in steps]
        if self._exchange is not None:
            taken[-1].cost = self._so_far() - before
        elif self._has_buckets:
            taken[-1].cost = self._whole
        return taken

    def _so_far(self) -> Cost:
        """What this rank has spent on compressed gradients."""
        if self._exchange is None:
            return Cost()
        return Cost.of(self._exchange.spent, self._exchange.extra_bytes)


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
        copy, compression = built.mesh.dp_replicate, options.compression
        if options.strategy == "diloco" or compression:
            outer = (options.outer_lr, options.outer_momentum)
            # What is lost in an average cannot be sent later, so differences are compressed.
            lr, momentum = outer if options.strategy == "diloco" else (1.0, 0.0)
            self._exchange: Averaging = DiLoCo(flat, group, lr, momentum, compression, copy)
        else:
            self._exchange = Averaging(flat, group)
        self.carried = Carried(copy, self._exchange)
        self._every = None if options.sync_every == "epoch" else int(options.sync_every)
        self._told = Cost()

    def meets(self, step: Step) -> bool:
        """Whether a round ends with this step."""
        if self._every is None:
            return step.after.consumed >= self._n
        return step.number % self._every == 0

    def take(self, steps: list[Step], stop: Stop) -> list[Taken]:
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

    def _ask(self, stop: Stop) -> tuple[torch.Tensor, dist.Work]:
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
