"""The recipe `image-classification` on two nodes of the tests' Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunRankup
from tests.pool import RankPool
from tests.slurm.cluster import Cluster

from .live import losses, records
from .on_slurm import ONE_THREAD, Site
from .undisturbed import train

TINY = ("image-classification", "--tiny", "--steps", "3", "--size", "16", "--lr", "1e-3")


@pytest.mark.slow
def test_two_nodes_train_as_one_rank_does(
    slurm: Cluster, run_rankup: RunRankup, ranks: RankPool, tmp_path: Path
) -> None:
    site = Site(slurm, run_rankup, tmp_path)
    away, here = tmp_path / "slurm", tmp_path / "local"
    job = (
        "--nodes",
        "2",
        "--nproc",
        "1",
        "--allow-idle-gpus",
        "--time",
        "10m",
        *ONE_THREAD,
        "--follow",
    )
    site.rankup("run", "--out", away, *job, *TINY)
    train(ranks, 1, here, TINY)
    assert losses(away) == pytest.approx(losses(here), rel=1e-3)
    assert records(away)[-1]["valid_top5"] == pytest.approx(records(here)[-1]["valid_top5"])
    photo = site.rankup("generate", away, "--file", here / "drawings.tar").stdout.splitlines()
    assert len(photo) == 400
    assert all(line.startswith(("train/", "val/")) for line in photo)
