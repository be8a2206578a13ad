"""Fixtures that all tests share."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from typing import Protocol

import psutil
import pytest
from hypothesis import settings

from rankup.cli import main

from .gallery import gallery as gallery
from .pool import RankPool
from .slurm.fixtures import slurm as slurm
from .slurm.fixtures import slurm_session as slurm_session

CHECKOUT = Path(__file__).resolve().parent.parent
# Every process started from here inherits it, also one whose parent has died.
_MARK = "RANKUP_TEST_SESSION"
# Tests with one of these fixtures run in one of the processes that share the suite, the first that
# a test names here: so a session starts one Slurm, one rank pool and one browser.
_SHARED = {
    "slurm": "slurm",
    "bash": "slurm",
    "ranks": "ranks",
    "gallery": "ranks",
    "browser": "browser",
}
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# A property gets twenty examples; the slow tests say how many they take. Nothing is timed.
settings.register_profile("fast", max_examples=20, deadline=None)
settings.load_profile("fast")


def pytest_configure() -> None:
    """Tests see no Slurm but the one they start: on a login node they would submit jobs."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "SALLOC_", "RANKUP_RUN", "RANKUP_END")):
            del os.environ[name]
    os.environ["SLURM_CONF"] = os.devnull
    # Thousands of processes start here: each would compile rankup anew, and pytest the tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["RANKUP_MONITOR"] = "0"  # who tests the sampler and the report asks for them
    # Under nohup, or in the background of a shell script, all that is started here would ignore
    # these as well. A handler is not inherited: children get the default back.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a case of bytes by its number: some hold the time, and the processes that share the
    suite must find tests of the same names."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share something expensive in one process, see `_SHARED`.

    Those that are allowed more time than usual start first: none is left when the others are done.
    """
    items.sort(key=_allowed, reverse=True)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for fixture, group in _SHARED.items():
            if fixture in fixtures:
                item.add_marker(pytest.mark.xdist_group(group))
                break


def _allowed(item: pytest.Item) -> float:
    """The seconds of the test's own time-out, 0 where it has the usual one."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0


@dataclass(frozen=True)
class TextFiles:
    """Paths of three texts of generated English-like words."""

    train: Path
    valid: Path
    test: Path


class RunRankup(Protocol):
    """The type of the fixture `run_rankup`."""

    def __call__(
        self,
        args: Sequence[str | Path],
        cwd: Path = ...,
        timeout: float = ...,
        env: Mapping[str, str] | None = ...,
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_session() -> Iterator[None]:
    """Fail the session when a process that a test has started is still there at its end."""
    mark = uuid.uuid4().hex
    os.environ[_MARK] = mark
    yield
    processes = {*psutil.Process().children(recursive=True), *_marked(mark)}
    _, left = psutil.wait_procs([p for p in processes if not _harmless(p)], timeout=30)
    lines = [_describe(process) for process in left]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, "processes outlived the tests:\n" + "\n".join(lines)


@contextmanager
def signals_as_before() -> Iterator[list[str]]:
    """Put signal handlers and blocked signals back after the body, which lists what it changed.

    What this process ignores or blocks, every process that a later test starts does as well.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    changed: list[str] = []
    yield changed
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            changed.append(f"the handler of {number.name}, now {signal.getsignal(number)}")
            signal.signal(number, handler)
    now = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if now != blocked:
        changed.append(f"the signals it blocks, now {now}")


@pytest.fixture(autouse=True)
def the_process_is_left_as_found() -> Iterator[None]:
    """Fail a test that leaves signals changed or a process group in this process."""
    with signals_as_before() as changed:
        yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        changed.append("a process group")
        distributed.destroy_process_group()
    assert not changed, f"the test has left behind: {', '.join(changed)}"


@pytest.fixture(scope="session")
def ranks(no_process_outlives_the_session: None) -> Iterator[RankPool]:
    """The rank pool: `ranks.run(world_size, function, *args)`, see `tests/pool.py`."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def run_rankup(tmp_path: Path) -> RunRankup:
    """Run the command as a user would: `run_rankup(["run", "--nproc", "2", …])`.

    It runs in a session of its own, by default in `tmp_path`, with `env` added to the environment.
    At the time-out everything it has started is killed, and the test fails with its output.
    """

    def run(
        args: Sequence[str | Path],
        cwd: Path = tmp_path,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rankup", *map(str, args)]
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill_tree(process)
            output, errors = process.communicate()
            pytest.fail(f"{command} took more than {timeout:g} s\n{output}\n{errors}")
        except BaseException:
            _kill_tree(process)
            raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    return run


@pytest.fixture
def rankup_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> RunRankup:
    """`run_rankup` without a process of its own, for what ends before anything is started.

    Python and the imports of the command take most of the second that such a process needs. There
    is no time-out but the test's.
    """

    def run(
        args: Sequence[str | Path],
        cwd: Path = tmp_path,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = ["rankup", *map(str, args)]
        capfd.readouterr()
        with signals_as_before(), monkeypatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(sys, "argv", words)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(words, ended.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def data_root() -> Path | None:
    """The folder of real data: RANKUP_DATA, else `../shared/data` beside the checkout, or None."""
    root = Path(os.environ.get("RANKUP_DATA") or CHECKOUT.parent / "shared" / "data")
    return root if root.is_dir() else None


@pytest.fixture
def small_text(tmp_path: Path) -> TextFiles:
    """Train, valid and test text of 4000, 700 and 650 words, the same in every run."""
    files = TextFiles(*(tmp_path / f"{part}.txt" for part in ("train", "valid", "test")))
    for seed, (path, words) in enumerate(
        [(files.train, 4000), (files.valid, 700), (files.test, 650)]
    ):
        path.write_text(_text(words, seed))
    return files


def _text(words: int, seed: int) -> str:
    """Sentences of words drawn by Zipf's law, so that a model finds something to learn."""
    draw = random.Random(seed)
    known = _frequent_words()
    weights = [1 / (place + 1) for place in range(len(known))]
    drawn = draw.choices(known, weights, k=words)
    lines = []
    while drawn:
        length = draw.randint(5, 15)
        sentence, drawn = drawn[:length], drawn[length:]
        lines.append(f"{' '.join(sentence).capitalize()}.\n")
    return "".join(lines)


@cache
def _frequent_words() -> list[str]:
    counts = Counter(re.findall(r"[a-z]+", " ".join(topics.values()).lower()))
    return sorted(counts, key=lambda word: (-counts[word], word))[:800]


def _kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process with its group, and its descendants that made a session of their own."""
    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        descendants = []
    # Not reaped yet, so that the number is still that of our group.
    os.killpg(process.pid, signal.SIGKILL)
    for descendant in descendants:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()


def _marked(mark: str) -> list[psutil.Process]:
    """Processes of this session wherever they hang in the tree."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone, or not ours
            if process.environ().get(_MARK) == mark and process.pid != os.getpid():
                found.append(process)
    return found


def _harmless(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        # multiprocessing's tracker and fork server end by themselves when this process does. What
        # the server has forked has its command line, and is none.
        line = process.cmdline()
        own = re.search(r"multiprocessing\.(resource_tracker|forkserver)", " ".join(line))
        parent = process.parent()
        return bool(own) and (parent is None or parent.cmdline() != line)
    except psutil.NoSuchProcess:
        return True


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid}: ended just now"
