"""Arrow files of others: the course's, Hugging Face's, with nulls, lists, compression and views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, arrow
from rankup.data.errors import BadContainer
from rankup.data.index import Split

from .made import read


def write(
    path: Path, columns: dict[str, Any], *, batch: int = 7, stream: bool = False, **options: Any
) -> Path:
    """A table in batches of some rows, as a file or as a stream."""
    table = pa.table(columns).replace_schema_metadata(options.pop("metadata", None))
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def photos(count: int) -> list[bytes]:
    """What begins as photos do."""
    draw = np.random.default_rng(count)
    return [b"\xff\xd8\xff" + draw.bytes(int(draw.integers(0, 400))) for _ in range(count)]


def test_the_course_s_file(tmp_path: Path) -> None:
    """`image_data` binary and `label` uint16, a record batch per sample."""
    images = photos(50)
    schema = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())])
    path = tmp_path / "imagenet-train.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for number, image in enumerate(images):
            columns = [pa.array([image], pa.binary()), pa.array([number], pa.uint16())]
            writer.write(pa.record_batch(columns, schema=schema))
    found = arrow.scan(path, Choice())
    assert [one.name for one in found.fields] == ["data"]
    assert (found.fields[0].offset > 0).all()
    assert found.splits == (Split("train", 0, 50),)
    back = read(found, path)
    assert [one.values[0] for one in back] == images
    assert [one.label for one in back] == list(range(50))
    assert back[49].key == b"000049.jpg"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary(4)]
)
def test_bytes_of_each_kind(tmp_path: Path, type_: pa.DataType, stream: bool) -> None:
    values = [b"%04d" % n for n in range(40)]
    if type_ != pa.binary(4):
        values[3], values[17] = b"", b"x" * 5000
    path = write(tmp_path / "x.arrow", {"v": pa.array(values, type_)}, stream=stream)
    found = arrow.scan(path, Choice())
    assert (found.fields[0].offset > 0).all()
    assert [one.values[0] for one in read(found, path)] == values
    assert found.labels is None
    suffix = b".txt" if "string" in str(type_) else b".bin"
    assert found.keys[39] == b"000039" + suffix


def test_numbers_lists_and_tensors_are_arrays(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(30, 2, 3)).astype("<f4")
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    tokens = draw.integers(0, 100, (30, 4))
    columns = {
        "a": pa.array(np.arange(30, dtype="<u2")),
        "half": pa.array(np.arange(30, dtype="<f2")),
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 6),
        "tensor": tensors,
        "tokens": pa.array(tokens.tolist(), pa.list_(pa.int32())),
        "flag": pa.array([n % 3 == 0 for n in range(30)]),
        "flags": pa.array([[True, n % 2 == 0] for n in range(30)], pa.list_(pa.bool_(), 2)),
    }
    path = write(tmp_path / "x.arrow", columns)
    found = arrow.scan(path, Choice())
    assert {one.name: (one.dtype, one.shape) for one in found.fields} == {
        "a": ("<u2", ()),
        "half": ("<f2", ()),
        "fixed": ("<f4", (6,)),
        "tensor": ("<f4", (6,)),
        "tokens": ("<i4", (4,)),
        "flag": ("|b1", ()),
        "flags": ("|b1", (2,)),
    }
    assert {one.name for one in found.fields if (one.offset < 0).any()} == {"flag", "flags"}
    for row, one in enumerate(read(found, path)):
        a, half, fixed, tensor, token, flag, flags = one.values
        assert np.frombuffer(a, "<u2") == row
        assert np.frombuffer(half, "<f2") == row
        assert fixed == tensor == x[row].tobytes()
        assert np.frombuffer(token, "<i4").tolist() == tokens[row].tolist()
        assert flag == bytes([row % 3 == 0])
        assert flags == bytes([True, row % 2 == 0])


@pytest.mark.parametrize(("codec", "stream"), [("lz4", False), ("zstd", True)])
def test_compressed_batches_are_read_through_pyarrow(
    tmp_path: Path, codec: str, stream: bool
) -> None:
    values = [b"abc" * n for n in range(60)]
    columns = {"v": pa.array(values), "n": pa.array(range(60)), "label": pa.array(["x", "w"] * 30)}
    path = write(tmp_path / "x.arrow", columns, compression=codec, stream=stream)
    found = arrow.scan(path, Choice())
    assert (found.fields[0].offset < 0).all()
    assert found.classes == ("w", "x")
    back = read(found, path)
    assert [one.values[0] for one in back] == values
    assert [np.frombuffer(one.values[1], "<i8")[0] for one in back] == list(range(60))
    assert [one.label for one in back] == [1, 0] * 30
    fallback = arrow.fallback(found, path)  # in any order
    for row in (59, 3, 31, 30, 3):
        number = ~int(found.fields[0].offset[row])
        assert b"".join(map(bytes, fallback.chunks("v", number))) == values[row]


def test_views_and_dictionaries(tmp_path: Path) -> None:
    values = ["short", "x" * 40, "", "y" * 13] * 5
    columns = {
        "view": pa.array(values, pa.string_view()),
        "dict": pa.array(values).dictionary_encode(),
        "label": pa.array(["b", "a", None, "b"] * 5).dictionary_encode(),
    }
    path = write(tmp_path / "x.arrow", columns)
    found = arrow.scan(path, Choice())
    back = read(found, path)
    assert [one.values for one in back] == [(v.encode(), v.encode()) for v in values]
    assert [one.label for one in back] == [1, 0, -1, 1] * 5
    # Without the view, the rest is read where it lies.
    plain = {"v": pa.array(values), "label": columns["label"]}
    found = arrow.scan(write(tmp_path / "y.arrow", plain), Choice())
    assert (found.fields[0].offset > 0).all()
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, -1, 1] * 5


def test_nulls(tmp_path: Path) -> None:
    values = [b"a", None, b"", b"dd"] * 6
    columns = {
        "v": pa.array(values),
        "w": pa.array([{"bytes": v, "path": None} if v else None for v in values]),
        "label": pa.array([1, 2, None, 3] * 6, pa.int32()),
    }
    path = write(tmp_path / "x.arrow", columns)
    found = arrow.scan(path, Choice())
    assert found.facts["nulls"] == {"v": 6, "w": 12}
    assert [one.values for one in read(found, path)] == [(v or b"", v or b"") for v in values]
    assert [one.label for one in read(found, path)] == [1, 2, -1, 3] * 6
    path = write(tmp_path / "y.arrow", {"n": pa.array([1, None])})
    with pytest.raises(UserError, match="missing values"):
        arrow.scan(path, Choice())
    path = write(tmp_path / "z.arrow", {"n": pa.array([[1, None], [1, 2]], pa.list_(pa.int8(), 2))})
    with pytest.raises(UserError, match="missing values"):
        arrow.scan(path, Choice())


def test_hugging_face_s_images_and_class_names(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "kind": {"_type": "ClassLabel", "names": ["x", "y"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    images = photos(20)
    columns = {
        "image": pa.array([{"bytes": v, "path": f"{n}.JPEG"} for n, v in enumerate(images)]),
        "kind": pa.array([0, 1] * 10),
    }
    path = write(tmp_path / "x.arrow", columns, metadata=metadata, stream=True)
    found = arrow.scan(path, Choice())
    assert found.classes == ("x", "y")
    back = read(found, path)
    assert [one.values[0] for one in back] == images
    assert [one.key for one in back] == [b"%d.JPEG" % n for n in range(20)]
    columns["kind"] = pa.array([2] * 20)
    path = write(tmp_path / "y.arrow", columns, metadata=metadata)
    with pytest.raises(BadContainer, match="label 2, and 2 classes"):
        arrow.scan(path, Choice())


@pytest.mark.parametrize(
    "names", [("train-00000-of-00002", "train-00001-of-00002"), ("train", "test")]
)
def test_files_that_count_classes_otherwise_are_refused(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name, classes in zip(names, (["x", "y"], ["y", "x"]), strict=True):
        features = {"label": {"_type": "ClassLabel", "names": classes}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        columns = {"v": pa.array([b"1", b"2"]), "label": pa.array([0, 1])}
        write(tmp_path / f"{name}.arrow", columns, metadata=metadata)
    with pytest.raises(UserError, match=r"different columns or classes|other names of classes"):
        arrow.scan(tmp_path, Choice())
    assert len(arrow.scan(tmp_path, Choice(fields=("v", "label")))) == 4


def test_keys_only_where_they_are_fit(tmp_path: Path) -> None:
    values = pa.array([b"1", b"2"])

    def keys(**columns: Any) -> list[bytes]:
        path = write(tmp_path / "x.arrow", {"v": values, **columns})
        return list(arrow.scan(path, Choice(fields=("v",))).keys)

    numbers = [b"000000.bin", b"000001.bin"]
    assert keys(key=["b", "a"]) == [b"b", b"a"]
    assert keys(key=["b", "b"], path=["x/y", "x/z"]) == [b"x/y", b"x/z"]
    assert keys(key=["b", "b"]) == numbers
    assert keys(path=["/etc/passwd", "b"]) == numbers
    assert keys(path=["../a", "b"]) == numbers
    assert keys(id=["a", None]) == numbers
    assert keys(id=["a" * 5000, "b"]) == numbers
    path = write(tmp_path / "x.arrow", {"v": values, "name": ["b", "b"]})
    with pytest.raises(UserError, match="'name' cannot be keys: keys are texts, each once"):
        arrow.scan(path, Choice(key="name"))
    # What is no key is no less a column of the user.
    path = write(tmp_path / "x.arrow", {"v": values, "id": ["b", "b"]})
    assert [one.name for one in arrow.scan(path, Choice()).fields] == ["v", "id"]


def test_labels(tmp_path: Path) -> None:
    def labels(values: Any, **choice: Any) -> tuple[Any, tuple[str, ...]]:
        path = write(tmp_path / "x.arrow", {"v": pa.array([b"1", b"2"]), "label": values})
        found = arrow.scan(path, Choice(**choice))
        return found.labels.tolist() if found.labels is not None else None, found.classes

    assert labels(pa.array([5, -1], pa.int8())) == ([5, -1], ())
    assert labels(pa.array(["ü", "a"])) == ([1, 0], ("a", "ü"))
    assert labels(pa.array([True, False])) == ([1, 0], ())
    assert labels(pa.array([0.5, 1.5])) == (None, ())  # a regression's target is an array
    with pytest.raises(UserError, match="has no labels: they are one whole number or one text"):
        labels(pa.array([0.5, 1.5]), label="label")
    for bad in (pa.array([-2, 0]), pa.array([2**63, 0], pa.uint64())):
        with pytest.raises(UserError, match="has labels from"):
            labels(bad)
    with pytest.raises(UserError, match="no column 'lable' in it; did you mean label"):
        labels(pa.array([1, 0]), label="lable")


@pytest.mark.parametrize(
    "names", [("train", "test"), ("train-00000-of-00002", "train-00001-of-00002")]
)
@pytest.mark.parametrize("nulls_first", [False, True])
def test_labels_that_a_file_has_not(
    tmp_path: Path, names: tuple[str, str], nulls_first: bool
) -> None:
    """The type of a column of nothing but nulls says nothing: as other files have it."""
    value = {"v": pa.array([b"1", b"2"])}
    nothing = {**value, "label": pa.nulls(2)}
    for labels, numbers in ((["b", "a"], [1, 0]), ([7, 3], [7, 3])):
        files = [{**value, "label": pa.array(labels)}, nothing]
        for name, columns in zip(names, files[::-1] if nulls_first else files, strict=True):
            write(tmp_path / f"{name}.arrow", columns)
        found = arrow.scan(tmp_path, Choice())
        assert found.labels is not None
        wanted = [-1, -1, *numbers] if nulls_first else [*numbers, -1, -1]
        assert found.labels.tolist() == wanted
        assert [one.name for one in found.fields] == ["data"]


@pytest.mark.parametrize("other", [pa.nulls(2), pa.array([0, 1])])
def test_keys_that_files_have_otherwise_are_passed_over(tmp_path: Path, other: pa.Array) -> None:
    for number, key in enumerate((pa.array(["b", "a"]), other)):
        columns = {"v": pa.array([b"1", b"2"]), "key": key}
        write(tmp_path / f"train-{number:05}-of-00002.arrow", columns)
    found = arrow.scan(tmp_path, Choice(fields=("v",)))
    assert list(found.keys) == [b"%06d.bin" % number for number in range(4)]
    with pytest.raises(UserError, match=r"different columns|cannot be keys"):
        arrow.scan(tmp_path, Choice(fields=("v",), key="key"))
    said = rf"key \(string in train-00000-of-00002.arrow, {other.type} in .*--fields v and"
    with pytest.raises(UserError, match=said):
        arrow.scan(tmp_path, Choice())


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    columns = {
        "v": pa.array([b"1", b"2"]),
        "deep": pa.array([[{"a": 1}], []]),
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        "when": pa.array([0, 1], pa.timestamp("s")),
        "after": pa.array([b"3", b"4"]),
    }
    for left in ("deep", "map", "when"):
        some = {name: columns[name] for name in ("v", left, "after")}
        path = write(tmp_path / "x.arrow", some)
        with pytest.raises(UserError, match=rf"column '{left}' .* --fields"):
            arrow.scan(path, Choice())
    path = write(tmp_path / "y.arrow", columns)
    found = arrow.scan(path, Choice(fields=("after", "v")))
    assert [one.values for one in read(found, path)] == [(b"3", b"1"), (b"4", b"2")]
    path = write(tmp_path / "z.arrow", {"n": pa.array([[1], [1, 2]])})
    with pytest.raises(UserError, match="lists of different lengths"):
        arrow.scan(path, Choice())
    path = write(tmp_path / "w.arrow", {"../x": pa.array([b"1"]), "b": pa.array([b"1"])})
    with pytest.raises(UserError, match="cannot be a field"):
        arrow.scan(path, Choice())


def test_a_folder_of_files_has_splits_by_their_names(tmp_path: Path) -> None:
    for name, value in (
        ("x-train-00001-of-00002", b"2"),
        ("x-train-00000-of-00002", b"1"),
        ("x-validation-00000-of-00001", b"3"),
        ("train_extra-00000-of-00001", b"4"),
    ):
        write(tmp_path / f"{name}.arrow", {"v": pa.array([value, value])})
    found = arrow.scan(tmp_path, Choice())
    assert [(s.name, s.start, s.stop) for s in found.splits] == [
        ("train", 0, 4),
        ("validation", 4, 6),
        ("train_extra", 6, 8),
    ]
    assert b"".join(one.values[0] for one in read(found, tmp_path)) == b"11223344"
    labelled = {"v": pa.array([b"1"]), "label": pa.array([1])}
    write(tmp_path / "x-train-00002-of-00002.arrow", labelled)
    with pytest.raises(UserError, match="different columns or classes, as label"):
        arrow.scan(tmp_path, Choice())
    write(tmp_path / "other.arrow", {"w": pa.array([b"1"])})
    with pytest.raises(UserError, match="different columns"):
        arrow.scan(tmp_path, Choice())


def test_empty_tables(tmp_path: Path) -> None:
    for stream in (False, True):
        path = write(tmp_path / "x.arrow", {"v": pa.array([], pa.binary())}, stream=stream)
        assert len(arrow.scan(path, Choice())) == 0
    (tmp_path / "y.arrow").touch()
    with pytest.raises(BadContainer, match="is empty"):
        arrow.scan(tmp_path / "y.arrow", Choice())
