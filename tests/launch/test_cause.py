"""The last words of a failed run, from what each kind of failure leaves behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankup.launch import cause, failure
from rankup.launch.failure import Failure
from rankup.site import rundir

from .handmade import RECORDED, asked, make_run, record

OWN = Failure(3, "n2", 100.0, "ValueError: no", "Traceback\n  …\nValueError: no\n", 1)
PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1"
WAITED = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 10000ms for recv operation"
SIZES = {"world_size": 4, "local_world_size": 2}


def _recorded(name: str) -> list[str]:
    return (RECORDED / f"{name}.txt").read_text().split("\n")


def _written(log: Path, *failures: Failure) -> None:
    log.mkdir(parents=True, exist_ok=True)
    for one in failures:
        failure.write(log, one)


def _text(log: Path, lines: list[str], nodes: tuple[str, ...] = ()) -> str:
    found = cause.find(log, lines, nodes)
    assert found is not None
    return found.text


def test_a_ranks_own_exception_comes_first(tmp_path: Path) -> None:
    _written(tmp_path, OWN, replace(OWN, rank=0, time=99.0, message=PEER, consequence=True))
    assert _text(tmp_path, _recorded("killed")).endswith("rank 3 on n2 failed: ValueError: no")


def test_without_rankup_the_first_traceback_that_is_no_consequence(tmp_path: Path) -> None:
    text = _text(tmp_path, _recorded("raised"))
    assert text.startswith("Traceback (most recent call last):")
    assert 'raise ValueError("the loss is not finite at step 7")' in text
    assert "Connection closed" not in text
    assert text.splitlines()[-1] == "rank 3 failed: ValueError: the loss is not finite at step 7"


def test_a_killed_rank_wins_over_the_broken_connections_of_the_others(tmp_path: Path) -> None:
    broken = Failure(0, "n1", 100.0, PEER, "", 1, consequence=True, **SIZES)
    killed = Failure(2, "n2", 101.0, failure.said(-9), "", 137)
    _written(tmp_path, broken, replace(broken, rank=3, node="n2"), killed)
    assert _text(tmp_path, _recorded("killed")) == failure.report(killed)
    oom = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes"
    text = _text(tmp_path, [*_recorded("killed"), oom])
    assert text.splitlines()[0] == failure.report(killed)
    assert "It ran out of main memory" in text.splitlines()[-1]


def _of_torchrun(rank: int, code: int) -> list[str]:
    """The lines that torchrun prints of a rank, as in recorded/killed.txt."""
    signs = ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-20_20:46:17"]
    end = f"  exitcode  : {code} (pid: 14854) "
    return [*signs, "  host      : n7", f"  rank      : {rank} (local_rank: 1)", end]


def test_a_killed_rank_is_named_where_torchrun_was_started_without_rankup(tmp_path: Path) -> None:
    killed = f"failed: {failure.said(-9)}"
    assert _text(tmp_path, _recorded("killed")) == f"rank 2 on localhost {killed}"
    oom = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes"
    assert (
        "It ran out of main memory" in _text(tmp_path, [*_recorded("killed"), oom]).splitlines()[-1]
    )
    # An older rankup there starts the ranks, which write their notes.
    broken = Failure(0, "n1", 100.0, PEER, "", 1, consequence=True, **SIZES)
    _written(tmp_path, broken, replace(broken, rank=3, node="n2"))
    assert _text(tmp_path, _recorded("killed")) == f"rank 2 on n2 {killed}"


@pytest.mark.parametrize(
    ("code", "words"), [(3, "its process exited with code 3"), (-15, failure.said(-15))]
)
def test_what_torchrun_says_of_a_silent_rank_is_a_cause_where_nothing_better_is_known(
    tmp_path: Path, code: int, words: str
) -> None:
    task = "srun: error: n7: task 0: Exited with exit code 1"
    lines = [*_of_torchrun(1, code), task]
    assert _text(tmp_path, lines) == f"rank 1 on n7 failed: {words}"
    own = ["Traceback (most recent call last):", '  File "t.py", line 1', "OSError: no"]
    assert _text(tmp_path, [*lines, *own]).endswith("OSError: no")
    assert "time limit" in _text(
        tmp_path, [*lines, "slurmstepd: error: *** STEP 1.0 CANCELLED DUE TO TIME LIMIT ***"]
    )


def test_a_rank_that_sigterm_ended_is_a_cause_where_nothing_better_is_known(
    tmp_path: Path,
) -> None:
    term = Failure(1, "n7", 100.0, failure.said(-15), "", 143, consequence=True)
    _written(tmp_path, term)
    assert _text(tmp_path, ["srun: error: n7: task 0: Terminated"]) == failure.report(term)
    reason = "rankup: three attempts in a row stopped in the first tenth of their time"
    assert _text(tmp_path, [reason]) == reason
    _written(tmp_path, replace(OWN, rank=0, message=PEER, traceback="", consequence=True))
    assert _text(tmp_path, []) == failure.report(term)
    # Each node's agent notes one, and ends its others: the earliest is nearest to the cause.
    later = replace(term, rank=0, time=101.0)
    _written(tmp_path, later)
    assert _text(tmp_path, []) == failure.report(term)
    _written(tmp_path, OWN)
    assert _text(tmp_path, []) == failure.report(OWN)


def test_a_script_that_no_rank_prefix_marks_is_shown_with_its_traceback(tmp_path: Path) -> None:
    own = ["Traceback (most recent call last):", '  File "t.py", line 1', "ImportError: no tricks"]
    lines = [line for line in _recorded("raised") if not line.startswith("[rank")]
    text = _text(tmp_path, [*own, *lines])
    assert "ImportError: no tricks" in text.splitlines()[-1]
    assert '  File "t.py", line 1' in text


def test_the_preflight_names_its_nodes(tmp_path: Path) -> None:
    fault = "preflight: node n2: cannot read /data; is its file system mounted on compute nodes?"
    lines = [fault, fault, "rankup: the preflight failed, on the nodes or with the words of srun"]
    assert _text(tmp_path, lines) == fault


def test_the_job_scripts_own_reason(tmp_path: Path) -> None:
    reason = "rankup: no address for n1: neither the resolver nor Slurm's NodeAddr has one"
    by_the_way = "rankup: note: n1i does not resolve; trying n1"
    assert _text(tmp_path, [reason, by_the_way]) == reason
    assert cause.find(tmp_path, ["rankup: note: node n1 is not sampled: no rankup on PATH"]) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME"
            " LIMIT ***",
            "time limit",
        ),
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO NODE"
            " FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            "A node died",
        ),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-20T10:00:00 ***", "cancelled"),
        (
            "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=1.0.",
            "ran out of main memory",
        ),
        # As psslurm says it, in slurmd's place at JSC.
        ("error: *** job 12 CANCELLED DUE TO TIME LIMIT ***", "time limit"),
        ("error: *** PREEMPTION for job 12 ***", "cancelled, preempted or put back"),
    ],
)
def test_slurms_own_lines_in_plain_words(tmp_path: Path, line: str, words: str) -> None:
    text = _text(tmp_path, ["step 1", *_recorded("told"), line])
    assert text.splitlines()[0] == line
    assert words in text.splitlines()[1]


def test_a_task_that_srun_lost_is_the_last_resort(tmp_path: Path) -> None:
    line = "srun: error: n2: task 1: Killed"
    assert _text(tmp_path, [*_recorded("told"), line]) == line
    plain = ["Traceback (most recent call last):", "  …", "OSError: no"]
    assert _text(tmp_path, [line, *plain]).endswith("OSError: no")


def test_nothing_is_made_up(tmp_path: Path) -> None:
    assert cause.find(tmp_path, ["step 1", "step 2", *_recorded("told")]) is None


def test_the_rank_that_did_not_answer_is_named(tmp_path: Path) -> None:
    waited = Failure(0, "n1", 100.0, WAITED, "", 1, **SIZES)
    closed = replace(waited, message=PEER, consequence=True)
    _written(tmp_path, waited, replace(closed, rank=1), replace(closed, rank=2, node="n2"))
    text = _text(tmp_path, _recorded("told"))
    assert "rank 3 on n2 did not answer for 10 s; rank 0 on n1 waited for it" in text


def test_of_a_silent_node_the_ranks_are_named(tmp_path: Path) -> None:
    waited = Failure(0, "n1", 100.0, WAITED, "", 1, **SIZES)
    _written(tmp_path, waited, replace(waited, rank=1, time=101.0))
    text = _text(tmp_path, [], ("n1", "n2"))
    assert "rank 2 on n2 and rank 3 on n2 said nothing" in text
    assert "did not answer for 10 s" in text


def test_a_time_out_of_the_users_own_is_no_missing_rank(tmp_path: Path) -> None:
    own = Failure(1, "n1", 100.0, "TimeoutError: the server timed out after 5 s", "", 1, **SIZES)
    _written(tmp_path, own)
    assert _text(tmp_path, []) == f"rank 1 on n1 failed: {own.message}"


def test_damaged_notes_do_not_hide_the_log(tmp_path: Path) -> None:
    (tmp_path / "failure-rank0.json").write_text("{")
    assert "rank 3 failed" in _text(tmp_path, _recorded("raised"))


@pytest.mark.parametrize(
    "over",
    [
        "rankup: stopped with a checkpoint before the time limit; going on in a next attempt",
        "error: *** PREEMPTION for job 12 ***",  # psslurm's, for a requeue
    ],
)
def test_only_the_newest_attempt_of_a_requeued_job_counts(tmp_path: Path, over: str) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    for restart in (0, 1):
        record(path, restart=restart, start=1 + restart, nodes="n1")
    first = ["rankup: an old reason", over]
    second = "rankup: activating the environment failed: /env"
    (path / "log" / "12.out").write_text("\n".join([*first, second]) + "\n")
    found = cause.of_run(path)
    assert found is not None
    assert found.text == second


def test_the_offset_that_an_attempt_wrote_down_is_where_it_begins(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    old = "preflight: node n1: an old fault\n"
    record(path, restart=0, start=1)
    record(path, restart=1, start=2, offset=len(old))
    (path / "log" / "12.out").write_text(f"{old}rankup: a new reason\n")
    found = cause.of_run(path)
    assert found is not None
    assert found.text == "rankup: a new reason"


def test_in_an_allocation_the_lines_of_the_newest_attempt_count(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    old, new = ("\n".join(_of_torchrun(rank, -9)) + "\n" for rank in (0, 1))
    job = rundir.read(path)
    began = {"started": "2026-11-20T12:00:00+0000", "allocation": "12", "offset": len(old)}
    rundir.write(path, replace(job, attempts=[began]))
    (path / "log" / "run.out").write_text(old + new)
    found = cause.of_run(path)
    assert found is not None
    assert found.text == f"rank 1 on n7 failed: {failure.said(-9)}"


def test_what_an_earlier_job_left_is_not_the_cause_of_one_without_a_log(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    asked(path, "13")
    (path / "log" / "12.out").write_text("rankup: the reason of 12\n")
    _written(path / "log", OWN)
    assert cause.of_run(path, "12") is not None
    assert cause.of_run(path, "13") is None


def test_a_hostile_message_cannot_move_the_cursor() -> None:
    shown = cause.shown(cause.Cause("Traceback\nrank 1: \x1b[2J\x1b]0;mine\x07 \u202eabc", "rank"))
    assert shown == "Traceback\nrank 1: \\x1b[2J\\x1b]0;mine\\x07 \\u202eabc"


def test_of_a_log_of_megabytes_the_first_line_counts(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    step = "step 7 · loss 1.2345 · 1,000 samples/s\n"
    text = "preflight: node n1: the first line counts\n" + step * 100_000
    (path / "log" / "12.out").write_text(text)
    found = cause.of_run(path)
    assert found is not None
    assert found.source == "preflight"
