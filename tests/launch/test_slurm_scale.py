"""A series on more and more nodes of the tests' Slurm, submitted at once and read when it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster

from .live import losses
from .on_slurm import ONE_THREAD, SECONDS, Site, asked, log
from .test_checked import SINGLE


@pytest.mark.slow
def test_tiny_language_model_on_one_node_and_two(
    slurm: Cluster, run_rankup: RunRankup, tmp_path: Path
) -> None:
    site = Site(slurm, run_rankup, tmp_path)
    words = ["--time", "10m", *ONE_THREAD, "language-model", "--tiny", "--steps", "4"]
    started = site.rankup("scale", "--gpus", "1,2", "--nproc", "1", *words)
    assert "go on with: rankup scale --resume" in started.stderr
    found = tmp_path.glob("runs/language-model/*")
    runs = {int(path.name.rpartition("-")[2]): path for path in found}
    assert sorted(runs) == [1, 2], started.stdout + started.stderr
    for run in runs.values():
        site.ended(int(asked(run)[-1]), "COMPLETED", run, timeout=3 * SECONDS)
    assert losses(runs[2]) == pytest.approx(losses(runs[1]), rel=1e-4), log(runs[2])
    table = site.rankup("scale", "--resume", "last").stdout
    assert "The result is the same on all: test_loss" in table
    assert "efficiency" in table


def test_a_script_that_is_not_ready_is_refused_before_any_point(
    slurm: Cluster, run_rankup: RunRankup, tmp_path: Path
) -> None:
    """The first point was refused, with the advice of an option that was not there; others ran."""
    site = Site(slurm, run_rankup, tmp_path)
    (tmp_path / "train.py").write_text(SINGLE)
    words = ["--time", "10m", "--gpus", "1,2", "train.py"]
    done = site.rankup("scale", "--nproc", "1", *words, code=2)
    assert "not ready for 2 ranks" in done.stderr
    assert "--no-check" in done.stderr
    assert not (tmp_path / "runs").exists()
    site.rankup("scale", "--nproc", "1", "--no-check", "--dry-run", *words)
