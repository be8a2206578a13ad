"""Files that a killed program, a full disk or a stranger has left."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankup.monitor import lines
from rankup.monitor.lines import KINDS
from rankup.monitor.load import load
from rankup.monitor.recording import Recording

from .handmade import attempt
from .rundirs import NOBODY, head, sample, usable, write
from .traces import BEGIN, healthy


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5))])
    os.mkfifo(tmp_path / "monitor" / "pipe.jsonl")
    (tmp_path / "monitor" / "folder.jsonl").mkdir()
    (tmp_path / "metrics.jsonl").symlink_to("metrics.jsonl")
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.samples == 4
    assert sum("could not be read" in event.text for event in recording.events) == 3


def test_damaged_numbers_of_profiled_steps_are_left_out(tmp_path: Path) -> None:
    sound = {"rank": 0, "node": "n1", "steps": [2, 3], "operators": [], "trace": "steps-2-3.json"}
    sound |= {"seconds": 2.0, "computing": 1.0, "collectives": 0.5, "waiting": 0.5}
    folder = write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5))]) / "profile"
    folder.mkdir()
    bad = [{"steps": [2]}, {"rank": 1e999}, {"seconds": float("nan")}, {"computing": -1.0}]
    texts = [*(json.dumps(sound | one) for one in bad), "[" * 100_000, "[]", json.dumps(sound)]
    for number, text in enumerate(texts):
        (folder / f"steps-{number}.json").write_text(text)
    os.mkfifo(folder / "steps-99.json")
    [found] = load(tmp_path, NOBODY).profiles
    assert found.shares() == (0.5, 0.25, 0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_last_line_is_dropped(tmp_path: Path, kind: str) -> None:
    records = [head(), *(sample(10 * k, fs={"/p": [1, 1, 1]}) for k in range(1, 5))]
    file = write(tmp_path, records) / "monitor" / f"n1.{kind}.csv"
    file.write_bytes(file.read_bytes()[:-3])
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.torn == 1
    assert recording.samples == 4 - (kind == "host")
    assert not any(event.kind == "note" for event in recording.events)


def _put(tmp_path: Path, kind: str, put: bytes) -> Recording:
    """What is read of a node whose table has `put` before its fourth row."""
    records = [head(), *(sample(10 * k, fs={"/p": [1, 1, 1]}) for k in range(1, 5))]
    file = write(tmp_path, records) / "monitor" / f"n1.{kind}.csv"
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*rows[:3], put, *rows[3:]]))
    known = replace(NOBODY, attempts=(attempt(BEGIN, BEGIN + 40, "COMPLETED", nodes=("n1",)),))
    recording = load(tmp_path, known)
    usable(recording)
    return recording


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("put", [b"176\n", b"x,1,1\n", b"\0\0\0\n", b"1,\xff\n", b"header"])
def test_a_damaged_row_is_left_out_and_named(tmp_path: Path, kind: str, put: bytes) -> None:
    header = (",".join(lines.header(kind)) + "\n").encode()
    recording = _put(tmp_path, kind, header if put == b"header" else put)
    why = f"row 4 of n1.{kind}.csv is damaged; left out"
    (said,) = [event.text for event in recording.events if event.kind == "note"]
    assert said == f"n1: its samples could not be read: {why}"
    assert recording.unread == (("n1", why),)
    assert (recording.samples, recording.torn, recording.gaps) == (4, 1, ())
    assert len(recording.ranks) == 1
    assert np.isfinite(recording.gpu["util"].mean).all()
    assert recording.fs["/p"][0] > 0


@pytest.mark.parametrize("key", ["", "-3", "4000000000000", "99999999999999999999", "0.5"])
@pytest.mark.parametrize("kind", ["gpu", "rank"])
def test_a_row_of_no_gpu_or_rank_is_left_out(tmp_path: Path, kind: str, key: str) -> None:
    row = [f"{BEGIN + 15}", "10", key, *["1"] * len(lines.COLUMNS[kind])]
    recording = _put(tmp_path, kind, f"{','.join(row)}\n".encode())
    assert recording.unread == (("n1", f"row 4 of n1.{kind}.csv is damaged; left out"),)
    assert recording.ranks.tolist() == [0]


def test_a_table_without_its_header_is_said(tmp_path: Path) -> None:
    file = write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5))]) / "monitor/n1.gpu.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    recording = load(tmp_path, NOBODY)
    usable(recording)
    ((_, why),) = recording.unread
    assert why == "n1.gpu.csv is damaged (no column t, is its first row a header?)"


@pytest.mark.parametrize("value", ["inf", "-inf", "1e39", "1e308"])
def test_a_value_that_cannot_be_is_not_known(tmp_path: Path, value: str) -> None:
    when, key = f"{BEGIN + 15},10", {"gpu": "0,", "host": "", "rank": "0,", "fs": "/p,"}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        row = f"{when},{key[kind]}" + ",".join([value] * len(lines.COLUMNS[kind]))
        row += ",555" * (kind == "host")
        recording = _put(tmp_path / kind, kind, f"{row}\n".encode())
        assert recording.unread == ()
        assert max(recording.fs["/p"]) < 100


@pytest.mark.parametrize(
    "line", ['{"kind": "note"', '{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}"]
)
def test_a_damaged_journal_is_said(tmp_path: Path, line: str) -> None:
    write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5))])
    with (tmp_path / "monitor" / "n1.jsonl").open("a") as file:
        file.write(f'{line}\n{{"kind": "end", "t": 1, "why": ""}}\n')
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.samples == 4
    (said,) = [event.text for event in recording.events if event.kind == "note"]
    assert "line 2 of n1.jsonl is damaged" in said


@pytest.mark.parametrize(
    "changes",
    [{"t": "now"}, {"t": None}, {"every": "2"}, {"gpus": [{"index": -1, "name": "", "uuid": ""}]}],
)
def test_a_damaged_head_is_said(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5))])
    write(tmp_path, [{**head(), **changes}, sample(10)], node="n2")
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.nodes == ("n1",)
    assert recording.unread[0][1].startswith("line 1 of n2.jsonl is damaged (")


@pytest.mark.parametrize("kind", ["note", "end"])
def test_a_time_in_a_journal_that_is_none_is_said(tmp_path: Path, kind: str) -> None:
    line = {"kind": kind, "t": None, "code": "", "text": "x"}
    write(tmp_path, [head(), *(sample(10 * k) for k in range(1, 5)), line])
    recording = load(tmp_path, NOBODY)
    assert recording.samples == 4
    assert recording.unread == (
        ("n1", "line 2 of n1.jsonl is damaged (its t is no time); delete it"),
    )


def test_a_journal_of_another_version_is_named(tmp_path: Path) -> None:
    write(tmp_path, [head()])
    line = {**json.loads((tmp_path / "monitor" / "n1.jsonl").read_text().splitlines()[0]), "v": 1}
    (tmp_path / "monitor" / "n2.jsonl").write_text(json.dumps(line) + "\n")
    ((node, why),) = load(tmp_path, NOBODY).unread
    assert (node, "n2.jsonl" in why, "of version 1, where 2 is the first" in why) == (
        "n2",
        True,
        True,
    )


def test_lines_of_the_training_that_are_no_text(tmp_path: Path) -> None:
    def step(number: int) -> bytes:
        return b'{"time": %d, "step": %d, "loss": 1}\n' % (BEGIN + number, number)

    long = b'{"step": 2, "x": "' + b"a" * 9_000_000 + b'"}\n'
    nested = b"[" * 100_000 + b"\n"
    texts = [step(1), long, step(2), nested, b"\0" * 5000, b"\n\n\xff\xfe\n", step(3)]
    texts.append(b'{"step": 4, "x": "' + b"b" * 9_000_000)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(texts))
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.steps.step.tolist() == [1, 2, 3]
    assert recording.torn == 4


def test_texts_can_be_written_whatever_they_are(tmp_path: Path) -> None:
    strange = "\ud800x"
    note = {"kind": "note", "t": BEGIN, "code": "", "text": strange}
    write(tmp_path, [head(), note, sample(10)])
    folder = tmp_path / "monitor"
    for file in folder.iterdir():
        name = os.fsencode(file.name).replace(b"n1", b"n\xff1")
        file.rename(os.fsdecode(os.fsencode(folder) + b"/" + name))
    line = b'{"time": %d, "step": 1, "loss": 2, "%s": 3, "%s_per_s": 4}\n'
    (tmp_path / "metrics.jsonl").write_bytes(line % (BEGIN, b"\\ud800x", b"\\ud800x"))
    recording = load(tmp_path, NOBODY)
    usable(recording)
    events = " ".join(event.text for event in recording.events)
    assert "n\\udcff1: \\ud800x" in events
    assert recording.steps.unit == "\\ud800x"
    words = [events, recording.steps.unit, *recording.steps.extra]
    words += [*(gap.node for gap in recording.gaps)]
    for word in words:
        word.encode()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
record = st.dictionaries(
    st.sampled_from(["step", "loss", "time", "valid_loss", "checkpoint", "stall", "final", "x"]),
    st.floats(BEGIN, BEGIN + 1000) | anything,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(record | anything, max_size=12), st.binary(max_size=40))
def test_no_lines_of_the_training_can_crash_it(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], tail: bytes
) -> None:
    directory = tmp_path_factory.mktemp("run")
    text = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_bytes(text.encode() + tail)
    usable(load(directory, NOBODY))


@cache
def _files() -> dict[str, bytes]:
    trace = healthy(seconds=200, fs={"/p/scratch1": {"read": 5, "write": 7}}, metrics=None)
    with tempfile.TemporaryDirectory() as folder:
        files = (trace.write(Path(folder)) / "monitor").iterdir()
        return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
@given(
    st.sampled_from(KINDS),
    st.binary(max_size=3),
    st.lists(st.integers(0, 10**7), min_size=1, max_size=4),
)
def test_flipped_bytes_cannot_crash_it(
    tmp_path_factory: pytest.TempPathFactory, kind: str, put: bytes, places: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("run") / "monitor"
    folder.mkdir()
    for name, data in _files().items():
        text = bytearray(data)
        for place in places if name.endswith(f".{kind}.csv") else ():
            at = place % len(text)
            text[at : at + len(put)] = put
        (folder / name).write_bytes(text)
    usable(load(folder.parent, NOBODY))
