"""The two ends of a pipeline, as a task's `loss(model, batch)` sees them.

The same function serves both: on the first stage its model notes what it is called with, on the
last one it answers with what came out of the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...base.errors import UserError

Loss = Callable[[Any, Any], torch.Tensor]


class _Called(Exception):  # noqa: N818 - no error: it leaves `loss` as soon as enough is known
    pass


class _Notes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.args: tuple[Any, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise UserError(
                f"the loss calls the model with the keywords {', '.join(kwargs)}; under pipeline "
                f"parallelism the model takes positional arguments alone: write model(x, y)"
            )
        self.args = args
        raise _Called


class _Answers(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
        self.calls = 0

    def forward(self, *args: Any) -> Any:
        self.calls += 1
        return self.output


def model_args(loss: Loss, batch: Any) -> tuple[Any, ...]:
    """What `loss` calls its model with, for this batch.

    Raises:
        UserError: it does not call the model, or with keywords.
    """
    notes = _Notes()
    try:
        loss(notes, batch)
    except _Called:
        return notes.args
    raise UserError(
        "the loss did not call the model it was given; under pipeline parallelism it must call "
        "model(...) once, with what the first stage needs"
    )


def loss_of(loss: Loss, output: Any, batch: Any) -> torch.Tensor:
    """The loss of a batch whose output the last stage has computed.

    Raises:
        UserError: it calls the model more than once, so that one output cannot answer it.
    """
    answers = _Answers(output)
    value = loss(answers, batch)
    if answers.calls != 1:
        raise UserError(
            f"the loss calls the model {answers.calls} times per batch; under pipeline "
            f"parallelism it can call it once"
        )
    return value
