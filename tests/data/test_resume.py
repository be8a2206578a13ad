"""Invariant "once": kill -9 in mid-epoch, go on at any number of ranks, nothing is different."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import rankup
from rankup.base.errors import UserError
from rankup.data import Batches, Loader, PackedDataset, orders
from rankup.runtime.world import World

from ..pool import RankPool
from .feeding import CONTAINERS, Digest, contained, digest, epochs, flat, loader, small

BATCH = 7
EPOCHS = 2


def _dataset(path: Path, transform: Any = digest) -> PackedDataset:
    return PackedDataset(path, rankup.data.open(path).splits[0], transform)


def _train(path: Path, folder: Path, world: int, workers: int, stop: tuple[int, int]) -> None:
    """All ranks of a run in one process: batches are files, committed by a state that is renamed.

    Args:
        stop: steps and ranks of that step after which the process is killed; -1: never.
    """
    loaders = [
        Loader(
            _dataset(path), BATCH, seed=5, workers=workers, kind="processes", context="fork",
            rank=rank, world_size=world, timeout=200,
        )
        for rank in range(world)
    ]  # fmt: skip
    state = folder / "state.json"
    step = 0
    if state.exists():
        kept = json.loads(state.read_text())
        step = kept["step"]
        for one in loaders:
            one.load_state_dict(kept["loader"])
    for _ in range(loaders[0].epoch, EPOCHS):
        runs = [iter(one) for one in loaders]
        while True:
            parts = []
            for rank, run in enumerate(runs):
                batch = next(run, None)
                if batch is not None:
                    own = loaders[rank].state_dict()
                    parts.append(flat(batch)[: _dealt(world, rank, own) * 17])
                if (step, rank) == stop:
                    pids = [child.pid for child in multiprocessing.active_children()]
                    (folder / "workers.json").write_text(json.dumps(pids))
                    os.kill(os.getpid(), signal.SIGKILL)
            if not parts:
                break
            (folder / f"{step:03}").write_bytes(b"".join(parts))
            step += 1
            new = folder / "state.new"
            new.write_text(json.dumps({"step": step, "loader": loaders[0].state_dict()}))
            new.rename(state)
    for one in loaders:
        one.close()


def _dealt(world: int, rank: int, state: dict[str, int]) -> int:
    """How many samples of the batch that was handed out last count on a rank."""
    size = (state["consumed"] - 1) % BATCH + 1
    return (rank + 1) * size // world - rank * size // world


def _process(target: Callable[..., None], *args: Any) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    process.join(200)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("it hangs")
    return process.exitcode


def _killed_and_resumed(
    path: Path, folder: Path, worlds: tuple[int, int], workers: int, stop: tuple[int, int]
) -> list[bytes]:
    folder.mkdir()
    assert _process(_train, path, folder, worlds[0], workers, stop) == -signal.SIGKILL
    workers_left = json.loads((folder / "workers.json").read_text())
    assert len(workers_left) == worlds[0] * workers
    assert _process(_train, path, folder, worlds[1], workers, (-1, 0)) == 0
    alive = []
    for pid in workers_left:
        with suppress(psutil.NoSuchProcess):
            alive.append(psutil.Process(pid))
    _, left = psutil.wait_procs(alive, timeout=60)
    assert not left, f"workers outlive their training process: {left}"
    return [one.read_bytes() for one in sorted(folder.glob("[0-9]*"))]


def _undisturbed(path: Path) -> list[bytes]:
    return epochs(loader(_dataset(path), BATCH, seed=5), EPOCHS)


def test_a_killed_run_goes_on_at_another_world_size(tmp_path: Path) -> None:
    path = contained(tmp_path, "hdf5")
    expected = _undisturbed(path)
    assert len(expected) == EPOCHS * 7
    found = _killed_and_resumed(path, tmp_path / "run", (2, 3), 1, (9, 0))
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CONTAINERS)))
def test_every_container_at_some_world_sizes(tmp_path: Path, number: int) -> None:
    path = contained(tmp_path, CONTAINERS[number])
    before, after, step = [(1, 2, 3), (2, 3, 7), (3, 1, 12)][number % 3]
    workers = (2, 0)[number % 2]
    stop = (step, before - 1)
    found = _killed_and_resumed(path, tmp_path / "run", (before, after), workers, stop)
    assert found == _undisturbed(path)


@given(
    n=st.integers(0, 60),
    batch=st.integers(1, 70),
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_any_number_of_ranks_at_any_place(
    n: int, batch: int, worlds: list[int], drop_last: bool, data: st.DataObject
) -> None:
    """Each sample once, in the order's own order, whatever ranks come and go between batches."""
    dataset = _Numbers(n)
    options: dict[str, Any] = {"workers": 0, "seed": 1, "drop_last": drop_last}
    whole = orders.Shuffled(n, 1).slice(0, 0, n - n % batch if drop_last else n).tolist()
    state = Loader(dataset, batch, rank=0, world_size=1, **options).state_dict()
    found: list[int] = []
    for place, world in enumerate(worlds):
        loaders = [
            Loader(dataset, batch, rank=r, world_size=world, **options) for r in range(world)
        ]
        for one in loaders:
            one.load_state_dict(state)
        runs = [iter(one) for one in loaders]
        left = data.draw(st.integers(0, 3)) if place < len(worlds) - 1 else 1000
        for _ in range(left):
            parts = [next(run, None) for run in runs]
            if parts[0] is None:
                assert all(part is None for part in parts)
                break
            place_now = loaders[0].state_dict()
            size = place_now["consumed"] - state["consumed"]
            for rank, part in enumerate(parts):
                assert part is not None
                own = (rank + 1) * size // world - rank * size // world
                assert len(part) == max(own, 1)
                found += part[:own].tolist()
            state = place_now
            assert all(one.state_dict() == state for one in loaders)
        if state["epoch"]:
            break
        state = next(one.state_dict() for one in loaders)
        if state["epoch"]:
            break
    assert found == whole


class _Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, sample: int) -> int:
        return sample


def test_a_place_in_a_run(tmp_path: Path) -> None:
    """At the very end of an epoch nothing is left of it, and the loop after it has the next one."""
    dataset = _dataset(small(tmp_path, 20))
    one = loader(dataset)
    expected = epochs(one, 3)
    states: list[dict[str, int]] = []
    again = loader(dataset)
    for _ in range(2):
        states.extend(again.state_dict() for _ in again)
    assert [state["consumed"] for state in states] == [8, 16, 20] * 2
    for done, state in enumerate(states, 1):
        resumed = loader(dataset, workers=0)
        resumed.load_state_dict(state)
        found = [flat(batch) for _ in range(resumed.epoch, 3) for batch in resumed]
        assert found == expected[done:]
    at_end = loader(dataset)
    at_end.load_state_dict(states[2])
    assert at_end.epoch == 0
    assert list(at_end) == []
    assert (at_end.epoch, at_end.consumed) == (1, 0)
    at_end.set_epoch(0)
    assert epochs(at_end) == expected[:3]


def test_a_place_of_another_run_is_refused(tmp_path: Path) -> None:
    dataset = _dataset(small(tmp_path, 20))
    one = loader(dataset)
    good = one.state_dict()
    changes: list[dict[str, Any]] = [
        {"seed": 4},
        {"samples": 21},
        {"global_batch": 9},
        {"order": "Sequential"},
        {"version": 2},
        {"consumed": 9},
        {"consumed": 24},
        {"consumed": -8},
        {"consumed": True},
        {"epoch": 1.0},
        {"epoch": None},
    ]
    for change in changes:
        with pytest.raises(UserError, match="place in a run"):
            one.load_state_dict({**good, **change})
    with pytest.raises(UserError):
        one.load_state_dict({})
    one.load_state_dict({**good, "consumed": 20})


def test_a_place_of_another_order_is_refused(tmp_path: Path) -> None:
    dataset = _dataset(small(tmp_path, 20))
    made: list[orders.Ordering] = [
        orders.Sequential(20),
        orders.Shuffled(20, 3),
        orders.ByLength(dataset.lengths, 3, 8),
        orders.ByLength(dataset.lengths[::-1], 3, 8),
        orders.ByLength(dataset.lengths, 3, 8, 8),
    ]
    states = [loader(dataset, shuffle=one).state_dict() for one in made]
    for number, one in enumerate(made):
        for other, state in enumerate(states):
            again = loader(dataset, shuffle=one)
            if number == other:
                again.load_state_dict(json.loads(json.dumps(state)))
                continue
            with pytest.raises(UserError, match="place in a run is one of the order"):
                again.load_state_dict(state)
    equal = loader(dataset, shuffle=orders.ByLength(dataset.lengths.astype(np.int32), 3, 8))
    equal.load_state_dict(states[2])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, workers: int) -> None:
    dataset = _dataset(small(tmp_path, 50), Digest())

    def stateful() -> Any:
        sampler = Batches(orders.Shuffled(50, 3), 8, seed=3, rank=0, world_size=1)
        return StatefulDataLoader(dataset, batch_sampler=sampler, num_workers=workers)

    expected = epochs(loader(dataset), 3)
    one = stateful()
    assert [flat(batch) for _ in range(3) for batch in one] == expected
    one = stateful()
    run = iter(one)
    found = [flat(next(run)) for _ in range(3)]
    state = one.state_dict()
    del run, one
    again = stateful()
    again.load_state_dict(state)
    found += [flat(batch) for batch in again]
    done = again.state_dict()
    found += [flat(batch) for batch in again]
    assert found == expected[:14]
    after = stateful()
    after.load_state_dict(done)
    assert [flat(batch) for batch in after] == expected[7:14]


def _losses(world: World | None, path: Path, workers: int) -> list[float]:
    torch.manual_seed(0)
    model = rankup.wrap(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    photos = _dataset(path, Digest())
    train = Loader(photos, 8, seed=2, workers=workers, kind="threads", quiet=True)
    losses = []
    for inputs, labels in train:
        loss = nn.functional.cross_entropy(model(inputs / 255.0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count = rankup.runtime.context.CONTEXT.samples[0]
        losses.append(rankup.mean(loss.item() * count, count))
    train.close()
    return losses


def test_same_run_at_world_sizes_1_and_3(tmp_path: Path, ranks: RankPool) -> None:
    """Invariant "same run": 41 samples, so that the last batch of one leaves ranks with nothing."""
    path = small(tmp_path, 41)
    [expected] = ranks.run(1, _losses, path, 0)
    assert len(expected) == 6
    for losses in ranks.run(3, _losses, path, 2):
        assert losses == pytest.approx(expected, rel=1e-5)
