"""What job scripts wrote of their attempts, and the run that a Slurm job belongs to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site import rundir
from rankup.site.rundir import Job

JOB = Job("id", "script", "/a/b.py", [], "/a", {}, {})


def _run(runs: Path, run_id: str, *jobs: str) -> Path:
    """A run that was submitted as `jobs`."""
    path = rundir.create(runs / "train" / run_id)
    rundir.write(path, replace(JOB, id=run_id, attempts=[{"job": job} for job in jobs]))
    return path


def _record(path: Path, *records: object) -> None:
    with (path / "attempts.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_records_are_those_of_the_run_in_order(tmp_path: Path) -> None:
    path = _run(tmp_path, "a", "7")
    assert rundir.records(path) == []
    _record(path, {"job": "7", "start": 1}, {"job": "7", "end": 2})
    assert rundir.records(path) == [{"job": "7", "start": 1}, {"job": "7", "end": 2}]


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    path = _run(tmp_path, "a")
    _record(path, {"job": "7", "start": 1}, [], 3, {"start": 1}, None)
    with (path / "attempts.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n\n{"job": "8"}\n{"job": "9", "sta')
    assert rundir.records(path) == [{"job": "7", "start": 1}, {"job": "8"}]


def test_jobs_are_those_asked_for_and_those_that_followed_by_themselves(tmp_path: Path) -> None:
    path = _run(tmp_path, "a", "7", "9")
    _record(path, {"job": "7", "start": 1}, {"job": "8", "follows": "7"}, {"job": "9"})
    assert rundir.slurm_jobs(path, rundir.read(path)) == ["7", "9", "8"]
    local = replace(JOB, attempts=[{"nproc": 2}])
    assert rundir.slurm_jobs(_run(tmp_path, "b"), local) == []


def test_a_run_is_found_by_the_ids_of_its_jobs(tmp_path: Path) -> None:
    first, second = _run(tmp_path, "a", "7"), _run(tmp_path, "b", "9")
    _record(first, {"job": "8", "follows": "7"})
    assert rundir.find(tmp_path, "7") == first
    assert rundir.find(tmp_path, "8") == first
    assert rundir.find(tmp_path, "9") == second
    for unknown in ("10", "9x", "9_3", "_9", "7.0"):
        with pytest.raises(UserError, match=r"no run .*newest: b, a"):
            rundir.find(tmp_path, unknown)


def test_a_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    found = _run(tmp_path, "a", "7")
    (_run(tmp_path, "b") / "job.json").write_text("{")
    assert rundir.find(tmp_path, "7") == found


def test_of_endless_records_the_last_are_read(tmp_path: Path) -> None:
    path = _run(tmp_path, "a")
    with (path / "attempts.jsonl").open("wb") as file:
        file.write(b'{"job": "1"}\n')
        file.truncate(50_000_000)
        file.seek(0, 2)
        file.write(b'\n{"job": "8", "start": 1}\n')
    assert rundir.records(path) == [{"job": "8", "start": 1}]


def test_a_run_is_found_by_the_allocation_it_was_started_in(tmp_path: Path) -> None:
    path = _run(tmp_path, "a")
    rundir.write(path, replace(JOB, attempts=[{"allocation": "77"}]))
    assert rundir.find(tmp_path, "77") == path
