"""What FSDP gathers by itself, in which type, and what is whole when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import rankup
from rankup.parallel import sharded
from rankup.parallel.build import build, split
from rankup.parallel.choices import Choices
from rankup.parallel.initial import on_meta
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.parallel.user.parallelize import parallelize
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.world import World
from tests.parallel.pretended import pretended
from tests.pool import RankPool

WORDS, DIM, LENGTH = 32, 16, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(self.norm(x)).relu()


class InOneDict(nn.Module):
    """All parts but the head stand in one ModuleDict, as in nanoGPT."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.transformer: Any = nn.ModuleDict(
            {
                "tokens": nn.Embedding(WORDS, DIM),
                "positions": nn.Embedding(LENGTH, DIM),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList([Block(), Block()]),
                "norm": nn.LayerNorm(DIM),
            }
        )
        self.head: Any = nn.Linear(DIM, WORDS, bias=False)
        if tied:
            self.get_submodule("transformer.tokens").weight = self.head.weight

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        return self.transformer.drop(
            self.transformer.tokens(tokens) + self.transformer.positions(places)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.transformer.h:
            x = block(x)
        return self.head(self.transformer.norm(x))


class Multiplies(InOneDict):
    """Logits by the weight of the embedding, which stands in no head; the norm may be left out."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def last(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.transformer.norm
        return norm(x) if norm is not None else x

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.transformer.h:
            x = block(x)
        return self.last(x) @ self.transformer.tokens.weight.T


def _transformer() -> nn.Module:
    return Transformer(Shape(WORDS, LENGTH, 2, DIM, 4, 0.0))


BLOCKS = ["transformer.h.0", "transformer.h.1"]
IN_DICT = ["transformer.positions", *BLOCKS]
GROUPS: dict[str, tuple[Any, list[str]]] = {
    "recipe": (_transformer, ["tokens", "positions", "blocks.0", "blocks.1", "head"]),
    "dict": (InOneDict, ["transformer.tokens", *IN_DICT, "head"]),
    # One parameter cannot be in two groups; without a head an embedding may be more than called.
    "tied": (lambda: InOneDict(tied=True), BLOCKS),
    "multiplies": (Multiplies, BLOCKS),
}


@pytest.mark.parametrize("name", GROUPS)
def test_parts_beside_the_blocks_are_gathered_by_themselves(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sharded, "SMALL", 1)
    build_model, groups = GROUPS[name]
    with pretended(Layout(dp_shard=2), 0) as mesh:
        built, _ = split(on_meta(build_model, 0), mesh, Choices())
    found = [name for name, m in built.model.named_modules() if isinstance(m, FSDPModule)]
    assert sorted(found) == sorted(["", *groups])


def test_what_is_small_is_left_to_the_model() -> None:
    shape = Shape(2 * sharded.SMALL // DIM, LENGTH, 2, DIM, 4, 0.0)
    with pretended(Layout(dp_shard=2), 0) as mesh:
        built, _ = split(on_meta(lambda: Transformer(shape), 0), mesh, Choices())
    found = {name for name, m in built.model.named_modules() if isinstance(m, FSDPModule)}
    assert found == {"", "tokens", "blocks.0", "blocks.1", "head"}


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(step))
    return tokens, (tokens * 3 + 1) % WORDS


def _losses(world: World, name: str, strategy: str, between: str = "") -> list[float]:
    """Losses of three steps, with a further forward between backward and step, or after it."""
    build_model, _ = GROUPS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded, "SMALL", 1)
        model, optimizer = parallelize(
            build_model, lambda m: torch.optim.SGD(m.parameters(), lr=0.5), strategy
        )
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*map(_batch, range(6)), strict=True)))
    found = []
    for tokens, targets in rankup.shard(DataLoader(data, 4)):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        if between == "backward and step":
            model(tokens)
        optimizer.step()
        optimizer.zero_grad()
        found.append(rankup.mean(loss.item(), 1))
        if between == "steps":
            with torch.no_grad():
                model(tokens)
            assert strategy == "ddp" or all(isinstance(p, DTensor) for p in model.parameters())
    return found


@pytest.mark.parametrize("name", ["dict", "tied", "multiplies"])
def test_a_model_of_any_shape_trains_as_alone(ranks: RankPool, name: str) -> None:
    [alone] = ranks.run(1, _losses, name, "ddp")
    for found in ranks.run(2, _losses, name, "fsdp"):
        assert found == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("between", ["backward and step", "steps"])
def test_a_forward_in_between_leaves_no_old_weights(ranks: RankPool, between: str) -> None:
    [alone] = ranks.run(1, _losses, "dict", "ddp")
    for found in ranks.run(2, _losses, "dict", "fsdp", between):
        assert found == pytest.approx(alone, rel=1e-5)


class Fails(torch.autograd.Function):
    """Does nothing, but for its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ArithmeticError("as a script's own code may")


def _after_a_failure(world: World, reentrant: bool) -> None:
    model, _ = parallelize(
        GROUPS["dict"][0], lambda m: torch.optim.SGD(m.parameters(), lr=0.5), "fsdp"
    )
    block: Any = model.get_submodule("transformer.h.0")
    inner = block.forward
    block.forward = lambda x: checkpoint(
        lambda y: Fails.apply(inner(y)), x, use_reentrant=reentrant
    )
    with pytest.raises(ArithmeticError):
        model(_batch(0)[0]).sum().backward()
    block.forward = inner
    with torch.no_grad():
        model(_batch(0)[0])
    with pytest.raises(RuntimeError, match="an earlier backward has failed"):
        model(_batch(0)[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_nobody_trains_on_behind_a_backward_that_failed(ranks: RankPool, reentrant: bool) -> None:
    """Parts left gathered and not exchanged would go into the next step's gradient."""
    ranks.run(2, _after_a_failure, reentrant)


def _types(world: World, layout: Layout, autocast: bool) -> tuple[str, str]:
    """Types of what a block gives, and of what the model does."""
    choices = Choices(half="bfloat16", autocast=autocast)
    built = build(InOneDict, Mesh(layout, world), 0, choices)
    inner: list[str] = []
    block: Any = built.model.get_submodule("transformer.h.1")
    block.register_forward_hook(lambda _, __, output: inner.append(str(output.dtype)))
    output = built.replica(_batch(0)[0])
    output.sum().backward()
    return inner[0], str(output.dtype)


def test_the_stream_is_in_16_bits_in_each_layout(ranks: RankPool) -> None:
    half, full = "torch.bfloat16", "torch.float32"
    assert ranks.run(2, _types, Layout(dp_shard=2), False) == [(half, half)] * 2
    assert ranks.run(2, _types, Layout(dp_shard=2), True) == [(half, full)] * 2
    assert ranks.run(2, _types, Layout(dp_replicate=2), False) == [(half, half)] * 2
    assert ranks.run(1, _types, Layout(), False) == [(half, half)]


def _statistics(world: World) -> float:
    built = build(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)),
        Mesh(Layout(dp_shard=2), world),
        0,
        Choices(half="bfloat16"),
    )
    loss = built.replica(torch.randn(4, 3, 32, 32)).square().mean()
    loss.backward()
    return loss.item()


def test_batch_norm_computes_in_bf16(ranks: RankPool) -> None:
    """Its statistics stay in float32, beside which torch takes no weights of another type."""
    assert all(loss > 0 for loss in ranks.run(2, _statistics))
