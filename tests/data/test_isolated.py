"""A scan that crashes, hangs or eats memory does so in a child, and what it found comes through."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from rankup.base.errors import UserError
from rankup.data import finding
from rankup.data.containers import Choice
from rankup.data.errors import BadContainer

# What the child finds in the place of HDF5: the file's first word says what it does.
FORMAT = """
import ctypes, os, subprocess, sys, time, types

def scan(path, choice):
    import numpy as np
    from rankup.base.errors import UserError
    from rankup.data.errors import BadContainer
    from rankup.data.index import Field, Index, Split
    from rankup.data.index import Strings
    word = path.read_text()
    if word == "crash":
        print("last words\\x1b[2J", file=sys.stderr, flush=True)
        ctypes.string_at(0)
    if word == "abort":  # as Arrow's C++ does where a check of its own fails
        os.abort()
    if word == "exit":
        os._exit(3)
    if word == "hang":
        subprocess.Popen(SLEEP)
        time.sleep(1000)
    if word == "memory":
        bytearray(1 << 40)
    if word == "user":
        raise UserError("no field 'x'")
    if word == "bad":
        raise BadContainer("it is torn")
    if word == "os":
        open(path / "below")
    if word == "odd":
        raise KeyError("lost")
    print("a library that talks")
    n = len(word)
    field = Field("data", np.arange(n), np.ones(n, np.int64))
    keys = Strings.of(b"%d" % row for row in range(n))
    facts = {"choice": [choice.label, *choice.fields], "pid": os.getpid()}
    return Index("hdf5", Strings.of([b""]), (Split("train", 0, n),), keys, (field,), facts=facts)

fake = types.ModuleType("rankup.data.containers.hdf5")
fake.scan = scan
sys.modules[fake.__name__] = fake
"""

# What a scan of this session has started; a zombie has no such line.
SLEEP = ["sleep", f"1000.{os.getpid()}"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; the child takes the fake format for HDF5, through Python's own start-up hook."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(f"SLEEP = {SLEEP}\n{FORMAT}")
    monkeypatch.syspath_prepend(str(tmp_path / "hook"))
    return tmp_path / "data"


def _scan(data: Path, word: str, **bounds: float) -> None:
    data.write_text(word)
    finding.scan("hdf5", data, Choice(), **bounds)  # type: ignore[arg-type]


def test_the_index_comes_through(data: Path) -> None:
    data.write_text("sound")
    index = finding.scan("hdf5", data, Choice(label="y", fields=("a", "b")))
    assert len(index) == 5
    assert list(index.keys) == [b"0", b"1", b"2", b"3", b"4"]
    assert index.facts["choice"] == ["y", "a", "b"]
    assert index.facts["pid"] != os.getpid()


def test_errors_come_through(data: Path) -> None:
    with pytest.raises(UserError, match="no field 'x'"):
        _scan(data, "user")
    with pytest.raises(BadContainer, match="it is torn"):
        _scan(data, "bad")
    with pytest.raises(NotADirectoryError, match="below"):
        _scan(data, "os")
    with pytest.raises(BadContainer, match=r"cannot be read as hdf5: it is damaged .KeyError"):
        _scan(data, "odd")


def test_a_crash_is_an_error_with_its_last_words(data: Path) -> None:
    with pytest.raises(BadContainer, match=r"signal SIGSEGV(?s:.*)last words\\x1b\[2J"):
        _scan(data, "crash")
    with pytest.raises(BadContainer, match="signal SIGABRT"):
        _scan(data, "abort")
    with pytest.raises(BadContainer, match="exit code 3"):
        _scan(data, "exit")


def test_memory_is_bounded(data: Path) -> None:
    with pytest.raises(BadContainer, match="more than 16384 MiB"):
        _scan(data, "memory")


def test_time_is_bounded_and_nothing_is_left(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadContainer, match=r"within 1 s.*RANKUP_SCAN_SECONDS"):
        _scan(data, "hang", seconds=1)
    # All are killed by then; the kernel may not have got round to it.
    end = time.monotonic() + 60
    while left := [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == SLEEP]:
        assert time.monotonic() < end, left
        time.sleep(0.02)
    monkeypatch.setenv("RANKUP_SCAN_SECONDS", "soon")
    with pytest.raises(UserError, match="number of seconds"):
        finding.scan("hdf5", data, Choice())


def test_the_folder_it_is_started_in_has_no_say(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not mine')")
    monkeypatch.chdir(tmp_path)
    data.write_text("ok")
    assert len(finding.scan("hdf5", Path("data"), Choice())) == 2
