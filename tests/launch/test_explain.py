"""A plain log of Slurm or torchrun: what ended the run, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunRankup

AGENT = """\
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.11/site-packages/torch/distributed/run.py", line 909, in run
    elastic_launch(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
WATCHDOG = (
    "[rank{0}]:[E1105 10:40:01 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, "
    "Timeout(ms)=600000) ran for 600391 milliseconds before timing out.\n"
)
STATE = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 21, in <module>
    model.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s) in state_dict: "head.weight".
\tsize mismatch for body.weight: copying a param with shape torch.Size([2])
"""

# (a name, the log, what is said, what is not)
LOGS = [
    ("a rank that did not come", "world_size: 4\n" + "".join(
        WATCHDOG.format(rank, 4178, "ALLREDUCE", 1) for rank in (0, 1, 3)) + AGENT,
     ["ranks 0, 1 and 3 waited 600 s in ALLREDUCE of 1 number, operation 4178",
      "rank 2 did not print that: "], ["of those up to"]),
    ("ranks in two operations",
     WATCHDOG.format(0, 7, "BROADCAST", 9) + WATCHDOG.format(1, 8, "ALLREDUCE", 4),
     ["in BROADCAST of 9 numbers, operation 7", "rank 1 in ALLREDUCE, operation 8: ranks are not"],
     ["did not print"]),
    ("an exception that the others waited for",
     STATE + WATCHDOG.format(1, 5, "ALLREDUCE", 1) + AGENT,
     ["Missing key(s) in state_dict", "size mismatch for body.weight"], ["waited", "torchrun"]),
    ("a head node that is not reached",
     "[E socket.cpp:957] [c10d] The client socket has timed out after 900s while trying to connect "
     "to (jwb0001i, 29400).\nsrun: error: jwb0002: task 1: Exited with exit code 1\n" + AGENT,
     ["jwb0001i:29400 was not reached within 900 s by jwb0002"], []),
    ("a port in use",
     "RuntimeError: The server socket has failed to listen on any local network address. port: "
     "29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n" + AGENT,
     ["port 29500 is taken on that node"], []),
    ("two ranks on a GPU",
     "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000\n",
     ["ranks 0 and 1 took one GPU (bus 1b000)", "LOCAL_RANK"], []),
    ("shared memory",
     "ERROR: Unexpected bus error encountered in worker. This might be caused by "
     "insufficient shared memory (shm).\nRuntimeError: DataLoader worker (pid 77) is killed "
     "by signal: Bus error.\n",
     ["(/dev/shm) is full", "num_workers"], []),
    ("conda", "CommandNotFoundError: Your shell has not been properly configured to use 'conda "
     "activate'.\nTo initialize your shell, run\n", ["conda's hook is not loaded"], []),
    ("memory", STATE.replace("RuntimeError", "ValueError") +
     "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0\n", ["oom-kill"], ["Missing"]),
    ("nothing", "epoch 1: loss 0.3\n", ["nothing in "], ["->"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said", "not_said"), [one[1:] for one in LOGS], ids=[one[0] for one in LOGS]
)
def test_a_plain_log_tells_what_ended_the_run(
    text: str, said: list[str], not_said: list[str], tmp_path: Path, rankup_here: RunRankup
) -> None:
    (tmp_path / "slurm-77.out").write_text(text)
    done = rankup_here(["logs", "--cause", "slurm-77.out"])
    assert done.returncode == 0, done.stderr
    for words in said:
        assert words in done.stdout
    for words in not_said:
        assert words not in done.stdout


def test_the_end_of_a_plain_log_stands_above_it(tmp_path: Path, rankup_here: RunRankup) -> None:
    lines = "".join(f"step {number}\n" for number in range(100))
    (tmp_path / "log.txt").write_text(lines + STATE)
    shown = rankup_here(["logs", "-n", "8", "log.txt"]).stdout.splitlines()
    assert shown[:2] == ["step 98", "step 99"]
    assert shown[8] == ""
    assert shown[-3:] == STATE.splitlines()[-3:]


def test_what_is_no_run_of_ours_cannot_be_followed(tmp_path: Path, rankup_here: RunRankup) -> None:
    (tmp_path / "log.txt").write_text("a\n")
    done = rankup_here(["logs", "--follow", "log.txt"])
    assert done.returncode == 2
    assert "`tail -f` follows it" in done.stderr
