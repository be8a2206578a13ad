"""A user's model with its shapes alone, also where its constructor cannot do without values."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...runtime.keys import derive


class Factory:
    """`build_model`, with an answer on the meta device whatever it does.

    Called under `torch.device("meta")` it gives a model without values; otherwise the model.

    A constructor that reads values (`.item()`, weights from a file), or that keeps tensors which
    are neither parameters nor buffers, does not work on meta. Then every rank builds the model
    once in its host memory, and keeps the shapes; rank 0 keeps the values until they are dealt.

    Args:
        keeps: whether this rank will be asked for the values.
    """

    def __init__(self, build_model: Callable[[], nn.Module], seed: int, keeps: bool) -> None:
        self._build, self._seed, self._keeps = build_model, seed, keeps
        self._real: nn.Module | None = None

    def __call__(self) -> nn.Module:
        if torch.empty(0).device.type != "meta":
            model, self._real = self._real or self._build(), None
            return model
        with _unspent():
            found = self._on_meta()
        if found is not None:
            return shapes(found)
        torch.manual_seed(derive(self._seed, "construction"))
        # The values are handed out from host memory, wherever the constructor puts them.
        with torch.device("cpu"):
            real = self._build().to("cpu")
        if self._keeps:
            self._real = real
        return shapes(real)

    def _on_meta(self) -> nn.Module | None:
        try:
            model = self._build()
        except Exception:  # it is built for real next; what is wrong with it comes up there
            return None
        return None if _keeps_tensors(model) else model


def shapes(model: nn.Module) -> nn.Module:
    """A copy of the model whose parameters and buffers are on meta; what is tied stays tied."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(
            torch.empty_like(parameter, device="meta"), parameter.requires_grad
        )
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _keeps_tensors(model: nn.Module) -> bool:
    """Whether a module has tensors on meta that nobody would ever give values."""
    return any(
        tensor.is_meta
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules")
        for tensor in _tensors(value)
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


@contextlib.contextmanager
def _unspent() -> Iterator[None]:
    """Python's and numpy's random states stay as they are: the values are drawn later."""
    numpy = sys.modules.get("numpy")
    state, numpys = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpys)
