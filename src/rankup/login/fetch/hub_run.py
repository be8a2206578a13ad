"""The processes that import the hub's libraries: each does one task, and ends with its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...base.processes import end_group
from ...base.secrets import redacted
from ...sandbox import environment
from ...site.caches import Caches
from .. import offline
from . import progress
from .hub_name import Kind, Name, explain
from .result import FetchFailed

MODULES: dict[Kind, tuple[str, ...]] = {
    "model": ("huggingface_hub", "transformers"),
    "dataset": ("huggingface_hub", "datasets"),
}
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_LONGEST = 2 * 86400.0  # seconds; a child that is still there then has been forgotten
_LOOK_EVERY = 10.0
_START = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.login.fetch.hub_child import main; main()"
)


@dataclass(frozen=True)
class Task:
    """What the child is to do, as JSON on its stdin.

    Attributes:
        cache: the hub's folder of repositories.
        prove: load what is here instead of fetching it.
        block: with no means of its own to keep the network away, refuse every connection.
        files: of a model, those that must be here.
        texts: folder for the splits of a data set of lines, as plain text.
        answer: a file, for the result or the error.
    """

    kind: Kind
    name: str
    config: str | None
    revision: str | None
    cache: str
    answer: str = ""
    prove: bool = False
    block: bool = False
    files: tuple[str, ...] = ()
    texts: str | None = None


class Child:
    """The processes that import the hub's libraries."""

    def __init__(self, name: Name, caches: Caches) -> None:
        self._name, self._caches = name, caches
        self.cache = hub_cache(caches)
        self.folder = f"{name.kind}s--{name.repo.replace('/', '--')}"

    def run(
        self, task: Task, check: Callable[[], None], *, online: bool, namespace: bool = False
    ) -> dict[str, Any]:
        """The child's answer.

        Args:
            check: called while it runs; what it raises ends the child.

        Raises:
            FetchFailed: the child's error, in plain words.
        """
        with tempfile.TemporaryDirectory(prefix="rankup-hub-") as temporary:
            folder = Path(temporary)
            answer, log = folder / "answer.json", folder / "log"
            variables = self._environment(folder)
            if not online:
                variables.update(offline.variables(MODULES[task.kind]))
            task = replace(task, answer=str(answer))
            words = namespace.command([sys.executable, "-c", _START], network=not namespace)
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=None if online and sys.stderr.isatty() else errors,
                    env=variables,
                    # A folder `org/name` where the user stands would be taken for the data set.
                    cwd=folder,
                    start_new_session=True,
                )
                try:
                    assert process.stdin is not None
                    with suppress(BrokenPipeError), process.stdin:
                        process.stdin.write(json.dumps(asdict(task)).encode())
                    self._wait(process, check, online)
                finally:
                    end_group(process)
            return self._answer(process.returncode, answer, log)

    def _wait(
        self, process: subprocess.Popen[bytes], check: Callable[[], None], online: bool
    ) -> None:
        """Until it ends; without a terminal, for the libraries' bars, a line now and then."""
        quiet = not online or sys.stderr.isatty()
        with nullcontext() if quiet else progress.shown(str(self._name)) as show:
            for _ in range(int(_LONGEST / _LOOK_EVERY)):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_EVERY)
                    return
                check()
                if show is not None:
                    show(size_of(self.cache / self.folder), None)
        raise FetchFailed(f"{self._name}: still not here after {_LONGEST / 3600:.0f} h; ended")

    def _answer(self, code: int, answer: Path, log: Path) -> dict[str, Any]:
        try:
            said: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            last = log.read_text(errors="replace").strip().splitlines()[-5:]
            raise FetchFailed(
                f"{self._name}: the process that fetched it ended with code {code}: "
                + redacted(" / ".join(last) or "it said nothing", os.environ)
            ) from None
        if "error" in said:
            raise FetchFailed(explain(self._name, said, str(self.cache)))
        return said

    def _environment(self, temporary: Path) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in _OFFLINE}
        if kept.get("PYTHONPATH"):
            words = kept["PYTHONPATH"].split(os.pathsep)
            kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(word) for word in words if word)
        if not sys.stderr.isatty():
            kept["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
            kept["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
        kept["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
        quiet = offline.silent()
        return environment.child(kept, self._caches, temporary, temporary, 4, Path.home(), quiet)


def hub_cache(caches: Caches) -> Path:
    """The hub's folder of repositories."""
    said = [caches.refining.get(name) for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")]
    for text in said:
        if text:
            return Path(text).expanduser()
    home = next(cache.path for cache in caches.entries if cache.variable == "HF_HOME")
    return home / "hub"


def files_in(folder: Path) -> list[Path]:
    """All files below a folder, links counted as files."""
    return [Path(root) / name for root, _, names in os.walk(folder) for name in names]


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder, links followed."""
    total = 0
    for path in files_in(folder):
        with suppress(OSError):  # it went while we looked
            total += path.stat().st_size
    return total
