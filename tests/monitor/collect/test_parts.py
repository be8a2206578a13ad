"""Pace, writing, names: the small parts of the sampler."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankup.monitor.collect import node
from rankup.monitor.collect.sampler import BUDGET, Pace
from rankup.monitor.collect.writer import RefusedError, Writer
from rankup.monitor.lines import header


def test_seldom_in_long_runs() -> None:
    pace = Pace(2.0)
    pace.spent(0.001)
    assert [pace.interval(at) for at in (0, 599, 600, 7199, 7200)] == [2, 2, 5, 5, 10]


def test_no_dearer_than_the_budget() -> None:
    pace = Pace(2.0)
    for _ in range(100):
        pace.spent(0.02)
    assert pace.interval(0) == pytest.approx(0.02 / BUDGET)
    pace.spent(1e6)
    assert pace.interval(0) == 60  # whatever happens, a minute is the longest


def test_an_error_at_close_loses_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    close = os.close

    def close_late(descriptor: int) -> None:
        close(descriptor)
        full()

    writer = Writer(tmp_path, "n")
    assert writer.journal({"t": 1}, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "close", close_late)
        assert not writer.journal({"t": 2}, 1.0)
    assert (writer.dropped, writer.why) == (1, "Disk quota exceeded")
    assert writer.journal({"t": 3}, 100.0)
    writer.close()
    assert (tmp_path / "n.jsonl").read_text() == '{"t":1}\n{"t":3}\n'


@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to(path.with_name("victim")), os.mkfifo, Path.mkdir]
)
def test_what_stands_in_its_place_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole, and without an end of line")
    make(tmp_path / "n.jsonl")
    with pytest.raises(RefusedError, match="is no regular file of yours"):
        Writer(tmp_path, "n").journal({"t": 1}, 0.0)
    assert victim.read_text() == "whole, and without an end of line"


def test_a_sample_that_did_not_fit_is_cut_off_again(tmp_path: Path) -> None:
    """From all tables: a sample is there or not."""
    program = f"""
import resource
from pathlib import Path
from rankup.monitor.collect.writer import Writer
from rankup.monitor.lines import HOST, RANK
resource.setrlimit(resource.RLIMIT_FSIZE, (270, {resource.RLIM_INFINITY}))
writer = Writer(Path({str(tmp_path)!r}), "n")
def write(number, now):
    host = [[number, 2.0, *[1] * len(HOST), 20 * "5"]]
    rank = [[number, 2.0, 0, *[1] * len(RANK)]]
    return writer.sample({{"host": host, "gpu": [], "fs": [], "rank": rank}}, now)
done = [write(number, float(number)) for number in range(4)]
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, {resource.RLIM_INFINITY}))
done.append(write(4, 20.0))  # within half a minute nobody asks again
done.append(write(5, 40.0))
print(done, writer.dropped, writer.why)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    why = os.strerror(errno.EFBIG)
    assert done.stdout == f"[True, True, False, False, False, True] 3 {why}\n"
    for kind in ("host", "rank"):
        rows = (tmp_path / f"n.{kind}.csv").read_text().splitlines()
        assert rows[0] == ",".join(header(kind))
        assert [row.partition(",")[0] for row in rows[1:]] == ["0", "1", "5"]
    assert not (tmp_path / "n.gpu.csv").exists()


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.host.csv").write_text("t,dt,cpu\n1,2,3\n")
    rows: dict[str, list[list[int]]] = {"host": [[1]], "gpu": [], "fs": [], "rank": []}
    with pytest.raises(RefusedError, match=r"n\.host\.csv has other columns .* move it away"):
        Writer(tmp_path, "n").sample(rows, 0.0)
    assert (tmp_path / "n.host.csv").read_text() == "t,dt,cpu\n1,2,3\n"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("jwb0001.juwels", "jwb0001.juwels"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("<script>", "_script_"),
        ("..", "node"),
        ("", "node"),
        ("n" * 300, "n" * 200),
    ],
)
def test_names_of_nodes_are_names_of_files(given: str, name: str) -> None:
    assert node.safe(given) == name


def test_attempts_are_told_apart() -> None:
    assert node.attempt_of({"SLURM_JOB_ID": "12"}, 99.4) == "12.0"
    assert node.attempt_of({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}, 99.4) == "12.3"
    assert node.attempt_of({}, 99.4) == "99"


def test_of_what_is_set_the_head_tells_only_how_the_job_was_started(tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "4", "WANDB_API_KEY": "secret", "SLURM_JOB_GPUS": "0"}
    found = node.Node(tmp_path, environment)
    head = found.head(every=2.0, attempt="1", ranks=None, gpu_error="none")
    assert head.environment == {"OMP_NUM_THREADS": "4", "SLURM_JOB_GPUS": "0"}
    assert head.memory > 1e8
    assert head.cores >= 1
