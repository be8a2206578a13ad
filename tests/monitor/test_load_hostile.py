"""Files that a killed program or a stranger has left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankup.monitor.load import load

from .rundirs import NOBODY, head, sample, usable, write
from .traces import BEGIN


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5))])
    os.mkfifo(tmp_path / "monitor" / "pipe.jsonl")
    (tmp_path / "monitor" / "folder.jsonl").mkdir()
    (tmp_path / "metrics.jsonl").symlink_to("metrics.jsonl")
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.samples == 4
    assert sum("could not be read" in event.text for event in recording.events) == 3


def test_lines_that_are_far_too_long_or_no_text(tmp_path: Path) -> None:
    long = b'{"t": 1, "x": "' + b"a" * 9_000_000 + b'"}\n'
    middling = b'{"t": 1, "x": "' + b"a" * 1_100_000 + b'"}\n'
    nested = b"[" * 100_000 + b"\n"
    records: list[Any] = [head(), sample(10), long, sample(20), middling, nested, b"\0" * 5000]
    records += [b"\n\n\xff\xfe\n", sample(30), b'{"t": 1, "x": "' + b"b" * 2_000_000]
    recording = load(write(tmp_path, records), NOBODY)
    usable(recording)
    assert recording.samples == 3
    assert recording.torn == 6


def test_texts_can_be_written_whatever_they_are(tmp_path: Path) -> None:
    strange = b"\\ud800x"  # as json.dumps writes a lone surrogate
    note = b'{"kind": "note", "t": %d, "code": "", "text": "%s"}\n' % (BEGIN, strange)
    mount = json.dumps(sample(20, fs={"/\udfff": [1, 1, 1]})).encode() + b"\n"
    write(tmp_path, [head(), sample(10), note, mount])
    folder = tmp_path / "monitor"
    (folder / "n1.jsonl").rename(os.fsdecode(os.fsencode(folder) + b"/n\xff1.jsonl"))
    line = b'{"time": %d, "step": 1, "loss": 2, "%s": 3, "%s_per_s": 4}\n'
    (tmp_path / "metrics.jsonl").write_bytes(line % (BEGIN, strange, strange))
    recording = load(tmp_path, NOBODY)
    usable(recording)
    events = " ".join(event.text for event in recording.events)
    assert "n\\udcff1: \\ud800x" in events
    assert recording.steps.unit == "\\ud800x"
    assert recording.heads[0].node == "n\\udcff1"
    words = [events, recording.steps.unit, *recording.steps.extra, *recording.fs]
    words += [recording.heads[0].node, *(gap.node for gap in recording.gaps)]
    for word in words:
        word.encode()


HOSTILE = [
    {"kind": "head"},
    {"kind": "head", "columns": 3, "gpus": "many", "usable": [-1, "a", None], "every": -5},
    {"kind": "head", "columns": {"gpu": [["util"], None]}, "gpus": [None, 3], "every": 1e300},
    {"kind": "head", "t": BEGIN, "environment": {"A": 3, "B": "x" * 9999}, "ranks": 1e9},
    {"kind": "note"},
    {"kind": "note", "t": BEGIN, "code": 5, "text": ["a"]},
    {"kind": "end", "t": "now"},
    {"kind": ["end"], "t": 1},
    {"kind": None, "t": BEGIN},
    sample(10, gpu=None, host=None, cores=None, ranks=None),
    sample(20, gpu="abc", host="abc", cores=5, ranks="abc", fs="abc"),
    sample(30, gpu=[[]], host=[], cores="", ranks=[[]], fs={}),
    sample(40, gpu=[[["deep"]]], host=[{}], cores="äöü\x00", ranks=[[None]], fs={"": None}),
    sample(50, gpu=[[1e308, -5, True, "12"]], host=[1e308, -1], ranks=[[1e308], [-1], [0.5]]),
    sample(60, gpu=[[1]] * 5000, cores="5" * 100_000, ranks=[[k] for k in range(5000)]),
    sample(70, dt=-10),
    sample(80, dt=1e300),
    sample(90, dt="10"),
    sample(100, util=5000, fs={f"/m{k}": [1, 1, 1] for k in range(500)}),
    sample(110, gpu=[1, 2, 3], ranks=[1], host=[[1]]),
    [1, 2, 3],
    "text",
    None,
    7,
]


def test_no_line_can_crash_it(tmp_path: Path) -> None:
    for line in HOSTILE:
        records = [head(), line, *(sample(10 * k) for k in range(1, 5)), line]
        recording = load(write(tmp_path, records), NOBODY)
        usable(recording)
        assert recording.samples >= 4, line


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
record = st.fixed_dictionaries(
    {"t": st.floats(BEGIN, BEGIN + 1000) | anything},
    optional={
        "kind": st.sampled_from(["head", "note", "end"]) | anything,
        "dt": st.floats(0, 20) | anything,
        **dict.fromkeys(("gpu", "host", "cores", "ranks", "fs", "columns", "gpus"), anything),
        **dict.fromkeys(("step", "loss", "time", "valid_loss", "checkpoint"), anything),
    },
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(record | anything, max_size=12), st.binary(max_size=40))
def test_no_lines_can_crash_it(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], tail: bytes
) -> None:
    directory = write(tmp_path_factory.mktemp("run"), [*records, tail])
    (directory / "metrics.jsonl").write_bytes((directory / "monitor" / "n1.jsonl").read_bytes())
    usable(load(directory, NOBODY))
