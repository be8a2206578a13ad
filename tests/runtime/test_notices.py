"""What the runtime says of a run, once, on rank 0."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankup
from rankup.runtime import log
from rankup.runtime.context import CONTEXT
from rankup.runtime.world import World, destroy_process_group
from tests.pool import RankPool


@contextlib.contextmanager
def _listening() -> Iterator[io.StringIO]:
    """What is said within, as in a process that has said nothing before."""
    log._PRINTED.clear()
    CONTEXT.samples = CONTEXT.units = CONTEXT.smallest = None
    CONTEXT.models.clear()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        yield said


def _net(normalised: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)]
    return nn.Sequential(*layers, nn.BatchNorm1d(4)) if normalised else nn.Linear(3, 4)


def _train(
    world: World, n: int, batch: int, normalised: bool, silent: Callable[[], object] | None
) -> list[str]:
    with _listening() as said:
        if silent is not None:
            silent()
        try:
            model = rankup.wrap(_net(normalised))
            data = TensorDataset(torch.ones(n, 3))
            for loader in (DataLoader(data, batch_size=batch), DataLoader(data, batch_size=batch)):
                for _ in range(2):
                    for (x,) in rankup.shard(loader, train=True):
                        if len(x) > 1 or not normalised:
                            model(x).sum().backward()
        finally:
            os.environ.pop("RANKUP_NOTICES", None)
    return said.getvalue().splitlines()


def test_batch_norm_and_the_smallest_part_are_named_once(ranks: RankPool) -> None:
    [line], nothing = ranks.run(2, _train, 24, 16, True, None)
    assert nothing == []
    # As `rankup logs` knows what is no cause of a run's end.
    assert line.startswith("rankup: note: wrap: batch norm (2 layers)")
    assert "the smallest of 4 samples, where one GPU takes them from 16" in line
    assert "--sync-bn" in line


def _drawn(world: World) -> list[str]:
    with _listening() as said:
        models = [rankup.wrap(_net(True)), rankup.wrap(_net(True))]
        for model in models:
            model(rankup.deal(lambda: torch.ones(10, 3))).sum().backward()
    return said.getvalue().splitlines()


def test_two_models_on_batches_drawn_by_hand_are_named_together(ranks: RankPool) -> None:
    [line], nothing = ranks.run(2, _drawn)
    assert nothing == []
    assert "batch norm (4 layers)" in line
    assert "the smallest of 5 samples, where one GPU takes them from 10" in line


def test_a_last_batch_that_leaves_one_sample_is_named_once(ranks: RankPool) -> None:
    [line], nothing = ranks.run(2, _train, 11, 8, False, None)
    assert nothing == []
    assert "the last batch of an epoch has 3 samples for 2 ranks" in line
    assert "drop_last=True" in line


@pytest.mark.parametrize(("n", "batch"), [(8, 8), (12, 8), (9, 8), (6, 2)])
def test_nothing_is_said_where_one_gpu_had_as_little(ranks: RankPool, n: int, batch: int) -> None:
    assert ranks.run(2, _train, n, batch, False, None) == [[], []]


def _by_quiet() -> None:
    rankup.quiet(notices=False)


def _by_variable() -> None:
    os.environ["RANKUP_NOTICES"] = "0"


@pytest.mark.parametrize("silent", [_by_quiet, _by_variable])
def test_it_can_be_silenced(ranks: RankPool, silent: Callable[[], object]) -> None:
    with_it = ranks.run(2, _train, 24, 16, True, silent)
    assert with_it[0] == []


def _one_size(samples: Any) -> torch.Tensor:
    size = random.choice([1, 2])
    return torch.stack([sample[0][:size] for sample in samples])


def _no_draw(samples: Any) -> torch.Tensor:
    return torch.stack([sample[0] for sample in samples])


def _collated(world: World, collate: Callable[[Any], Any], workers: int) -> list[str]:
    from tests.runtime.test_random_state import may_start_processes

    with _listening() as said, may_start_processes():
        more: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
        loader = DataLoader(
            TensorDataset(torch.ones(8, 3)), 4, collate_fn=collate, num_workers=workers, **more
        )
        for _ in range(2):
            for _batch in rankup.shard(loader, train=True):
                pass
    return said.getvalue().splitlines()


def test_a_collate_function_that_draws_is_named(ranks: RankPool) -> None:
    [line], nothing = ranks.run(2, _collated, _one_size, 0)
    assert nothing == []
    assert "the collate function draws random numbers (random)" in line
    assert ranks.run(2, _collated, _no_draw, 0) == [[], []]


def _writes(world: World, folder: Path) -> list[str]:
    with _listening() as said:
        (folder / f"own-{world.rank}.txt").write_text("mine")
        rankup.save0({"a": torch.ones(1)}, folder / "model.pt")
        for _ in range(2):
            with (folder / "all.txt").open("a") as file:
                file.write("x")
        if world.rank < 2:
            (folder / "two.txt").write_text("y")
        (folder / "gone.txt").touch()
        rankup.barrier()
        (folder / "gone.txt").unlink(missing_ok=True)
        destroy_process_group()
    return said.getvalue().splitlines()


def test_files_that_several_ranks_opened_are_named_at_the_end(
    ranks: RankPool, tmp_path: Path
) -> None:
    [line], *others = ranks.run(3, _writes, tmp_path)
    assert others == [[], []]
    assert f"{tmp_path}/all.txt (3 ranks), {tmp_path}/two.txt (2 ranks). It holds" in line
