"""What each strategy has saved goes on under each of the others, on another number of ranks."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pool import RankPool
from tests.train.runs import final_model, losses

from .test_resume_layouts import OPTIONS, _train

# The checkpoint lies in the middle of an epoch, and its momentum decides the next steps.
SAVED, STEPS = 2, 4
# Name -> ranks that save, ranks that go on, and what is asked for.
STRATEGIES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ddp": (2, 3, {"strategy": "ddp"}),
    "fsdp": (2, 3, {"strategy": "fsdp"}),
    "tp": (2, 4, {"strategy": "tp"}),
    "pp": (2, 3, {"strategy": "pp"}),
    "3d": (8, 4, {"strategy": "3d"}),
}
PAIRS = list(itertools.permutations(STRATEGIES, 2))
Run = Callable[[str], Path]


def _run(ranks: RankPool, directory: Path, size: int, steps: int, asked: dict[str, Any]) -> None:
    options = replace(OPTIONS, steps=steps, checkpoint_every=steps, **asked)
    reports = ranks.run(size, _train, directory, options, 3, directory.exists(), timeout=200)
    assert [report.error for report in reports] == [""] * size


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run directory of a strategy, which is made once."""
    root = tmp_path_factory.mktemp("saved")

    def run(name: str) -> Path:
        if not (root / name).exists():
            size, _, asked = STRATEGIES[name]
            _run(ranks, root / name, size, SAVED, asked)
        return root / name

    return run


@pytest.fixture(scope="module")
def whole(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    _run(ranks, directory, 1, STEPS, {})
    return directory


def _assert_goes_on(ranks: RankPool, saved: Path, there: Path, whole: Path, then: str) -> None:
    shutil.copytree(saved, there, symlinks=True)
    _, size, asked = STRATEGIES[then]
    _run(ranks, there, size, STEPS, asked)
    ours, theirs = torch.tensor(losses(there)), torch.tensor(losses(whole))
    assert len(theirs) == STEPS
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    here, expected = final_model(there), final_model(whole)
    assert list(here) == list(expected)
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert float((here[name] - value).abs().max()) <= 1e-5 * largest, name


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), PAIRS, ids=lambda name: str(name))
def test_saved_in_each_loaded_in_each(
    ranks: RankPool, tmp_path: Path, saved: Run, whole: Path, first: str, then: str
) -> None:
    _assert_goes_on(ranks, saved(first), tmp_path / "run", whole, then)
