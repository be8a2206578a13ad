"""`parallelize` under pp: `pipeline.step`, tied weights, full files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankup
from rankup.base.errors import UserError
from rankup.parallel.user.parallelize import parallelize
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.context import CONTEXT
from rankup.runtime.keys import derive
from rankup.runtime.save import full_state, load_full_model, save_full_model
from rankup.runtime.shard import part
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import forget, loss_of, stack

IGNORED = -100


def transformer() -> nn.Module:
    return Transformer(Shape(13, 8, 2, 16, 4, 0.0, tied=True))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2)


def text(seed: int, n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(13, (n, 8), generator=draw)
    targets = (2 * tokens + 1) % 13
    for row in range(n):
        targets[row, 1 + row :] = IGNORED  # chunks of few targets and of many
    return tokens, targets


def loss(model: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def valid(batch: tuple[torch.Tensor, ...]) -> float:
    return float((batch[1] != IGNORED).sum())


def _tokens(world: World, path: Path, asked: dict[str, Any]) -> list[float]:
    """Mean over tokens, ranks and chunks have different numbers of; through a file and back."""
    forget()
    torch.manual_seed(derive(0, "construction"))
    bare = transformer()
    slow = sgd(bare)
    model, optimizer, pipeline = parallelize(
        transformer, sgd, loss=loss, micro_batch=2, units=valid, **asked
    )
    assert pipeline is not None
    place = CONTEXT.place()
    found = []
    for step in range(3):
        tokens, targets = text(step)
        value = loss(bare, (tokens, targets))
        value.backward()
        slow.step()
        slow.zero_grad()
        rows = part(6, place.rank, place.size)
        mine = slice(rows.start, rows.stop)
        CONTEXT.samples = (len(rows), 6)
        ours = pipeline.step((tokens[mine], targets[mine]))
        assert float(ours) == pytest.approx(float(value), rel=1e-5)
        found.append(float(ours))
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:  # to another state, and back from the file
            save_full_model(model, path, optimizer)
            kept = full_state(model)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(3.0)
            load_full_model(model, path, optimizer)
            for name, tensor in full_state(model).items():
                assert torch.equal(tensor, kept[name]), name
    model.eval()
    batch = text(9)
    rows = part(6, place.rank, place.size)
    with torch.no_grad():
        wanted = float(loss(bare, batch))
    here = pipeline.evaluate([tensor[rows.start : rows.stop] for tensor in batch])
    assert float(here) == pytest.approx(wanted, rel=1e-5)
    for name, tensor in full_state(model).items():
        torch.testing.assert_close(tensor, bare.state_dict()[name], rtol=1e-5, atol=1e-6)
    return found


def test_a_mean_over_tokens_with_tied_embeddings(ranks: RankPool, tmp_path: Path) -> None:
    first, second = ranks.run(2, _tokens, tmp_path / "model.pt", {"pp": 2})
    assert first == second
    assert first[-1] < first[0]
    transformer().load_state_dict(
        torch.load(tmp_path / "model.pt", weights_only=True)["model"], strict=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [{"pp": 2, "tp": 2}, {"pp": 2, "shard": 2, "pp_schedule": "interleaved"}],
    ids=str,
)
def test_tokens_in_more_layouts(ranks: RankPool, tmp_path: Path, asked: dict[str, Any]) -> None:
    ranks.run(4, _tokens, tmp_path / "model.pt", asked)


def _refusals(world: World) -> list[str]:
    forget()
    said = []

    def refused(action: Any, kind: type[Exception] = UserError) -> None:
        with pytest.raises(kind) as error:
            action()
        said.append(str(error.value))

    refused(lambda: parallelize(stack, sgd, pp=2))
    model, _, pipeline = parallelize(stack, sgd, pp=2, loss=loss_of, micro_batch=2)
    assert pipeline is not None
    x, y = torch.randn(4, 6), torch.randn(4, 3)
    refused(lambda: model(x))
    refused(lambda: pipeline.step({"x": x}))  # type: ignore[arg-type]
    refused(lambda: pipeline.step((x, y[:2])))
    rankup.count(3)
    refused(lambda: pipeline.step((x, y)))
    refused(lambda: pipeline.step((x + world.rank, y)))
    return said


def test_what_a_pipeline_refuses(ranks: RankPool) -> None:
    wanted = [
        "give parallelize loss=lambda model, batch",
        "Sequential is cut into pipeline stages, so no rank can call it as a whole",
        "a tuple of tensors of one length; it got a dict",
        r"it got tuple of a tensor of shape (4, 6), a tensor of shape (2, 3)",
        "give parallelize units=",
        "ranks 0 and 1 compute one batch together, but got different ones",
    ]
    for said in ranks.run(2, _refusals):
        assert len(said) == len(wanted)
        for text_, expected in zip(said, wanted, strict=True):
            assert expected in text_


def _twice(world: World) -> None:
    forget()
    parallel = parallelize(transformer, sgd, pp=2, loss=loss, micro_batch=3, units=valid)
    assert parallel.pipeline is not None
    parallel.pipeline.step(text(0))
    parallel.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match=r"pipeline\.step after clip_grad_norm_"):
        parallel.pipeline.step(text(1))
    parallel.optimizer.step()
    parallel.pipeline.step(text(1))  # after a step they may stay where they are


def test_gradients_that_are_clipped_are_not_added_to(ranks: RankPool) -> None:
    ranks.run(2, _twice)


class Twice(torch.optim.SGD):
    """Calls its base's step, which torch hooks as well."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def _closure(world: World, kind: type[torch.optim.SGD], named: bool) -> None:
    forget()
    torch.manual_seed(derive(0, "construction"))
    bare = transformer()
    slow = kind(bare.parameters(), lr=0.2)
    model, optimizer, pipeline = parallelize(
        transformer,
        lambda model: kind(model.parameters(), lr=0.2),
        pp=2,
        loss=loss,
        micro_batch=3,
        units=valid,
    )
    assert pipeline is not None
    batch = text(0)

    def alone() -> torch.Tensor:
        slow.zero_grad()
        value = loss(bare, batch)
        value.backward()
        return value

    def ours() -> torch.Tensor:
        optimizer.zero_grad()
        return pipeline.step(batch)

    for _ in range(2):
        wanted = slow.step(alone)
        found = optimizer.step(closure=ours) if named else optimizer.step(ours)
        assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    for name, tensor in full_state(model).items():
        torch.testing.assert_close(tensor, bare.state_dict()[name], rtol=1e-5, atol=1e-6)
    tied = {name: p for name, p in model.named_parameters() if "tokens" in name or "head" in name}
    copies = rankup.all_gather(torch.stack([p.detach() for p in tied.values()])[0])
    assert torch.equal(copies[0], copies[1])


@pytest.mark.parametrize(("kind", "named"), [(torch.optim.SGD, False), (Twice, True)])
def test_tied_weights_stay_alike_under_a_closure(
    ranks: RankPool, kind: type[torch.optim.SGD], named: bool
) -> None:
    ranks.run(2, _closure, kind, named)


def _augmented(world: World) -> None:
    """Every rank's loader makes the same random augmentation of the same samples."""
    forget()
    _, _, pipeline = parallelize(stack, sgd, pp=2, loss=loss_of, micro_batch=2)
    assert pipeline is not None
    data = TensorDataset(torch.randn(8, 6, generator=torch.Generator().manual_seed(0)))
    loader = rankup.shard(DataLoader(data, batch_size=4, shuffle=True))
    seen = []
    for _ in range(2):
        for (x,) in loader:
            noisy = x + torch.randn_like(x)
            seen.append(noisy)
            pipeline.step((noisy, noisy[:, :3]))
    everyone = rankup.all_gather(torch.stack(seen))
    assert torch.equal(everyone[0], everyone[1])


def test_draws_of_the_script_are_the_same_on_all_stages(ranks: RankPool) -> None:
    ranks.run(2, _augmented)
