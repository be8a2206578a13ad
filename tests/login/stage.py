"""A project of a user with one of the scripts beside this file, and what `fetch` does to it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankup.login import record
from rankup.login.record import Item, Record

from ..conftest import RunRankup
from .web import Web

HERE = Path(__file__).parent


def until(condition: Callable[[], object], seconds: float = 200) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


@dataclass(frozen=True)
class Fetched:
    """How a fetch went; `record` is that of the script with its arguments, if one was kept."""

    code: int
    out: str
    err: str
    record: Record | None

    @property
    def said(self) -> str:
        """All that was printed."""
        return f"{self.out}\n{self.err}"

    @property
    def proved(self) -> bool:
        """The start without a network went well."""
        return self.record is not None and self.record.proof in ("namespace", "blocked")

    def item(self, end: str) -> Item:
        """The item whose path ends so."""
        assert self.record is not None, self.said
        found = [item for item in self.record.items if item.path.endswith(end)]
        assert len(found) == 1, (end, self.record.items, self.said)
        return found[0]


@dataclass(frozen=True)
class Stage:
    """A project's folder, the home of its user beside it, and a web that it downloads from."""

    project: Path
    home: Path
    web: Web
    run_rankup: RunRankup

    def script(self, name: str) -> Path:
        """Put one of `scripts/` into the project."""
        return Path(shutil.copy(HERE / "scripts" / name, self.project / name))

    @property
    def environment(self) -> dict[str, str]:
        """Of the user."""
        return {"HOME": str(self.home), "DATA_SERVER": self.web.url()}

    def fetch(
        self,
        script: Path,
        *args: str,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 280,
    ) -> Fetched:
        """`rankup fetch OPTIONS SCRIPT ARGS` in the project."""
        done = self.run_rankup(
            ["fetch", *options, script.name, *args],
            cwd=self.project,
            env={**self.environment, **(env or {})},
            timeout=timeout,
        )
        return self.fetched(script, args, done)

    def fetched(
        self, script: Path, args: tuple[str, ...], done: subprocess.CompletedProcess[str]
    ) -> Fetched:
        """What came of a command that has ended."""
        key = record.script_key(script, args)
        return Fetched(done.returncode, done.stdout, done.stderr, record.find(self.project, key))

    def files(self) -> dict[str, bytes]:
        """Everything in the project but `.rankup`, by relative path."""
        return {
            str(path.relative_to(self.project)): path.read_bytes()
            for path in sorted(self.project.rglob("*"))
            if path.is_file() and ".rankup" not in path.relative_to(self.project).parts[:1]
        }
