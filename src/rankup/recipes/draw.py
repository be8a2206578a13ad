"""A recipe's model with the weights of a checkpoint, and tokens drawn from its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..base.errors import UserError
from .asked import Asked

_TEMPERATURE = 0.8
_TOP_K = 50


def restored(build_model: Callable[[], nn.Module], tensors: Mapping[str, Any]) -> nn.Module:
    """The model with these weights, in evaluation, on the GPU where there is one.

    Raises:
        UserError: they are of another model.
    """
    with torch.device("meta"):
        model = build_model()
    try:
        model.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise UserError(f"the checkpoint is of another model than the run: {error}") from None
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


class Draw:
    """Takes logits of shape (vocabulary,), gives the number of a token.

    The same seed draws the same tokens from the same logits.

    Args:
        forbidden: tokens that are never drawn.
    """

    def __init__(self, asked: Asked, forbidden: Sequence[int] = ()) -> None:
        self._temperature = _TEMPERATURE if asked.temperature is None else asked.temperature
        self._top_k = _TOP_K if asked.top_k is None else asked.top_k
        self._forbidden = list(forbidden)
        self._generator = torch.Generator().manual_seed(asked.seed or 0)

    def __call__(self, logits: torch.Tensor) -> int:
        logits = logits.double().cpu().clone()
        logits[self._forbidden] = -torch.inf
        if self._temperature == 0:
            return int(logits.argmax())
        top = logits.topk(min(self._top_k, len(logits)))
        # What lies far below the best has no weight, however low the temperature is.
        weights = ((top.values - top.values[0]) / self._temperature).exp()
        drawn = torch.multinomial(weights, 1, generator=self._generator)
        return int(top.indices[drawn])
