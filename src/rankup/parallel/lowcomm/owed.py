"""What compressed messages still owe, kept by parameter from one attempt of a run to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

import torch
from torch import nn

from ...runtime.compress.ddp import CompressedExchange
from ...runtime.compress.feedback import Feedback
from .flat import Flat


class Debtor(Protocol):
    """What one sender owes of each parameter, by its name."""

    def state(self) -> dict[str, torch.Tensor]:
        """What it is; nothing while nothing is owed."""

    def blank(self) -> dict[str, torch.Tensor]:
        """Zeros for all of it."""

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Owe this from now on."""


class OfFlat:
    """A `Debtor`: the feedback of messages over the trained parameters of `flat`.

    Args:
        device: where the messages are made.
    """

    def __init__(self, flat: Flat, feedback: Feedback, device: torch.device) -> None:
        self._flat, self._feedback, self._device = flat, feedback, device

    def state(self) -> dict[str, torch.Tensor]:
        residual = self._feedback.residual
        return {} if residual is None else self._flat.named(residual)

    def blank(self) -> dict[str, torch.Tensor]:
        return self._flat.named(torch.zeros(self._flat.trained, device=self._device))

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._feedback.residual = self._flat.joined(state).to(self._device)


class OfGradients:
    """A `Debtor`: DDP's compressed exchange of the gradients of `model`."""

    def __init__(self, model: nn.Module, exchange: CompressedExchange) -> None:
        self._model, self._exchange = model, exchange

    def state(self) -> dict[str, torch.Tensor]:
        return self._exchange.state()

    def blank(self) -> dict[str, torch.Tensor]:
        trained = ((n, p) for n, p in self._model.named_parameters() if p.requires_grad)
        return {name: torch.zeros_like(p, dtype=torch.float32) for name, p in trained}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._exchange.load(state)


class Owed:
    """The debts of one sender among several, in a checkpoint.

    What all senders owe together is what matters: of those that are no more another one takes it
    over.

    Args:
        measure: what it is a debt of; that of something else is not taken over.
        sender, senders: which this is, and how many there are.
    """

    def __init__(
        self,
        debtor: Debtor,
        measure: Literal["gradient", "difference"],
        sender: int,
        senders: int,
    ) -> None:
        self._debtor, self._sender, self._senders = debtor, sender, senders
        self._prefix = f"residual-{measure}."

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors to save, by name."""
        return self._named(self._sender, self._debtor.state())

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]:
        """Tensors to fill, of those that were saved."""
        senders = {int(name.split(".")[1]) for name in saved if name.startswith(self._prefix)}
        found: dict[str, torch.Tensor] = {}
        for sender in sorted(senders):
            if sender % self._senders == self._sender:
                found |= self._named(sender, self._debtor.blank())
        return {name: part for name, part in found.items() if name in saved}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Owe what was filled."""
        parts = {name: part for name, part in loaded.items() if name.startswith(self._prefix)}
        if not parts:
            return
        total = self._debtor.blank()
        for name, part in parts.items():
            total[name.split(".", 2)[2]].add_(part)
        self._debtor.load(total)

    def _named(self, sender: int, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"{self._prefix}{sender}.{name}": part for name, part in parts.items()}
