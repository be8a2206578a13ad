"""Data sets that `datasets` itself has saved to disk, or put together by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, arrow
from rankup.data.errors import BadContainer

from .made import read

datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits, one of them in two files, with class names, images and a flag."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "flag": datasets.Value("bool"),
        }
    )

    def part(count: int) -> Any:
        rows = {
            "image": [{"bytes": b"\x89PNG%d" % n, "path": None} for n in range(count)],
            "label": [n % 2 for n in range(count)],
            "flag": [n % 3 == 0 for n in range(count)],
        }
        return datasets.Dataset.from_dict(rows, features=features)

    root = tmp_path_factory.mktemp("hf") / "saved"
    both = datasets.DatasetDict({"train": part(2500), "test": part(3)})
    both.save_to_disk(str(root), num_shards={"train": 2, "test": 1})
    return root


def test_what_datasets_has_saved(saved: Path) -> None:
    found = arrow.scan(saved, Choice())
    assert found.classes == ("cat", "dog")
    assert [(s.name, s.start, s.stop) for s in found.splits] == [
        ("train", 0, 2500),
        ("test", 2500, 2503),
    ]
    back = read(found, saved)
    assert [one.values for one in back[:2500]] == [
        (b"\x89PNG%d" % n, bytes([n % 3 == 0])) for n in range(2500)
    ]
    assert [one.label for one in back[2500:]] == [0, 1, 0]
    image, flag = found.fields
    assert (image.offset > 0).all()
    assert (flag.offset < 0).all()  # bits have no place of their own


def test_one_split_alone_and_the_image_alone(saved: Path) -> None:
    found = arrow.scan(saved / "test", Choice(split="val", fields=("image",)))
    assert [(s.name, s.folder) for s in found.splits] == [("val", "")]
    assert found.classes == ("cat", "dog")
    assert [(one.key, one.values[0]) for one in read(found, saved / "test")] == [
        (b"%06d.png" % n, b"\x89PNG%d" % n) for n in range(3)
    ]


def test_rows_that_were_chosen_later(tmp_path: Path) -> None:
    """A filter is flattened by save_to_disk; should it not be, the rows would be wrong ones."""
    every = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"]})
    every.select([3, 1]).save_to_disk(str(tmp_path / "some"))
    found = arrow.scan(tmp_path / "some", Choice())
    assert [one.values[0] for one in read(found, tmp_path / "some")] == [b"d", b"b"]
    state = tmp_path / "some" / "state.json"
    about = json.loads(state.read_text())
    state.write_text(json.dumps({**about, "_indices_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(UserError, match="flatten_indices"):
        arrow.scan(tmp_path / "some", Choice())


def _state(folder: Path, **about: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps(about))


def test_what_is_torn_or_hostile(tmp_path: Path) -> None:
    def refused(match: str, error: type[UserError] = BadContainer) -> None:
        with pytest.raises(error, match=match):
            arrow.scan(tmp_path, Choice())

    (tmp_path / "dataset_info.json").write_text("{}")
    refused("no state.json")
    (tmp_path / "state.json").write_text("[1")
    refused("no JSON")
    (tmp_path / "state.json").write_text("[" * 100_000)
    refused("no JSON")
    _state(tmp_path)
    refused("lists no files")
    _state(tmp_path, _data_files=[1])
    refused("does not list")
    _state(tmp_path, _data_files=[{"filename": "../x.arrow"}])
    refused("no file of this folder")
    _state(tmp_path, _data_files=[{"filename": "x.arrow"}])
    refused("is missing")
    (tmp_path / "x.arrow").write_bytes(b"nothing at all")
    refused("damaged")
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink:
        table = pa.table({"v": [b"1"]})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    assert len(arrow.scan(tmp_path, Choice())) == 1
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["../x"]}')
    refused(r"a split '\.\./x'")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    refused("no state.json")
