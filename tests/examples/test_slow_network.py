"""Asynchronous and decentralised SGD by hand, on real ranks: they learn, and keep their bounds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.pool import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 180


@contextmanager
def started(folder: Path, ranks: int, *words: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks of an example, as torchrun would start them; none outlives the block."""
    place = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", str(EXAMPLES / words[0]), *words[1:]],
            cwd=folder,
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def printed(folder: Path, ranks: int, *words: str) -> str:
    """What all ranks print of a run that ends well."""
    with started(folder, ranks, *words) as processes:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * ranks, "\n".join(outputs)
    return "".join(outputs)


def losses(text: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([\d.]+)", text)]


def test_async_sgd_learns_and_no_update_comes_later_than_the_bound(tmp_path: Path) -> None:
    """One worker of two is slow, so that the other's updates are held back for it."""
    words = ["--updates", "90", "--staleness", "2", "--slow", "0.05"]
    text = printed(tmp_path, 3, "async_sgd.py", *words)
    found = losses(text)
    assert found[-1] < 0.5 * found[0]
    assert "90 updates in" in text
    assert int(re.findall(r"(\d+) of them held back", text)[0]) > 0
    late = [int(versions) for versions in re.findall(r"(\d+): \d+%", text)]
    assert max(late) == 2
    assert torch.load(tmp_path / "async-sgd.pt", weights_only=True)


@pytest.mark.slow
def test_a_slow_worker_holds_up_nobody_within_the_bound(tmp_path: Path) -> None:
    words = ["--updates", "60", "--staleness", "60", "--slow", "0.2"]
    text = printed(tmp_path, 3, "async_sgd.py", *words)
    assert "0 of them held back" in text
    assert max(int(versions) for versions in re.findall(r"(\d+): \d+%", text)) > 2


@pytest.mark.slow
def test_a_bound_that_workers_cannot_keep_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, 3, "async_sgd.py", "--staleness", "0") as processes:
        for process in processes:
            assert "--staleness 1 at the least" in process.communicate(timeout=SECONDS)[0]
            assert process.returncode == 1


@pytest.mark.slow
def test_gossip_by_int8_learns_as_by_float32(tmp_path: Path) -> None:
    """On four ranks, which are not all each other's neighbours; and their models come together."""
    small = printed(tmp_path, 4, "gossip.py", "--steps", "40")
    whole = printed(tmp_path, 4, "gossip.py", "--steps", "40", "--whole")
    assert losses(small)[-1] < 0.05
    assert losses(small)[-1] == pytest.approx(losses(whole)[-1], rel=0.2)
    [sent], [all_of_it] = (re.findall(r"sent ([\d.]+) bytes", text) for text in (small, whole))
    assert (float(sent), float(all_of_it)) == (2.03, 8.0)
    apart = [float(value) for value in re.findall(r"apart (\S+)", small)]
    assert 0 < apart[-1] < apart[0]
    assert torch.load(tmp_path / "gossip.pt", weights_only=True)


@pytest.mark.slow
def test_a_rank_of_gossip_that_was_killed_ends_the_run(tmp_path: Path) -> None:
    with started(tmp_path, 3, "gossip.py", "--steps", "1000000") as processes:
        assert processes[0].stdout is not None
        assert "step 20" in processes[0].stdout.readline()
        processes[1].send_signal(signal.SIGKILL)
        for process in (processes[0], processes[2]):
            assert process.wait(timeout=SECONDS) != 0


@pytest.mark.parametrize("name", ["async_sgd", "gossip"])
def test_it_can_be_read_at_a_sitting(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert 100 <= len(lines) <= 200
