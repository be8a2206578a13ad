"""What `selective` activation checkpointing computes again in the backward, and what it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_reduce, reduce_scatter_tensor_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from rankup.parallel.build import recompute
from rankup.parallel.layout import Layout
from tests.parallel.pretended import pretended

# Its new name is not in every torch that is supported.
pytestmark = pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor_autograd:FutureWarning")
ATEN: Any = torch.ops.aten
HEADS = (2, 4, 8, 16)  # batch, heads, length, size of a head


class Counted(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """Something that is dear, between two things that are cheap."""

    def __init__(self, dear: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.dear = dear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.dear(torch.sin(x)))


def _again(dear: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Counter[str]:
    """What is called more often than by a block that keeps everything."""
    found = []
    for how in ("none", "selective"):
        block = Block(dear)
        recompute([block], how)
        with Counted() as counted:
            block(x).sum().backward()
        found.append(counted.calls)
    again = found[1] - found[0]
    assert again["sin"] >= 1
    return again


def _flash(x: torch.Tensor) -> torch.Tensor:
    return ATEN._scaled_dot_product_flash_attention(x, x, x)[0]


def _efficient(x: torch.Tensor) -> torch.Tensor:
    return ATEN._scaled_dot_product_efficient_attention(x, x, x, None, True)[0]


def _cudnn(x: torch.Tensor) -> torch.Tensor:
    return ATEN._scaled_dot_product_cudnn_attention(x, x, x, None, True)[0]


@pytest.mark.parametrize("kernel", [_flash, _efficient, _cudnn], ids=lambda kernel: kernel.__name__)
def test_attention_of_a_gpu_is_kept(kernel: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Shapes alone: the kernels themselves need a GPU."""
    x = torch.empty(HEADS, device="meta", dtype=torch.bfloat16, requires_grad=True)
    assert not [name for name in _again(kernel, x) if "attention" in name]


def test_attention_on_a_cpu_is_kept() -> None:
    x = torch.rand(HEADS, requires_grad=True)
    again = _again(lambda x: F.scaled_dot_product_attention(x, x, x), x)
    assert not [name for name in again if "attention" in name]


def test_sums_over_ranks_are_kept() -> None:
    x = torch.rand(4, 4, requires_grad=True)
    with pretended(Layout(tp=2), 0) as mesh:
        group = mesh.group("tp")

        def added_up(x: torch.Tensor) -> torch.Tensor:
            return reduce_scatter_tensor_autograd(all_reduce(x, "sum", group), "sum", 0, group)

        again = _again(added_up, x)
        assert (again["all_reduce"], again["reduce_scatter_tensor"]) == (0, 0)
