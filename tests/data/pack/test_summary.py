"""What a pack says of its source and of what it makes of it, before and behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankup.data import indexes

from .made import ALL, request, run, tree

WNIDS = ("n01440764", "n01443537")


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def said(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    assert run(request(source, tmp_path, "hdf5", dry_run=True, **more)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("container", ["hdf5", "tar"])
def test_what_is_written_is_what_was_announced(
    tmp_path: Path, container: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tree(tmp_path / "source", 60)
    (tmp_path / "out").mkdir()
    shards = {"shard_size": "1MiB"} if container == "tar" else {}
    asked = request(source, tmp_path / "out", container, **shards)
    assert run(asked) == 0
    folder = Path(asked.out).is_dir()
    # One file: all that is in the folder now.
    lying = indexes.files_lying(Path(asked.out) if folder else tmp_path / "out")
    assert lying == indexes.files_lying(Path(asked.out))
    assert f"files: 60 files -> {lying} files\n" in capsys.readouterr().out
    report = json.loads(next((tmp_path / "out").rglob("*report.json")).read_text())
    assert (report["files_before"], report["files_after"]) == (60, lying)
    # A container as a source is counted with all that belongs to it.
    assert f"files: {lying} files -> 3 files\n" in said(Path(asked.out), tmp_path, capsys)


@pytest.mark.parametrize("container", ALL)
def test_long_names_are_part_of_what_is_needed(
    tmp_path: Path, container: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{'long' * 50}/{'name' * 50}{number:03}.txt" for number in range(60)]
    source = write(tmp_path / "source", *names)
    asked = request(source, tmp_path / "out", container, dry_run=True, as_json=True)
    assert run(asked) == 0
    needed = json.loads(capsys.readouterr().out)["bytes"]
    assert run(replace(asked, dry_run=False)) == 0
    written = [path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert needed > sum(written)


def test_labels_and_classes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "source", "1.txt", "2.txt", "3.txt")
    assert "samples: train 3, without labels, " in said(source, tmp_path, capsys)
    table = source / "list.csv"
    table.write_text("path,label\n1.txt,0\n2.txt,7\n3.txt,\n")
    assert "train 3, 2 classes, 1 without a label, " in said(table, tmp_path, capsys)
    table.write_text("path,label\n1.txt,cat\n2.txt,cat\n")
    assert "samples: train 2, 1 class, 10 bytes" in said(table, tmp_path, capsys)


def test_imagenet_without_its_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in WNIDS for number in range(3)]
    inside += ["val/ILSVRC2012_val_00000001.JPEG"]
    images = [f"ILSVRC/Data/CLS-LOC/{name}" for name in inside]
    kaggle = write(tmp_path / "kaggle", "LOC_val_solution.csv", "LOC_synset.txt", *images)
    lines = said(kaggle, tmp_path, capsys)
    assert "without labels" in lines
    assert "not images by their names: 1 .csv, 1 .txt\n" in lines
    assert "--preset imagenet knows its labels" in lines
    assert "--preset imagenet" in said(kaggle / "ILSVRC/Data/CLS-LOC", tmp_path, capsys)
    (kaggle / "LOC_val_solution.csv").write_text(f"ImageId,P\nILSVRC2012_val_00000001,{WNIDS[0]}\n")
    lines = said(kaggle, tmp_path, capsys, preset="imagenet")
    assert "2 classes" in lines
    assert not [line for line in lines.splitlines() if line.split(":")[0] in ("labels", "not")]
    sorted_ = write(tmp_path / "sorted", *inside[:-1], f"val/{WNIDS[1]}/1.JPEG")
    lines = said(sorted_, tmp_path, capsys)
    assert "--preset" not in lines
    assert "not images" not in lines


def test_values_that_are_missing_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [{"bytes": b"\xff\xd8", "path": "p.jpg"}, {"bytes": None, "path": "q.jpg"}]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(images, kind)}), tmp_path / "images.parquet")
    pq.write_table(pa.table({"x": ["a", None, None]}), tmp_path / "texts.parquet")
    line = "without a value: 1 of image; they become empty samples\n"
    assert line in said(tmp_path / "images.parquet", tmp_path, capsys)
    line = "without a value: 2 of x; they become empty samples\n"
    assert line in said(tmp_path / "texts.parquet", tmp_path, capsys)
    assert "without a value" not in said(tree(tmp_path / "tree", 3), tmp_path, capsys)
