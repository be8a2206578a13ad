"""The examples run as under torchrun, and on any number of ranks they are the same run."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from rankup.runtime.collectives import barrier
from rankup.runtime.world import World, destroy_process_group
from tests.pool import RankPool, free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("fsdp", "tensor_parallel", "pipeline")


class Examples:
    """What `examples/<name>.py` prints on so many ranks; each is run once."""

    def __init__(self, ranks: RankPool) -> None:
        self._ranks = ranks
        self._printed: dict[tuple[str, int], str] = {}

    def __call__(self, name: str, ranks: int) -> str:
        if (name, ranks) not in self._printed:
            self._printed[name, ranks] = self._run(name, ranks)
        return self._printed[name, ranks]

    def _run(self, name: str, ranks: int) -> str:
        found = self._ranks.run(ranks, _as_of_torchrun, name, free_port())
        printed, errors = ("".join(words) for words in zip(*found, strict=True))
        assert "Warning" not in errors, errors[-3000:]
        return printed


@pytest.fixture(scope="module")
def example(ranks: RankPool) -> Examples:
    return Examples(ranks)


def _as_of_torchrun(world: World, name: str, port: int) -> tuple[str, str]:
    """Run the example in this process, as if it were in no group; its output and its errors."""
    barrier()  # who left while another still connects would break its connection
    destroy_process_group()
    rank, size = str(world.rank), str(world.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    printed, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "path", [str(EXAMPLES), *sys.path]),
        mock.patch("small_model.leave"),  # this process stays
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(errors),
    ):
        for kind in (UserWarning, FutureWarning):
            warnings.simplefilter("default", kind)
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return printed.getvalue(), errors.getvalue()


def _column(printed: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"\b{name} ([\d.]+)", printed)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_print_the_losses_of_one(example: Examples, name: str) -> None:
    # One process stands for all three: what they train is the same model on the same data.
    expected = _column(example("fsdp", 1), "loss")
    losses = _column(example(name, 2), "loss")
    assert len(expected) == 6
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.slow
def test_fsdp_clips_by_the_norm_over_all_ranks(example: Examples) -> None:
    # AdamW hides a wrong scale of the gradients from the losses; their norm shows it.
    norms = _column(example("fsdp", 2), "norm")
    assert norms == pytest.approx(_column(example("fsdp", 1), "norm"), rel=1e-3)


@pytest.mark.slow
def test_each_rank_keeps_its_part(example: Examples) -> None:
    kept = re.findall(r"rank (\d) keeps (\d+) of (\d+)", example("fsdp", 2))
    assert sorted(rank for rank, _, _ in kept) == ["0", "1"]
    assert all(2 * int(part) == int(whole) for _, part, whole in kept)
    kept = re.findall(r"rank (\d) keeps (\d+) of (\d+)", example("tensor_parallel", 2))
    assert len(kept) == 2
    assert all(int(part) < 0.55 * int(whole) for _, part, whole in kept)
    layers = re.findall(r"rank (\d) keeps layers (\d) to (\d)", example("pipeline", 2))
    assert sorted(layers) == [("0", "0", "2"), ("1", "3", "5")]


@pytest.mark.slow
def test_they_run_as_their_first_line_says(example: Examples) -> None:
    """A launcher and two interpreters take longer than all of the above."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*launcher, "--nproc-per-node=2", f"{EXAMPLES / 'fsdp.py'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr, done.stderr[-3000:]
    losses = _column(example("fsdp", 2), "loss")
    assert _column(done.stdout, "loss") == pytest.approx(losses, rel=1e-4)
    assert len(losses) == 6


def _refused(world: World, port: int) -> str:
    try:
        _as_of_torchrun(world, "tensor_parallel", port)
    except SystemExit as refused:
        return str(refused)
    return ""


@pytest.mark.slow
def test_ranks_that_do_not_come_out_are_refused(ranks: RankPool) -> None:
    said = ranks.run(3, _refused, free_port())
    assert said == ["4 heads cannot be dealt evenly to 3 ranks"] * 3


@pytest.mark.parametrize("name", NAMES)
def test_an_example_can_be_read_at_a_sitting(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    flag = {"fsdp": "fsdp", "tensor_parallel": "tp", "pipeline": "pp"}[name]
    assert any(f"rankup run --nproc 2 language-model --strategy {flag}" in line for line in lines)
