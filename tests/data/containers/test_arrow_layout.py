"""Our Arrow files: every byte has its place beforehand, and others' tools read what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from rankup.base.errors import UserError
from rankup.data.containers import Choice, arrow, arrow_layout
from rankup.data.errors import BadContainer
from rankup.data.pack.layout import Shape

from .made import Sample, index_of, of_samples, pack, raw, read, samples, values


def _table(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def test_pyarrow_reads_what_was_written(tmp_path: Path) -> None:
    splits = {"train": samples(700), "val": samples(3, seed=1)}
    pack("arrow", tmp_path / "out", *of_samples(splits))
    for name, part in splits.items():
        table = _table(tmp_path / "out" / f"{name}.arrow")
        table.validate(full=True)
        assert table.schema.names == ["data", "label", "key", "hash"]
        assert table["data"].to_pylist() == [one.values[0] for one in part]
        assert table["label"].to_pylist() == [one.label for one in part]
        assert table["key"].to_pylist() == [one.key.decode() for one in part]
        hashes = [xxhash.xxh3_64_intdigest(one.values[0]) for one in part]
        assert table["hash"].to_pylist() == hashes


def test_the_bytes_are_those_of_pyarrow_s_own_writer(tmp_path: Path) -> None:
    pack("arrow", tmp_path / "out", *of_samples({"train": samples(700)}))
    path = tmp_path / "out" / "train.arrow"
    found = pa.ipc.open_file(pa.memory_map(str(path)))
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), found.schema) as writer:
        for number in range(found.num_record_batches):
            writer.write(found.get_batch(number))
    assert (tmp_path / "x.arrow").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_hugging_face_reads_it_with_its_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pack(
        "arrow", tmp_path / "out", *of_samples({"train": samples(300), "test": samples(5, seed=1)})
    )
    files = {name: str(tmp_path / "out" / f"{name}.arrow") for name in ("train", "test")}
    found = datasets.load_dataset("arrow", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert found["train"].features["label"].names == ["a", "b", "c"]
    assert found["test"][4]["data"] == samples(5, seed=1)[4].values[0]
    assert len(found["train"]) == 300


def test_the_scan_finds_what_the_layout_planned(tmp_path: Path) -> None:
    splits = {"train": samples(600), "val": samples(0), "test": samples(40, seed=2)}
    layout = pack("arrow", tmp_path / "out", *of_samples(splits))
    found = arrow.scan(tmp_path / "out", Choice())
    assert found.splits == layout.index.splits
    assert found.classes == ("a", "b", "c")
    assert list(found.keys) == list(layout.index.keys)
    assert list(found.files) == list(layout.index.files)
    assert found.labels is not None
    assert layout.index.labels is not None
    assert found.labels.tolist() == layout.index.labels.tolist()
    mine, its = layout.index.fields[0], found.fields[0]
    assert its.file is not None
    assert mine.file is not None
    for one, other in ((mine.offset, its.offset), (mine.length, its.length), (mine.file, its.file)):
        assert one.tolist() == other.tolist()
    assert read(found, tmp_path / "out") == [s for part in splits.values() for s in part]
    assert found.sizes.tolist() == layout.sizes.tolist()


def test_our_file_without_its_index_is_read_like_any_other(tmp_path: Path) -> None:
    pack("arrow", tmp_path / "out", *of_samples({"odd": samples(5), "test": samples(3, seed=1)}))
    found = arrow.scan(tmp_path / "out", Choice())
    assert [one.name for one in found.fields] == ["data"]  # their hashes are no samples
    assert [(one.name, one.stop) for one in found.splits] == [("test", 3), ("odd", 8)]
    sizes = [(tmp_path / "out" / name.decode()).stat().st_size for name in found.files]
    assert found.sizes.tolist() == sizes
    path = tmp_path / "out" / "odd.arrow"
    assert read(arrow.scan(path, Choice()), path) == samples(5)


def test_several_fields_and_arrays(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 2, 3)).astype("<f4")
    z = (draw.normal(size=(300, 2)) + 1j).astype("<c8")
    b = draw.random((300, 5)) < 0.5
    big = np.arange(300, dtype=">i4")
    y = draw.integers(0, 9, 300)
    fields = {
        "key": [b"jpg%d" % n * (n % 7) for n in range(300)],  # as a column of ours is called
        "x": x,
        "z": z,
        "b": b,
        "big": big,
        "y": y,
        "none": np.zeros((300, 0, 4)),
    }
    layout = pack("arrow", tmp_path / "out", index_of(fields, {"train": 300}), fields)
    table = _table(tmp_path / "out" / "train.arrow")
    table.validate(full=True)
    assert np.array(table["x"].to_pylist(), "<f4").tolist() == x.tolist()
    assert table["y"].to_pylist() == y.tolist()
    assert np.array(table["b"].to_pylist()).tolist() == b.astype(int).tolist()
    assert table["key_"].to_pylist() == [key.decode() for key in layout.index.keys]
    for name, column in fields.items():
        assert values(tmp_path / "out", layout.index, name) == list(raw(column))


def test_keys_that_are_no_utf8_stay_as_they_are(tmp_path: Path) -> None:
    # Together these two are valid; each of them is not.
    parts = [Sample(b"a\xc3", 0, (b"1",)), Sample(b"\xa9b", 1, (b"2",))]
    pack("arrow", tmp_path / "out", *of_samples({"train": parts}))
    assert _table(tmp_path / "out" / "train.arrow")["key"].type == pa.binary()
    assert read(arrow.scan(tmp_path / "out", Choice()), tmp_path / "out") == parts
    unicode = [Sample("ä/日本/😀.jpg".encode(), 0, (b"1",))]
    pack("arrow", tmp_path / "utf8", *of_samples({"train": unicode}))
    assert _table(tmp_path / "utf8" / "train.arrow")["key"].to_pylist() == ["ä/日本/😀.jpg"]


def test_a_sample_and_a_file_over_4_gib(tmp_path: Path) -> None:
    size = (4 << 30) + 5
    source = index_of({"data": [b"", b""]}, {"train": 2})
    source.fields[0].length[:] = size, 3
    layout = arrow_layout.plan(source, Shape()).begin(tmp_path)
    path = tmp_path / "train.arrow"
    with path.open("r+b") as file:
        for start, stop in zip(layout.units[:-1], layout.units[1:], strict=True):
            hashes = np.zeros((1, int(stop - start)), np.uint64)
            for piece in (*layout.before(start, stop), *layout.after(start, stop, hashes)):
                file.seek(piece.offset)
                file.write(piece.data)
        first, last = layout.index.fields[0].offset.tolist()
        file.seek(first + size - 3)
        file.write(b"end")
        file.seek(last)
        file.write(b"abc")
    layout.finish(tmp_path, np.zeros((1, 2), np.uint64))
    assert path.stat().st_blocks * 512 < 1 << 20  # sparse: nothing of it was written
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    assert reader.num_record_batches == 2
    _, ends, big = reader.get_batch(0).column(0).buffers()
    assert np.frombuffer(ends, "<i8", 2).tolist() == [0, size]
    assert big.slice(size - 3, 3).to_pybytes() == b"end"
    found = arrow.scan(tmp_path, Choice())
    assert found.fields[0].length.tolist() == [size, 3]
    assert found.fields[0].offset.tolist() == [first, last]


def test_files_that_another_version_has_begun_are_not_gone_on_with(tmp_path: Path) -> None:
    layout = arrow_layout.plan(index_of({"data": [b"abc"]}, {"train": 1}), Shape()).begin(tmp_path)
    with (tmp_path / "train.arrow").open("ab") as file:
        file.write(bytes(64))
    with pytest.raises(BadContainer, match=r"another version of rankup.*pack anew"):
        layout.attach(tmp_path)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(UserError, match=r"split named 'a/b'"):
        arrow_layout.plan(index_of({"data": [b"abc"]}, {"a/b": 1}), Shape())
    wide = index_of({"x": np.empty((0, 1 << 20, 1 << 10))}, {"train": 0})
    with pytest.raises(UserError, match="at most 2 GiB"):
        arrow_layout.plan(wide, Shape())
    torn = index_of({"x": np.zeros((2, 3))}, {"train": 2})
    torn.fields[0].length[1] = 23
    with pytest.raises(BadContainer, match="should have 24 bytes per sample"):
        arrow_layout.plan(torn, Shape())
