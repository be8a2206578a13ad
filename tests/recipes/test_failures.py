"""Invariant 6 in the recipes: memory that is not enough, and a NaN, on one rank end all, named."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.launch.live import TINY, live, records

# The numbers of rank 0 alone are spoiled, or it has no memory for them, from the
# eighth linear map on: every Python that finds this in its path runs it first.
_SPOIL = """
import os
if os.environ.get("RANK") == "0":
    import torch
    from torch.nn.modules.module import register_module_forward_hook
    calls = 0
    def _spoil(module, args, result):
        global calls
        if not isinstance(module, torch.nn.Linear) or not torch.is_grad_enabled():
            return result
        calls += 1
        if calls < 8:
            return result
        {spoil}
    register_module_forward_hook(_spoil)
"""
_NAN = "return result * torch.nan"
_MEMORY = "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
_TEXT = ("language-model", *TINY, "--layers", "1", "--global-batch", "4", "--micro-batch", "4")


@pytest.mark.parametrize(
    ("what", "recipe"),
    [
        pytest.param("nan", _TEXT, id="nan, text"),
        pytest.param(
            "memory", (*_TEXT, "--strategy", "fsdp"), id="memory, fsdp", marks=pytest.mark.slow
        ),
    ],
)
def test_one_rank_that_fails_is_named(tmp_path: Path, what: str, recipe: tuple[str, ...]) -> None:
    spoil = _MEMORY if what == "memory" else _NAN
    (tmp_path / "sitecustomize.py").write_text(_SPOIL.format(spoil=spoil))
    words = ["run", "--local", "--nproc", "2", *recipe, "--steps", "12"]
    with live(words, tmp_path, {"PYTHONPATH": str(tmp_path)}) as run:
        assert run.wait(300) == 1, run.err
        run.nobody_left()
        error = run.err.rstrip().splitlines()[-1]
    where = f"rank 0 on {platform.node()}"
    if what == "memory":
        assert error.startswith(f"{where} failed: "), error
        assert "Tried to allocate" in run.err
    else:
        assert f"the loss on {where} (" in run.err, run.err
    [directory] = (tmp_path / "runs").glob("*/*/metrics.jsonl")
    assert len(records(directory.parent)) < 12
