"""Workers that fail: loudly, in bounded time, and nobody is left."""

from __future__ import annotations

import errno
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rankup.base.errors import UserError
from rankup.data import BadSample, PackedDataset
from rankup.data.orders import Shuffled

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


@dataclass(frozen=True)
class _Broken(Shuffled):
    """Fails in the middle of its second epoch."""

    def slice(self, epoch: int, start: int, stop: int) -> Any:
        if (epoch, start) == (1, 24):
            raise RuntimeError("no order any more")
        return super().slice(epoch, start, stop)


@pytest.mark.parametrize("engine", ["none", "threads", "fork"])
def test_an_order_that_fails_does_not_end_the_epoch_early(tmp_path: Path, engine: str) -> None:
    data = PackedDataset(small(tmp_path, 40), None, Digest())
    one = loader(data, 4, shuffle=_Broken(40, 3), **options(engine))
    assert len(epochs(one)) == 10
    with pytest.raises(RuntimeError, match="no order any more"):
        epochs(one)
    one.close()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        # The second, where it ends before the other has started.
        (signal.SIGKILL, r"data worker \d \(process \d+\) was killed.*memory|signal: Killed"),
        (signal.SIGSEGV, "SIGSEGV.*C library|signal: Segmentation fault"),
    ],
)
def test_a_worker_that_is_killed(tmp_path: Path, number: int, said: str) -> None:
    one = loader(
        PackedDataset(small(tmp_path, 20), None, feeding.Killed(number)), **options("fork")
    )
    with pytest.raises(UserError, match=said):
        list(one)
    assert not workers()


def test_a_worker_killed_from_outside(tmp_path: Path) -> None:
    """Also one that waits for work; and the next loop has new workers."""
    data = PackedDataset(small(tmp_path, 400), None, digest)
    one = loader(data, **options("fork"))
    run = iter(one)
    next(run)
    with pytest.raises((UserError, RuntimeError), match="killed"):
        _goes_on_without_a_worker(run)
    one.set_epoch(0)
    assert flat(next(iter(one))) == flat(next(iter(loader(data))))
    one.close()


def _goes_on_without_a_worker(run: Iterator[Any]) -> None:
    os.kill(workers()[0].pid, signal.SIGKILL)
    list(run)  # torch raises it here or in the line above, wherever the training process is


_UNGUARDED = """
import sys
import torch
import rankup
from rankup.data import Loader, PackedDataset

rankup.setup()


def nothing(data, rng):
    return torch.zeros(1)


if __name__ == "__main__":
    data = PackedDataset(sys.argv[1], None, nothing)
    list(Loader(data, 10, workers=1, kind="processes", context="spawn", timeout=100))
"""


@pytest.mark.slow
def test_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_UNGUARDED)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", small(tmp_path, 20)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert "is no rank itself" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "data worker 0" in last
    assert "below `if __name__ == '__main__':`" in last


def test_a_worker_that_ends_at_its_first_batch(tmp_path: Path) -> None:
    def ends(data: bytes, rng: Any) -> torch.Tensor:
        os._exit(1)

    one = loader(PackedDataset(small(tmp_path, 20), None, ends), **options("fork"))
    with pytest.raises(UserError, match="exit code 1; what it said stands above"):
        list(one)


@pytest.mark.parametrize("engine", ["threads", pytest.param("fork", marks=pytest.mark.slow)])
def test_a_worker_that_hangs(tmp_path: Path, engine: str) -> None:
    released = threading.Event()

    def waits(data: bytes, rng: Any) -> torch.Tensor:
        while not released.wait(0.05):
            pass
        return torch.zeros(1)

    one = loader(PackedDataset(small(tmp_path, 20), None, waits), timeout=0.2, **options(engine))
    with pytest.raises(UserError, match=r"within 0.2 s.*workers=0 shows where.*timeout="):
        list(one)
    released.set()
    one.close()


@pytest.mark.parametrize("dies", [False, True])
def test_a_request_that_no_worker_reads(tmp_path: Path, dies: bool) -> None:
    """The thread that writes it ends with the workers, though the pipe is full."""

    def never(data: bytes, rng: Any) -> torch.Tensor:
        if dies:
            os._exit(1)
        threading.Event().wait()
        return torch.zeros(1)

    data = PackedDataset(small(tmp_path, 20), None, never).subset(np.zeros(90_000))
    timeout = 250.0 if dies else 0.2
    one = loader(data, 9000, prefetch=4, timeout=timeout, **{**options("fork"), "workers": 1})
    with pytest.raises(UserError, match=r"exit code 1|within 0.2 s"):
        list(one)
    assert "QueueFeederThread" not in [thread.name for thread in threading.enumerate()]


def test_closing_after_a_worker_was_killed(tmp_path: Path) -> None:
    """Also one that held the lock of torch's flag of the end."""
    calls, go = itertools.count(), multiprocessing.get_context("fork").Event()

    def dies(data: bytes, rng: Any) -> torch.Tensor:
        if next(calls) >= 4:
            frame = sys._getframe()
            while "done_event" not in frame.f_locals:
                assert frame.f_back is not None
                frame = frame.f_back
            go.wait()
            frame.f_locals["done_event"]._cond.acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)

    data = PackedDataset(small(tmp_path, 20), None, dies)
    one = loader(data, 4, prefetch=1, **{**options("fork"), "workers": 1})
    run = iter(one)
    next(run)
    go.set()
    with pytest.raises(RuntimeError, match="killed"):
        _waits()
    one.close()
    assert not workers()


def _waits() -> None:
    for _ in within(60):
        pass


def test_workers_end_where_no_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    one = loader(PackedDataset(small(tmp_path, 20), None, digest), **options("fork"))
    next(iter(one))
    with monkeypatch.context() as full:
        full.setattr(os, "dup", refused)
        one.close()
    assert not workers()


@pytest.mark.parametrize("engine", ["none", "threads", "fork"])
def test_a_loader_that_is_closed_in_its_loop(tmp_path: Path, engine: str) -> None:
    """What comes next would be lost quietly; the next loop has workers of its own."""
    one = loader(PackedDataset(small(tmp_path, 20), None, digest), 2, **options(engine))
    run = iter(one)
    given = flat(next(run))
    one.close()
    with pytest.raises(UserError, match="cannot go on: its Loader was closed"):
        next(run)
    one.set_epoch(0)
    assert epochs(one)[0] == given
    one.close()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("engine", ["none", "threads", "fork"])
def test_a_loader_that_is_closed_at_its_last_batch(
    tmp_path: Path, engine: str, train: bool
) -> None:
    """Nothing comes next: the loop ends as any other, also where it went on in the middle."""
    data = PackedDataset(small(tmp_path, 20), None, digest)
    # Of the last batch, of two samples, the third rank gets none in evaluation.
    one = loader(data, 9, train=train, rank=2, world_size=3, **options(engine))
    for resumed in (False, True):
        one.set_epoch(4)
        if resumed:
            next(iter(one))
            one.load_state_dict(one.state_dict())
        seen = 0
        for _ in one:
            seen += 1
            if seen == len(one) - resumed:
                one.close()
        assert seen == len(one) - resumed
        assert (one.epoch, one.consumed) == (5, 0)
    assert not workers()


def test_the_workers_of_a_loader_that_nobody_has_any_more_end(tmp_path: Path) -> None:
    one = loader(PackedDataset(small(tmp_path, 20), None, digest), 2, **options("fork"))
    for _ in one:
        break
    assert workers()
    del one
    gc.collect()
    assert not workers()


# Ends in the middle of an epoch, or is interrupted, goes on and waits for its end.
_SCRIPT = """
import signal, sys
from rankup.data import PackedDataset
from tests.data.feeding import digest, loader, options, workers

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path, what = sys.argv[1:]
    one = loader(PackedDataset(path, None, digest), **options("fork"))
    run = iter(one)
    next(run)
    try:
        print(*[worker.pid for worker in workers()], flush=True)
        if what == "leaves":
            sys.exit(3)
        while True:
            list(one)
    except KeyboardInterrupt:
        one.close()
    one.set_epoch(0)
    next(iter(one))
    print(*[worker.pid for worker in workers()], flush=True)
    sys.stdin.read()
"""


@contextmanager
def _script(tmp_path: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "script.py").write_text(_SCRIPT)
    with subprocess.Popen(
        [sys.executable, tmp_path / "script.py", small(tmp_path, 400), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


def _all_gone(pids: list[int]) -> None:
    assert len(pids) == 2
    for _ in within(60):
        left = []
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    left.append(pid)
        if not left:
            return
    raise AssertionError(f"processes {left} are left")


def test_ctrl_c_and_kill_9(tmp_path: Path) -> None:
    """Workers leave Ctrl-C to the training process, which can go on; and they go when it does."""
    with _script(tmp_path, "goes on") as process:
        first = _pids(process)
        for pid in [*first, process.pid]:
            os.kill(pid, signal.SIGINT)
        second = _pids(process)
        _all_gone(first)
        process.kill()
        assert process.stderr is not None
        # A worker that is ended while it asks for a descriptor makes multiprocessing's own thread
        # print that it lost it; of Ctrl-C nobody has a word to say.
        assert "KeyboardInterrupt" not in process.stderr.read()
        _all_gone(second)


@pytest.mark.slow
def test_a_program_that_ends_in_the_middle(tmp_path: Path) -> None:
    with _script(tmp_path, "leaves") as process:
        pids = _pids(process)
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (3, "")
        _all_gone(pids)
