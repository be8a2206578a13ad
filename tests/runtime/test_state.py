"""What loading does to an optimizer, whether it succeeds or is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rankup.runtime.save import load_full_model, save_full_model
from rankup.runtime.sharded import load_sharded_model, save_sharded_model
from rankup.runtime.world import World
from rankup.train.checkpoint import Saved, Saver
from rankup.train.plan import Place
from rankup.train.resume import restore
from tests.pool import RankPool

from .split import Net, Split, advance, assert_equal


def alone(kind: type[torch.optim.Optimizer], seed: int = 0, **options: Any) -> Split:
    torch.manual_seed(seed)
    model = Net()
    return Split(model, kind(model.parameters(), lr=0.1, **options))  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ["full", "sharded"])
@pytest.mark.parametrize("other", ["momentum", "groups"])
def test_a_refused_load_leaves_the_optimizer(tmp_path: Path, kind: str, other: str) -> None:
    save = save_full_model if kind == "full" else save_sharded_model
    load = load_full_model if kind == "full" else load_sharded_model
    if other == "momentum":
        theirs = alone(SGD, momentum=0.9)
        advance(theirs, range(1))
        save(theirs.model, tmp_path / "saved", theirs.optimizer)
    else:
        theirs = alone(AdamW)
        halves = [theirs.model.get_submodule(name).parameters() for name in ("up", "down")]
        save(theirs.model, tmp_path / "saved", AdamW([{"params": p} for p in halves]))
    ours = alone(AdamW, seed=1)
    advance(ours, range(2))
    for parameter in ours.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model, optimizer = copy.deepcopy((ours.model.state_dict(), ours.optimizer.state_dict()))
    with pytest.raises(ValueError, match=r"of another optimizer|has 2 parameter groups, this"):
        load(ours.model, tmp_path / "saved", ours.optimizer)
    assert_equal(ours.model.state_dict(), model)
    found = ours.optimizer.state_dict()
    assert found["param_groups"] == optimizer["param_groups"]
    assert found["state"].keys() == optimizer["state"].keys()
    for number, entries in optimizer["state"].items():
        assert_equal(found["state"][number], entries)
    for parameter in ours.model.parameters():
        assert torch.equal(parameter.grad, torch.ones_like(parameter))  # type: ignore[arg-type]


class Decaying(SGD):
    """It shrinks what it trains at each step, whatever the learning rate, and may lack memory."""

    full = False

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        if self.full:
            raise torch.OutOfMemoryError("no memory for the momentum")
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                parameter.mul_(0.5)
        super().step()


@pytest.mark.parametrize("kind", ["full", "sharded"])
@pytest.mark.parametrize("same", [True, False])
def test_a_load_takes_no_step(tmp_path: Path, kind: str, same: bool) -> None:
    """What it allocates is all that it shows of one, also where the file is of another."""
    save = save_full_model if kind == "full" else save_sharded_model
    load = load_full_model if kind == "full" else load_sharded_model
    theirs = alone(Decaying, momentum=0.9) if same else alone(AdamW)
    advance(theirs, range(1))
    save(theirs.model, tmp_path / "saved", theirs.optimizer)
    ours, steps = alone(Decaying, seed=1, momentum=0.9), list[object]()
    ours.optimizer.register_step_post_hook(lambda *args: steps.append(args))
    ours.optimizer.register_step_pre_hook(lambda *args: steps.append(args))
    schedule = torch.optim.lr_scheduler.StepLR(ours.optimizer, 1)
    everywhere = [
        register_optimizer_step_pre_hook(lambda *args: steps.append(args)),
        register_optimizer_step_post_hook(lambda *args: steps.append(args)),
    ]
    before = copy.deepcopy(ours.model.state_dict())
    groups = copy.deepcopy(ours.optimizer.state_dict()["param_groups"])
    try:
        if same:
            load(ours.model, tmp_path / "saved", ours.optimizer)
        else:
            with pytest.raises(ValueError, match="of another optimizer"):
                load(ours.model, tmp_path / "saved", ours.optimizer)
        assert not steps
        assert all(parameter.grad is None for parameter in ours.model.parameters())
        if same:
            assert_equal(ours.model.state_dict(), theirs.model.state_dict())
            states = ours.optimizer.state.values(), theirs.optimizer.state.values()
            for entries, saved in zip(*states, strict=True):
                assert_equal(entries, saved)
        else:
            assert_equal(ours.model.state_dict(), before)
            assert not ours.optimizer.state
            assert ours.optimizer.state_dict()["param_groups"] == groups
        ours.optimizer.step()
        assert steps, "the hooks are there again"
        schedule.step()
    finally:
        for hook in everywhere:
            hook.remove()


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_the_state_of_sparse_gradients_is_loaded(tmp_path: Path, kind: str) -> None:
    save = save_full_model if kind == "full" else save_sharded_model
    load = load_full_model if kind == "full" else load_sharded_model
    models = [torch.nn.Embedding(5, 3, sparse=True) for _ in range(2)]
    theirs, ours = (torch.optim.SparseAdam(model.parameters()) for model in models)
    models[0](torch.tensor([1, 2])).sum().backward()
    theirs.step()
    save(models[0], tmp_path / "saved", theirs)
    load(models[1], tmp_path / "saved", ours)
    [here], [there] = ours.state.values(), theirs.state.values()
    assert here["step"] == there["step"] == 1
    assert torch.equal(here["exp_avg"], there["exp_avg"])


def _without_memory(world: World, folder: Path, kind: str) -> str:
    split = alone(Decaying, momentum=0.9)
    advance(split, range(1))
    saver = Saver(folder / "checkpoints", 1, asynchronous=False)
    if kind == "full":
        save_full_model(split.model, folder / "full", split.optimizer)
    elif kind == "sharded":
        save_sharded_model(split.model, folder / "sharded", split.optimizer)
    else:
        saver.save(split.model, split.optimizer, Saved(Place(1), {}, None))
        assert saver.wait() == ""
    fresh = alone(Decaying, momentum=0.9)
    Decaying.full = world.rank == 1
    try:
        if kind == "full":
            load_full_model(fresh.model, folder / "full", fresh.optimizer)
        elif kind == "sharded":
            load_sharded_model(fresh.model, folder / "sharded", fresh.optimizer)
        else:
            restore(folder / "checkpoints", fresh.model, fresh.optimizer, {})
    except RuntimeError as error:
        return str(error)
    finally:
        Decaying.full = False
    return ""


@pytest.mark.parametrize("kind", ["full", "sharded", "recipe"])
def test_no_memory_for_the_state_on_one_rank_is_an_error_on_every_rank(
    ranks: RankPool, tmp_path: Path, kind: str
) -> None:
    for said in ranks.run(2, _without_memory, tmp_path, kind):
        assert "no memory for the momentum" in said


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_an_optimizer_whose_step_needs_a_closure_is_refused(tmp_path: Path, kind: str) -> None:
    save = save_full_model if kind == "full" else save_sharded_model
    load = load_full_model if kind == "full" else load_sharded_model
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters())
    save(model, tmp_path / "saved", optimizer)
    with pytest.raises(TypeError, match="LBFGS cannot be loaded: its step takes arguments"):
        load(model, tmp_path / "saved", optimizer)


def test_a_load_into_a_used_optimizer_is_that_into_a_fresh_one(tmp_path: Path) -> None:
    saved = alone(AdamW)
    advance(saved, range(2))
    save_sharded_model(saved.model, tmp_path / "model", saved.optimizer)
    used = alone(AdamW, seed=1)
    advance(used, range(3))
    load_sharded_model(used.model, tmp_path / "model", used.optimizer)
    advance(used, range(2, 3))
    advance(saved, range(2, 3))
    assert_equal(used.model.state_dict(), saved.model.state_dict())


def test_a_marker_sets_what_the_groups_have_alone(tmp_path: Path) -> None:
    split = alone(AdamW)
    advance(split, range(1))
    torch.optim.lr_scheduler.ConstantLR(split.optimizer)  # notes initial_lr in the group
    save_sharded_model(split.model, tmp_path / "model", split.optimizer)
    marker = tmp_path / "model" / "COMPLETE"
    about = json.loads(marker.read_text())
    del about["hash"]  # a marker of before had none
    about["groups"][0] |= {"params": [], "x": 1, "lr": 0.7}
    marker.write_text(json.dumps(about))
    fresh = alone(AdamW)
    load_sharded_model(fresh.model, tmp_path / "model", fresh.optimizer)
    [group] = fresh.optimizer.param_groups
    assert len(group["params"]) == len(list(fresh.model.parameters()))
    assert (group["lr"], group["initial_lr"], "x" in group) == (0.7, 0.1, False)
