"""Workers that fail: loudly, in bounded time, and nobody is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rankup.base.errors import UserError
from rankup.data import BadSample, PackedDataset
from rankup.data.processes import Processes

from . import feeding
from .feeding import Digest, digest, epochs, flat, loader, options, small, within, workers
from .feeding import nobody_is_left as nobody_is_left


@pytest.mark.parametrize("engine", ["none", "threads", "fork"])
def test_an_error_in_a_transform(tmp_path: Path, engine: str) -> None:
    """A mistake is raised as it is; what may be the sample's fault names the sample."""
    path = small(tmp_path, 20)
    one = loader(PackedDataset(path, None, feeding.mistaken), **options(engine))
    with pytest.raises(TypeError) as mistake:
        list(one)
    one.close()
    text = "".join(_printed(mistake.value))
    assert "return data + 1" in text
    assert "at the sample train/c" in text or sys.version_info < (3, 11)
    one = loader(PackedDataset(path, None, feeding.failing), **options(engine))
    with pytest.raises(UserError, match=r"^train/c.*no luck with this one.*on_bad=") as failed:
        list(one)
    one.close()
    assert "in failing" in "".join(_printed(failed.value))


def test_a_damaged_sample_says_one_thing(tmp_path: Path) -> None:
    """Of what is no mistake of the transform's no traceback of a worker is shown."""
    data = PackedDataset(small(tmp_path, 20), None, digest)
    (tmp_path / "pack20" / "train.bin").write_bytes(b"")
    one = loader(data, **options("fork"))
    with pytest.raises(UserError) as failed:
        list(one)
    one.close()
    assert failed.value.__cause__ is None


def _printed(error: BaseException) -> list[str]:
    return traceback.format_exception(error)


def test_an_error_that_cannot_travel(tmp_path: Path) -> None:
    data = PackedDataset(small(tmp_path, 20), None, digest)
    one = loader(data, collate=feeding.awkward, **options("fork"))
    with pytest.raises(RuntimeError, match="Awkward: 1 and 2") as failed:
        list(one)
    assert "in awkward" in "".join(_printed(failed.value))
    one.close()


def test_an_error_that_is_larger_than_a_pipe(tmp_path: Path) -> None:
    """While the training process has more to ask than a pipe takes, too."""
    data = PackedDataset(small(tmp_path, 10), None, feeding.wordy).subset(np.zeros(90_000))
    one = loader(data, 3000, prefetch=30, **{**options("fork"), "workers": 1, "timeout": 20.0})
    with pytest.raises(BadSample, match=r"in .* cannot be made .*xxxx"):
        epochs(one)
    one.close()


def test_batches_before_an_error_come_first(tmp_path: Path) -> None:
    data = PackedDataset(small(tmp_path, 40, bad=[30]), None, Digest())
    for engine in ("threads", "fork"):
        one = loader(data, 4, shuffle=False, **options(engine))
        found: list[bytes] = []
        with pytest.raises(UserError, match="33 bytes are no sample"):
            found.extend(flat(batch) for batch in one)
        one.close()
        assert len(found) == 7


@pytest.mark.parametrize("engine", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_is_killed(tmp_path: Path, engine: str) -> None:
    one = loader(PackedDataset(small(tmp_path, 20), None, feeding.killed), **options(engine))
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"data worker \d \(process \d+\) was killed.*memory"):
        list(one)
    assert time.monotonic() - begun < 30
    assert not workers()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_killed_from_outside(tmp_path: Path, number: int) -> None:
    """Also one that waits for work; and the next loop has new workers."""
    data = PackedDataset(small(tmp_path, 400), None, feeding.slow)
    one = loader(data, **options("fork"))
    run = iter(one)
    next(run)
    os.kill(workers()[0].pid, number)
    with pytest.raises(UserError, match=r"killed.*memory|SIGSEGV.*C library"):
        list(run)
    assert not workers()
    one.set_epoch(0)
    assert flat(next(iter(one))) == flat(next(iter(loader(data))))
    one.close()


_UNGUARDED = """
import sys
import torch
import rankup
from rankup.data import Loader, PackedDataset

if sys.argv[3] == "setup":
    rankup.setup()


def nothing(data, rng):
    return torch.zeros(1)


if sys.argv[3] == "loop" or __name__ == "__main__":
    data = PackedDataset(sys.argv[1], None, nothing)
    list(Loader(data, 10, workers=1, kind="processes", context=sys.argv[2], timeout=60))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("context", "what"), [("spawn", "setup"), ("forkserver", "loop")])
def test_a_script_without_a_guard(tmp_path: Path, context: str, what: str) -> None:
    (tmp_path / "script.py").write_text(_UNGUARDED)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", small(tmp_path, 20), context, what],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "is no rank itself" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "data worker 0" in last
    assert "below `if __name__ == '__main__':`" in last


@pytest.mark.parametrize("anew", [True, False])
def test_a_worker_that_ends_at_its_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    def ends(data: bytes, rng: Any) -> torch.Tensor:
        os._exit(1)

    monkeypatch.setattr(Processes, "_imports", lambda self: anew)
    one = loader(PackedDataset(small(tmp_path, 20), None, ends), **options("fork"))
    with pytest.raises(UserError, match="exit code 1; what it said stands above") as failed:
        list(one)
    assert ("__main__" in str(failed.value)) == anew


@pytest.mark.parametrize("engine", ["threads", "fork"])
def test_a_worker_that_hangs(tmp_path: Path, engine: str) -> None:
    released = threading.Event()

    def waits(data: bytes, rng: Any) -> torch.Tensor:
        while not released.wait(0.05):
            pass
        return torch.zeros(1)

    one = loader(PackedDataset(small(tmp_path, 20), None, waits), timeout=0.5, **options(engine))
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"within 0.5 s.*workers=0 shows where.*timeout="):
        list(one)
    assert time.monotonic() - begun < 10
    released.set()
    one.close()


def test_slow_is_not_hanging(tmp_path: Path) -> None:
    """The time-out is for a batch, not for an epoch."""
    data = PackedDataset(small(tmp_path, 400), None, feeding.slow)
    for engine in ("threads", "fork"):
        one = loader(data, 4, timeout=1.5, **options(engine))
        begun = time.monotonic()
        assert len(list(one)) == 100
        assert time.monotonic() - begun > 1.5
        one.close()


_SCRIPT = """
import os, sys, time
from pathlib import Path
from rankup.data import PackedDataset
from tests.data.feeding import loader, slow, hangs, Digest
from tests.data.feeding import options, workers

if __name__ == "__main__":
    path, engine, what = sys.argv[1:]
    transform = hangs if what == "hangs" else slow
    one = loader(PackedDataset(path, None, transform), **options(engine))
    run = iter(one)
    if what != "hangs":
        next(run)
    else:
        one._engine._start()
    print(*[worker.pid for worker in workers()], flush=True)
    if what == "leaves":
        sys.exit(3)
    if what == "wait":
        time.sleep(60)
    try:
        for _ in run:
            pass
        for _ in range(1000):
            list(one)
    except KeyboardInterrupt:
        assert not workers()
        print("interrupted", flush=True)
        one.set_epoch(0)
        next(iter(one))
        sys.exit(7)
"""


def _script(tmp_path: Path, engine: str, what: str) -> tuple[subprocess.Popen[str], list[int]]:
    (tmp_path / "script.py").write_text(_SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", small(tmp_path, 400), engine, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


def _all_gone(pids: list[int], seconds: float) -> None:
    for _ in within(seconds):
        left = []
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    left.append(pid)
        if not left:
            return
    raise AssertionError(f"processes {left} are left")


@pytest.mark.parametrize(
    ("engine", "what", "number"),
    [
        ("fork", "wait", signal.SIGKILL),
        pytest.param("fork", "hangs", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("forkserver", "wait", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_workers_go_with_the_training_process(
    tmp_path: Path, engine: str, what: str, number: int
) -> None:
    process, pids = _script(tmp_path, engine, what)
    assert len(pids) == 2
    process.send_signal(number)
    process.communicate(timeout=10)
    _all_gone(pids, 10)


@pytest.mark.parametrize("engine", [pytest.param("threads", marks=pytest.mark.slow), "fork"])
def test_ctrl_c(tmp_path: Path, engine: str) -> None:
    """Workers leave it to the training process, which can go on afterwards."""
    process, pids = _script(tmp_path, engine, "go")
    time.sleep(0.3)
    for pid in [*pids, process.pid]:
        os.kill(pid, signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 7, errors
    assert (output, errors) == ("interrupted\n", "")
    _all_gone(pids, 5)


@pytest.mark.parametrize("engine", [pytest.param("threads", marks=pytest.mark.slow), "fork"])
def test_a_program_that_ends_in_the_middle(tmp_path: Path, engine: str) -> None:
    process, pids = _script(tmp_path, engine, "leaves")
    begun = time.monotonic()  # behind the start of Python, which takes as long as it takes
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (3, "")
    assert time.monotonic() - begun < 15
    _all_gone(pids, 5)
