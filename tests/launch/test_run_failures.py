"""One rank's failure ends the run in bounded time; the last lines say who and why (invariant 6).

Nothing of a run outlives it, however it ends.
"""

from __future__ import annotations

import platform
import signal
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from .live import Live, live, script

NODE = platform.node()
# Start-up of the ranks included, on a machine that has other things to do.
SECONDS = 300.0  # five are enough on a machine that does nothing else
LAUNCHER = ("ChildFailedError", "torch/distributed/run.py", "elastic", "runpy", "worker.py")

RAISES = """
import torch, rankup

world = rankup.setup()

def inner():
    raise ValueError("the cause: ä")

def step():
    if world.rank == 1:
        inner()
    torch.distributed.all_reduce(torch.ones(1))

rankup.barrier()
step()
"""


def slow(*values: object) -> ParameterSet:
    """A case of the long suite."""
    return pytest.param(*values, marks=pytest.mark.slow)


def _fails(tmp_path: Path, text: str, nproc: int = 2) -> tuple[int, str]:
    """Exit code and stderr of a script that has to fail, without its first line."""
    path = script(tmp_path, text)
    with live(["run", "--nproc", str(nproc), path], tmp_path) as run:
        code = run.wait(SECONDS)
        run.nobody_left()
        first, _, rest = run.err.partition("\n")
        assert first.startswith("run 2"), run.err
        return code, rest


def test_an_exception_on_one_rank(tmp_path: Path) -> None:
    code, err = _fails(tmp_path, RAISES)
    assert code == 1
    lines = err.rstrip().splitlines()
    assert lines[-1] == f"rank 1 on {NODE} failed: ValueError: the cause: ä"
    assert err.count("Traceback (most recent call last):") == 1, "its own, and no one else's"
    start = lines.index("Traceback (most recent call last):")
    assert lines[start + 1] == f'  File "{tmp_path}/script.py", line 15, in <module>'
    assert f'  File "{tmp_path}/script.py", line 7, in inner' in lines
    assert not [word for word in LAUNCHER if word in err], err


DIES = """
import faulthandler, os, time, rankup
faulthandler.disable()
world = rankup.setup()
rankup.barrier()
if world.rank == 1:
    {how}
rankup.barrier()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "code", "cause"),
    [
        ("os.abort()", 134, "its process was killed by SIGABRT"),
    ],
)
@pytest.mark.slow
def test_a_rank_that_ends_by_itself(tmp_path: Path, how: str, code: int, cause: str) -> None:
    found, err = _fails(tmp_path, DIES.format(how=how))
    assert err.rstrip().splitlines()[-1] == f"rank 1 on {NODE} failed: {cause}"
    assert found == code
    assert "Traceback" not in err


# Without torch: the other rank would wait for the one that failed.
BROKEN = """
import os, time
if os.environ["RANK"] == "0":
    time.sleep(600)
exec(compile("x = (", "part.py", "exec"))
"""


@pytest.mark.slow
def test_a_failure_before_any_setup(tmp_path: Path) -> None:
    code, err = _fails(tmp_path, BROKEN)
    assert code == 1
    assert f'File "{tmp_path}/script.py", line 5' in err
    assert err.rstrip().splitlines()[-1].startswith(f"rank 1 on {NODE} failed: SyntaxError: ")


WORKERS = """
import os, signal, time, rankup
from torch.utils.data import DataLoader

world = rankup.setup()
for number, batch in enumerate(DataLoader(range(10_000), batch_size=1, num_workers=2)):
    rankup.barrier()
    if world.rank == 1 and number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_loader_processes_end_with_their_rank(tmp_path: Path) -> None:
    code, err = _fails(tmp_path, WORKERS)
    assert code == 137
    cause = "its process was killed by SIGKILL; out of memory is the usual reason"
    assert err.rstrip().splitlines()[-1] == f"rank 1 on {NODE} failed: {cause}"


IGNORES = """
import signal, time, rankup
world = rankup.setup()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rankup.barrier()
if world.rank == 1:
    raise ValueError("the cause")
time.sleep(600)
"""


@pytest.mark.slow
def test_a_rank_that_will_not_go(tmp_path: Path) -> None:
    code, err = _fails(tmp_path, IGNORES)
    assert code == 1
    assert err.rstrip().splitlines()[-1] == f"rank 1 on {NODE} failed: ValueError: the cause"


# What a rank dies of with its parent is set before its script, of which this one needs no torch.
SLEEPS_ALONE = """
import os, time
open(os.path.join(os.environ["ANSWERS"], os.environ["RANK"]), "w").close()
time.sleep(600)
"""


SLEEPS = f"import rankup\nrankup.setup()\n{SLEEPS_ALONE}"


def _sleeping(tmp_path: Path, text: str = SLEEPS) -> tuple[list[str | Path], dict[str, str], Path]:
    answers = tmp_path / "answers"
    answers.mkdir()
    path = script(tmp_path, text)
    return ["run", "--nproc", "2", path], {"ANSWERS": str(answers)}, answers


def _both(run: Live, answers: Path) -> None:
    run.until(lambda: len(list(answers.iterdir())) == 2)


@pytest.mark.parametrize("who", ["command", pytest.param("agent", marks=pytest.mark.slow)])
def test_kill_of_what_started_the_ranks(tmp_path: Path, who: str) -> None:
    args, env, answers = _sleeping(tmp_path, SLEEPS_ALONE)
    with live(args, tmp_path, env) as run:
        _both(run, answers)
        (run.agent() if who == "agent" else run.process).send_signal(signal.SIGKILL)
        code = run.wait(SECONDS)
        run.nobody_left(within=120)
        assert code == (137 if who == "agent" else -9)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), slow(signal.SIGHUP, 129)])
def test_a_script_that_is_asked_to_stop(tmp_path: Path, number: signal.Signals, code: int) -> None:
    args, env, answers = _sleeping(tmp_path, SLEEPS_ALONE)
    with live(args, tmp_path, env) as run:
        _both(run, answers)
        run.process.send_signal(number)
        assert run.wait(SECONDS) == code, run.err
        run.nobody_left()
        assert "Traceback" not in run.err


def test_asked_to_stop_before_the_ranks_are_there(tmp_path: Path) -> None:
    args, env, _ = _sleeping(tmp_path)
    with live(args, tmp_path, env) as run:
        run.until(lambda: run.err.startswith("run 2"))
        run.until(lambda: len(run.family()) > 1)
        run.process.send_signal(signal.SIGINT)
        code = run.wait(SECONDS)
        run.nobody_left()
        assert "Traceback" not in run.err
        assert code == 130


DEAF = f"""
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{SLEEPS_ALONE}"""


@pytest.mark.slow
def test_ctrl_c_twice_ends_ranks_that_do_not_listen(tmp_path: Path) -> None:
    args, env, answers = _sleeping(tmp_path, DEAF)
    with live(args, tmp_path, env) as run:
        _both(run, answers)
        run.process.send_signal(signal.SIGINT)
        run.until(lambda: "once more ends them now" in run.err)
        run.process.send_signal(signal.SIGINT)
        assert run.wait(SECONDS) != 0
        run.nobody_left(within=120)
        assert "Traceback" not in run.err
