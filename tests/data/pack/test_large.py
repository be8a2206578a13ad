"""Many samples, and large ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import xxhash

from rankup.base.processes import end_group
from rankup.data import opened
from rankup.data.pack.source import Request

from .made import request


class Memory:
    """The most that a process and those below it have at once, as the body runs.

    Shared pages are counted once per process, so that this is more than they really take.
    """

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._process, self._done = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            total = 0
            try:
                for one in [self._process, *self._process.children(recursive=True)]:
                    total += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.most = max(self.most, total)

    def end(self) -> int:
        self._done.set()
        self._thread.join()
        return self.most


def _packed(asked: Request, log: Path) -> int:
    """Pack as a user does, not with all that pytest has in memory; the most memory it took."""
    words = [sys.executable, "-m", "rankup", "pack", asked.source, asked.out, "--workers", "2"]
    words += ["--no-fsync", *(["--to", asked.to] if asked.to else [])]
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
    memory = Memory(process.pid)
    try:
        code = process.wait(timeout=250)
    finally:
        end_group(process)
        most = memory.end()
    assert code == 0, log.read_text()
    return most


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    source = tmp_path_factory.mktemp("tiny") / "source"
    for number in range(100):
        inside = source / "train" / f"class{number:02d}"
        inside.mkdir(parents=True)
        for file in range(1000):
            (inside / f"{file:05d}.txt").write_bytes(b"%d" % file)
    yield source
    shutil.rmtree(source)


@pytest.mark.slow
def test_100_000_tiny_files_in_little_memory(tmp_path: Path, tiny_files: Path) -> None:
    asked = request(tiny_files, tmp_path, "tar")
    assert _packed(asked, tmp_path / "log") < 500e6
    samples = opened.open(asked.out)
    assert len(samples) == 100_000
    assert bytes(samples.read(4321)) == b"321"


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is enough of it, else on the disk; emptied at the end."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 6 << 30:
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            yield Path(folder)
    else:
        yield tmp_path
        shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
def test_a_sample_of_more_than_4_gib(roomy: Path) -> None:
    """It goes by in pieces, and what stands behind it lies where it should."""
    source = roomy / "source"
    source.mkdir()
    size = (4 << 30) + 5
    marks = {0: b"begin", (4 << 30) - 2: b"mid", size - 3: b"end"}
    with (source / "b.bin").open("wb") as file:
        file.truncate(size)  # no block is allocated for what is not written
        for at, mark in marks.items():
            file.seek(at)
            file.write(mark)
    (source / "a.bin").write_bytes(b"before")
    (source / "c.bin").write_bytes(b"behind")
    asked = request(source, roomy, "hdf5")
    # The buffers of two processes, and Python with numpy in three.
    assert _packed(asked, roomy / "log") < 400e6
    samples = opened.open(asked.out)
    assert [bytes(samples.read(row)) for row in (0, 2)] == [b"before", b"behind"]
    digest, seen = xxhash.xxh3_64(), 0
    for chunk in samples.chunks(1):
        for at, mark in marks.items():
            if seen <= at < seen + len(chunk):
                assert bytes(chunk[at - seen :])[: len(mark)] == mark[: len(chunk) - (at - seen)]
        digest.update(chunk)
        seen += len(chunk)
    [field] = samples.index.fields
    assert field.hash is not None
    assert (seen, digest.intdigest()) == (size, field.hash[1])
