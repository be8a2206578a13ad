"""What a report says of a run beside its samples: its attempts, its machine and its price."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.launch import report
from rankup.launch.attempts import NO_SLURM
from rankup.monitor.billing import cost
from rankup.monitor.recording import Facts
from rankup.site import rundir
from rankup.site.config import Config

from ..monitor.handmade import made
from .handmade import make_run, record

BILL: dict[str, Any] = {
    "site": "JURECA-DC",
    "partition": "dc-gpu",
    "account": "hai_1",
    "gpus": 4,
    "minutes": 120,
    "unit": "core-h",
    "per_node_hour": 128.0,
}


def _attempts(path: Path, *found: dict[str, Any], **launch: Any) -> None:
    rundir.write(path, replace(rundir.read(path), attempts=list(found), launch=launch))


def _facts(path: Path, ended: int | None = None) -> Facts:
    return report.facts(path, Config(), NO_SLURM, ended)


def test_a_job_has_its_machine_its_price_and_its_time_in_the_queue(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    submitted = {"submitted": "2026-11-20T12:00:00+0000", "nodes": 2, "nproc": 4, "job": "7"}
    _attempts(path, {**submitted, "bill": BILL}, nodes=2)
    begin = 1_795_176_000.0  # 2026-11-20T12:00:00+0000
    record(path, job="7", restart=0, start=begin + 600, nodes="n[1-2]", id="7")
    record(path, job="7", restart=0, end=begin + 4200, code=0)
    found = _facts(path)
    assert (found.site, found.partition, found.account) == ("JURECA-DC", "dc-gpu", "hai_1")
    assert (found.nodes, found.ranks, found.gpus) == (2, 4, 4)
    assert (found.unit, found.per_node_hour) == ("core-h", 128.0)
    (attempt,) = found.attempts
    assert (attempt.begin, attempt.ended, attempt.limit) == (begin + 600, begin + 4200, 7200)
    assert (attempt.state, attempt.nodes, attempt.job) == ("COMPLETED", ("n1", "n2"), "7")
    assert found.queued == 600
    assert found.command.startswith("rankup run --nodes 2 --nproc 4 ")


def test_a_job_that_asks_at_its_own_end_has_ended(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    _attempts(path, {"submitted": rundir.now(), "nodes": 1, "nproc": 1, "job": "7", "bill": BILL})
    record(path, job="7", restart=0, start=time.time() - 60, nodes="n1", id="7")
    (attempt,) = _facts(path, ended=3).attempts
    assert attempt.state == "FAILED"
    assert attempt.ended == pytest.approx(time.time(), abs=30)


def test_each_attempt_has_the_limit_and_the_price_that_it_was_asked_for_with(
    tmp_path: Path,
) -> None:
    path = make_run(tmp_path)
    more = {**BILL, "minutes": 30, "per_node_hour": 64.0}
    first = {"submitted": rundir.now(), "nodes": 1, "nproc": 4, "job": "7", "bill": BILL}
    _attempts(path, first, {**first, "nodes": 2, "job": "9", "bill": more})
    for number, (job, nodes) in enumerate((("7", "n1"), ("8", "n1"), ("9", "n[1-2]"))):
        begin = 1e9 + 10_000 * number
        record(path, job=job, restart=0, start=begin, nodes=nodes, id=job)
        record(path, job=job, restart=0, end=begin + 3600, code=0)
    record(path, job="8", follows="7")
    found = _facts(path)
    assert [attempt.limit for attempt in found.attempts] == [7200, 7200, 1800]
    samples = made(util=50)
    paid = cost(replace(samples, facts=found))
    assert paid.attempts == (128.0, 128.0, 128.0)


def test_a_local_run_costs_nothing_and_never_waited(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    began = {"started": "2026-11-20T12:00:00+0000", "nproc": 2, "node": "here"}
    _attempts(path, {**began, "code": 0, "ended": "2026-11-20T12:01:00+0000"})
    found = _facts(path)
    assert (found.unit, found.per_node_hour, found.queued) == (None, None, None)
    assert found.gpus is None
    (attempt,) = found.attempts
    assert (attempt.ended or 0) - attempt.begin == 60
    assert attempt.limit is None


def test_a_run_without_a_bill_has_no_price(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    _attempts(path, {"submitted": rundir.now(), "job": "7"})
    record(path, job="7", restart=0, start=1e9, nodes="n1", id="7")
    found = _facts(path)
    assert (found.gpus, found.unit, found.per_node_hour) == (None, None, None)
    assert found.attempts[0].limit is None


def test_the_command_is_what_was_typed_first_and_last_without_its_secrets(
    tmp_path: Path,
) -> None:
    path = make_run(tmp_path)
    typed = ["rankup", "run", "train.py", "--token", "hunter22", "--api-key=abc", "--lr", "0.1"]
    attempt = {"started": "2026-11-20T12:00:00+0000", "nproc": 2, "node": "here"}
    _attempts(
        path, {**attempt, "command": typed}, {**attempt, "command": ["rankup", "run", "--resume"]}
    )
    first = "rankup run train.py --token ... --api-key=... --lr 0.1"
    assert _facts(path).command == f"{first}; then rankup run --resume"
