"""A `rankup` command that a test watches, signals and kills while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankup.launch.worker import AGENT

_MARK = "RANKUP_TEST_LIVE"
# The tiny language model of these tests; a step of it takes milliseconds.
TINY = ("--dim", "16", "--layers", "1", "--heads", "2", "--seq-len", "8", "--vocab", "byte")


class Live:
    """A running command; its output goes to files."""

    def __init__(
        self, args: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._output = [cwd / f"{name}-{self.mark[:6]}" for name in ("out", "err")]
        with self._output[0].open("w") as out, self._output[1].open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rankup", *map(str, args)],
                cwd=cwd,
                env={**os.environ, **(env or {}), _MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._output[0].read_text()

    @property
    def err(self) -> str:
        return self._output[1].read_text()

    def wait(self, timeout: float) -> int:
        """The exit code; fails the test when the command goes on for longer."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout:g} s\n{self.out}\n{self.err}")

    def until(self, condition: Callable[[], Any], timeout: float = 300) -> Any:
        """Wait until `condition()` holds, while the command is running; what it returned."""
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                pytest.fail(f"it never came to that; exit code {code}\n{self.out}\n{self.err}")
            time.sleep(0.005)
        return found

    def family(self) -> list[psutil.Process]:
        """The command and every process that stems from it, orphans too."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get(_MARK) == self.mark:
                    found.append(process)
        return found

    def ranks(self, number: int) -> list[psutil.Process]:
        """The processes of the ranks, in order; waits until they are there."""

        def there() -> list[psutil.Process]:
            found = {}
            for process in self.family():
                with suppress(psutil.Error, KeyError):
                    if _worker(process):
                        found[int(process.environ()["RANK"])] = process
            return [found[rank] for rank in sorted(found)] if len(found) == number else []

        ranks: list[psutil.Process] = self.until(there)
        return ranks

    def agent(self) -> psutil.Process:
        """The torchrun process."""
        [agent] = [p for p in self.family() if _worker(p) and AGENT in p.cmdline()[:5]]
        return agent

    def nobody_left(self, within: float = 120) -> None:
        """Fail when a process of the command outlives it by more than `within` seconds."""
        deadline = time.monotonic() + within
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, [process.cmdline() for process in left]


@contextmanager
def live(
    args: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None
) -> Iterator[Live]:
    """Start `rankup ARGS`; whatever is left of it at the end of the block is killed."""
    running = Live(args, cwd, env)
    try:
        yield running
    finally:
        for process in running.family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        running.process.wait()


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    """A script in `folder`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def records(run: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's `metrics.jsonl`, possibly while it grows, but for checkpoints'."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [record for line in lines if "checkpoint" not in (record := json.loads(line))]


def losses(run: Path) -> dict[int, float]:
    """Training loss by step."""
    return {r["step"]: r["loss"] for r in records(run) if not r.get("final")}


def _worker(process: psutil.Process) -> bool:
    """True for a rank and for torchrun, which the same function starts."""
    words = process.cmdline()
    return "-c" in words[:3] and "rankup.launch.worker " in words[words.index("-c") + 1]
