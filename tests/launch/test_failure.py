"""Which of several failures was the cause, and how it is said."""

from __future__ import annotations

import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import RunFailed, UserError
from rankup.launch import cause
from rankup.launch.failure import (
    Failure,
    broken_by_peer,
    first_cause,
    forget,
    of_codes,
    of_exception,
    read_all,
    report,
    write,
)

NODE = socket.gethostname()
CAUSE = Failure(2, "node7", 100.0, "ValueError: no", "Traceback\n  …\n", 1)
PEER = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2001"


def _found(log: Path, failures: list[Failure], codes: dict[int, int]) -> Failure:
    for failure in failures:
        write(log, failure)
    notes = read_all(log)
    found = first_cause(notes, of_codes(codes, notes))
    assert found is not None
    return found


def test_the_earliest_is_the_cause(tmp_path: Path) -> None:
    later = replace(CAUSE, rank=0, time=101.0)
    assert _found(tmp_path, [later, CAUSE], {0: 1, 2: 1}) == CAUSE


def test_a_broken_connection_is_a_consequence(tmp_path: Path) -> None:
    broken = replace(CAUSE, rank=0, time=99.0, consequence=True)
    assert _found(tmp_path, [broken, CAUSE], {0: 1, 2: 1}) == CAUSE


@pytest.mark.parametrize("code", [-9, -6, -11, 9])
def test_a_rank_that_said_nothing_is_the_cause(tmp_path: Path, code: int) -> None:
    broken = replace(CAUSE, rank=0, consequence=True)
    found = _found(tmp_path, [broken], {0: 1, 1: code, 3: -signal.SIGTERM})
    assert (found.rank, found.node, found.traceback) == (1, NODE, "")
    assert found.exit_code == (128 - code if code < 0 else code)
    if code < 0:
        assert signal.Signals(-code).name in found.message
    else:
        assert "exited with code 9 and said nothing" in found.message


def test_a_real_time_signal_has_no_name(tmp_path: Path) -> None:
    assert "40" in _found(tmp_path, [], {1: -40}).message


def test_only_ended_by_the_launcher(tmp_path: Path) -> None:
    found = _found(tmp_path, [], {1: -signal.SIGTERM})
    assert (found.rank, found.exit_code) == (1, 143)


def test_only_consequences(tmp_path: Path) -> None:
    """Such as an unplugged network: the first to see it is named."""
    one, other = (replace(CAUSE, rank=r, time=100.0 - r, consequence=True) for r in (0, 1))
    found = _found(tmp_path, [one, other], {0: 1, 1: 1})
    assert (found.rank, found.exit_code) == (1, 1)
    assert found.message.startswith("ValueError: no")
    # What the rank's launcher says last is what status and logs say.
    shown = cause.find(tmp_path, [])
    assert shown is not None
    assert shown.text == report(found)


def test_an_earlier_attempt_is_forgotten(tmp_path: Path) -> None:
    write(tmp_path, CAUSE)
    (tmp_path / "torchrun.log").write_text("kept")
    forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["torchrun.log"]


def test_the_last_words() -> None:
    said = "rank 2 on node7 failed: ValueError: no"
    assert report(CAUSE) == f"Traceback\n  …\n\n{said}"
    assert report(replace(CAUSE, traceback="")) == said


@pytest.mark.parametrize(
    ("error", "message", "code", "traced"),
    [
        (ValueError("no"), "ValueError: no", 1, True),
        (UserError("give less"), "give less", 2, False),
        (RunFailed("step 3"), "step 3", 1, False),
        (KeyboardInterrupt(), "interrupted", 130, False),
        (SystemExit(7), "exited with code 7", 7, False),
        (SystemExit("why"), "exited with code 1: why", 1, False),
    ],
)
def test_exceptions(error: BaseException, message: str, code: int, traced: bool) -> None:
    try:
        raise error
    except BaseException as raised:
        found = of_exception(raised, 3)
    assert (found.rank, found.node, found.message) == (3, NODE, message)
    assert found.exit_code == code
    assert ("Traceback" in found.traceback) is traced
    assert found.consequence is False


def test_a_node_goes_by_slurms_name_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "x")
    found = of_exception(ValueError("no"), 3)
    assert (found.node, found.world_size, found.local_world_size) == ("n7", 8, 0)


def test_where_all_waited_in_vain_the_silent_rank_is_named(tmp_path: Path) -> None:
    waited = "RuntimeError: Timed out waiting 10000ms for recv operation to complete"
    one = replace(CAUSE, rank=0, message=waited, world_size=2)
    found = _found(tmp_path, [one], {0: 1, 1: -signal.SIGTERM})
    assert report(found) == (
        f"rankup: rank 1 did not answer for 10 s; rank 0 on node7 waited for it: {waited}"
    )
    killed = _found(tmp_path, [one], {0: 1, 1: -signal.SIGKILL})
    assert (killed.rank, killed.exit_code) == (1, 137)


NCCL = (
    "NCCL Error 6: remote",
    "[Rank 3] Last error: NCCL communicator was aborted on rank 3.",
    "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error",
)


@pytest.mark.parametrize("text", [PEER, "Broken pipe", *NCCL])
def test_broken_connections_are_known(text: str) -> None:
    assert of_exception(RuntimeError(text), 0).consequence is True


def test_frames_before_the_script_are_left_out() -> None:
    def inner() -> None:
        raise ValueError("here")

    try:
        exec(compile("inner()", "/some/script.py", "exec"), {"inner": inner})
    except ValueError as error:
        trace = of_exception(error, 0, "/some/script.py").traceback
        whole = of_exception(error, 0, "/another/script.py").traceback
    assert trace.splitlines()[1] == '  File "/some/script.py", line 1, in <module>'
    assert "in inner" in trace
    assert "test_frames_before" in whole.splitlines()[1]


@pytest.mark.parametrize("text", ["", '{"rank": 3, "no', '{"rank": 3}', "[]"])
def test_a_torn_note_is_passed_over(tmp_path: Path, text: str) -> None:
    write(tmp_path, CAUSE)
    (tmp_path / "failure-rank9.json").write_text(text)
    assert read_all(tmp_path) == [CAUSE]


@pytest.mark.parametrize("what", ["recvValueWithTimeout", "recvVector", "recvValue"])
def test_a_lost_store_is_a_broken_connection(what: str) -> None:
    assert broken_by_peer(f"{what} failed on SocketImpl(fd=3): got 0 bytes")


def test_a_note_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    token = "hf_" + "a1" * 15
    told = of_exception(ValueError(f"bad token {token}"), 0)
    write(tmp_path, told)
    note = tmp_path / "failure-rank0.json"
    assert note.stat().st_mode & 0o777 == 0o600
    assert token not in note.read_text()
    assert read_all(tmp_path)[0].message.startswith("ValueError: bad token ")
