"""The final model of a run whose ranks share it: shards that no rank has held together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankup.runtime.world import World
from rankup.site import rundir
from rankup.train import final
from rankup.train.options import TrainOptions
from tests.parallel.tasks import SmallLM
from tests.pool import RankPool

from .runs import Report, final_model, train_task

OPTIONS = TrainOptions(12, 4, 2, optimizer="sgd", lr=0.1, clip=0.0, seed=3)
INDEX = "model.safetensors.index.json"


def _train(world: World, directory: Path, strategy: Any = None, again: bool = False) -> Report:
    options = replace(OPTIONS, strategy=strategy)
    return train_task(world, SmallLM(options, tied=True), options, directory, again)


def test_ranks_that_share_a_model_write_a_share_of_it_each(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(1, _train, tmp_path / "one")
    for strategy in ("fsdp", "tp", "pp"):
        run = tmp_path / strategy
        for report in ranks.run(2, _train, run, strategy):
            assert report.error == ""
        whole = final_model(tmp_path / "one")
        torch.testing.assert_close(final_model(run), whole, rtol=1e-4, atol=1e-6)
        assert [*final_model(run)] == [*whole]
        shards = [*(run / "model-final").glob("*.safetensors")]
        sizes = [sum(t.nbytes for t in load_file(path).values()) for path in shards]
        assert len(sizes) == 2
        assert max(sizes) < 0.8 * sum(tensor.nbytes for tensor in whole.values())
        assert rundir.has_final_model(run)


def test_written_again_the_new_shards_take_the_place_of_the_old(
    ranks: RankPool, tmp_path: Path
) -> None:
    """`--resume` of a run that is through evaluates and writes once more."""
    folder = tmp_path / "model-final"
    ranks.run(2, _train, tmp_path, "fsdp")
    first, before = final_model(tmp_path), {path.name for path in folder.iterdir()}
    ranks.run(2, _train, tmp_path, "fsdp", True)
    torch.testing.assert_close(final_model(tmp_path), first, rtol=0, atol=0)
    after = {path.name for path in folder.iterdir()}
    assert before & after == {INDEX}
    assert {*json.loads((folder / INDEX).read_text())["weight_map"].values()} == after - {INDEX}


def test_where_it_cannot_be_written_the_old_stays(ranks: RankPool, tmp_path: Path) -> None:
    folder = tmp_path / "model-final"
    folder.write_text("in the way")
    for report in ranks.run(2, _train, tmp_path, "fsdp"):
        assert "has no model-final; make room" in report.error
    assert folder.read_text() == "in the way"


def test_the_other_form_of_an_older_step_goes(ranks: RankPool, tmp_path: Path) -> None:
    """A run that goes on in another layout: readers would not know which of two counts."""
    for strategy, name in (
        ("fsdp", "model-final"),
        (None, "model-final.pt"),
        ("tp", "model-final"),
    ):
        for report in ranks.run(2, _train, tmp_path, strategy, (tmp_path / "checkpoints").exists()):
            assert report.error == ""
        assert [path.name for path in tmp_path.glob("model-final*")] == [name]


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_error_leaves_what_the_index_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    net, folder = torch.nn.Linear(2, 2), tmp_path / "model-final"
    mesh = SimpleNamespace(apart=False, dp_replicate=0)
    built: Any = SimpleNamespace(model=net, copies={}, whole=net, mesh=mesh)
    final._write_shards(built, folder)
    real = final.write_atomic

    def fail(path: Path, text: str) -> None:
        if when == "behind":
            real(path, text)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(final, "write_atomic", fail)
    before = (folder / INDEX).read_text()
    with pytest.raises(OSError, match="Input/output"):
        final._write_shards(built, folder)
    assert ((folder / INDEX).read_text() != before) == (when == "behind")
    named = {*json.loads((folder / INDEX).read_text())["weight_map"].values()}
    assert named <= {path.name for path in folder.iterdir()}
    assert len([*folder.glob("*.safetensors")]) == (2 if when == "behind" else 1)
