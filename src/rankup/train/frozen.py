"""The part of a model that its first epochs leave as it is."""

from __future__ import annotations

from torch import nn

from .options import TrainOptions
from .plan import Plan, Step
from .task import Freezing, Task


class Frozen:
    """What a `Freezing` task freezes; nothing of another one.

    Attributes:
        steps: at the beginning of the run, in which it is frozen.
    """

    def __init__(self, task: Task, options: TrainOptions, model: nn.Module) -> None:
        self.steps = 0
        self._parameters: list[nn.Parameter] = []
        if isinstance(task, Freezing) and task.frozen_epochs:
            self.steps = Plan.of(task, options).steps_per_epoch * task.frozen_epochs
            self._parameters = task.frozen(model)

    def leave(self, step: Step) -> None:
        """Take the gradients away that the optimizer is to pass by; they count in no norm either.

        DDP has exchanged them: what it exchanges cannot change in the middle of a run.
        """
        if step.number <= self.steps:
            for parameter in self._parameters:
                parameter.grad = None
