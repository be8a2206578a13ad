"""Parquet files, alone and in folders as Hugging Face's hub has them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, arrow_tables, parquet
from rankup.data.errors import BadContainer

from .arrow_made import read


def write(path: Path, columns: dict[str, Any], group: int = 10, **options: Any) -> Path:
    """A table in row groups of some rows."""
    pq.write_table(pa.table(columns), str(path), row_group_size=group, **options)
    return path


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("dictionary", [False, True])
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
    fallback = pickle.loads(pickle.dumps(parquet.fallback(found, tmp_path)))
    for row in (89, 0, 31, 29, 30, 30):
        number = ~int(found.fields[0].offset[row])
        assert b"".join(map(bytes, fallback.chunks("data", number))) == b"%d" % row


def test_large_row_groups_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_WHOLE", 1000)
    monkeypatch.setattr(parquet, "_PIECE", 300)
    values = [b"%03d" % n * 10 for n in range(200)]
    path = write(tmp_path / "x.parquet", {"v": pa.array(values)}, group=150)
    found = parquet.scan(path, Choice())
    assert [one.values[0] for one in read(found, path)] == values
    fallback = parquet.fallback(found, path)
    for row in (199, 5, 140, 139, 150):
        number = ~int(found.fields[0].offset[row])
        assert b"".join(map(bytes, fallback.chunks("data", number))) == values[row]


def test_reading_in_order_decodes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"v": pa.array([b"%d" % n for n in range(100)]), "w": pa.array(range(100))}
    path = write(tmp_path / "x.parquet", columns, group=20)
    found = parquet.scan(path, Choice())
    decoded = []
    chunks = parquet._RowGroups.chunks

    def counted(self: Any, group: int, column: str) -> Any:
        decoded.append((group, column))
        return chunks(self, group, column)

    monkeypatch.setattr(parquet._RowGroups, "chunks", counted)
    read(found, path)
    assert sorted(decoded) == [(group, column) for group in range(5) for column in "vw"]


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


def test_a_value_is_known_by_file_group_and_row() -> None:
    for place in ((0, 0, 0), (65_535, 2_097_151, 67_108_863), (3, 70_000, 12)):
        (packed,) = arrow_tables.pack(place[0], place[1], np.array([place[2]])).tolist()
        assert packed >= 0
        assert arrow_tables.unpack(packed) == place
    for place in ((65_536, 0, 0), (0, 2_097_152, 0), (0, 0, 67_108_864)):
        with pytest.raises(UserError, match="smaller groups"):
            arrow_tables.pack(place[0], place[1], np.array([place[2]]))


def test_read_at_random_few_groups_are_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack reads in the order of keys, which need not be that of the rows."""
    for number in range(3):
        values = pa.array([b"%d %d" % (number, n) for n in range(40)])
        write(tmp_path / f"train-{number:05}-of-00003.parquet", {"v": values})
    found = parquet.scan(tmp_path, Choice())
    decoded = []
    chunks = parquet._RowGroups.chunks

    def counted(self: Any, group: int, column: str) -> Any:
        decoded.append(group)
        return chunks(self, group, column)

    monkeypatch.setattr(parquet._RowGroups, "chunks", counted)

    def all_at_random() -> None:
        fallback = parquet.fallback(found, tmp_path)
        for row in np.random.default_rng(0).permutation(120).tolist():
            number = ~int(found.fields[0].offset[row])
            value = b"".join(map(bytes, fallback.chunks("data", number)))
            assert value == b"%d %d" % divmod(row, 40)

    all_at_random()
    assert len(decoded) == 12
    # With room for little, and for one open file, it is slower and no less right.
    monkeypatch.setattr(arrow_tables, "_HELD", 100)
    monkeypatch.setattr(arrow_tables, "_READERS", 1)
    all_at_random()
    assert len(decoded) > 24


def test_a_forked_process_goes_on_reading(tmp_path: Path) -> None:
    values = [b"%d" % n for n in range(50)]
    path = write(tmp_path / "x.parquet", {"v": pa.array(values)})
    found = parquet.scan(path, Choice())
    fallback = parquet.fallback(found, path)

    def all_are_right() -> bool:
        numbers = (~found.fields[0].offset).tolist()
        back = [b"".join(map(bytes, fallback.chunks("data", number))) for number in numbers]
        return back == values

    assert all_are_right()
    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(0 if all_are_right() else 1)
    )
    child.start()
    child.join(30)
    code = child.exitcode
    child.kill()
    child.join()
    assert code == 0
    assert all_are_right()
