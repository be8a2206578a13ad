"""In a step the host never waits for the GPU: a model and its loss copy nothing to or from it.

A tensor made of Python numbers is copied from pageable memory, for which the host waits until the
GPU has done all that was asked of it before; so it is with `.item()`, and with everything whose
size hangs on values. All of it shows without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankup.recipes.language_model import cross_entropy
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.models.transformer import Shape, Transformer

END = 3
MODELS: dict[str, Callable[[int, int | None], nn.Module]] = {
    "llama": lambda size, end: Llama(LlamaShape(2, 16, 4, 2, 24, vocab_size=size), end),
    "gpt": lambda size, end: Transformer(Shape(size, 32, 2, 16, 4, 0.1), end=end),
}
aten = torch.ops.aten
# Of `lift_fresh` comes every tensor that is made of Python numbers.
WAITS = {aten.lift_fresh, aten.lift_fresh_copy, aten._local_scalar_dense, aten.equal}
WAITS |= {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_consecutive, aten.bincount}


class HostWaitError(AssertionError):
    """Something that the host waits for."""


class NoWaits(TorchDispatchMode):
    """Refuse what a host waits for, and copies between devices."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        copied = len({x.device for x in tensors if x.ndim or x.device.type != "cpu"}) > 1
        chosen = func.overloadpacket in (aten.index, aten.index_put) and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        if func.overloadpacket in WAITS or copied or chosen:
            raise HostWaitError(f"{func} of {[(tuple(x.shape), x.device.type) for x in tensors]}")
        return result


def _batch(size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(2 * 33, device=device).remainder(size).view(2, 33)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@pytest.mark.parametrize("end", [None, END], ids=["join", "mask"])
@pytest.mark.parametrize("model", MODELS)
def test_a_step_makes_nothing_of_python_numbers(model: str, end: int | None) -> None:
    built = MODELS[model](11, end)
    tokens, targets = _batch(11, "cpu")
    with NoWaits():
        cross_entropy(built(tokens), targets).backward()
    assert all(p.grad is not None for p in built.parameters())


@pytest.mark.parametrize("size", [11, 1 << 21], ids=["small", "large"])  # the loss goes by rows
@pytest.mark.parametrize("end", [None, END], ids=["join", "mask"])
@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_copied_to_the_device(model: str, end: int | None, size: int) -> None:
    with torch.device("meta"):  # which stands for a device that is not the host
        built = MODELS[model](size, end)
    tokens, targets = _batch(size, "meta")
    with NoWaits():
        cross_entropy(built(tokens), targets).backward()
    assert all(p.grad is not None for p in built.parameters())


def test_what_the_host_waits_for_is_seen() -> None:
    numbers = torch.arange(3.0)
    waits: list[Callable[[], Any]] = [
        lambda: torch.tensor([1.0, 2.0]),
        lambda: numbers.sum().item(),
        lambda: numbers.nonzero(),
        lambda: numbers[numbers > 1],
        lambda: numbers.to("meta"),
    ]
    for wait in waits:
        with pytest.raises(HostWaitError), NoWaits():
            wait()
