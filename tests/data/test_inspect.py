"""`rankup inspect`: what is said of a container, in words and as JSON."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankup.base.errors import UserError
from rankup.data import indexes
from rankup.data.index import Field
from rankup.data.inspect import show

from .made import Sample, pack, samples

PNG = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
    + b"\x08\x02\0\0\0" + bytes(100) + b"\0\0\0\0IEND\xaeB`\x82"
)  # fmt: skip


def _told(root: Path, capsys: pytest.CaptureFixture[str], **options: object) -> dict[str, object]:
    assert show(str(root), as_json=True, **options) == 0  # type: ignore[arg-type]
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    return told


def test_what_is_said_is_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train: list[Sample] = [("a.png", PNG, 1), *samples(30)[1:], ("z", b"x" * 90_000, 1)]
    test = [(key, data, -1) for key, data, _ in samples(4, 1)]
    root = tmp_path / "p"
    pack(root, {"train": train, "test": test}, classes=("cat", "dog", "cow", "owl"))
    told = _told(root, capsys, samples=2)
    assert told["samples"] == 35
    sizes = [sum(len(data) for _, data, _ in part) for part in (train, test)]
    assert told["splits"] == [
        {"name": "train", "samples": 31, "bytes": sizes[0], "labelled": 31},
        {"name": "test", "samples": 4, "bytes": sizes[1], "labelled": 0},
    ]
    classes = told["classes"]
    assert isinstance(classes, dict)
    assert (classes["count"], classes["named"]) == (4, True)
    assert classes["first"][1] == {"label": 1, "name": "dog", "samples": {"train": 12, "test": 0}}
    assert told["first"][0] == {  # type: ignore[index]
        "path": "train/a.png",
        "label": 1,
        "class": "dog",
        "fields": {"data": {"bytes": len(PNG), "image": "PNG", "width": 640, "height": 480}},
    }
    assert (
        [one["path"] for one in told["first"]][2:]
        == [  # type: ignore[attr-defined]
            f"test/{key}" for key, _, _ in test[:2]
        ]
    )
    assert told["files"] == {"container": 3, "samples": 35}
    assert told["facts"] == {"writer": "rankup test"}
    assert show(str(root)) == 0
    said = capsys.readouterr().out
    for line in (
        "35 samples",
        "train  31 samples, ",
        "test   4 samples, ",
        "without labels",
        "4 classes",
        "1 dog: 12 train, 0 test",
        "PNG 640 x 480, label 1 (dog)",
        "3 files instead of 35",
        "with a hash of each sample",
        "written by rankup test",
    ):
        assert line in said, said


def test_one_split_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(tmp_path / "p", {"train": samples(7), "val": samples(5, 1)})
    told = _told(tmp_path / "p", capsys, split="val", samples=0)
    assert (told["samples"], told["first"]) == (5, [])
    assert [one["name"] for one in told["splits"]] == ["val"]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="train, val"):
        show(str(tmp_path / "p"), split="test")
    with pytest.raises(UserError, match="0 or more"):
        show(str(tmp_path / "p"), samples=-1)
    with pytest.raises(UserError, match="no file or folder"):
        show(str(tmp_path / "q"))


def test_odd_containers_are_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "p"
    index = pack(root, {"train": samples(6), "val": []})
    fields = (
        replace(index.fields[0], length=np.full(6, -1), offset=index.fields[0].offset),
        Field("x", np.zeros(6, np.int64), np.full(6, 8), dtype="<f4", shape=(2,)),
        Field("y", np.zeros(6, np.int64), np.full(6, 4), dtype="<i4"),
    )
    odd = replace(index, fields=fields, labels=np.array([0, 1 << 60, 5, 5, -1, 5]), classes=())
    indexes.save(odd, indexes.place(root))
    assert show(str(root), samples=0) == 0
    said = capsys.readouterr().out
    assert "in several pieces" not in said
    assert "known only once they are read" in said
    assert "x: <f4, 2" in said
    assert "y: <i4, one value" in said
    assert "3 classes, without names" in said
    assert "6 samples, 72 bytes, 5 with a label" in said
    assert "val    0 samples, 0 bytes\n" in said
    empty = tmp_path / "empty"
    pack(empty, {})
    assert show(str(empty)) == 0
    assert "0 samples" in capsys.readouterr().out
    assert show(str(empty), verify=True) == 0
    assert show(str(empty), extract=str(tmp_path / "out")) == 0
    assert list((tmp_path / "out").iterdir()) == []


def test_names_cannot_draw_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[Sample] = [("\x1b[2Jx", b"1", 0), (b"\xff\x9b2J", b"2", 0), ("a\r\nb", b"3", 0)]
    pack(tmp_path / "p", {"train": names}, classes=("c\x1b]0;t\x07",))
    assert show(str(tmp_path / "p")) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "\r" not in said
    assert r"\x1b[2Jx" in said
    assert r"train/a\x0d\x0ab" in said
    assert show(str(tmp_path / "p"), extract=str(tmp_path / "out"), verify=True) == 0
    with (tmp_path / "p" / "train.bin").open("r+b") as file:
        file.seek(4)
        file.write(b"9" * 20)
    capsys.readouterr()
    assert show(str(tmp_path / "p"), verify=True) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_zip_bomb_is_shown_without_being_inflated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.jpg", bytes(64 << 20))
    tracemalloc.start()
    told = _told(tmp_path / "x.zip", capsys)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told["first"][0]["fields"]["data"] == {"bytes": 64 << 20}  # type: ignore[index]
    assert most < 16 << 20
