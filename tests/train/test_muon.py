"""`--optimizer muon`: torch's own steps, what is sent for them, the same run in any layout."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from rankup.base.errors import UserError
from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.initial import initialize
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.world import World
from rankup.train.muon import Muon
from rankup.train.optimizer import build_optimizer
from rankup.train.options import TrainOptions
from tests.parallel.tasks import SmallLM
from tests.pool import RankPool

from .runs import Report, final_model, losses, train_task

MUON = TrainOptions(
    12, 4, 20, optimizer="muon", lr=0.02, momentum=0.9, weight_decay=0.1, schedule="constant",
    seed=7, valid_every=20, checkpoint_every=10,
)  # fmt: skip


def _model() -> nn.Module:
    model = SmallLM(MUON).build_model()
    initialize(model, 3)
    return model


def _gradients(model: nn.Module) -> None:
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def test_steps_are_those_of_torchs_muon_and_adamw() -> None:
    ours, theirs = _model(), _model()
    optimizer = build_optimizer(ours, MUON)
    assert isinstance(optimizer, Muon)
    matrices = [p for n, p in theirs.named_parameters() if n.startswith("blocks") and p.dim() == 2]
    inside = {id(p) for p in matrices}
    rest = [p for p in theirs.parameters() if id(p) not in inside]
    settings: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.95)}
    pair = (
        torch.optim.Muon(
            matrices, lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW([p for p in rest if p.dim() > 1], weight_decay=0.1, **settings),
        torch.optim.AdamW([p for p in rest if p.dim() == 1], weight_decay=0.0, **settings),
    )
    for _ in range(3):
        _gradients(ours)
        _gradients(theirs)
        optimizer.step()
        for part in pair:
            part.step()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        # Of a matrix a step is a number in bf16, 8 bits of it.
        torch.testing.assert_close(one, other, rtol=0, atol=2e-4, msg=name)
    assert len(matrices) == 3 * 6


def test_a_momentum_that_takes_nothing_in_is_refused() -> None:
    with pytest.raises(UserError, match="never takes a gradient in"):
        replace(MUON, momentum=1.0)


def _sent(world: World, layout: Layout) -> tuple[Counter[str], int, int]:
    """Collectives of a step of the optimizer, its matrices, and those that are sharded."""
    built = build(SmallLM(MUON).build_model, Mesh(layout, world), 0, Choices())
    optimizer = build_optimizer(built.model, MUON)
    [matrices] = [group["params"] for group in optimizer.param_groups if group["muon"]]
    for parameter in built.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with CommDebugMode() as mode:
        optimizer.step()
    counts: Counter[str] = Counter()
    for operator, count in mode.get_comm_counts().items():
        counts[str(operator).rpartition(".")[2]] += count
    return counts, len(matrices), sum(isinstance(matrix, DTensor) for matrix in matrices)


@pytest.mark.parametrize(
    ("layout", "gathers"),
    [(Layout(dp_shard=2), 1), pytest.param(Layout(dp_shard=2, tp=2), 2, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_matrix_is_gathered_once_and_sent_round_once(
    ranks: RankPool, layout: Layout, gathers: int
) -> None:
    """Over the tensor axis as well where that cuts it; under FSDP alone that is all."""
    for counts, matrices, sharded in ranks.run(layout.world_size, _sent, layout):
        assert matrices == sharded == 18
        assert counts.pop("broadcast_") == matrices
        assert counts == {"all_gather_into_tensor": gathers * matrices}


def _train(world: World, directory: Path, options: TrainOptions, resume: bool) -> Report:
    return train_task(world, SmallLM(options), options, directory, resume)


@pytest.fixture(scope="module")
def one(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one rank."""
    directory = tmp_path_factory.mktemp("one")
    [report] = ranks.run(1, _train, directory, MUON, False)
    assert not report.error
    return directory


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (2, {"strategy": "fsdp"}),
        (3, {"strategy": "ddp"}),
        pytest.param(2, {"strategy": "tp"}, marks=pytest.mark.slow),
        pytest.param(2, {"strategy": "pp"}, marks=pytest.mark.slow),
        pytest.param(4, {"shard": 2, "tp": 2}, marks=pytest.mark.slow),
        pytest.param(4, {"dp": 2, "shard": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_is_the_same_run_within_what_bf16_rounds(
    ranks: RankPool, tmp_path: Path, one: Path, size: int, asked: dict[str, Any]
) -> None:
    reports = ranks.run(size, _train, tmp_path, replace(MUON, **asked), False, timeout=200)
    assert [report.error for report in reports] == [""] * size
    ours, theirs = torch.tensor(losses(tmp_path)), torch.tensor(losses(one))
    assert len(theirs) == 20
    assert theirs[-1] < 0.8 * theirs[0]
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=0)


def test_a_resume_has_its_momentum(ranks: RankPool, tmp_path: Path) -> None:
    """On as many ranks it is bit for bit the run that went on."""
    options = replace(MUON, strategy="fsdp")
    for directory, steps in ((tmp_path / "whole", 20), (tmp_path / "parts", 10)):
        ranks.run(2, _train, directory, replace(options, steps=steps), False, timeout=200)
    reports = ranks.run(2, _train, tmp_path / "parts", options, True, timeout=200)
    assert [report.error for report in reports] == ["", ""]
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    here, there = final_model(tmp_path / "parts"), final_model(tmp_path / "whole")
    for name, value in there.items():
        assert torch.equal(here[name], value), name
