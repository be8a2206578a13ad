"""Gossip on two nodes of Slurm: a worker of one is killed, and the job completes without it."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import RunRankup, TextFiles
from tests.slurm.cluster import Cluster

from .live import TINY, records
from .on_slurm import SECONDS, Site, log, until


@pytest.fixture
def site(slurm: Cluster, run_rankup: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, run_rankup, tmp_path)


def _workers(run: Path) -> dict[int, psutil.Process]:
    """The workers of a run, by number, on all nodes of the one machine."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, KeyError, OSError):
            variables = process.environ()
            ours = variables.get("RANKUP_RUN_DIR") == str(run)
            if ours and "rankup.launch.worker" in " ".join(process.cmdline()[:4]):
                found[int(variables["RANKUP_WORKER"])] = process
    return found


@pytest.mark.slow
def test_a_worker_of_the_second_node_is_killed(site: Site, small_text: TextFiles) -> None:
    files = ["--train", small_text.train, "--valid", small_text.valid, "--test", small_text.test]
    words = [*files, *TINY, "--strategy", "gossip", "--steps", "300"]
    job, run = site.submit("--nodes", "2", "--nproc", "2", "language-model", *words)
    until(lambda: len(records(run)) >= 3, run, 3 * SECONDS)
    _workers(run)[3].send_signal(signal.SIGKILL)
    site.ended(job, "COMPLETED", run, timeout=3 * SECONDS)
    said = log(run).splitlines()
    assert any("worker 3 (node " in line and "; the others go on" in line for line in said)
    assert any("the run ended without worker 3 (node " in line for line in said[-3:]), said[-9:]
    final = records(run)[-1]
    assert (final["workers_lost"], final["workers_averaged"]) == ([3], [0, 1, 2])
    assert (run / "model-final.pt").is_file()
    assert not _workers(run)
    nodes = {
        json.loads(line)["step"] for line in (run / "metrics-2.jsonl").read_text().splitlines()
    }
    assert nodes, "the other worker of that node took part"
