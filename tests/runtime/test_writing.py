"""Two saves into one folder."""

from __future__ import annotations

import fcntl
from pathlib import Path

from torch import nn

from rankup.runtime.sharded import load_sharded_model, save_sharded_model
from rankup.runtime.world import World
from tests.pool import RankPool


def _save_while_taken(world: World, folder: Path) -> str:
    try:
        save_sharded_model(nn.Linear(2, 2), folder)
    except OSError as error:
        return str(error)
    return ""


def test_one_process_saves_at_a_time(ranks: RankPool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_sharded_model(nn.Linear(2, 2), folder)
    with (folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for said in ranks.run(2, _save_while_taken, folder):
            assert "another process is saving into this folder" in said
            assert str(folder) in said
    load_sharded_model(nn.Linear(2, 2), folder)
    assert ranks.run(2, _save_while_taken, folder) == ["", ""]
