"""Copies of the model that take steps by themselves and meet behind every few of them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..parallel.build import Built
from ..parallel.copies import NUMBERS, Averaging, Cost, DiLoCo, Flat
from ..runtime.deadline import Deadline
from .options import TrainOptions
from .plan import Step
from .step import Numbers, StepResult

_ASK = 10  # steps of a round after which ranks ask each other


class Copies:
    """The copies of a run under `local-sgd` and `diloco`, of which this rank belongs to one.

    Args:
        n: samples of an epoch.

    Attributes:
        exchange: what brings the copies together; it has a part in checkpoints.
    """

    def __init__(self, built: Built, options: TrainOptions, n: int) -> None:
        self._mesh, self._n = built.mesh, n
        flat, group = Flat(built.model, built.copies), built.mesh.copies
        self.exchange = Averaging(flat, group)
        if options.strategy == "diloco":
            self.exchange = DiLoCo(flat, group, options.outer_lr, options.outer_momentum)
        self._every = None if options.sync_every == "epoch" else int(options.sync_every)
        self._shown = Cost()  # in lines of the metrics
        self._asked: tuple[torch.Tensor, dist.Work] | None = None

    def due(self, step: Step, steps: int, stop: Deadline) -> bool:
        """Return whether the copies meet behind this step, the last of `steps` since they did.

        In a long round the ranks tell each other every few steps whether somebody wishes to stop,
        and read it as many steps later, so that nobody waits for a copy that is not far behind.
        """
        if self._every is None and step.after.consumed >= self._n:
            return True
        if self._every is not None and step.number % self._every == 0:
            return True
        if steps % _ASK:
            return False
        wished = self._answer()
        if not wished:
            wish = torch.tensor([float(stop.wish)], device=self._mesh.world.device)
            self._asked = wish, dist.all_reduce(wish, dist.ReduceOp.MAX, async_op=True)
        return wished

    def meet(self, results: list[StepResult]) -> None:
        """Exchange, and bring the copies' numbers of the whole round together in one small sum."""
        self._answer()
        self.exchange.meet()
        results[-1].stop_clock()  # the exchange belongs to the step that it follows
        so_far = self.exchange.cost
        cost, self._shown = so_far - self._shown, so_far
        size = self._mesh.layout.dp_replicate
        rows = [result.read() for result in results]
        # Who wishes to stop goes on wishing it: once is enough.
        rows = [*(row._replace(wishes=0.0) for row in rows[:-1]), rows[-1]]
        packed = torch.tensor(
            [*cost.numbers(), *(number for row in rows for number in row)],
            dtype=torch.float64,
            device=self._mesh.world.device,
        )
        dist.all_reduce(packed, group=self._mesh.copies)
        sums = packed.cpu()
        memory = Cost(extra_memory=cost.extra_memory).record()
        for result, row in zip(results, sums[NUMBERS:].view(len(results), -1), strict=True):
            numbers = Numbers(*row.tolist())
            # The norm is the mean of those of the copies' own gradients.
            result.share(numbers._replace(norm=numbers.norm / size), memory)
        results[-1].cost = Cost(*(sums[:NUMBERS] / size).tolist()).record()

    def _answer(self) -> bool:
        """Return whether any rank wished to stop when they were asked; the same on all."""
        asked, self._asked = self._asked, None
        if asked is None:
            return False
        wish, work = asked
        work.wait()
        return bool(wish.item())
