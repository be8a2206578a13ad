"""Data sets known by name: small copies of their trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.data import sources
from rankup.data.containers import Choice
from rankup.data.index import Index
from rankup.data.sources import scan_source

WNIDS = ("n01440764", "n01443537", "n02119789")
WORDS = ("tench, Tinca tinca", "goldfish, Carassius auratus", "kit fox, Vulpes macrotis")
VALIDATION = ("n02119789", "n01440764", "n01440764", "n01443537")
LABELS = {
    "train/n01440764/n01440764_1.JPEG": 0,
    "train/n01443537/n01443537_1.JPEG": 1,
    "train/n02119789/n02119789_1.JPEG": 2,
    "val/ILSVRC2012_val_00000001.JPEG": 2,
    "val/ILSVRC2012_val_00000002.JPEG": 0,
    "val/ILSVRC2012_val_00000003.JPEG": 0,
    "val/ILSVRC2012_val_00000004.JPEG": 1,
}


def tree(root: Path) -> Path:
    for wnid in WNIDS:
        write(root / "train" / wnid / f"{wnid}_1.JPEG", wnid)
    for number in range(1, 5):
        write(root / "val" / f"ILSVRC2012_val_{number:08}.JPEG", str(number))
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def imagenet(path: Path) -> Index:
    return scan_source(path, Choice(), preset="imagenet")


def labels(index: Index) -> dict[str, int]:
    assert index.labels is not None
    return {index.path(row): int(index.labels[row]) for row in range(len(index))}


def whole(index: Index, path: Path) -> None:
    """Every file is where the index says."""
    field = index.field()
    assert field.file is not None
    for row in range(len(index)):
        name = index.files.text(int(field.file[row]))
        assert (path / name).stat().st_size == field.length[row]
        assert name.endswith(index.path(row))


def kaggle(path: Path) -> Path:
    root = tree(path / "ILSVRC" / "Data" / "CLS-LOC")
    write(root / "test" / "ILSVRC2012_test_00000001.JPEG", "?")
    lines = [
        f"ILSVRC2012_val_{number:08},{wnid} 1 2 3 4 {wnid} 5 6 7 8 "
        for number, wnid in enumerate(VALIDATION, 1)
    ]
    write(path / "LOC_val_solution.csv", "\n".join(["ImageId,PredictionString", *lines[::-1]]))
    pairs = zip(WNIDS, WORDS, strict=True)
    write(path / "LOC_synset_mapping.txt", "\n".join(f"{wnid} {words}" for wnid, words in pairs))
    return root


def test_kaggle(tmp_path: Path) -> None:
    root = kaggle(tmp_path)
    for path in (tmp_path, root, tmp_path / "ILSVRC"):
        index = imagenet(path)
        assert labels(index) == {**LABELS, "test/ILSVRC2012_test_00000001.JPEG": -1}
        assert index.classes[0] == "n01440764 tench, Tinca tinca"
        assert [s.folder for s in index.splits] == ["train", "val", "test"]
        whole(index, path)


def test_a_file_of_wnids(tmp_path: Path) -> None:
    tree(tmp_path / "data")
    write(tmp_path / "data" / "imagenet_2012_validation_synset_labels.txt", "\n".join(VALIDATION))
    index = imagenet(tmp_path / "data")
    assert labels(index) == LABELS
    assert index.classes == WNIDS
    write(tmp_path / "data" / "imagenet_2012_validation_synset_labels.txt", WNIDS[0])
    with pytest.raises(UserError, match=r"has 1 labels, and .*val has 4 images"):
        imagenet(tmp_path / "data")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither train/ nor val/"):
        imagenet(tmp_path)
    tree(tmp_path)
    with pytest.raises(UserError, match=r"flat, and .* missing: put LOC_val_solution\.csv"):
        imagenet(tmp_path)
    write(
        tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString\nILSVRC2012_val_00000001,x 1"
    )
    with pytest.raises(UserError, match=r"00000001\.JPEG: 'x'\n.*00000002\.JPEG: no label"):
        imagenet(tmp_path)
    with pytest.raises(UserError, match="no columns to choose from: leave out x"):
        scan_source(tmp_path, Choice(label="x"), preset="imagenet")


def test_other_class_folders_are_no_imagenet(tmp_path: Path) -> None:
    for name in ("train/beagle/1.jpg", "train/n01440764/1.JPEG", "val/dingo/1.jpg"):
        write(tmp_path / name, "")
    with pytest.raises(UserError, match=r"no WordNet ids \(2 of 3, .*'beagle'.*n01440764_18"):
        imagenet(tmp_path)
    (tmp_path / "train" / "beagle").rename(tmp_path / "train" / WNIDS[1])
    (tmp_path / "val" / "dingo").rename(tmp_path / "val" / WNIDS[0])
    # What folders there are in test/ says nothing of classes.
    write(tmp_path / "test" / "unsorted" / "1.JPEG", "")
    assert imagenet(tmp_path).classes == WNIDS[:2]


def woof(root: Path) -> Path:
    for wnid in sources.WOOFS:
        for split in ("train", "val"):
            write(root / split / wnid / f"{split}_{wnid}.JPEG", "")
    return root


def test_imagewoof(tmp_path: Path) -> None:
    woof(tmp_path / "imagewoof2-160")
    for path in (tmp_path, tmp_path / "imagewoof2-160"):
        index = scan_source(path, Choice(), preset="imagewoof")
        assert [(s.name, s.start, s.stop) for s in index.splits] == [
            ("train", 0, 10),
            ("val", 10, 20),
        ]
        assert index.classes[0] == "n02086240 Shih-Tzu"
        assert labels(index)["val/n02115641/val_n02115641.JPEG"] == 9
        assert list(index.classes) == sorted(index.classes)
        whole(index, path)


def test_what_is_no_imagewoof(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it has no train/"):
        scan_source(tmp_path, Choice(), preset="imagewoof")
    woof(tmp_path)
    write(tmp_path / "train" / "n00000000" / "x.JPEG", "")
    write(tmp_path / "train" / "README", "")
    with pytest.raises(UserError) as caught:
        scan_source(tmp_path, Choice(), preset="imagewoof")
    assert "train/README: no label" in str(caught.value)
    assert "train/n00000000/x.JPEG: 'n00000000'" in str(caught.value)
