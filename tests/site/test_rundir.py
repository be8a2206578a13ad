"""The run directory: made once, found by any of its names, held by one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site import rundir
from rankup.site.rundir import Job

JOB = Job("id", "script", "/a/b.py", ["x", "ä"], "/a", {"python": "3"}, {}, [{"nproc": 2}])


def _run(runs: Path, name: str, run_id: str) -> Path:
    path = rundir.create(runs / name / run_id)
    rundir.write(path, replace(JOB, id=run_id))
    return path


def test_ids_sort_by_time_and_hardly_ever_meet() -> None:
    ids = [rundir.new_id() for _ in range(200)]
    assert all(re.fullmatch(r"\d{8}-\d{6}-[a-z]{4}", one) for one in ids)
    # Two of 200 in one second meet in 4 of 100 cases; six meetings do not happen.
    assert len(set(ids)) > 194
    assert [one[:15] for one in ids] == sorted(one[:15] for one in ids)


def test_create(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    assert rundir.create(path) == path
    assert os.listdir(path) == ["log"]
    rundir.write(path, JOB)
    with pytest.raises(UserError, match=f"{path} is a run already; .*--resume {path}"):
        rundir.create(path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert rundir.create(empty) == empty


def test_no_umask_lets_others_change_what_a_job_runs(tmp_path: Path) -> None:
    """Such a run was refused at its own resume."""
    before = os.umask(0)
    try:
        path = rundir.create(tmp_path / "run")
    finally:
        os.umask(before)
    assert not any(folder.stat().st_mode & 0o002 for folder in (path, path / "log"))


def test_create_spares_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        rundir.create(tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]
    with pytest.raises(UserError) as refused:
        rundir.create(tmp_path / "mine.txt")
    assert "is a run already" not in str(refused.value), "it is a file"
    with pytest.raises(UserError, match="cannot be made"):
        rundir.create(tmp_path / "mine.txt" / "run")


def test_the_job_comes_back(tmp_path: Path) -> None:
    rundir.write(tmp_path, JOB)
    assert rundir.read(tmp_path) == JOB
    said = json.loads((tmp_path / "job.json").read_text())
    assert said["args"] == ["x", "ä"]


WRONG: list[dict[str, object]] = [{"launch": []}, {"kept": None}, {"attempts": [1]}]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"id": "x"}', "null", '"text"', "3"]
    + [json.dumps({**vars(JOB), **one}) for one in WRONG],
)
def test_a_damaged_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(UserError, match=r"job\.json is damaged"):
        rundir.read(tmp_path)


def test_a_missing_job(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run directory"):
        rundir.read(tmp_path)


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    with pytest.raises(UserError, match=r"no run 'last'.*none yet"):
        rundir.find(runs, "last")
    ids = ["20250101-000000-aaaa", "20250102-000000-aaaa", "20250103-000000-aaaa"]
    paths = [_run(runs, name, one) for name, one in zip("bca", ids, strict=True)]
    (runs / "a" / "20990101-000000-torn").mkdir()
    assert rundir.find(runs, ids[1]) == paths[1]
    assert rundir.find(runs, "last") == paths[2], "by time, whatever its name"
    assert rundir.find(tmp_path / "other", str(paths[0])) == paths[0]
    monkeypatch.chdir(paths[0].parent)
    assert rundir.find(runs, ids[0]) == paths[0]
    assert rundir.find(runs, f"./{ids[0]}/") == paths[0]
    with pytest.raises(UserError) as refused:
        rundir.find(runs, "20250101-000000-bbbb")
    assert all(one in str(refused.value) for one in ids), "the newest are named"


@pytest.mark.parametrize("how", ["started", "submitted"])
def test_the_run_that_was_resumed_last_is_the_last(tmp_path: Path, how: str) -> None:
    old, _ = (_run(tmp_path, "a", f"2025010{day}-000000-aaaa") for day in (1, 2))
    assert rundir.find(tmp_path, "last") != old
    job = rundir.read(old)
    rundir.write(old, replace(job, attempts=[*job.attempts, {how: rundir.now()}]))
    assert rundir.find(tmp_path, "last") == old


HOLD = """
import sys
from pathlib import Path
from rankup.site.rundir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_held_by_one_process(tmp_path: Path) -> None:
    path = rundir.create(tmp_path / "run")
    with (
        rundir.locked(path),
        pytest.raises(UserError, match=f"process {os.getpid()} on "),
        rundir.locked(path),
    ):
        pass
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(UserError, match=rf"going on already \(process {other.pid} on "),
            rundir.locked(path),
        ):
            pass
        other.kill()
        other.wait()
    with rundir.locked(path):
        pass
