"""Samplers in processes of their own, beside processes that look like ranks."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rankup.monitor.lines import ending
from tests.conftest import signals_as_before

# Without the budget: a machine that is busy with tests would make samples seldom.
_SAMPLER = """
import sys
from rankup.monitor.collect import sampler
from rankup.monitor.collect.main import main
sampler.BUDGET = 1.0
{}
sys.exit(main(sys.argv[1:]))
"""
NODE = "n1"


class Samplers:
    """Starts samplers of one run, and ends what is left of them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.file = run / "monitor" / f"{NODE}.jsonl"
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, first: str = ""
    ) -> subprocess.Popen[str]:
        """A sampler of node `n1`, four times a second; `first` is Python that it runs before."""
        pace = () if "--every" in words else ("--every", "0.25")
        process = subprocess.Popen(
            [sys.executable, "-c", _SAMPLER.format(first), str(self.run), *pace, *words],
            env={**os.environ, "SLURMD_NODENAME": NODE, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def lines(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All whole lines of the journal, or those of a kind."""
        content = self.file.read_text() if self.file.exists() else ""
        found = [json.loads(line) for line in content.splitlines(keepends=True) if "\n" in line]
        return [one for one in found if kind in (None, one["kind"])]

    def rows(self, kind: str) -> list[dict[str, str]]:
        """All whole rows of a table by its header."""
        path = self.file.with_name(NODE + ending(kind))
        content = path.read_text() if path.exists() else ""
        return list(csv.DictReader(content[: content.rfind("\n") + 1].splitlines()))

    def wait_for(self, what: Callable[[], Any], seconds: float = 90.0) -> Any:
        """The first true value of `what`."""
        end = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > end:
                errors = [p.stderr.read() for p in self._started if p.stderr and p.poll()]
                pytest.fail(f"not within {seconds:g} s; {self.lines()[-3:]} {errors}")
            time.sleep(0.05)
        return found

    def samples(self, count: int) -> list[dict[str, str]]:
        """Wait until there are so many; the rows of `host`."""
        self.wait_for(lambda: len(self.rows("host")) >= count)
        return self.rows("host")

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def samplers(tmp_path: Path) -> Iterator[Samplers]:
    run = tmp_path / "run"
    run.mkdir()
    found = Samplers(run)
    yield found
    found.close()


@pytest.fixture
def same_signals() -> Iterator[None]:
    """For a sampler in this process, which ignores and blocks signals: as before afterwards."""
    with signals_as_before():
        yield
