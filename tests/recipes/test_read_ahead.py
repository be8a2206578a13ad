"""Text is read by a thread beside the training: the same batches in the same order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankup
from rankup.recipes import find
from rankup.recipes.language_model import LanguageModel, Several, Windows
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import World
from tests.pool import RankPool
from tests.train.runs import train_task

SEQ_LEN = 8
PATIENCE = 30.0


class Text:
    """Tokens of which single runs can be read; notes where each begins, and who read it.

    Args:
        sound: windows that can be read before the disk is gone.
        signalled: windows behind which this process is asked to stop.
        hanging: windows that can be read before a read never returns.
    """

    def __init__(
        self,
        length: int,
        sound: int = 1 << 30,
        signalled: int = 1 << 30,
        hanging: int = 1 << 30,
    ) -> None:
        self._tokens = np.arange(length, dtype=np.uint16) % 128
        self._sound, self._signalled, self._hanging = sound, signalled, hanging
        self.hangs = threading.Event()
        self.read: list[int] = []
        self.readers: set[str] = set()
        self.news = threading.Condition()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, places: slice) -> Any:
        window = places.start // SEQ_LEN  # an array of places has no start
        if len(self.read) == self._hanging:
            self.hangs.set()
            threading.Event().wait()
        with self.news:
            if len(self.read) == self._sound:
                raise OSError("the disk is gone")
            self.read.append(window)
            if len(self.read) == self._signalled:
                os.kill(os.getpid(), signal.SIGTERM)
            self.readers.add(threading.current_thread().name)
            self.news.notify_all()
        return self._tokens[places]

    def await_read(self, windows: list[int]) -> None:
        """Wait until these have been read, and make sure that no others were."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.read) >= len(windows), PATIENCE)
            assert self.read == windows


def _samples(batches: list[list[int]]) -> Iterator[torch.Tensor]:
    return map(torch.tensor, batches)


def _threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("read-ahead")]


def test_two_batches_are_read_ahead_in_their_order() -> None:
    batches = [[5, 0], [3], [1, 2], [4], [6]]
    text = Text(7 * SEQ_LEN + 1)
    windows = Windows(text, SEQ_LEN)  # type: ignore[arg-type]
    ahead = windows.ahead(_samples(batches))
    samples, (tokens, targets) = next(ahead)
    text.await_read([5, 0, 3, 1, 2])  # and no fourth batch while nobody takes the second
    assert samples.tolist() == [5, 0]
    assert tokens[:, 0].tolist() == [40, 0]
    assert torch.equal(targets, tokens + 1)
    rest = [samples.tolist() for samples, _ in ahead]
    assert rest == batches[1:]
    assert text.readers == {"read-ahead"}
    assert not _threads()


def test_a_batch_is_that_of_any_places() -> None:
    """Also of a short last window, and of several texts."""
    lengths = (3 * SEQ_LEN + 3, SEQ_LEN + 1)
    several = Several([Windows(Text(n), SEQ_LEN) for n in lengths])  # type: ignore[arg-type]
    [(_, (tokens, targets))] = several.ahead(_samples([[4, 3, 0]]))
    places = SEQ_LEN * np.array([[0], [3], [0]]) + np.arange(SEQ_LEN + 1)
    last = np.array([[lengths[1]], [lengths[0]], [lengths[0]]]) - 1
    whole = torch.from_numpy(np.minimum(places, last))
    assert torch.equal(tokens, whole[:, :-1])
    assert torch.equal(targets, torch.where(torch.from_numpy(places <= last), whole, -100)[:, 1:])


def test_who_leaves_early_leaves_no_thread() -> None:
    ahead = Windows(Text(100), SEQ_LEN).ahead(_samples([[n] for n in range(10)]))  # type: ignore[arg-type]
    next(ahead)
    assert _threads()
    ahead.close()  # type: ignore[attr-defined]
    assert not _threads()


def _train(
    world: World, directory: Path, words: list[str], text: dict[str, int]
) -> tuple[str, list[str]]:
    """Train on such a text; what became of the run, and threads that are left."""
    options = find("language-model").parse(words)
    assert isinstance(options, LanguageModelOptions)
    task = LanguageModel(options, directory / TOKENS)
    tokens = Text(1000 * SEQ_LEN, **text)
    task.train = Windows(tokens, SEQ_LEN)  # type: ignore[arg-type]
    try:
        report = train_task(world, task, options, directory, False)
    except OSError as error:
        return str(error), _threads()
    finally:
        assert tokens.readers == {"read-ahead"}
    assert report.outcome is not None
    return "finished" if report.outcome.finished else "stopped", _threads()


@pytest.mark.parametrize(
    ("text", "end"), [({"sound": 500}, "the disk is gone"), ({"signalled": 500}, "stopped")]
)
def test_the_thread_ends_with_the_run(
    ranks: RankPool, tmp_path: Path, text: dict[str, int], end: str
) -> None:
    words = ["--tiny", "--vocab", "byte", "--seq-len", str(SEQ_LEN), "--steps", "200"]
    find("language-model").prepare(words, {}, tmp_path)
    assert ranks.run(1, _train, tmp_path, words, text) == [(end, [])]


def fail_beside_a_read_that_hangs(directory: Path, words: list[str]) -> None:
    """Train as a process of its own, of which the first step fails."""
    options = find("language-model").parse(words)
    assert isinstance(options, LanguageModelOptions)
    text = Text(1000 * SEQ_LEN, hanging=options.micro_batch)  # in the second batch

    class Failing(LanguageModel):
        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            assert text.hangs.wait(PATIENCE)
            raise ArithmeticError("the step has failed")

    task = Failing(options, directory / TOKENS)
    task.train = Windows(text, SEQ_LEN)  # type: ignore[arg-type]
    train_task(rankup.setup(), task, options, directory, False)


def test_a_read_that_never_returns_does_not_keep_a_failed_run_from_ending(tmp_path: Path) -> None:
    words = ["--tiny", "--vocab", "byte", "--seq-len", str(SEQ_LEN), "--steps", "200"]
    find("language-model").prepare(words, {}, tmp_path)
    call = f"{fail_beside_a_read_that_hangs.__name__}(pathlib.Path({str(tmp_path)!r}), {words!r})"
    code = f"import pathlib; from {__name__} import *; {call}"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert ended.returncode == 1, ended
    assert ended.stderr.endswith("ArithmeticError: the step has failed\n"), ended.stderr
