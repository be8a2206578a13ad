"""Large files, whose samples are read as tables."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.monitor import plain
from rankup.monitor.load import load

from . import traces
from .rundirs import NOBODY, same, usable, write
from .traces import Stay, healthy


@cache
def _large() -> bytes:
    trace = healthy(seconds=1600, every=2.0, fs={"/p/scratch1": {"read": 5, "write": 7}})
    with tempfile.TemporaryDirectory() as folder:
        data = (trace.write(Path(folder)) / "monitor" / "jrc0001.jsonl").read_bytes()
    assert len(data) > 1.5 * plain.WORTH
    return data


@given(st.binary(max_size=3), st.lists(st.integers(0, 10**7), min_size=1, max_size=4))
def test_flipped_bytes_cannot_crash_it(
    tmp_path_factory: pytest.TempPathFactory, put: bytes, places: list[int]
) -> None:
    """In the reader of tables as well, which only large files come to."""
    text = bytearray(_large())
    for place in places:
        at = place % len(text)
        text[at : at + len(put)] = put
    directory = write(tmp_path_factory.mktemp("run"), [bytes(text)])
    recording = load(directory, NOBODY)
    usable(recording)
    assert recording.samples > 700


def test_tables_and_json_are_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file with lives, torn lines, nulls and file systems."""
    trace = healthy(
        seconds=4000,
        every=2.0,
        stays=(Stay(0, 1500, "TIMEOUT"), Stay(1600, 4000)),
        torn=((0, 500), (0, 2000)),
        fs={f"/p/scratch{k}": {"read": traces.level(1e6 * k, 10), "write": 7} for k in (1, 2)},
    ).with_gpu(nvlink=lambda t, gpu, draw: np.where((t // 100 + gpu) % 2, np.nan, 1e9 + 0 * t))
    directory = trace.write(tmp_path)
    tables = [type(part) for part in plain.stretches(_large())]
    assert plain.Stretch in tables
    one = load(directory, trace.facts())
    monkeypatch.setattr(plain, "WORTH", 1 << 40)
    other = load(directory, trace.facts())
    same(one, other)
    assert one.torn == 2
    assert set(one.fs) == {"/p/scratch1", "/p/scratch2"}


def test_tables_of_nodes_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traces.cpu_only().but(seconds=2000, every=1.0, metrics=None, fs={"/p": {"read": 5}})
    directory = trace.write(tmp_path)
    file = tmp_path / "monitor" / "jrc0001.jsonl"
    assert plain.Stretch in map(type, plain.stretches(file.read_bytes()))
    one = load(directory, trace.facts())
    monkeypatch.setattr(plain, "WORTH", 1 << 40)
    same(one, load(directory, trace.facts()))
    assert one.host["cpu"].mean[100, 0] == pytest.approx(94, abs=3)
    assert len(one.gpus) == 0
