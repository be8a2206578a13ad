"""Runs a script in the child as the parent does, and reads what it told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import IO, Any

import pytest

_START = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.sandbox.inside.main import main; sys.exit(main())"
)
# What the pytest that runs these tests may itself have been given.
_NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")


@dataclass(frozen=True)
class Ended:
    """A run that has ended; its `err` ends with the traceback that the parent would show."""

    code: int
    out: str
    err: str
    events: tuple[Mapping[str, Any], ...]

    def of(self, kind: str, **fields: Any) -> list[Mapping[str, Any]]:
        """The events of one kind with these fields, in order."""
        return [
            event
            for event in self.events
            if event["event"] == kind
            if all(event.get(name) == value for name, value in fields.items())
        ]

    def one(self, kind: str, **fields: Any) -> Mapping[str, Any]:
        """The only event of a kind with these fields."""
        found = self.of(kind, **fields)
        assert len(found) == 1, f"{kind} {fields}: {found}\n{self.explain()}"
        return found[0]

    def explain(self) -> str:
        """All there is, for the message of a failed test."""
        lines = "\n".join(map(str, self.events))
        return f"exit code {self.code}\n{self.out}\n{self.err}\n{lines}"


@dataclass(frozen=True)
class Runner:
    """Runs scripts in a folder of their own.

    Attributes:
        folder: the project, which is also the current folder.
        state: where the command and the watched script talk to each other.
        temporary: what $TMPDIR says.
    """

    folder: Path
    state: Path
    temporary: Path

    def file(self, name: str, text: str = "") -> Path:
        """Write a file of the project."""
        path = self.folder / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def __call__(
        self,
        text: str,
        *args: str,
        environment: Mapping[str, str] | None = None,
        timeout: float = 250,
        before: tuple[str, ...] = (),
        meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None,
        **spec: Any,
    ) -> Ended:
        """Run `text` as `train.py` with these arguments.

        Args:
            before: words of a command that starts the child.
            meanwhile: called with the process while it runs.
            spec: goes into spec.json.
        """
        script = self.file("train.py", text)
        if "shadow" in spec:
            script = Path(spec["shadow"] + str(script))
        self.state.mkdir(exist_ok=True)
        for name in ("events.jsonl", "traceback.txt"):
            (self.state / name).unlink(missing_ok=True)
        whole = {"script": str(script), "args": args, "threads": 2, **spec}
        (self.state / "spec.json").write_text(json.dumps(whole), encoding="utf-8")
        with ExitStack() as stack:
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            process = subprocess.Popen(
                [*before, sys.executable, "-c", _START],
                cwd=script.parent,
                env={
                    **self._environment(),
                    "RANKUP_SANDBOX": str(self.state),
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            end = time.monotonic() + timeout
            try:
                if meanwhile is not None:
                    meanwhile(process)
                while process.poll() is None and not self._stopped():
                    if time.monotonic() > end:
                        pytest.fail(f"more than {timeout:g} s\n{self._ended(process, out, err)}")
                    time.sleep(0.02)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return self._ended(process, out, err)

    def _stopped(self) -> bool:
        """The script stands still, and waits for its parent to end it."""
        events = self.state / "events.jsonl"
        return events.exists() and '"event": "stop"' in events.read_text(encoding="utf-8")

    def plainly(self, *args: str) -> subprocess.CompletedProcess[str]:
        """What Python itself makes of the same script."""
        return subprocess.run(
            [sys.executable, str(self.folder / "train.py"), *args],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        return {**kept, "TMPDIR": str(self.temporary)}

    def _ended(self, process: subprocess.Popen[bytes], *streams: IO[str]) -> Ended:
        lines = (self.state / "events.jsonl").read_text(encoding="utf-8").splitlines()
        for stream in streams:
            stream.seek(0)
        out, err = (stream.read() for stream in streams)
        with suppress(FileNotFoundError):
            err += (self.state / "traceback.txt").read_text(encoding="utf-8")
        return Ended(process.poll() or 0, out, err, tuple(map(json.loads, lines)))
