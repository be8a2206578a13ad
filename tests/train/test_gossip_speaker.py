"""What the speaker saves and when, and what it knows of the speaker before it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankup.base.errors import RunFailed
from rankup.parallel.lowcomm.gossip.board import Board
from rankup.runtime.deadline import GO_ON
from rankup.runtime.folder import Marker
from rankup.train import attempt
from rankup.train.checkpoint import Saved, Saver, of_step
from rankup.train.evaluate import Stopped
from rankup.train.gossip.record import cut_back
from rankup.train.gossip.speaker import Speaker
from rankup.train.keeper import Keeper
from rankup.train.plan import Place
from rankup.train.stop import Stop

LAST = 20


class _Lines:
    def open(self) -> _Lines:
        return self

    def sync(self) -> None: ...
    def close(self) -> None: ...
    def say(self, text: str) -> None: ...
    def step(self, record: dict[str, Any]) -> None: ...


class _Keeper:
    def __init__(self) -> None:
        self.newest, self.saved = 0, list[int]()

    def is_best(self, step: int) -> bool:
        return False

    def take_over(self, step: int) -> None: ...
    def settled(self, stop: Stop) -> bool:
        return True

    def save(self, place: Place, unvalidated: bool, stop: Stop, begun: float) -> None:
        self.newest = place.step
        self.saved.append(place.step)


def _at(step: int) -> Place:
    return Place(step, 0, step)


def _speaker(tmp_path: Path, done: int = 0) -> tuple[Speaker, _Keeper, Board]:
    board, keeper = Board(dist.HashStore(), 2), _Keeper()
    board.prepare()
    options = SimpleNamespace(valid_every=100, checkpoint_every=5, micro_batch=1)
    built, task = SimpleNamespace(model=nn.Linear(2, 2)), SimpleNamespace(valid=None, test=None)
    stepper = SimpleNamespace(built=built, sums=None, measures=())
    given: Any = (task, options, stepper, keeper, _Lines(), tmp_path, LAST, done, board, 0)
    return Speaker(*given), keeper, board


def test_the_last_checkpoint_is_that_of_the_mean(tmp_path: Path) -> None:
    speaker, keeper, _ = _speaker(tmp_path)
    stop = Stop()
    speaker.step({"step": 5}, _at(6), stop)
    speaker.step({"step": 15}, _at(LAST), stop)  # others have drawn all that there is
    assert keeper.saved == [6]
    speaker.save(_at(LAST), stop, again=True)
    speaker.save(_at(LAST), stop, again=True)
    assert keeper.saved == [6, LAST, LAST]
    speaker.save(_at(LAST), stop)
    assert keeper.saved == [6, LAST, LAST], "it holds nothing new"


def test_who_was_replaced_saves_nothing(tmp_path: Path) -> None:
    speaker, keeper, board = _speaker(tmp_path)
    board.set("speaker", "1")
    speaker.save(_at(7), Stop(), again=True)
    assert not keeper.saved


def test_no_time_for_the_last_evaluation_alone_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def means(*args: object) -> dict[str, float]:
        raise Stopped(GO_ON)

    monkeypatch.setattr(attempt, "means", means)
    monkeypatch.setattr(attempt, "ask_for_next_attempt", lambda: None)
    speaker, _, _ = _speaker(tmp_path)
    assert not speaker.end(_at(LAST), [0], [], Stop()).finished
    speaker, _, _ = _speaker(tmp_path, done=LAST)
    with pytest.raises(RunFailed, match="too short for the last evaluation"):
        speaker.end(_at(LAST), [0], [], Stop())


def _mark(root: Path, step: int, best: tuple[float, int] | None) -> None:
    directory = of_step(root, step)
    directory.mkdir(parents=True)
    Marker(directory, {}, {"extra": asdict(Saved(_at(step), {}, best))}).write()


def test_who_takes_over_knows_the_best_checkpoint(tmp_path: Path) -> None:
    options = SimpleNamespace(keep=2, async_checkpoints=False)
    given: Any = (tmp_path, options, None, None, print, print)
    keeper = Keeper(*given)
    root = tmp_path / "checkpoints"
    _mark(root, 4, (2.5, 4))
    _mark(root, 8, (2.5, 4))
    _mark(root, 99, (0.5, 99))  # of a future that was abandoned
    keeper.take_over(10)
    assert (keeper.best, keeper.newest) == ((2.5, 4), 8)
    keeper.best = (2.0, 9)
    keeper.take_over(10)
    assert keeper.best == (2.0, 9)


def test_who_was_replaced_while_it_wrote_leaves_the_others_checkpoints(tmp_path: Path) -> None:
    _mark(tmp_path, 8, None)
    model = nn.Linear(2, 2)
    saver = Saver(tmp_path, 1, False, allowed=lambda: False)
    saver.save(model, torch.optim.SGD(model.parameters()), Saved(_at(4), {}, None))
    assert "another worker writes" in saver.wait()
    assert (of_step(tmp_path, 8) / "COMPLETE").exists()
    assert not (of_step(tmp_path, 4) / "COMPLETE").exists()


def test_files_of_workers_that_are_no_more_are_cut_back(tmp_path: Path) -> None:
    lines = '{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    for name in ("metrics-1.jsonl", "metrics-2.jsonl", "my.trace.3", "my.trace.x", "myxtrace.3"):
        (tmp_path / name).write_text(lines)
    cut_back(tmp_path, str(tmp_path / "my.trace"), 2, 2)
    left = {path.name: path.read_text().count("\n") for path in tmp_path.iterdir()}
    assert left == {
        **{"metrics-1.jsonl": 3, "metrics-2.jsonl": 2},
        **{"my.trace.3": 2, "my.trace.x": 3, "myxtrace.3": 3},
    }
