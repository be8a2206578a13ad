"""From names to samples, splits and labels."""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.containers import Choice
from rankup.data.containers.grouping import Groups, Parts, group


def grouped(
    *names: str, stems: bool = False, parts: Parts | None = None, **choice: object
) -> Groups:
    return group(
        [name.encode() for name in names],
        choice=Choice(**choice),  # type: ignore[arg-type]
        stems=stems,
        parts=parts,
    )


def keys(groups: Groups) -> list[str]:
    return [key.decode() for key in groups.keys]


def splits(groups: Groups) -> list[tuple[str, str]]:
    return [(one.name, one.folder) for one in groups.splits]


def labels(groups: Groups) -> list[int] | None:
    return None if groups.labels is None else groups.labels.tolist()


def test_without_folders_there_are_no_labels() -> None:
    assert labels(grouped("1", "2")) is None
    assert labels(grouped("train/1", "val/2")) is None
    assert labels(grouped("a/1", "2")) is None
    assert labels(grouped()) is None


def test_an_archive_has_a_folder_around_it_and_a_readme() -> None:
    found = grouped("set/train/a/1", "set/val/a/2", "set/README", stems=True)
    assert splits(found) == [("train", "set/train"), ("val", "set/val")]
    assert keys(found) == ["a/1", "a/2"]
    assert found.member.tolist() == [[0], [1]]
    found = grouped("set/a/1", "set/b/2", stems=True)
    assert (splits(found), keys(found)) == ([("train", "set")], ["a/1", "b/2"])
    assert found.classes == ("a", "b")
    found = grouped("a/1", "a/2", stems=True)
    assert (splits(found), found.classes) == ([("train", "")], ("a",))


def test_one_member_beside_the_label_is_the_lone_field() -> None:
    found = grouped("n1/0.jpg", "n1/0.cls", "n1/1.png", "n1/1.cls", stems=True)
    assert (keys(found), found.fields) == (["n1/0.jpg", "n1/1.png"], ("data",))
    assert labels(found) is None
    found = grouped("0.jpg", "0.cls", stems=True, fields=("jpg",))
    assert (keys(found), found.fields) == (["0"], ("jpg",))
    found = grouped("0.jpg", "0.json", "0.id", stems=True, label="id", fields=("json", "jpg"))
    assert found.fields == ("json", "jpg")
    assert found.label_member is not None


def test_plain_folders_never_group_stems() -> None:
    found = grouped("a/0.jpg", "a/0.txt")
    assert (found.fields, len(found.keys)) == (("data",), 2)
    # Nor archives in which it happens now and then.
    found = grouped("a/0.jpg", "a/0.png", "a/1.jpg", "a/2.jpg", stems=True)
    assert (found.fields, labels(found)) == (("data",), [0, 0, 0, 0])


def test_samples_that_are_not_whole_are_named() -> None:
    with pytest.raises(
        UserError, match=r"1 of 2 samples have no \.txt, the first is 1.*--fields jpg"
    ):
        grouped("0.jpg", "0.txt", "1.jpg", stems=True)
    with pytest.raises(UserError, match=r"0\.jpg and 0\.JPG are the same field"):
        grouped("0.jpg", "0.JPG", "0.txt", stems=True)
    with pytest.raises(UserError, match=r"no member ends with \.png"):
        grouped("0.jpg", "0.txt", stems=True, fields=("png",))
    with pytest.raises(UserError, match=r"no member ends with \.id"):
        grouped("0.jpg", "0.txt", stems=True, label="id")


def test_parts_tell_the_split_and_keep_keys_apart() -> None:
    of = np.array([0, 0, 1, 1])
    names = ("0.jpg", "0.cls", "0.jpg", "0.cls")
    found = grouped(*names, stems=True, parts=Parts(of, [b"t-0", b"v-0"], ["train", "val"]))
    assert (splits(found), keys(found)) == (
        [("train", "train"), ("val", "val")],
        ["0.jpg", "0.jpg"],
    )
    found = grouped(*names, stems=True, parts=Parts(of, [b"x-0", b"x-1"], ["", ""]))
    assert (splits(found), keys(found)) == ([("train", "")], ["x-0/0.jpg", "x-1/0.jpg"])


@pytest.mark.parametrize("top", ["", "all/"])
def test_one_name_in_two_splits(top: str) -> None:
    found = grouped(f"{top}train/a/1.txt", f"{top}val/a/1.txt", stems=True)
    assert keys(found) == ["a/1.txt", "a/1.txt"]
    assert (found.fields, labels(found)) == (("data",), [0, 0])
    assert found.split_of.tolist() == [0, 1]
    several = [f"{top}{split}/1.{end}" for split in ("train", "val") for end in ("jpg", "txt")]
    found = grouped(*several, stems=True)
    assert (keys(found), found.fields) == (["1", "1"], ("jpg", "txt"))
    assert found.member.tolist() == [[0, 1], [2, 3]]


_word = st.sampled_from(["train", "val", "test", "a", "b", "0.jpg", "0.txt", "0.cls", "1.jpg", "é"])


@given(
    names=st.sets(st.lists(_word, min_size=1, max_size=4).map("/".join), max_size=12),
    stems=st.booleans(),
)
def test_every_member_has_its_place(names: set[str], stems: bool) -> None:
    listed = sorted(names)
    try:
        found = grouped(*listed, stems=stems)
    except UserError:
        return
    n = len(found.keys)
    assert found.member.shape == (n, len(found.fields))
    assert len(set(found.member.ravel().tolist())) == found.member.size
    paths = set()
    for row, key in enumerate(keys(found)):
        split = found.splits[int(found.split_of[row])]
        paths.add(str(PurePosixPath(split.folder) / key))
    assert len(paths) == n
    if found.fields == ("data",):
        assert paths <= names
    if found.labels is not None:
        assert found.labels.max(initial=-1) < len(found.classes)
        for row, label in enumerate(found.labels.tolist()):
            if label >= 0:
                assert keys(found)[row].split("/")[0] == found.classes[label]


@pytest.mark.parametrize(
    "paths",
    [
        ["images/train/0.jpg", "labels/train/0.txt"],  # YOLO
        ["train/images/0.jpg", "train/labels/0.txt"],
        ["JPEGImages/0.jpg", "Annotations/0.xml"],  # VOC
        ["train2017/0.jpg", "annotations/instances_train2017.json"],  # COCO
    ],
)
@pytest.mark.parametrize("stems", [False, True])
def test_folders_of_pictures_and_annotations_are_no_classes(paths: list[str], stems: bool) -> None:
    names = [path.encode() for path in paths]
    with pytest.raises(UserError, match=r"is no class: it holds pictures.*`image,annotation`"):
        group(names, choice=Choice(), stems=stems)


def test_a_lone_folder_of_images_is_no_class() -> None:
    assert group([b"images/0.jpg", b"images/1.jpg"], choice=Choice()).labels is None
    assert group([b"pictures/0.jpg"], choice=Choice()).classes == ("pictures",)
