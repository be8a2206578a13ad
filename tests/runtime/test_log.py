"""`print0` and `log_metrics`: rank 0 speaks and writes, the others do not."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import time
from pathlib import Path

import pytest
import torch

from rankup.runtime.log import log_metrics, print0
from rankup.runtime.world import World
from tests.pool import RankPool


def _prints(world: World) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        print0("rank", world.rank, sep="-", end="!\n")
    return output.getvalue()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_print0(ranks: RankPool, world_size: int) -> None:
    assert ranks.run(world_size, _prints) == ["rank-0!\n"] + [""] * (world_size - 1)


def test_print0_outside_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    print0("a", "b")
    assert capsys.readouterr().out == "a b\n"


def _logs(world: World, folder: Path) -> None:
    os.environ["RANKUP_RUN_DIR"] = str(folder)
    for step in range(3):
        log_metrics(step=step, loss=1.5 / (step + 1), note="ä\n", rank=world.rank, nothing=None)


def test_log_metrics_writes_a_line_each(ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": -1}\n')
    start = time.time()
    ranks.run(2, _logs, tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": -1}', "appended to"
    records = [json.loads(line) for line in lines[1:]]
    for step, record in enumerate(records):
        assert start - 1 <= record.pop("time") <= time.time() + 1
        expected = {"step": step, "loss": 1.5 / (step + 1), "note": "ä\n", "rank": 0}
        assert record == {**expected, "nothing": None}
    assert len(records) == 3


def test_log_metrics_without_a_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKUP_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    log_metrics(loss=1.0)
    assert os.listdir(tmp_path) == []


def test_log_metrics_names_what_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKUP_RUN_DIR", str(tmp_path))
    with pytest.raises(TypeError, match="Tensor"):
        log_metrics(loss=torch.ones(2))  # type: ignore[arg-type]
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_full_disk_costs_whole_lines_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKUP_RUN_DIR", str(tmp_path))
    log_metrics(step=1)
    write, room = os.write, [5]

    def fills_up(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(descriptor, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.warns(UserWarning, match="No space left on device; the training goes on"):
        log_metrics(step=2)
    room[0] = 10_000
    log_metrics(step=3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3]
