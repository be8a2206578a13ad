"""A model split over the nodes of a Slurm job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunRankup, TextFiles
from tests.gallery import run_by_pool
from tests.pool import RankPool
from tests.slurm.cluster import Cluster

from .live import TINY, losses, records
from .on_slurm import SECONDS, Site


@pytest.fixture
def site(slurm: Cluster, run_rankup: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, run_rankup, tmp_path)


def _language_model(text: TextFiles) -> list[str | Path]:
    files: list[str | Path] = ["--train", text.train, "--valid", text.valid, "--test", text.test]
    # Few and long samples, evaluated once: a tensor-parallel micro-batch takes its time on a CPU.
    shape = [*TINY, "--seq-len", "32", "--dropout", "0", "--valid-every", "4"]
    batch = ["--global-batch", "8", "--micro-batch", "2", "--steps", "4"]
    return ["language-model", *files, *shape, *batch]


@pytest.mark.slow
def test_3d_over_two_nodes_trains_as_one_rank_does(
    site: Site, ranks: RankPool, small_text: TextFiles
) -> None:
    words = _language_model(small_text)
    job, away = site.submit("--nodes", "2", "--nproc", "2", *words, "--strategy", "3d")
    # Four processes import torch and make their groups on what may be two busy cores.
    site.ended(job, "COMPLETED", away, timeout=2 * SECONDS)
    here = site.folder / "local"
    run_by_pool(ranks, 1, "language-model", list(map(str, words[1:])), here)
    assert sorted(losses(away)) == [1, 2, 3, 4]
    assert losses(away) == pytest.approx(losses(here), rel=1e-4)
    for name in ("valid_loss", "test_loss"):
        assert records(away)[-1][name] == pytest.approx(records(here)[-1][name], rel=1e-4)
