"""Invariant 1, same run, over ways to split a model; the plain strategies are in `tests/train`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankup.base.errors import UserError
from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.initial import initialize
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.restore import SafeReader
from rankup.runtime.world import World
from rankup.train.optimizer import build_optimizer
from rankup.train.options import TrainOptions
from rankup.train.start import freeze
from tests.pool import RankPool
from tests.train.runs import Report, final_model, losses, records, train_task

from .tasks import SmallLM

# 44 = 3 * 12 + 8, 12 = 2 * 5 + 2: the last batch of an epoch and its last micro-batch are short.
# Six steps end in the second epoch.
SGD = TrainOptions(
    12, 5, 6, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant",
    clip=0.85, seed=7, valid_every=6, checkpoint_every=6,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A layout by its name, and what else is asked for with it."""

    name: str
    layout: Layout
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        pp, dp, shard, cp, tp = self.layout.sizes
        return {"pp": pp, "dp": dp, "shard": shard, "cp": cp, "tp": tp, **self.options}


def _case(name: str, pp: int, dp: int, shard: int, tp: int, cp: int = 1, **options: Any) -> Case:
    return Case(name, Layout(pp, dp, shard, cp, tp), options)


CORE = [
    _case("ddp", 1, 2, 1, 1),
    _case("fsdp", 1, 1, 2, 1),
    _case("tp", 1, 1, 1, 2),
    _case("pp", 2, 1, 1, 1),
]
# Pairwise: each axis beside each other one, each schedule and each way to recompute at least once.
REST = [
    _case("shard x tp, recomputed", 1, 1, 2, 2, activation_checkpointing="full"),
    _case("dp x pp, interleaved", 2, 2, 1, 1, pp_schedule="interleaved"),
    _case("tp x pp, gpipe", 2, 1, 1, 2, pp_schedule="gpipe"),
    _case(
        "fsdp, zero 2, half recomputed", 1, 1, 2, 1, zero="2",
        activation_checkpointing="selective",
    ),
    _case("fsdp in host memory", 1, 1, 2, 1, offload=True),
    _case("shard x cp, recomputed", 1, 1, 2, 1, cp=2, activation_checkpointing="full"),
    _case("cp x tp, half recomputed", 1, 1, 1, 2, cp=2, activation_checkpointing="selective"),
    _case("dp x cp, zero 1", 1, 2, 1, 1, cp=2, zero="1", activation_checkpointing="selective:2"),
    _case("cp of 4", 1, 1, 1, 1, cp=4),
    _case("pp, interleaved", 2, 1, 1, 1, pp_schedule="interleaved"),
]  # fmt: skip
ALL_BUT_COPIES = _case("shard x tp x pp", 2, 1, 2, 2)  # the only one here of eight ranks
PLAIN: dict[str, Any] = {}
TIED = {"tied": True, "frozen": ("blocks.1.feed_forward.up", "positions")}
DROPPED = {"dropout": 0.2}
UNCLIPPED = {"clip": 0.0, "micro_batch": 12}
FROZEN = {
    "freeze": "tokens.*,positions.*,blocks.[01].*", "clip": 0.0, "momentum": 0.9,
    "weight_decay": 0.1,
}  # fmt: skip


def _apart(case: Case, accumulated: bool) -> dict[str, Any]:
    """Accumulation without clipping, or clipping without accumulation."""
    if accumulated:
        return {"clip": 0.0, "micro_batch": 12 // (2 * case.layout.data_size)}
    return {"clip": 0.5, "micro_batch": 12 // case.layout.data_size}


def _train(world: World, directory: Path, options: TrainOptions, shape: dict[str, Any]) -> Report:
    return train_task(world, SmallLM(options, **shape), options, directory, False)


class Same:
    """Holds runs that are split over ranks against the same run on one, which is made once."""

    def __init__(self, ranks: RankPool, root: Path) -> None:
        self._ranks, self._root = ranks, root
        self._ones: dict[str, Path] = {}

    def one(self, options: TrainOptions, shape: dict[str, Any]) -> Path:
        key = repr((options, sorted(shape.items())))
        if key not in self._ones:
            directory = self._root / str(len(self._ones))
            [report] = self._ranks.run(1, _train, directory, options, shape)
            assert not report.error
            self._ones[key] = directory
        return self._ones[key]

    def hold(self, root: Path, case: Case, shape: dict[str, Any], changes: dict[str, Any]) -> None:
        options = replace(SGD, **changes)
        _assert_same(self._ranks, root, case, shape, options, self.one(options, shape))


@pytest.fixture(scope="module")
def same(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Same:
    return Same(ranks, tmp_path_factory.mktemp("one"))


def _assert_same(
    ranks: RankPool,
    root: Path,
    case: Case,
    shape: dict[str, Any],
    options: TrainOptions,
    one: Path,
) -> None:
    split = replace(options, **case.asked)
    reports = ranks.run(case.layout.world_size, _train, root / "split", split, shape, timeout=200)
    assert [report.error for report in reports] == [""] * case.layout.world_size
    ours, theirs = torch.tensor(losses(root / "split")), torch.tensor(losses(one))
    assert len(theirs) == 6
    assert theirs[-1] < theirs[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    here, there = final_model(root / "split"), final_model(one)
    assert list(here) == list(there)
    largest = max(float(value.abs().max()) for value in there.values())
    for name, value in there.items():
        assert float((here[name] - value).abs().max()) <= 1e-5 * largest, name
    norms = [record["grad_norm"] for record in records(root / "split")[:-1]]
    assert not options.clip or max(norms) > options.clip, "nothing was clipped"
    last, expected = records(root / "split")[-1], records(one)[-1]
    for name in ("valid_loss", "test_loss"):
        assert last[name] == pytest.approx(expected[name], rel=1e-5)


def test_tied_embeddings_and_frozen_parts_over_stages(same: Same, tmp_path: Path) -> None:
    same.hold(tmp_path, CORE[3], TIED, UNCLIPPED)


@pytest.mark.parametrize(
    "case",
    [CORE[3], *(pytest.param(case, marks=pytest.mark.slow) for case in CORE[:3])],
    ids=lambda case: case.name,
)
def test_parameters_that_are_named_stay(same: Same, tmp_path: Path, case: Case) -> None:
    """They have no state of the optimizer, and are in the checkpoint as any other."""
    same.hold(tmp_path, case, PLAIN, FROZEN)
    start = SmallLM(SGD).build_model()
    initialize(start, SGD.seed)
    end, saved = final_model(tmp_path / "split"), _shapes(tmp_path / "split")
    stayed = [name for name, value in start.named_parameters() if torch.equal(value, end[name])]
    assert {name.split(".")[0] for name in stayed} == {"tokens", "positions", "blocks"}
    assert [name for name in stayed if "blocks.2" in name] == []
    assert {f"model.{name}" for name in end} <= saved
    with_state = {name.split(".", 2)[2].rpartition(".")[0] for name in saved if "state" in name}
    assert with_state == end.keys() - stayed


def _shapes(directory: Path) -> set[str]:
    """Names of all tensors of the run's last checkpoint."""
    return set(SafeReader(directory / "checkpoints" / "step-00000006").shapes())


def _decays(world: World) -> dict[str, float]:
    """The weight decay of each parameter of a model cut by tensors."""
    task = SmallLM(SGD)
    built = build(task.build_model, Mesh(Layout(tp=2), world), 0, Choices())
    optimizer = build_optimizer(built.model, replace(SGD, weight_decay=0.3))
    decays: dict[int, float] = {}
    for group in optimizer.param_groups:
        decays |= {id(parameter): group["weight_decay"] for parameter in group["params"]}
    return {name: decays[id(p)] for name, p in built.model.named_parameters()}


def test_matrices_decay_and_norms_and_biases_do_not(ranks: RankPool) -> None:
    found = ranks.run(2, _decays)[0]
    for name, value in SmallLM(SGD).build_model().named_parameters():
        assert found[name] == (0.3 if value.dim() >= 2 else 0.0), name
    assert set(found.values()) == {0.3, 0.0}


def test_patterns_that_freeze_nothing_or_all_are_refused() -> None:
    model = SmallLM(SGD).build_model()
    with pytest.raises(UserError, match=r"'token\.\*' matches no .* did you mean tokens\.weight"):
        freeze(model, "head.*,token.*")
    with pytest.raises(UserError, match="leaves no parameter"):
        freeze(model, "*")


def test_dropout_over_parts_of_a_layer(same: Same, tmp_path: Path) -> None:
    """Ranks that have parts of a mask have drawn the whole one, as a single rank does."""
    same.hold(tmp_path, CORE[2], DROPPED, {})


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=lambda case: case.name)
def test_every_layout(same: Same, tmp_path: Path, case: Case) -> None:
    same.hold(tmp_path, case, PLAIN, {})


@pytest.mark.slow
@pytest.mark.parametrize("case", [CORE[2], ALL_BUT_COPIES], ids=lambda case: case.name)
def test_tied_and_frozen_parts(same: Same, tmp_path: Path, case: Case) -> None:
    same.hold(tmp_path, case, TIED, UNCLIPPED)


@pytest.mark.slow
def test_clipped_without_accumulation(same: Same, tmp_path: Path) -> None:
    """The cheapest of those below: a shared norm, and nothing added up before it."""
    same.hold(tmp_path, CORE[1], PLAIN, _apart(CORE[1], accumulated=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "accumulated"),
    [(CORE[0], False), (CORE[3], True)],
    ids=lambda one: one.name if isinstance(one, Case) else "accumulated" if one else "clipped",
)
def test_accumulated_or_clipped(same: Same, tmp_path: Path, case: Case, accumulated: bool) -> None:
    """Each by itself, for what one would hide of the other."""
    same.hold(tmp_path, case, PLAIN, _apart(case, accumulated))
