"""What a checkpoint holds beside the model, where copies of it train apart."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

import torch

_OPTIMIZER, _EXCHANGE = "optimizer.state.", "exchange."


class Exchange(Protocol):
    """How copies of a model meet; what of it a resumed run needs."""

    def state(self) -> dict[str, torch.Tensor]: ...

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]: ...

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None: ...


class Carried:
    """Names under which a rank keeps what its copy of the model alone has.

    The first copy's optimizer has the name that the optimizer of any other layout has, so that a
    run may go on under another strategy.

    Args:
        copy: which of the copies this rank belongs to, from 0.
    """

    def __init__(self, copy: int = 0, exchange: Exchange | None = None) -> None:
        self._copy, self._exchange = copy, exchange

    @property
    def optimizer(self) -> str:
        """What the names of this copy's optimizer state begin with."""
        return _prefix(self._copy)

    def optimizer_among(self, names: Collection[str]) -> str:
        """The same in a checkpoint of these names. Copies that have no state there, as they are new
        or had no work, take that of another."""
        found = (re.match(r"copy\.(\d{1,9})\.", name) for name in names)
        copies = {int(match[1]) for match in found if match}
        if not copies or any(name.startswith(_OPTIMIZER) for name in names):
            copies.add(0)
        there = sorted(copies)
        return _prefix(self._copy if self._copy in there else there[self._copy % len(there)])

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors of the exchange, to be saved."""
        state = {} if self._exchange is None else self._exchange.state()
        return {_EXCHANGE + name: value for name, value in state.items()}

    def wanted(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Tensors to be filled from a checkpoint of these names."""
        if self._exchange is None:
            return {}
        saved = [n.removeprefix(_EXCHANGE) for n in names if n.startswith(_EXCHANGE)]
        wanted = self._exchange.wanted(saved)
        return {_EXCHANGE + name: value for name, value in wanted.items()}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Go on from what was filled."""
        if self._exchange is not None:
            self._exchange.resume({n.removeprefix(_EXCHANGE): t for n, t in loaded.items()})


def _prefix(copy: int) -> str:
    return f"copy.{copy}.{_OPTIMIZER}" if copy else _OPTIMIZER
