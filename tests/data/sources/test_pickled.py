"""Pickles of dicts, strings and ints, and of everything else."""

from __future__ import annotations

import os
import pickle
import subprocess
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.containers import Choice
from rankup.data.sources import lists, scan_source


def load(path: Path) -> dict[str, Any]:
    """Path -> label, or such dicts by split, out of the table that a pickle is read as."""
    columns = lists.read(path, []).columns
    rows = zip(columns.get("path", []), columns.get("label", []), strict=False)
    if "split" not in columns:
        return dict(rows)
    found: dict[str, Any] = {}
    for split, (name, label) in zip(columns["split"], rows, strict=False):
        found.setdefault(split, {})[name] = label
    return found


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_path_to_label(tmp_path: Path, protocol: int) -> None:
    value: dict[str, Any] = {f"train/n{n}/ü\n{n}.JPEG": n for n in range(300)}
    value |= {"big": 1 << 40, "negative": -1, "name": "cat", "again": "cat"}
    nested = {"train": value, "val": {"x": 70_000}}
    for one in (value, nested, {}):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(one, protocol))
        assert load(tmp_path / "a.pkl") == one


class _Runs:
    def __init__(self, function: Any, *args: Any) -> None:
        self._way = (function, args)

    def __reduce__(self) -> Any:
        return self._way


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("inside", [False, True])
def test_code_is_not_run(tmp_path: Path, protocol: int, inside: bool) -> None:
    done = tmp_path / "done"
    for function, *args in (
        (os.system, f"touch {done}"),
        (subprocess.check_call, ["touch", str(done)]),
        (eval, f"open({str(done)!r}, 'w')"),
        (getattr, dict, "__init__"),
    ):
        one: Any = _Runs(function, *args)
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": one} if inside else one, protocol))
        with pytest.raises(UserError, match="is not unpickled: it holds"):
            load(tmp_path / "a.pkl")
    assert not done.exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [{Path("a"): 3}, OrderedDict(a=3)], ids=repr)
def test_other_types_are_refused(tmp_path: Path, protocol: int, value: Any) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(UserError, match="dict, str and int"):
        load(tmp_path / "a.pkl")


@pytest.mark.parametrize("value", [{"a": [1]}, {"a": 1.5}, {"a": {1, 2}}, {b"a": 1}], ids=repr)
def test_what_is_no_label_or_path_is_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match=r"is no label|is no sample|no column with paths"):
        scan_source(tmp_path / "a.pkl", Choice())


def test_numbers_of_numpy_come_with_advice(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": np.int64(3)}))
    with pytest.raises(UserError, match=r"numpy.*int\(label\)"):
        load(tmp_path / "a.pkl")


@pytest.mark.parametrize("value", ["a", 3])
def test_a_dict_is_expected(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match="not a dict"):
        load(tmp_path / "a.pkl")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\xff}.",
        b"}s.",
        b"(((t.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a string of 2**63 bytes
        b"}r\xff\xff\xff\x7f.",  # memory for 2**31 memos, in the interpreter in C
        b"I" + b"9" * 5000 + b"\n.",
        b"\x8b\xff\xff\xff\x7f.",
        b"X\x01\x00\x00\x00\xff.",
        b"}}Ks.",
        b"}q\x00h\x01.",
        b"\x82\x01.",  # a registered extension
        b"Pid\n.",
        b"\x96\xff\xff\xff\xff\x00\x00\x00\x00.",
    ],
)
def test_hostile_pickles_do_no_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pkl").write_bytes(data)
    value: dict[str, Any] = {}
    tracemalloc.start()
    try:
        with suppress(UserError):
            value = load(tmp_path / "a.pkl")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value == {}
    assert most < 50e6  # bytes, whatever the pickle asks for


def _fuzzed(path: Path, data: st.DataObject) -> None:
    base = pickle.dumps({"a/b.jpg": 3, "c": {"x": 1 << 40}}, data.draw(st.sampled_from(PROTOCOLS)))
    broken = bytearray(base)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(base) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(broken)
    with suppress(UserError):
        assert type(load(path)) is dict


@given(st.data())
def test_damage_ends_with_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _fuzzed(tmp_path_factory.getbasetemp() / "fuzz.pkl", data)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_much_damage_ends_with_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _fuzzed(tmp_path_factory.getbasetemp() / "fuzz.pkl", data)
