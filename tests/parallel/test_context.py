"""Ranks that share a sequence compute what one process does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partialmethod

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from rankup.base.errors import UserError
from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.context import attend_at_the_end
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.state import local
from rankup.runtime.world import World
from tests.pool import RankPool

LENGTH, END = 24, 3
LLAMA = LlamaShape(2, 16, 4, 2, 24, vocab_size=11)  # two heads of queries share one of keys
GPT = Shape(11, LENGTH, 2, 16, 4, 0.0)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "shared heads": lambda: Llama(LLAMA),
    "shared heads, documents": lambda: Llama(LLAMA, END),
    "learned positions": lambda: Transformer(GPT),
    "learned positions, documents": lambda: Transformer(GPT, end=END),
}
TOKENS = torch.randint(11, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def _logits(world: World, layout: Layout) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The places of this rank's tokens and their logits, of each model."""
    mesh = Mesh(layout, world)
    found = {}
    for name, make in MODELS.items():
        model = build(make, mesh, 0, Choices()).model
        with torch.no_grad():
            logits = model(mesh.sequence.mine(TOKENS))
        found[name] = (mesh.sequence.positions(logits.shape[1], logits.device), logits)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_logits_are_those_of_one_process(ranks: RankPool, size: int) -> None:
    [whole] = ranks.run(1, _logits, Layout())
    parts = ranks.run(size, _logits, Layout(cp=size))
    for name, (_, expected) in whole.items():
        places = torch.cat([part[name][0] for part in parts])
        assert sorted(places.tolist()) == list(range(LENGTH)), name
        logits = torch.cat([part[name][1] for part in parts], dim=1)
        torch.testing.assert_close(logits, expected[:, places], rtol=1e-5, atol=1e-5, msg=name)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [local(p.grad) for p in model.parameters() if p.grad is not None]


def _compiled(world: World) -> dict[str, tuple[list[int], int, list[str], bool]]:
    """Of each model: graphs after a step, an evaluation and a further step; breaks; warnings of
    torch; and whether outputs and gradients are those without the compiler."""
    layout, found = Layout(cp=2), {}
    mesh = Mesh(layout, world)
    tokens = mesh.sequence.mine(TOKENS)
    for name, make in MODELS.items():
        plain = build(make, mesh, 0, Choices()).model
        torch._dynamo.reset()
        counters.clear()
        graphs = []
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            patch.setattr(
                nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager")
            )
            model = build(make, mesh, 0, Choices(compiled="default")).model
            for training in (True, False, True):
                model.train(training)
                model.zero_grad()
                with torch.set_grad_enabled(training):
                    logits = model(tokens)
                if training:
                    logits.square().sum().backward()
                graphs.append(counters["stats"]["unique_graphs"])
        plain(tokens).square().sum().backward()
        grads = zip(_gradients(plain), _gradients(model), strict=True)
        same = all(torch.allclose(one, other, atol=1e-5) for one, other in grads)
        theirs = [str(w.message) for w in said if issubclass(w.category, FutureWarning)]
        found[name] = (graphs, sum(counters["graph_break"].values()), theirs, same)
    torch._dynamo.reset()
    return found


def test_what_shares_sequences_is_one_graph(ranks: RankPool) -> None:
    for found in ranks.run(2, _compiled, timeout=200):
        for name, (graphs, breaks, said, same) in found.items():
            assert graphs == [1, 2, 2], name  # with gradients, and without them
            assert (breaks, said, same) == (0, [], True), name


def _cut(world: World) -> str:
    with pytest.raises(UserError) as error:
        Mesh(Layout(cp=2), world).sequence.mine(torch.zeros(1, 6))
    return str(error.value)


def test_a_length_that_does_not_come_out_is_refused(ranks: RankPool) -> None:
    assert "4 equal chunks, and this one has 6 tokens" in ranks.run(2, _cut)[0]


@pytest.mark.parametrize(
    ("device", "kind", "within"),
    [
        ("cpu", torch.float32, 1e-5),
        pytest.param("cuda", torch.float32, 1e-4, marks=pytest.mark.gpu),
        pytest.param("cuda", torch.bfloat16, 2e-2, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("heads", [4, 2])
def test_queries_at_the_end_see_all_that_is_before(
    device: str, kind: torch.dtype, within: float, heads: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 64, 16), (2, heads, 192, 16), (2, heads, 192, 16))
    parts = [torch.randn(shape, generator=draw).to(device, kind) for shape in shapes]
    found = []
    for exact in (False, True):
        q, k, v = (
            x.double().requires_grad_() if exact else x.clone().requires_grad_() for x in parts
        )
        if exact:
            keys, values = (x.repeat_interleave(4 // heads, 1) for x in (k, v))
            mask = torch.ones(64, 192, dtype=torch.bool, device=device).tril(128)
            scores = (q @ keys.mT / 4).masked_fill(~mask, -torch.inf)
            y = scores.softmax(-1) @ values
        else:
            y = attend_at_the_end(q, k, v)
        y.square().sum().backward()
        found.append([y, *(x.grad for x in (q, k, v) if x.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= within * theirs.norm()
