"""The gallery: recorded runs that many tests read, each made once.

`gallery.run("fsdp")` is the finished run directory of that name. Tests only read it; one that
writes takes `gallery.copy("fsdp", folder)`. Runs are kept in `.gallery/` of the checkout for as
long as nothing changes that they depend on.

All runs of the language model are the same run (`WORDS`): fifty steps of plain SGD over a text of
44 samples, so that an epoch has a short last batch with a short last micro-batch. Those that cut
each matrix product are its first ten steps: gloo takes long for their many messages. Each run
wrote down which samples its steps drew (`trace.jsonl` in the run directory).
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from rankup.recipes import find
from rankup.runtime.world import World
from rankup.site import rundir
from rankup.site.rundir import Job

from .pool import RankPool

CHECKOUT = Path(__file__).resolve().parent.parent
SAMPLES = 44  # 44 = 3 * 12 + 8, 12 = 2 * 5 + 2
STEPS, FEW = 50, 10
PER_EPOCH = 4
TRACE = "trace.jsonl"
# Options of the language model that all its runs share; the texts and the trace come with them.
WORDS = (
    *("--dim", "16", "--layers", "1", "--heads", "2", "--seq-len", "8", "--vocab", "byte"),
    *("--global-batch", "12", "--micro-batch", "5", "--steps", str(STEPS), "--seed", "7"),
    *("--dropout", "0", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0"),
    *("--weight-decay", "0", "--schedule", "constant"),
    *("--valid-every", "10", "--checkpoint-every", "10"),
)
# Rooms of src that no run of a recipe imports.
_ELSEWHERE = ("port", "script")
_DONE = "done.json"

# Kills rank 1 while it writes the checkpoint of step 20: every Python that finds this in its
# path runs it first.
_KILL = """
import os, signal, sys
def _kill(event, args):
    if event == "open" and "step-00000020" in str(args[0]) and os.environ.get("RANK") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(_kill)
"""


@dataclass(frozen=True)
class Recorded:
    """Recipe of a run of the gallery: the rank pool makes it, or `rankup run` where `resumed`."""

    ranks: int
    words: tuple[str, ...] = ()
    recipe: str = "language-model"
    common: tuple[str, ...] = WORDS
    resumed: int = 0  # on so many ranks, after a kill -9


RUNS = {
    # By the command, as a user has it.
    "resumed": Recorded(2, resumed=3),  # killed at its checkpoint of step 20
    # By the rank pool.
    "1": Recorded(1),
    "2": Recorded(2),
    "3": Recorded(3),
    "4": Recorded(4),
    "fsdp": Recorded(2, ("--strategy", "fsdp")),
    "hsdp": Recorded(4, ("--dp", "2", "--shard", "2")),
    "cp": Recorded(2, ("--cp", "2")),
    "tp": Recorded(2, ("--strategy", "tp", "--steps", str(FEW))),
    "pp": Recorded(2, ("--strategy", "pp")),
    "3d": Recorded(4, ("--strategy", "3d", "--steps", str(FEW))),
    "local-sgd": Recorded(2, ("--strategy", "local-sgd", "--sync-every", "5")),
    "diloco": Recorded(2, ("--strategy", "diloco", "--sync-every", "5")),
    "bf16": Recorded(2, ("--precision", "bf16")),
}


class Gallery:
    """Run directories by their names in `RUNS`; each is made at its first use."""

    def __init__(self, root: Path, ranks: Callable[[], RankPool]) -> None:
        self._root, self._ranks = root, ranks
        self._given: dict[str, tuple[Path, dict[str, list[int]]]] = {}

    @property
    def texts(self) -> Path:
        """The folder of `train.txt`, `valid.txt` and `test.txt`."""
        return self._root / "texts"

    def run(self, name: str) -> Path:
        """The finished run directory; only to be read."""
        if name not in self._given:
            with _locked(self._root / f"{name}.lock"):
                self._given[name] = self._kept(name) or self._made(name)
        return self._given[name][0]

    def _kept(self, name: str) -> tuple[Path, dict[str, list[int]]] | None:
        """A run that was made before and in which nobody has written since."""
        try:
            done = json.loads((self._root / name / _DONE).read_text())
        except (FileNotFoundError, ValueError):
            return None
        run = self._root / name / done["folder"] / name
        return (run, done["files"]) if _files(run) == done["files"] else None

    def _made(self, name: str) -> tuple[Path, dict[str, list[int]]]:
        """Make a run in a folder of its own: what was left of another may still write."""
        there = self._root / name
        there.mkdir(exist_ok=True)
        run = Path(tempfile.mkdtemp(dir=there)) / name
        self._make(RUNS[name], run)
        files = _files(run)
        if fingerprint() == self._root.name:  # no source was changed meanwhile
            done = {"folder": run.parent.name, "files": files}
            _write(there / _DONE, json.dumps(done))
        return run, files

    def copy(self, name: str, folder: Path) -> Path:
        """A copy `folder/NAME` that may be written to, resumed on and so forth."""
        run = self.run(name)
        there = folder / name
        shutil.copytree(run, there)
        job = json.loads((run / rundir.JOB).read_text().replace(str(run), str(there)))
        rundir.write(there, Job(**job))
        return there

    def assert_unchanged(self) -> None:
        """Fail when a test has written into a run that all share; it is made anew next time."""
        changed = {}
        for name, (run, before) in sorted(self._given.items()):
            now = _files(run)
            differing = {file for file in {*before, *now} if before.get(file) != now.get(file)}
            if differing:
                changed[name] = sorted(differing)
        assert not changed, f"tests wrote into runs of the gallery: {changed}; take a copy"

    def _make(self, recorded: Recorded, run: Path) -> None:
        run.mkdir(parents=True)
        words = [*recorded.common, *recorded.words]
        if recorded.recipe == "language-model":
            words += ["--trace-samples", str(run / TRACE), *self._text_words()]
        if recorded.resumed:
            self._by_command(recorded, run, words)
        else:
            run_by_pool(self._ranks(), recorded.ranks, recorded.recipe, words, run)

    def _text_words(self) -> list[str]:
        self.texts.mkdir(exist_ok=True)
        text = (
            "The quick brown fox jumps over the lazy dog, and the dog looks after it for a "
            "while. Then it goes to sleep again, as dogs do. "
        )
        # The last window of a text is a short one.
        for part, size in {"train": 8 * SAMPLES - 2, "valid": 60, "test": 45}.items():
            if not (self.texts / f"{part}.txt").is_file():  # others read it
                _write(self.texts / f"{part}.txt", (text * 4)[:size])
        parts = ("train", "valid", "test")
        return [word for n in parts for word in (f"--{n}", str(self.texts / f"{n}.txt"))]

    def _by_command(self, recorded: Recorded, run: Path, words: list[str]) -> None:
        target = [recorded.recipe, *words]
        start = ["run", "--local", "--nproc", str(recorded.ranks)]
        hooks = run.parent / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(_KILL)
        _rankup([*start, "--out", str(run), *target], run.parent, path=hooks, code=137)
        start = ["run", "--local", "--nproc", str(recorded.resumed)]
        _rankup([*start, "--resume", str(run)], run.parent)


def run_by_pool(ranks: RankPool, count: int, recipe: str, words: list[str], run: Path) -> None:
    """Make the run directory of a recipe that the rank pool trains."""
    rundir.create(run)
    options = find(recipe).parse(words)
    options.prepare(run)
    started = rundir.now()
    ranks.run(count, _train, recipe, words, run)
    life = {"started": started, "nproc": count, "node": platform.node(), "code": 0}
    job = Job(
        "20261120-120000-abcd", "recipe", recipe, words, str(run.parent), {}, {},
        [{**life, "ended": rundir.now()}], kept=options.kept,
    )  # fmt: skip
    rundir.write(run, job)


def _train(world: World, recipe: str, words: list[str], run: Path) -> None:
    """Train on this rank, as a worker of `rankup run` does."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        find(recipe).run(words, run, resume=False)


def _rankup(
    words: Sequence[str],
    cwd: Path,
    path: Path | None = None,
    code: int = 0,
) -> None:
    """Run the command in `cwd`; it has to end with `code`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(path), os.environ.get("PYTHONPATH")))
        )
    done = subprocess.run(
        [sys.executable, "-m", "rankup", *words], cwd=cwd, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stderr}"


def _files(run: Path) -> dict[str, list[int]]:
    """Size and time of each file of a run directory."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.is_file():
            status = path.stat()
            found[str(path.relative_to(run))] = [status.st_size, status.st_mtime_ns]
    return found


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fingerprint() -> str:
    """A hash over what the runs depend on: sources, packages, the tests' pool and this machine."""
    machine = f"{sys.version} {version('torch')} {platform.node()} {CHECKOUT}"
    found = hashlib.sha256(machine.encode())
    source = CHECKOUT / "src" / "rankup"
    files = [
        path
        for path in source.rglob("*")
        if path.relative_to(source).parts[0] not in _ELSEWHERE
        and "__pycache__" not in path.parts
        and path.is_file()
    ]
    ours = [Path(__file__), CHECKOUT / "tests" / "pool.py", CHECKOUT / "constraints.txt"]
    for path in (*sorted(files), *ours):
        found.update(str(path.relative_to(CHECKOUT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _remove_others(folder: Path, ours: str) -> None:
    """Remove the runs of other sources, but for those that another session reads now.

    Their locks stay: a file that is removed could be locked by one session and missing for another.
    """
    for lock in folder.glob("*.lock"):
        if lock.stem == ours:
            continue
        with lock.open("w") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder / lock.stem, ignore_errors=True)


@pytest.fixture(scope="session")
def gallery(request: pytest.FixtureRequest) -> Iterator[Gallery]:
    """The recorded runs, see `tests/gallery.py`."""
    folder, name = CHECKOUT / ".gallery", fingerprint()
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        (folder / name).mkdir(exist_ok=True)
        _remove_others(folder, name)
        found = Gallery(folder / name, lambda: request.getfixturevalue("ranks"))
        yield found
        found.assert_unchanged()
