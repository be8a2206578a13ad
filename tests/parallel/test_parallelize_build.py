"""How `parallelize` comes by a model's values, and what it refuses."""

from __future__ import annotations

import warnings
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from rankup.base.errors import UserError
from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.parallel.user.forward import map_tensors
from rankup.parallel.user.parallelize import Parallel, parallelize
from rankup.runtime.save import full_state
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import forget, sgd, stack


class Reads(nn.Module):
    """Its constructor reads values, keeps a tensor of its own and ties weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 6)
        self.down = nn.Linear(6, 6)
        self.down.weight = self.up.weight
        self.largest = self.up.weight.abs().max().item()
        self.kept = torch.full((), 2.0)
        self.register_buffer("seen", torch.full((2,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x)) * self.kept + self.seen.sum()


class Keeps(nn.Module):
    """Runs on meta, but keeps a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 6)
        self.kept = [torch.full((), 2.0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) * self.kept[0]


def _reads(world: World, kind: Any) -> dict[str, torch.Tensor]:
    forget()
    torch.manual_seed(world.rank)  # rank 0's draw counts, whatever the others would draw
    model, optimizer = parallelize(kind, sgd, "fsdp" if world.world_size > 1 else "ddp")
    for _ in range(2):
        model(torch.ones(2, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return full_state(model)


@pytest.mark.parametrize("kind", [Reads, Keeps])
def test_a_constructor_that_needs_values(ranks: RankPool, kind: Any) -> None:
    [wanted] = ranks.run(1, _reads, kind)
    found, _ = ranks.run(2, _reads, kind)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def _half(world: World, asked: dict[str, Any]) -> None:
    forget()
    model, optimizer = parallelize(stack, sgd, precision="bf16", **asked)
    inside: list[torch.dtype] = []
    last = list(model.children())[-1] if not asked.get("dp") else list(model.module.children())[-1]
    last.register_forward_hook(lambda *values: inside.append(values[-1].dtype))
    out = model(torch.ones(2, 6))
    assert inside == [torch.bfloat16]
    assert out.dtype == torch.float32
    out.square().mean().backward()
    optimizer.step()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize(
    "asked", [{"shard": 2}, pytest.param({"tp": 2}, marks=pytest.mark.slow)], ids=str
)
def test_half_precision_inside_and_single_outside(ranks: RankPool, asked: dict[str, Any]) -> None:
    ranks.run(2, _half, asked)


class Mixed(nn.Module):
    """A buffer, an input and a tensor of its own of float32 meet its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((6,), 1.5))
        self.norms = nn.ModuleList([nn.LayerNorm(6), nn.GroupNorm(2, 6)])
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 3)
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen.append(float(y.detach()))
        x = self.up(x * self.scale)
        for norm in self.norms:
            x = norm(x + torch.linspace(0, 1, 6, device=x.device))
        return self.down(x) + y


def _mixed(world: World, asked: dict[str, Any]) -> None:
    forget()
    model, optimizer = parallelize(Mixed, sgd, precision="bf16", **asked)
    y = torch.tensor(1000.7)
    output = model(torch.ones(2, 6), y)
    assert model.seen == [float(y)]  # in bfloat16 it were 1000
    assert output.dtype == torch.float32
    output.square().mean().backward()
    optimizer.step()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (1, {}),
        (2, {"strategy": "ddp"}),
        (2, {"strategy": "fsdp"}),
        (2, {"strategy": "fsdp", "activation_checkpointing": "full"}),
    ],
    ids=["one", "ddp", "fsdp", "recomputed"],
)
def test_float32_beside_half_precision_as_under_autocast(
    ranks: RankPool, size: int, asked: dict[str, Any]
) -> None:
    ranks.run(size, _mixed, asked)


class Blockless(nn.Module):
    def __init__(self, tower: nn.Module | None = None) -> None:
        super().__init__()
        self.up = nn.Linear(6, 6) if tower is None else tower

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.up(x)
        return y


def one_block() -> nn.Module:
    return Blockless(nn.Sequential(nn.Linear(6, 6)))


def _recomputes_nothing(world: World, build_model: Any, how: Any) -> tuple[list[str], list[str]]:
    """What `parallelize` warns of, with DDP and by FSDP, and what `build` refuses."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for precision in ("fp32", "bf16"):
            forget()
            parallelize(build_model, sgd, "ddp", precision=precision, activation_checkpointing=how)
    said = []
    try:
        build(
            build_model,
            Mesh(Layout(dp_replicate=world.world_size), world),
            0,
            Choices(recompute=how),
        )
    except UserError as error:
        said.append(str(error))
    return [str(w.message) for w in caught if "has no effect" in str(w.message)], said


@pytest.mark.parametrize(
    ("build_model", "how", "why"),
    [
        (Blockless, "full", "Blockless has no blocks"),
        (one_block, "selective:2", "Blockless has one block"),
        (one_block, "full", ""),
    ],
    ids=["no blocks", "every second of one", "one"],
)
def test_blocks_that_are_not_there_are_not_recomputed(
    ranks: RankPool, build_model: Any, how: str, why: str
) -> None:
    (warned, refused), (quiet, everywhere) = ranks.run(2, _recomputes_nothing, build_model, how)
    times = 1 if why else 0
    assert len(warned) == 2 * times
    assert quiet == []
    assert all(f"activation_checkpointing={how!r} has no effect" in text for text in warned)
    assert refused == everywhere
    assert len(refused) == times
    assert all(f"--activation-checkpointing {how} has no effect" in text for text in refused)
    assert all(why in text for text in warned + refused)


def _refusals(world: World) -> list[str]:
    said = []
    stranger = nn.Linear(1, 1)
    for more, made_by in (
        ({"precision": "fp8"}, sgd),
        ({"activation_checkpointing": "some"}, sgd),
        ({"strategy": "3d"}, sgd),
        ({"pp": 2, "micro_batch": 4}, sgd),
        ({"methods": ("encode",)}, sgd),
        ({"shards": 2}, sgd),
        ({"offload": True}, sgd),
        ({}, lambda model: None),
        ({}, lambda model: sgd(stranger)),
    ):
        forget()
        with pytest.raises(UserError) as error:
            parallelize(stack, made_by, **more)  # type: ignore[arg-type]
        said.append(str(error.value))
    return said


def test_what_is_refused(ranks: RankPool) -> None:
    [said] = ranks.run(1, _refusals)
    wanted = [
        "precision='fp8' is unknown; known are: fp32, bf16",
        "activation_checkpointing='some'",
        "no pipelines any more, and strategy='3d' is of one",
        "no pipelines any more, and pp= is of one",
        "methods= is gone in 0.3",
        "parallelize takes no shards",
        "offload=True keeps shards of a model in host memory",
        "build_optimizer returned a NoneType",
        "is none of the model's",
    ]
    for text, expected in zip(said, wanted, strict=True):
        assert expected in text


def _closure(world: World) -> None:
    forget()
    model, optimizer = parallelize(stack, sgd, "fsdp")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 6)).sum()
        loss.backward()
        return loss

    with pytest.raises(UserError, match=r"call loss.backward\(\) first, then optimizer.step\(\)"):
        optimizer.step(closure)
    closure()
    optimizer.step()


def test_a_closure_is_refused(ranks: RankPool) -> None:
    ranks.run(2, _closure)


def _unused(world: World) -> list[str]:
    forget()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallelize(stack, sgd, "ddp", plan={}, zero=2)
    return [str(warning.message) for warning in caught if "does nothing" in str(warning.message)]


def test_options_that_do_nothing_are_named_once(ranks: RankPool) -> None:
    said, others = ranks.run(2, _unused)
    assert [text.split()[0] for text in said] == ["plan", "zero=2"]
    assert others == []


def _other_code(world: World) -> None:
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankup.runtime.world.fingerprint", lambda: {"torch": str(world.rank)})
        with pytest.raises(RuntimeError, match="the ranks run different code"):
            parallelize(stack, sgd, "fsdp")


def test_ranks_of_different_code_do_not_start(ranks: RankPool) -> None:
    ranks.run(2, _other_code)


def _alone(world: World) -> None:
    forget()
    parallel = parallelize(stack, sgd, "fsdp")
    assert isinstance(parallel, Parallel)
    parallel.model(torch.ones(2, 6)).sum().backward()
    assert float(parallel.clip_grad_norm_(1.0)) > 1.0
    parallel.optimizer.step()


def test_in_a_plain_process(ranks: RankPool) -> None:
    ranks.run(1, _alone)


def test_tensors_within_outputs_are_found() -> None:
    from collections import namedtuple
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Out:
        value: torch.Tensor
        name: str = "a"

    Pair = namedtuple("Pair", "first second")
    one = torch.ones(())
    found = map_tensors({"a": [one, (one, Pair(one, 1))], "b": Out(one)}, lambda t: t + 1)
    assert found == {"a": [one + 1, (one + 1, Pair(one + 1, 1))], "b": Out(one + 1)}


class Breaking(nn.Module):
    """A block of which torch makes two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        torch._dynamo.graph_break()
        return self.down(y)


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Breaking() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _compiled(world: World, strategy: str, disabled: bool) -> tuple[int, list[str]]:
    """Graphs, and what was warned of."""
    forget()
    torch._dynamo.reset()
    counters.clear()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if disabled:
            patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
        model, _ = parallelize(Broken, sgd, strategy, compile=True)
        for _ in range(2):
            model(torch.ones(2, 6)).square().mean().backward()
    torch._dynamo.reset()
    about = [str(one.message) for one in told if "compile=True" in str(one.message)]
    return counters["stats"]["unique_graphs"], about


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_break_makes_more_graphs(ranks: RankPool, strategy: str) -> None:
    for graphs, warned in ranks.run(2, _compiled, strategy, False, timeout=120):
        assert graphs >= 2
        assert warned == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_is_not_compiled_is_warned_of_once(ranks: RankPool, strategy: str) -> None:
    (graphs, warned), other = ranks.run(2, _compiled, strategy, True)
    assert graphs == 0
    assert warned == [
        "compile=True: torch made no graph of a Breaking as a whole (TORCHDYNAMO_DISABLE=1 is set: "
        "unset it), so that it may run as it is"
    ]
    assert other == (0, [])
