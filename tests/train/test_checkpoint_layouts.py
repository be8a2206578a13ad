"""A checkpoint saved in one layout loads in any other, with the optimizer's state, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankup.base.errors import UserError
from rankup.runtime.save import full_state
from rankup.runtime.world import World
from rankup.train.checkpoint import Saved, Saver
from rankup.train.plan import Place
from rankup.train.resume import restore
from tests.pool import RankPool
from tests.runtime.split import SIZES, Split, advance, assert_equal, expected, make

IDENTITY = {"seed": 1}


def _saved(step: int) -> Saved:
    return Saved(Place(step, 0, step * 8), IDENTITY, (0.5, 1), False)


def _save(world: World, layout: str, root: Path, optimizer: str, asynchronous: bool) -> None:
    split = make(layout, optimizer)
    saver = Saver(root, 2, asynchronous)
    for step in range(2):
        advance(split, range(step, step + 1))
        saver.save(split.model, split.optimizer, _saved(step + 1), split.copies)
        # What changes after `save` returned is not in the checkpoint.
        assert asynchronous or saver.wait() == ""
        if asynchronous and step == 1:
            with torch.no_grad():
                for parameter in split.model.parameters():
                    parameter.zero_()
    assert saver.wait() == ""
    saver.close()


def _resume(world: World, layout: str, root: Path, optimizer: str) -> Any:
    split = make(layout, optimizer, seed=1)
    saved = restore(root, split.model, split.optimizer, IDENTITY, split.copies)
    assert saved == _saved(2)
    advance(split, range(2, 4))
    return full_state(split.model, split.copies)


def _uninterrupted(world: World, optimizer: str) -> dict[str, torch.Tensor]:
    return expected(4, optimizer)


def test_saved_in_one_layout_and_resumed_in_another(ranks: RankPool, tmp_path: Path) -> None:
    """Other layouts are in `tests/runtime/test_sharded_model.py`, runs in `tests/parallel`."""
    ranks.run(SIZES["pp"], _save, "pp", tmp_path, "adamw", True)
    found = ranks.run(SIZES["tp"], _resume, "tp", tmp_path, "adamw")[0]
    assert_equal(found, ranks.run(1, _uninterrupted, "adamw")[0])
    marker = json.loads((tmp_path / "step-00000002" / "COMPLETE").read_text())
    assert marker["aliases"] == {"head.weight": "tokens.weight"}


def _each_byte_once(world: World, layout: str, root: Path) -> int:
    split = make(layout)
    advance(split, range(1))
    Saver(root, 1, asynchronous=False).save(split.model, split.optimizer, _saved(1), split.copies)
    files = list((root / "step-00000001").glob(f"__{world.rank}_*"))
    return sum(path.stat().st_size for path in files)


def test_ranks_share_what_all_of_them_hold(ranks: RankPool, tmp_path: Path) -> None:
    """With copies on both ranks each writes about half."""
    alone = ranks.run(1, _each_byte_once, "plain", tmp_path / "alone")[0]
    both = ranks.run(2, _each_byte_once, "ddp", tmp_path / "both")
    assert sum(both) <= 1.1 * alone
    assert min(both) > 0.35 * alone


def _other(world: World, layout: str, root: Path, change: str) -> str:
    split = make(layout)
    if change == "shape" and hasattr(split.model, "norm"):
        split.model.norm = nn.LayerNorm(4)
    elif change == "name" and hasattr(split.model, "norm"):
        split.model.other = split.model.norm
        del split.model.norm
    elif change == "optimizer":
        split = Split(split.model, torch.optim.SGD(split.model.parameters(), 0.1, 0.9))
    if change != "optimizer":
        split = Split(split.model, torch.optim.SGD(split.model.parameters(), 0.1), split.copies)
    try:
        restore(root, split.model, split.optimizer, IDENTITY, split.copies)
    except UserError as error:
        return str(error)
    return ""


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(
    ranks: RankPool, tmp_path: Path
) -> None:
    """In a pipeline the differing names are on the last stage alone."""
    ranks.run(1, _save, "plain", tmp_path, "adamw", False)
    for change, words in {
        "shape": "norm.bias: [5] in the checkpoint, [4] in this model",
        "name": "norm.bias: [5] in the checkpoint, absent in this model",
    }.items():
        for said in ranks.run(SIZES["pp"], _other, "pp", tmp_path, change):
            assert "is of another model" in said
            assert words in said
    for said in ranks.run(1, _other, "plain", tmp_path, "optimizer"):
        assert "is of another optimizer" in said
        assert "exp_avg: [5] in the checkpoint, absent in this optimizer" in said
