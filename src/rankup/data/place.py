"""A place in a run: which epoch, and how much of it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import UserError

# What has to be equal for a place to mean the same samples, in words.
_IDENTITY = {
    "version": "version",
    "seed": "seed",
    "samples": "a number of samples of",
    "global_batch": "a global batch of",
    "order": "the order",
}


class Place:
    """Where a run is: values that mean the same at any number of ranks and workers.

    Args:
        seed, samples, global_batch, order: what the batches of an epoch follow from; `samples` are
            the positions of its order, `order` is `Ordering.identity`.
    """

    def __init__(self, seed: int, samples: int, global_batch: int, order: str) -> None:
        self._samples, self._global_batch = samples, global_batch
        self._identity: dict[str, int | str] = {
            "version": 1,
            "seed": seed,
            "samples": samples,
            "global_batch": global_batch,
            "order": order,
        }
        self.epoch = self.consumed = 0
        self.fresh = True  # nobody has gone on from here yet

    def begin(self) -> None:
        """At the start of a loop: go on from here, or with the next epoch after an earlier loop."""
        if not self.fresh:
            self.epoch, self.consumed = self.epoch + 1, 0
        self.fresh = False

    def set(self, epoch: int, consumed: int = 0) -> None:
        """The next loop begins here."""
        self.epoch, self.consumed, self.fresh = epoch, consumed, True

    def set_epoch(self, epoch: int) -> None:
        """The next loop runs this epoch; where it is that of a resume, from there."""
        self.set(epoch, self.consumed if self.fresh and epoch == self.epoch else 0)

    def state_dict(self) -> dict[str, Any]:
        """The place as integers, and the order in words."""
        return {**self._identity, "epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place of `state_dict`.

        Raises:
            UserError: it is that of other data, or of a run with another seed, global batch or
                order.
        """
        for name, what in _IDENTITY.items():
            if state.get(name) != self._identity[name]:
                raise UserError(
                    f"this place in a run is one of {what} {state.get(name)}, and here it is "
                    f"{self._identity[name]}: the batches would be others"
                )
        epoch, consumed = state.get("epoch"), state.get("consumed")
        for number, most in ((epoch, None), (consumed, self._samples)):
            if type(number) is not int or number < 0 or (most is not None and number > most):
                raise UserError(f"this is no place in a run: {dict(state)}")
        epoch, consumed = int(state["epoch"]), int(state["consumed"])
        if consumed != self._samples and consumed % self._global_batch:
            raise UserError(f"this is no place in a run, no batch ends there: {dict(state)}")
        self.set(epoch, consumed)
