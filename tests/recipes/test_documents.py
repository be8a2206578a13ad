"""Attention within documents: their boundaries in place of a mask, where a GPU's kernel takes them.

The kernel itself needs a GPU; what goes into it, and what it takes, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankup.parallel.build import recompute
from rankup.parallel.context import WholeSequence, packs
from rankup.recipes.language_model import boundaries
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.models.transformer import Shape, Transformer, document_mask

END = 3
SHAPE = LlamaShape(2, 64, 4, 2, 128, vocab_size=64, longest=1 << 17)
LENGTHS = [1 << 13, 1 << 15, 1 << 17]
needs_packing = pytest.mark.skipif(
    not hasattr(torch.ops.torch_attn, "_varlen_attn"), reason="torch has no varlen attention"
)


class Sizes(TorchDispatchMode):
    """Notes how many numbers the largest tensor has, and which operators ran."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.operators: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        self.operators.append(str(func.overloadpacket))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def _tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(1))


def test_boundaries_and_mask_are_of_the_same_documents() -> None:
    tokens = _tokens(3, 50)
    tokens[1, -1] = tokens[2, 0] = tokens[2, 1] = END
    bounds = boundaries(tokens, END)
    assert bounds.dtype == torch.int32
    assert bounds.tolist()[0] == 0
    assert bounds.tolist()[-1] == tokens.numel()
    places = torch.arange(tokens.numel())
    document = torch.searchsorted(bounds[1:].long(), places, right=True).view(3, 50)
    same = (document[:, :, None] == document[:, None, :]).tril()
    assert torch.equal(document_mask(tokens, END, WholeSequence()), same.unsqueeze(1))
    assert boundaries(torch.ones(2, 5), END).tolist() == [0, 5, 10]


@needs_packing
def test_a_model_on_a_gpu_takes_memory_that_grows_with_the_length_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traced on a GPU that is not there: no tensor of it has the square of the length."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    largest = []
    for length in LENGTHS:
        # Without gradients: where torch has no CUDA, its autograd has none either.
        with torch.device("meta"):
            model = Llama(SHAPE, END)
        with FakeTensorMode(), torch.no_grad():
            held = {
                name: torch.empty(tensor.shape, dtype=torch.bfloat16, device="cuda")
                for name, tensor in (*model.named_parameters(), *model.named_buffers())
            }
            tokens = torch.empty(1, length, dtype=torch.int64, device="cuda")
            bounds = torch.empty(30, dtype=torch.int32, device="cuda")
            with Sizes() as sizes:
                functional_call(model, held, (tokens, bounds))
        assert sizes.operators.count("torch_attn._varlen_attn") == SHAPE.layers
        largest.append(sizes.largest / length)
    assert largest[0] == largest[1] == largest[2] == max(SHAPE.vocab_size, SHAPE.ffn)


def _parts(length: int, rows: int = 1) -> list[torch.Tensor]:
    """Queries of four heads, keys and values of two, with shapes alone."""
    options: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    return [torch.empty(rows, heads, length, 16, **options) for heads in (4, 2, 2)]


@needs_packing
def test_a_backward_keeps_what_grows_with_the_length_alone() -> None:
    largest = []
    for length in LENGTHS:
        q, k, v = _parts(length)
        bounds = torch.empty(30, dtype=torch.int32, device="meta")
        kept: list[int] = []

        def keep(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with Sizes() as sizes, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            WholeSequence().attend(q, k, v, bounds).sum().backward()
        assert "torch_attn._varlen_attn_backward" in sizes.operators
        assert k.grad is not None
        assert k.grad.shape == k.shape
        largest.append((sizes.largest / length, max(kept) / length))
    assert largest[0] == largest[1] == largest[2] == (64, 64)


@needs_packing
def test_a_block_that_is_computed_again_keeps_what_attention_gave() -> None:
    class Attend(nn.Module):
        def forward(self, *parts: torch.Tensor) -> torch.Tensor:
            return WholeSequence().attend(*parts)

    unit = Attend()
    recompute([unit], "selective")
    with Sizes() as sizes:
        unit(*_parts(64), torch.empty(30, dtype=torch.int32, device="meta")).sum().backward()
    assert sizes.operators.count("torch_attn._varlen_attn") == 1
    assert sizes.operators.count("torch_attn._varlen_attn_backward") == 1


@needs_packing
def test_any_number_of_documents_is_one_graph() -> None:
    torch._dynamo.reset()
    counters.clear()
    attend = torch.compile(WholeSequence().attend, backend="aot_eager", fullgraph=True)
    for documents in (17, 9, 300, 1, 2):
        q, k, v = _parts(64, rows=2)
        bounds = torch.empty(documents + 1, dtype=torch.int32, device="meta")
        torch._dynamo.maybe_mark_dynamic(bounds, 0)
        attend(q, k, v, bounds).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make",
    [
        lambda: Llama(SHAPE, END),
        lambda: Transformer(Shape(64, 2048, 2, 64, 4, 0.0), end=END),
    ],
    ids=["llama", "gpt"],
)
def test_logits_and_gradients_are_those_of_the_mask(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().to("cuda", torch.bfloat16)
    if not packs(torch.empty(0, dtype=torch.bfloat16, device="cuda"), 16):
        pytest.skip("this GPU, or this torch, has no attention by boundaries")
    tokens = _tokens(3, 2048)
    bounds, tokens = boundaries(tokens, END).cuda(), tokens.cuda()
    found = []
    for given in ((), (bounds,)):
        model.zero_grad()
        with Sizes() as sizes:
            logits = model(tokens, *given).float()
        assert sizes.operators.count("torch_attn._varlen_attn") == 2 * len(given)
        logits.logsumexp(-1).sum().backward()
        found.append([logits, *(p.grad.float() for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()
