"""Samples that cannot be made: raised or dropped, the same on any number of ranks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rankup
from rankup.base.errors import UserError
from rankup.data import BadSample, Loader, PackedDataset
from rankup.runtime.context import CONTEXT
from rankup.runtime.world import World

from ..pool import RankPool
from . import feeding
from .feeding import Digest, digest, epochs, flat, loader, small

BAD = (3, 17, 18, 30)


def _data(folder: Path, on_bad: Any, count: int = 41, bad: Any = BAD) -> PackedDataset:
    path = folder / f"pack{count}"
    return PackedDataset(
        path if path.exists() else small(folder, count, bad), None, Digest(), on_bad=on_bad
    )


def _parts(data: PackedDataset, world: int, batch: int = 8, **options: Any) -> list[bytes]:
    """Global batches of two epochs, put together from the ranks' samples that count."""
    loaders = [
        loader(data, batch, rank=rank, world_size=world, quiet=True, **options)
        for rank in range(world)
    ]
    found: dict[tuple[int, int], bytes] = {}
    for one in loaders:
        for _ in range(2):
            for part in one:
                assert CONTEXT.samples is not None
                place = (one.epoch, one.consumed)
                found[place] = found.get(place, b"") + flat(part)[: 17 * CONTEXT.samples[0]]
        one.close()
    return [found[place] for place in sorted(found)]


def test_raise_names_the_sample(tmp_path: Path) -> None:
    data = _data(tmp_path, "raise")
    with pytest.raises(BadSample, match=r"^train/c\d/000\d\d.bin in .*\d+ bytes are no") as failed:
        epochs(loader(data))
    assert isinstance(failed.value.__cause__, ValueError)
    for unknown in ("ignore", "replace"):
        with pytest.raises(UserError, match=rf"on_bad='{unknown}' is not known: raise, or drop"):
            _data(tmp_path, unknown)


@pytest.mark.parametrize("options", [{}, {"workers": 2, "kind": "threads"}])
def test_the_same_on_any_number_of_ranks(tmp_path: Path, options: dict[str, Any]) -> None:
    """With global batches of which each rank keeps some."""
    data = _data(tmp_path, "drop")
    expected = _parts(data, 1)
    assert _parts(data, 2, **options) == expected
    rng = np.random.default_rng()
    good = {bytes(digest(data.samples.read(row), rng)[:8]) for row in {*range(41)} - {*BAD}}
    rows = [batch[at : at + 8] for batch in expected for at in range(0, len(batch), 17)]
    assert set(rows) == good
    assert len(rows) == 2 * 37


def test_they_are_counted_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = _data(tmp_path, "drop")
    for options in ({}, {"workers": 2, "kind": "processes", "context": "fork"}):
        one = loader(data, quiet=True, **options)  # type: ignore[arg-type]
        list(one)
        one.close()
        assert {bad.sample for bad in one.bad} == set(BAD)
        [line] = capfd.readouterr().err.splitlines()  # though quiet
        assert "rank 0: 4 of the 41 samples of epoch 0 could not be made and were dropped" in line
        assert "1 x ValueError: 33 bytes are no sample" in line
        assert "; the first: train/c" in line
    clean = loader(_data(tmp_path, "drop", 20, ()))
    list(clean)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("engine", [{}, {"workers": 2, "kind": "processes", "context": "fork"}])
def test_more_than_a_few_are_an_error(tmp_path: Path, engine: dict[str, Any]) -> None:
    one = loader(_data(tmp_path, "drop", 100, range(30, 70)), 4, **engine)
    with pytest.raises(BadSample, match=r"2[1-4] samples of epoch 0.*one in 100, or 20"):
        epochs(one)
    one.close()


def test_nothing_that_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(BadSample, match="tried in the place of a bad one"):
        epochs(loader(_data(tmp_path, "drop", 6, range(6)), 3))


@pytest.mark.parametrize("error", [TypeError, NameError, AttributeError, ImportError])
@pytest.mark.parametrize("on_bad", ["drop", "raise"])
def test_a_mistake_is_always_raised(tmp_path: Path, error: type[Exception], on_bad: Any) -> None:
    def mistaken(data: bytes, rng: Any) -> Any:
        raise error("in the transform")

    data = PackedDataset(small(tmp_path, 10), None, mistaken, on_bad=on_bad)
    with pytest.raises(error, match="in the transform"):
        epochs(loader(data))


def test_a_batch_of_which_nothing_is_left(tmp_path: Path) -> None:
    """In training one sample stands in with weight zero, in evaluation there is no batch."""
    data = _data(tmp_path, "drop", 12, range(4))
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "workers": 0, "quiet": True}
    train = Loader(data, 2, shuffle=False, train=True, **options)
    weights = []
    for images, _ in train:
        weights.append((CONTEXT.samples, len(images)))
    assert weights == [((0, 2), 1)] * 2 + [((2, 2), 2)] * 4
    assert CONTEXT.samples is None
    evaluation = Loader(data, 2, shuffle=False, **options)
    assert len(epochs(evaluation)) == 4
    assert (evaluation.epoch, evaluation.consumed) == (1, 0)


def test_in_torchs_own_loader(tmp_path: Path) -> None:
    data = _data(tmp_path, "drop")
    theirs = torch.utils.data.DataLoader(data, batch_size=8)
    assert sum(len(labels) for _, labels in theirs) == 37
    with pytest.raises(BadSample, match="one sample alone"):
        data[3]
    assert len(data[4]) == 2
    with pytest.raises(IndexError, match="there are 41"):
        data[41]


def _dropped(world: World, path: Path, workers: int) -> tuple[list[float], str]:
    torch.manual_seed(0)
    model = rankup.wrap(nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = PackedDataset(path, None, Digest(), on_bad="drop")
    train = Loader(data, 3, shuffle=True, seed=4, workers=workers)
    read, write = os.pipe()
    own = os.dup(2)
    os.dup2(write, 2)
    for inputs, labels in train:
        nn.functional.cross_entropy(model(inputs / 255.0), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    os.dup2(own, 2)
    os.close(write)
    train.close()
    return model.weight.detach().flatten().tolist(), os.fdopen(read).read()


@pytest.mark.slow
def test_dropping_weighs_the_same_on_any_number_of_ranks(tmp_path: Path, ranks: RankPool) -> None:
    """Batches of 3, so that ranks are left without a sample of theirs; each reports its own."""
    path = small(tmp_path, 41, BAD)
    [(expected, said)] = ranks.run(1, _dropped, path, 0)
    assert "4 of the 41 samples of epoch 0 could not be made and were dropped: " in said
    found = 0
    for rank, (weights, text) in enumerate(ranks.run(3, _dropped, path, 0)):
        assert weights == pytest.approx(expected, rel=1e-5, abs=1e-7)
        for count in re.findall(rf"rank {rank}: (\d) of the 41 samples", text):
            found += int(count)
    assert found >= 4  # one that stood in on two ranks is counted on both


def _left(world: World, path: Path) -> float:
    data = PackedDataset(path, None, Digest(), on_bad="drop")
    for _ in Loader(data, 4, workers=0):
        if world.rank == 0:
            break
    return rankup.mean(float(world.rank), 1)


def test_a_rank_that_leaves_its_loop_keeps_nobody_waiting(tmp_path: Path, ranks: RankPool) -> None:
    assert ranks.run(2, _left, small(tmp_path, 20, [3])) == [0.5, 0.5]


def test_what_is_read_is_verified(tmp_path: Path) -> None:
    path = small(tmp_path, 100)
    at = (path / "train.bin").read_bytes().index(feeding.made.samples(100, most=300)[47][1])
    assert 5000 < at < 9000  # the ends are looked at whenever it is opened
    with (path / "train.bin").open("r+b") as file:
        file.seek(at)
        file.write(b"Z")
    checked = loader(PackedDataset(path, None, digest, on_bad="drop", verify=True), quiet=True)
    epochs(checked)
    assert [one.sample for one in checked.bad] == [47]
    assert "have the hash" in checked.bad[0].why
    unseen = loader(PackedDataset(path, None, digest, on_bad="drop"))
    epochs(unseen)
    assert unseen.bad == []
