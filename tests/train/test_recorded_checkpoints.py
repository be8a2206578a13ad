"""Checkpoints that earlier versions have written are read, in any layout.

`recorded/checkpoints-VERSION.zip` holds what that version made of `split.make("fsdp")` on two ranks
after two steps: a recipe's checkpoint, and a folder of `save_sharded_model`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rankup.runtime.save import full_state
from rankup.runtime.sharded import load_sharded_model
from rankup.runtime.world import World
from rankup.train.checkpoint import Saved
from rankup.train.plan import Place
from rankup.train.resume import restore
from tests.pool import RankPool
from tests.runtime.split import SIZES, advance, assert_equal, expected, make

RECORDED = Path(__file__).parent / "recorded"


def _go_on(world: World, layout: str, folder: Path, kind: str) -> None:
    """The third step from there is that of a run that nobody interrupted."""
    split = make(layout, seed=1)
    if kind == "recipe":
        root = folder / "checkpoints"
        saved = restore(root, split.model, split.optimizer, {"seed": 0}, split.copies)
        assert saved == Saved(Place(2, 0, 16), {"seed": 0}, (2.5, 2))
    else:
        copies = split.copies
        about = load_sharded_model(split.model, folder / "script", split.optimizer, copies=copies)
        assert about == {"step": 2}
    advance(split, range(2, 3))
    whole = full_state(split.model, split.copies)
    if world.is_root:
        assert_equal(whole, expected(3))


@pytest.mark.parametrize("version", ["0.2", "0.3"])
@pytest.mark.parametrize("kind", ["recipe", "script"])
def test_an_earlier_version_is_read(
    ranks: RankPool, tmp_path: Path, version: str, kind: str
) -> None:
    with zipfile.ZipFile(RECORDED / f"checkpoints-{version}.zip") as recorded:
        recorded.extractall(tmp_path)
    for layout in ("plain", "tp", "pp"):
        ranks.run(SIZES[layout], _go_on, layout, tmp_path, kind)
