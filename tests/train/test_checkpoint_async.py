"""`Saver`: the loop waits for a copy only, and what goes wrong behind it is told to all ranks."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankup.runtime.checkpoint import HostCopy, Marker
from rankup.runtime.world import World
from rankup.train import checkpoint
from rankup.train.checkpoint import Saved, Saver, of_step
from rankup.train.plan import Place
from rankup.train.resume import restore
from tests.conftest import CHECKOUT
from tests.pool import RankPool

# Some tests have no process group, which torch warns of.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Filled:
    """A model whose every number is the step it was saved at, and its optimizer."""

    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    @torch.no_grad()
    def fill(self, step: int) -> None:
        for parameter in self.model.parameters():
            parameter.fill_(step)

    def save(self, saver: Saver, step: int) -> None:
        self.fill(step)
        saver.save(self.model, self.optimizer, Saved(Place(step), {}, None))

    def restored(self, root: Path) -> int:
        """The step that was found, once all numbers are seen to be of it."""
        self.fill(-1)
        saved = restore(root, self.model, self.optimizer, {})
        assert saved is not None
        for parameter in self.model.parameters():
            assert (parameter == saved.place.step).all()
        return saved.place.step


def _hold_writes(monkeypatch: pytest.MonkeyPatch, *gates: threading.Event) -> None:
    """Each write of a marker waits for the next gate; one that is not opened lets it fail."""
    write, left = Marker.write, iter(gates)

    def slowly(marker: Marker) -> None:
        assert next(left).wait(30), "held up until its test gave up"
        write(marker)

    monkeypatch.setattr(Marker, "write", slowly)


def _is_complete(root: Path, step: int) -> bool:
    return (of_step(root, step) / "COMPLETE").exists()


def _checkpoints(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def _train_on(world: World, root: Path) -> list[str]:
    """Collectives of the training run while the checkpoint's own do, in an order of their own."""
    filled, writer = Filled(300), Saver(root, 2)
    for step in range(1, 5):
        filled.save(writer, step)
        filled.fill(-1)  # the checkpoint has its copy
        for number in range(30):
            total = torch.full((1000,), float(number + world.rank))
            dist.all_reduce(total)
            assert (total == 2 * number + 1).all()
    assert writer.wait() == ""
    assert writer.seconds > 0
    writer.close()
    assert filled.restored(root) == 4
    return _checkpoints(root)


def test_training_goes_on_beside_it_and_so_many_are_kept(ranks: RankPool, tmp_path: Path) -> None:
    kept = ["step-00000003", "step-00000004"]
    assert ranks.run(2, _train_on, tmp_path) == [kept, kept]


def test_save_returns_before_it_is_written_and_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = threading.Event(), threading.Event()
    _hold_writes(monkeypatch, first, second)
    filled, writer = Filled(4), Saver(tmp_path, 2)
    filled.save(writer, 1)
    assert not _is_complete(tmp_path, 1)
    opener = threading.Timer(0.2, first.set)  # while the second save waits, or before
    opener.start()
    filled.save(writer, 2)
    assert first.is_set()
    opener.join()
    assert _is_complete(tmp_path, 1)
    assert not _is_complete(tmp_path, 2)
    second.set()
    assert writer.wait() == ""
    assert filled.restored(tmp_path) == 2
    assert writer.seconds > 0


def test_without_a_thread_it_is_written_when_save_returns(tmp_path: Path) -> None:
    filled, writer = Filled(4), Saver(tmp_path, 2, asynchronous=False)
    threads = threading.active_count()
    filled.save(writer, 1)
    assert threading.active_count() == threads
    assert (tmp_path / "step-00000001" / "COMPLETE").exists()


# --- what goes wrong


def _no_space(world: World, root: Path, full: int, asynchronous: bool) -> list[str]:
    filled, writer = Filled(100), Saver(root, 2, asynchronous)
    filled.save(writer, 1)
    said = [writer.wait()]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        filled.save(writer, 2)
        said += [writer.wait(), writer.wait()]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()
    assert _checkpoints(root) == ["step-00000001"]
    assert filled.restored(root) == 1
    filled.save(writer, 3)
    said.append(writer.wait())
    assert filled.restored(root) == 3
    return said


@pytest.mark.parametrize(("full", "asynchronous"), [(1, True), (0, False)])
def test_no_space_on_one_rank_is_told_to_all_once(
    ranks: RankPool, tmp_path: Path, full: int, asynchronous: bool
) -> None:
    """And costs that checkpoint only: the one before it is whole, the next one is written."""
    both = ranks.run(2, _no_space, tmp_path, full, asynchronous)
    for first, lost, again, last in both:
        assert first == again == last == ""
        assert "File too large" in lost
    assert both[0] == both[1]


def _no_memory(world: World, root: Path) -> str:
    filled, writer = Filled(4), Saver(root, 2)
    fails = RuntimeError("not enough memory for the copy")
    with mock.patch.object(HostCopy, "take", side_effect=fails) if world.rank else nullcontext():
        filled.save(writer, 1)
        said = writer.wait()
    writer.close()
    return said


def test_no_memory_for_the_copy_on_one_rank_is_told_to_all(ranks: RankPool, tmp_path: Path) -> None:
    for said in ranks.run(2, _no_memory, tmp_path):
        assert "not enough memory for the copy" in said
    assert _checkpoints(tmp_path) == []


def test_a_marker_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(5, "Input/output error")

    filled, writer = Filled(4), Saver(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Marker, "write", refuse)
        filled.save(writer, 1)
        assert writer.wait() == "OSError: [Errno 5] Input/output error"
    assert _checkpoints(tmp_path) == []


def test_close_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    _hold_writes(monkeypatch, gate)
    monkeypatch.setattr(checkpoint, "GRACE_SECONDS", 0.1)
    filled, writer = Filled(4), Saver(tmp_path, 2)
    filled.save(writer, 1)
    writer.close()
    assert not _is_complete(tmp_path, 1)
    gate.set()
    assert writer.wait() == "", "closing took no longer than the gate waits"
    assert filled.restored(tmp_path) == 1


def test_buffers_serve_again() -> None:
    """A copy of every checkpoint's own would ask the system for that memory anew."""
    host, state = HostCopy(), {"w": torch.zeros(3, 4)[:, 1:]}
    [first] = host.take(state).values()
    state["w"].fill_(1)
    [second] = host.take(state).values()
    assert first.data_ptr() == second.data_ptr()
    assert (second == 1).all()
    [other] = host.take({"w": torch.ones(5)}).values()
    assert other.shape == (5,)


# --- the end of the process

_SCRIPT = """
import sys
from pathlib import Path
from tests.train.test_checkpoint_async import Filled
from rankup.runtime.world import setup
from rankup.runtime.checkpoint import Marker
from rankup.train.checkpoint import Saver
import time

write = Marker.write
def slowly(marker):
    time.sleep(0.5)
    write(marker)
Marker.write = slowly
setup()
Filled(4).save(Saver(Path(sys.argv[1]), 2), 1)
raise RuntimeError("the loop failed")
"""


@pytest.mark.slow
def test_a_process_that_ends_first_finishes_the_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "root")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    assert Filled(4).restored(tmp_path / "root") == 1
    assert "the loop failed" in done.stderr
