"""`save_full_model` and `load_full_model`: one file, from any layout into any other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankup.runtime.save import full_state, load_full_model, save0, save_full_model
from rankup.runtime.world import World
from tests.pool import RankPool

from .split import SIZES, Net, advance, assert_equal, expected, make


def _save(world: World, layout: str, path: Path) -> None:
    split = make(layout)
    advance(split, range(2))
    save_full_model(split.model, path, split.optimizer, copies=split.copies, step=2, note="ä")
    save_full_model(split.model, path.with_suffix(".model"), copies=split.copies)


def _load(world: World, layout: str, path: Path) -> dict[str, Any]:
    split = make(layout, seed=1)
    extra = load_full_model(split.model, path, split.optimizer, copies=split.copies)
    assert extra == {"step": 2, "note": "ä"}
    advance(split, range(2, 3))
    return full_state(split.model, split.copies)


@pytest.mark.parametrize("before", ["plain", "fsdp", "pp"])
def test_saved_in_one_layout_and_loaded_in_another(
    ranks: RankPool, tmp_path: Path, before: str
) -> None:
    """Each writes once and reads once: the two know nothing of each other."""
    ranks.run(SIZES[before], _save, before, tmp_path / "full.pt")
    # Plain torch loads it into the model that nobody has split.
    Net().load_state_dict(torch.load(tmp_path / "full.model", weights_only=True), strict=True)
    after = {"plain": "compiled", "fsdp": "tp", "pp": "ddp"}[before]
    found = ranks.run(SIZES[after], _load, after, tmp_path / "full.pt")
    assert_equal(found[0], ranks.run(1, _expected)[0])
    assert all(other == {} for other in found[1:])


@pytest.mark.parametrize("save", [save_full_model, save0])
def test_no_flipped_bit_is_loaded(tmp_path: Path, save: Any) -> None:
    """Where one changes nothing that is read (a date, padding) it may go unseen."""
    model, path, draw = nn.Linear(20, 20), tmp_path / "full.pt", random.Random(0)
    save(model, path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(200):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        found = nn.Linear(20, 20)
        try:
            load_full_model(found, path)
        except ValueError:
            refused += 1
        else:
            assert_equal(found.state_dict(), model.state_dict())
    assert refused > 100


def _flipped(world: World, path: Path) -> str:
    try:
        load_full_model(nn.Linear(300, 300), path)
    except ValueError as error:
        return str(error)
    return ""


def test_damage_that_one_rank_sees_is_an_error_on_every_rank(
    ranks: RankPool, tmp_path: Path
) -> None:
    path = tmp_path / "full.pt"
    save_full_model(nn.Linear(300, 300), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for said in ranks.run(3, _flipped, path):
        assert "full.pt has changed since it was written" in said


class _Holder(nn.Module):
    """Every name of it begins as DDP would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


@pytest.mark.parametrize("before", ["", "module.", "_orig_mod."])
def test_a_child_called_module_keeps_its_name(tmp_path: Path, before: str) -> None:
    saved, loaded = _Holder(), _Holder()
    if before:  # as plain torch saves it out of a wrapper
        torch.save({before + k: v for k, v in saved.state_dict().items()}, tmp_path / "full.pt")
    else:
        save_full_model(saved, tmp_path / "full.pt")
    load_full_model(loaded, tmp_path / "full.pt")
    assert_equal(loaded.state_dict(), saved.state_dict())


def _expected(world: World) -> dict[str, torch.Tensor]:
    return expected(3)


@pytest.mark.slow
@pytest.mark.parametrize("before", list(SIZES)[1::3])
def test_other_layouts_save_and_load(ranks: RankPool, tmp_path: Path, before: str) -> None:
    """They write the one file that the plain model reads, and read their own."""
    ranks.run(SIZES[before], _save, before, tmp_path / "full.pt")
    after = ranks.run(1, _expected)[0]
    for layout in ("plain", before):
        assert_equal(ranks.run(SIZES[layout], _load, layout, tmp_path / "full.pt")[0], after)
