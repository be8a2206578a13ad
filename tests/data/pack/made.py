"""Folders to pack, and packs that run in a process of their own so that they can be killed."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import xxhash

from rankup.data import opened
from rankup.data.containers import arrow_layout
from rankup.data.index import UInt64s
from rankup.data.pack import layout, write
from rankup.data.pack.command import pack
from rankup.data.pack.source import Request
from rankup.data.verified import Reader, Span

# OUT's name and --to of the containers that are written at final offsets, and of the streamed one.
CONTAINERS = {
    "hdf5": ("out.h5", None),
    "arrow": ("out", "arrow"),
    "tar": ("out", "tar"),
}
ALL = {**CONTAINERS, "squashfs": ("out.sqsh", None)}
_UNIT = layout.UNIT
_TIME_LIMIT = 120.0


def tree(folder: Path, count: int, largest: int = 3000, seed: int = 0) -> Path:
    """Files in class folders of two splits, of sizes from nothing to `largest`."""
    draw = random.Random(seed)
    for number in range(count):
        split = "val" if number % 5 == 4 else "train"
        path = folder / split / f"class{number % 3}" / f"{number:06d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.choice([0, 1, largest // 7, largest])))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for what every pack says of itself: the report has times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("report.json")
    }


def made(out: Path) -> dict[str, bytes]:
    """All files of a pack, but for its report."""
    if out.is_dir():
        return files(out)
    return {path.name: path.read_bytes() for path in (out, out.with_name(f"{out.name}.index.npz"))}


def same_samples(out: Path, source: Path) -> None:
    """Assert that a pack holds the files of a tree, each under its name, with the right hash."""
    samples = opened.open(out)
    index = samples.index
    wanted = files(source)
    found = {}
    [field] = index.fields
    assert field.hash is not None
    for row in range(len(index)):
        folder = index.split_of(row).folder
        data = bytes(samples.read(row))
        assert xxhash.xxh3_64_intdigest(data) == field.hash[row]
        found[f"{folder}/{index.keys.text(row)}"] = data
    assert found == wanted


def request(source: Path, folder: Path, container: str, **more: Any) -> Request:
    """A request for a container below a folder; without fsync, unless it is asked for."""
    out, to = ALL[container]
    return Request(str(source), str(folder / out), **{"to": to, "fsync": False, **more})


def make_units_small(size: int = 10_000) -> None:
    """Units of few samples, and a buffer smaller than most of these; see `small_units`."""
    for module in _with_unit():
        module.UNIT = size
    write.BUFFER = 4096, 4096
    arrow_layout._BYTES = size // 2


@contextlib.contextmanager
def small_units(size: int = 10_000) -> Iterator[None]:
    """Units of few samples while the body runs."""
    before = write.BUFFER, arrow_layout._BYTES
    make_units_small(size)
    try:
        yield
    finally:
        for module in _with_unit():
            module.UNIT = _UNIT
        write.BUFFER, arrow_layout._BYTES = before


def _with_unit() -> list[Any]:
    """The modules that have taken the name `UNIT` from `layout`, and it."""
    for name in layout.LAYOUTS.values():
        importlib.import_module(f"rankup.data.containers.{name}")
    modules = [module for name, module in sys.modules.items() if name.startswith("rankup.data.")]
    return [module for module in modules if "UNIT" in vars(module)]


class Running:
    """A pack in a session of its own.

    Args:
        before: called in that process first.
    """

    def __init__(
        self, asked: Request, log: Path, before: Callable[[], None] = lambda: None
    ) -> None:
        self._log = log
        self.pid = os.fork()
        if self.pid == 0:
            self._run(asked, before)
        while os.getpgid(self.pid) != self.pid:  # before that a group cannot be killed
            time.sleep(0.0005)

    def _run(self, asked: Request, before: Callable[[], None]) -> NoReturn:
        code = 99
        try:
            os.setsid()
            out = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            before()
            code = pack(asked)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def kill(self) -> None:
        """kill -9 of the whole group, at once; waits until all of it is gone."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.gone()

    def gone(self) -> None:
        """Wait until no process of the session is left."""
        deadline = time.monotonic() + _TIME_LIMIT
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return
            if all(_zombie(pid) for pid in group(self.pid)):
                return
            time.sleep(0.005)
        os.killpg(self.pid, signal.SIGKILL)
        raise AssertionError("processes of the pack are left")

    def ended(self) -> bool:
        """Whether it has come to its end by itself."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> tuple[int, str]:
        """Its exit code, and all that it has said."""
        deadline = time.monotonic() + _TIME_LIMIT
        while not self.ended():
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the pack did not end\n{self._log.read_text()}")
            time.sleep(0.01)
        _, status = os.waitpid(self.pid, 0)
        self.gone()
        return os.waitstatus_to_exitcode(status), self._log.read_text()


def group(leader: int) -> list[int]:
    """The processes of a group, zombies too."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(name)) == leader:
                    found.append(int(name))
    return found


def _zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def run(asked: Request) -> int:
    """A pack in this process."""
    return pack(asked)


def slow(seconds: float) -> Callable[[], None]:
    """For `Running`: small units, and a rest before each of them; in a stream for each sample."""

    def before() -> None:
        make_units_small()
        _before_each_unit(lambda: time.sleep(seconds))

    return before


def held(gate: Path, after: int = 0) -> Callable[[], None]:
    """For `Running`: small units; each process does some, and the next once `gate` is there.

    Args:
        gate: a file.
        after: so many units are done at once.
    """

    def before() -> None:
        make_units_small()
        done = 0

        def wait() -> None:
            nonlocal done
            done += 1
            while done > after and not gate.exists():
                time.sleep(0.005)

        _before_each_unit(wait)

    return before


def _before_each_unit(first: Callable[[], None]) -> None:
    unit, chunks = write.Copier.unit, Reader.chunks

    def later(self: write.Copier, number: int, sync: bool) -> UInt64s:
        first()
        return unit(self, number, sync)

    def later_in_a_stream(self: Reader, span: Span) -> Iterator[memoryview | bytes]:
        first()
        yield from chunks(self, span)

    write.Copier.unit = later  # type: ignore[method-assign]
    Reader.chunks = later_in_a_stream  # type: ignore[method-assign]


_EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def killed_at(moment: int, out: str, counts: Path) -> Callable[[], None]:
    """For `Running`: small units, and kill -9 of all right before the pack does something.

    Args:
        moment: the how manieth file of the pack that any of its processes opens, makes, removes or
            renames; 0: it is not killed.
        out: OUT; what belongs to it begins so.
        counts: a file that gets a byte each time.
    """

    def before() -> None:
        make_units_small()
        log = os.open(counts, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event not in _EVENTS or not isinstance(args[0], str | bytes | Path):
                return
            if os.fsdecode(args[0]).startswith(out):
                os.write(log, b".")
                if moment and os.fstat(log).st_size >= moment:
                    os.killpg(0, signal.SIGKILL)

        sys.addaudithook(hook)

    return before
