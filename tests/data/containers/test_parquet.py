"""Parquet files, alone and in folders as Hugging Face's hub has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, parquet
from rankup.data.errors import BadContainer

from .made import read


def write(path: Path, columns: dict[str, Any], group: int = 10, **options: Any) -> Path:
    """A table in row groups of some rows."""
    pq.write_table(pa.table(columns), str(path), row_group_size=group, **options)
    return path


@pytest.mark.parametrize(("codec", "dictionary"), [("snappy", True), ("zstd", False)])
def test_a_file(tmp_path: Path, codec: str, dictionary: bool) -> None:
    values = [b"\x89PNG" + b"x" * (n % 9) for n in range(35)]
    columns = {
        "image": pa.array([{"bytes": v, "path": f"{n:02}.png"} for n, v in enumerate(values)]),
        "label": pa.array(["a", "b", None, "c", "a"] * 7),
    }
    path = write(tmp_path / "x.parquet", columns, compression=codec, use_dictionary=dictionary)
    found = parquet.scan(path, Choice())
    assert found.classes == ("a", "b", "c")
    back = read(found, path)
    assert [one.values[0] for one in back] == values
    assert [one.label for one in back] == [0, 1, -1, 2, 0] * 7
    assert [one.key for one in back] == [b"%02d.png" % n for n in range(35)]


def test_fields_of_numbers(tmp_path: Path) -> None:
    tokens = np.arange(60).reshape(20, 3)
    columns = {
        "text": pa.array([f"t{n}" for n in range(20)]),
        "tokens": pa.array(tokens.tolist(), pa.list_(pa.int16())),
        "x": pa.array(np.arange(20, dtype="<f4")),
        "flag": pa.array([n % 2 == 0 for n in range(20)]),
    }
    path = write(tmp_path / "x.parquet", columns)
    found = parquet.scan(path, Choice())
    for row, one in enumerate(read(found, path)):
        text, token, x, flag = one.values
        assert text == b"t%d" % row
        assert np.frombuffer(token, "<i2").tolist() == tokens[row].tolist()
        assert np.frombuffer(x, "<f4") == row
        assert flag == bytes([row % 2 == 0])


def test_a_folder_as_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, first in (("train-00000", 0), ("train-00001", 30), ("test-00000", 60)):
        values = pa.array([b"%d" % n for n in range(first, first + 30)])
        write(tmp_path / "data" / f"{name}-of-00002.parquet", {"v": values, "label": [0] * 30})
    found = parquet.scan(tmp_path, Choice())
    assert [(s.name, s.start, s.stop, s.folder) for s in found.splits] == [
        ("train", 0, 60, "train"),
        ("test", 60, 90, "test"),
    ]
    assert [one.values[0] for one in read(found, tmp_path)] == [b"%d" % n for n in range(90)]
    fallback = parquet.fallback(found, tmp_path)
    for row in (89, 0, 31, 29, 30, 30):
        number = ~int(found.fields[0].offset[row])
        assert b"".join(map(bytes, fallback.chunks("data", number))) == b"%d" % row


def test_what_is_no_parquet(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"v": pa.array([b"1" * 1000] * 50)}, use_dictionary=False)
    data = path.read_bytes()
    for torn in (b"", b"PAR1", data[:-1], data[100:], data[:500] + data[600:]):
        path.write_bytes(torn)
        with pytest.raises(BadContainer):
            parquet.scan(path, Choice())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.parquet files"):
        parquet.scan(tmp_path / "empty", Choice())
