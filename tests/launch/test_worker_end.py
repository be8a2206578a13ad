"""What a worker asks the kernel for, where the process that started it is killed."""

from __future__ import annotations

import signal
import sys

import pytest

from rankup.launch import worker


class _Asked(BaseException):
    pass


@pytest.mark.parametrize(
    ("variable", "number"), [("RANK", signal.SIGTERM), ("RANKUP_WORKER", signal.SIGKILL)]
)
def test_a_killed_crew_takes_its_workers_along_without_a_word_to_the_others(
    monkeypatch: pytest.MonkeyPatch, variable: str, number: int
) -> None:
    asked: list[int] = []

    def ask(signal_number: int) -> None:
        asked.append(signal_number)
        raise _Asked

    for name in ("RANK", "RANKUP_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(worker, "die_with_parent", ask)
    monkeypatch.setattr(sys, "argv", ["worker", "language-model"])
    with pytest.raises(_Asked):
        worker.main()
    assert asked == [number]
