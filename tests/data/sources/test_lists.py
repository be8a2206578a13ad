"""Lists of files and labels in all their forms."""

from __future__ import annotations

import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.containers import Choice
from rankup.data.errors import BadContainer
from rankup.data.index import Index
from rankup.data.sources import scan_source
from rankup.data.spans import Spans

FILES = ("im/cat/1.jpg", "im/cat/2.jpg", "im/dog/1.jpg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (*FILES, "text/1.txt", "text/2.txt", "text/3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def scanned(path: Path, text: str | bytes, choice: Choice | None = None) -> Index:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return scan_source(path, choice or Choice())


def read(index: Index, field: str | None = None) -> dict[str, tuple[str, int | None]]:
    """Split/key -> what the file says, and label."""
    one = index.field(field)
    assert one.file is not None
    spans = Spans(Path("/nowhere"), index.files, index.sizes, "pread")
    found = {}
    for row in range(len(index)):
        data = spans.read(int(one.file[row]), int(one.offset[row]), int(one.length[row]))
        label = None if index.labels is None else int(index.labels[row])
        found[index.path(row)] = (bytes(data).decode(), label)
    return found


NUMBERED = {
    "train/cat/1.jpg": ("im/cat/1.jpg", 0),
    "train/cat/2.jpg": ("im/cat/2.jpg", 0),
    "train/dog/1.jpg": ("im/dog/1.jpg", 7),
}
LABELS = dict(zip(FILES, (0, 0, 7), strict=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "path,label\nim/cat/1.jpg,0\nim/cat/2.jpg,0\nim/dog/1.jpg,7\n"),
        ("l.csv", "im/cat/1.jpg,0\r\nim/cat/2.jpg,0\r\n\r\nim/dog/1.jpg,7"),
        ("l.csv", "\ufeffLabel;File\n0;im/cat/1.jpg\n0;im/cat/2.jpg\n7;im/dog/1.jpg\n"),
        ("l.csv", 'target,"filename"\n0,"im/cat/1.jpg"\n0,im/cat/2.jpg\n7,./im//dog/../dog/1.jpg'),
        ("l.csv", ",photo,y\n0,im/cat/1.jpg,0\n1,im/cat/2.jpg,0\n2,im/dog/1.jpg,7\n"),
        ("l.tsv", "path\tclass\nim/cat/1.jpg\t0\nim/cat/2.jpg\t0\nim/dog/1.jpg\t7\n"),
        ("l.json", json.dumps(LABELS)),
        ("l.json", json.dumps([{"path": name, "label": label} for name, label in LABELS.items()])),
        ("l.json", json.dumps(list(LABELS.items()))),
        ("l.json", json.dumps({"train": LABELS})),
        ("l.jsonl", "".join(json.dumps({"file": n, "y": y}) + "\n\n" for n, y in LABELS.items())),
        ("l.pkl", pickle.dumps(LABELS, 0)),
        ("imagenet_train.pkl", pickle.dumps(LABELS)),
        ("l.pickle", pickle.dumps({"train": LABELS})),
    ],
)
def test_forms_of_one_list(root: Path, name: str, text: str | bytes) -> None:
    index = scanned(root / name, text)
    assert read(index) == NUMBERED
    assert index.classes == ()
    assert index.field().name == "data"
    assert all(os.path.isabs(one) for one in index.files)
    assert index.times is not None
    assert index.times[0] == os.stat(index.files[0]).st_mtime_ns


def test_splits_by_column_and_by_name(root: Path) -> None:
    text = "path,split\nim/dog/1.jpg,val\nim/cat/1.jpg,train\nim/cat/2.jpg,\n"
    index = scanned(root / "l.csv", text, Choice(split="test"))
    assert [(s.name, s.folder) for s in index.splits] == [
        *(("train", "train"), ("val", "val"), ("test", "test"))
    ]
    assert list(read(index)) == ["train/cat/1.jpg", "val/dog/1.jpg", "test/cat/2.jpg"]
    index = scanned(root / "imagenet_val.pkl", pickle.dumps(LABELS))
    assert [s.name for s in index.splits] == ["val"]
    index = scanned(root / "imagenet_val.pkl", pickle.dumps(LABELS), Choice(split="other"))
    assert [s.name for s in index.splits] == ["other"]


def test_folders_of_splits_are_not_doubled(tmp_path: Path) -> None:
    for name in ("training/a/1", "validation/a/1"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    text = json.dumps({"train": {"training/a/1": 0}, "val": {"validation/a/1": 0}})
    index = scanned(tmp_path / "l.json", text)
    assert read(index) == {"train/a/1": ("training/a/1", 0), "val/a/1": ("validation/a/1", 0)}
    assert [s.folder for s in index.splits] == ["training", "validation"]


def test_several_fields(root: Path) -> None:
    text = "image,caption_file,label\nim/cat/1.jpg,text/1.txt,a\nim/dog/1.jpg,text/2.txt,b\n"
    index = scanned(root / "l.csv", text)
    assert read(index, "image") == {
        "train/cat/1": ("im/cat/1.jpg", 0),
        "train/dog/1": ("im/dog/1.jpg", 1),
    }
    assert [text for text, _ in read(index, "caption_file").values()] == [
        "text/1.txt",
        "text/2.txt",
    ]


def test_text_columns_are_named(root: Path) -> None:
    text = "path,caption,width\nim/cat/1.jpg,a cat,10\n"
    with pytest.raises(UserError, match=r"columns caption, width hold neither.*--fields path"):
        scanned(root / "l.csv", text)
    index = scanned(root / "l.csv", text, Choice(fields=("path",)))
    assert [one.name for one in index.fields] == ["data"]
    index = scanned(root / "l.csv", text, Choice(fields=("path",), label="caption"))
    assert index.classes == ("a cat",)
    with pytest.raises(UserError, match="no column 'captoin': did you mean caption"):
        scanned(root / "l.csv", text, Choice(label="captoin"))


def test_classes_are_utf_8(root: Path) -> None:
    path = root / "l.csv"
    path.write_bytes(f"path,label\n{FILES[0]},Hund\n{FILES[1]},Dackel \xfc\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"line 3: the class 'Dackel \\udcfc' is not UTF-8.*save"):
        scan_source(path, Choice())
    with pytest.raises(UserError, match=r"entry 2: the class '\\ud800' is not UTF-8"):
        scanned(root / "l.json", json.dumps([[FILES[0], "cat"], [FILES[1], "\ud800"]]))


def test_relative_to_the_list_then_to_where_we_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "lists").mkdir()
    monkeypatch.chdir(root)
    index = scanned(root / "lists" / "l.json", json.dumps(LABELS))
    assert read(index) == NUMBERED
    assert index.files.text(0) == str(root / FILES[0])
    # What is there relative to the list counts first.
    (root / "lists" / "im" / "cat").mkdir(parents=True)
    (root / "lists" / "im" / "cat" / "1.jpg").write_text("another")
    index = scanned(root / "lists" / "l.json", json.dumps(["im/cat/1.jpg"]))
    assert read(index) == {"train/1.jpg": ("another", None)}
    monkeypatch.chdir(root / "lists")
    os.rename("l.json", "m.json")
    assert len(scan_source(Path("m.json"), Choice())) == 1


def test_classes_may_look_like_numbers_where_not_all_do(root: Path) -> None:
    index = scanned(root / "l.csv", "path,label\nim/cat/1.jpg,1.0\nim/cat/2.jpg,v2\n")
    assert index.classes == ("1.0", "v2")


def test_missing_files_are_counted(root: Path) -> None:
    names = [*FILES, *(f"im/none{number:02}.jpg" for number in range(30)), "im"]
    with pytest.raises(UserError) as caught:
        scanned(root / "l.json", json.dumps(names))
    message = str(caught.value)
    assert "of the 34 files" in message
    assert "31 files or folders cannot be packed" in message
    assert "none03.jpg cannot be read: No such file" in message
    assert "none05" not in message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "path,label\nim/cat/1.jpg,0\n\nim/cat/../cat/1.jpg,1\n", "line 2 and line 4 are"),
        ("l.json", '["im/cat/1.jpg", "im/cat/1.jpg"]', "entry 1 and entry 2 are both 1.jpg"),
        ("l.json", '{"im/cat/1.jpg": 1, "im/cat/1.jpg": 2}', "'im/cat/1.jpg' is there twice"),
        ("l.jsonl", '{"path": "im/cat/1.jpg"}\n{"path": 3}\n', "line 2: path is 3"),
        ("l.jsonl", '{"path": "im/cat/1.jpg"}\n{"path"\n', "line 2: no JSON"),
        ("l.jsonl", '["im/cat/1.jpg"]\n', "line 1: an object"),
        ("l.csv", "path,label\nim/cat/1.jpg,0,5\n", "line 2: 3 cells, and 2 expected"),
        ("l.csv", "", "is empty"),
        ("l.csv", "a,b,c\n1,2,3\n", "3 columns and no header"),
        ("l.csv", "path,path\na,b\n", "two columns of one name"),
        ("l.csv", 'path,label\n"im/cat/1.jpg,0\n', "no CSV"),
        ("l.csv", "path,label\n,0\n", "line 2: path is '', not a path"),
        ("l.csv", "label,y\n1,2\n", "no column with paths"),
        ("l.csv", "path,split\nim/cat/1.jpg,../x\n", "no name of a split"),
        ("l.csv", "path,label\nim/cat/1.jpg,-7\n", "line 2: '-7' is no label"),
        ("l.csv", "path,label\nim/cat/1.jpg,99999999999\nim/cat/2.jpg,3", None),
        (
            "l.csv",
            "path,label\nim/cat/1.jpg,1\nim/cat/2.jpg,0.5\n",
            "line 3: the label '0.5' is a number with decimals, and a label is a class",
        ),
        ("l.json", '{"im/cat/1.jpg": 1.5}', "entry 1: 1.5 is no label"),
        ("l.json", '{"im/cat/1.jpg": 1, "im/cat/2.jpg": "cat"}', "is no label"),
        ("l.json", '{"im/cat/1.jpg": true}', "True is no label"),
        ("l.json", '{"im/cat/1.jpg": 12345678901234567890}', "is no label"),
        ("l.json", '{"im/cat/1.jpg"', "no JSON"),
        ("l.json", "3", "a list or a dict expected"),
        ("l.json", "[3]", "3 is no sample"),
        ("l.json", "[" * 100_000, "no JSON, or damaged"),
        ("l.json", '["im/cat/1\\u0000.jpg"]', "not a path"),
        ("l.json", "[]", "no column with paths"),
        ("l.pkl", pickle.dumps({"im/cat/1.jpg": 1, "im/cat/2.jpg": {"x": 1}}), "is no label"),
        ("l.pkl", b"\x80\x04garbage", "no pickle"),
        ("l.txt", "im/cat/1.jpg 0\n", "is no list"),
    ],
)
def test_what_is_wrong_is_said(
    root: Path, name: str, text: str | bytes, message: str | None
) -> None:
    if message is None:  # too long for a number: a name
        assert scanned(root / name, text).classes == ("3", "99999999999")
        return
    with pytest.raises(UserError, match=message) as caught:
        scanned(root / name, text)
    assert len(str(caught.value)) < 700


def test_a_pickle_that_holds_itself(root: Path) -> None:
    value: dict[str, Any] = {}
    value["im/cat/1.jpg"] = value
    with pytest.raises(UserError, match="is no name of a split"):
        scanned(root / "l.pkl", pickle.dumps(value))
    value["im/cat/2.jpg"] = 3
    with pytest.raises(UserError, match="is no label"):
        scanned(root / "l.pkl", pickle.dumps(value))


def test_keys_that_are_no_safe_paths(root: Path) -> None:
    with pytest.raises(BadContainer, match=r"line 2: has a sample named '\.\./x'"):
        scanned(root / "l.csv", "path,key\nim/cat/1.jpg,../x\n", Choice(key="key"))


def test_names_of_any_bytes(root: Path) -> None:
    names = [b"im/\xff.jpg", "im/ü 日本,\n.jpg".encode()]
    for name in names:
        (root / os.fsdecode(name)).write_text("x")
    index = scanned(root / "l.json", json.dumps([os.fsdecode(name) for name in names]))
    assert sorted(index.keys) == sorted(name[3:] for name in names)
    index = scanned(root / "l.csv", b'path\nim/\xff.jpg\n"im/' + names[1][3:] + b'"\n')
    assert sorted(index.keys) == sorted(name[3:] for name in names)


def test_what_there_is_to_scan(root: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        scan_source(root / "none.csv", Choice())
    with pytest.raises(UserError, match="no preset 'imagnet': did you mean imagenet"):
        scan_source(root, Choice(), preset="imagnet")


@given(st.data())
def test_any_text_gives_an_index_or_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    words = st.sampled_from(
        ["path", "label", "split", ",", ";", "\n", "x", '"', "{", "}", "[", "]", ":", "1", "\0"]
    )
    text = "".join(data.draw(st.lists(words, max_size=20)))
    suffix = data.draw(st.sampled_from([".csv", ".tsv", ".json", ".jsonl"]))
    with suppress(UserError):
        scanned(tmp_path_factory.getbasetemp() / f"fuzz{suffix}", text)


def test_pictures_and_their_annotations_are_packed_by_a_list(tmp_path: Path) -> None:
    """The way out of which the refusal of such folders tells."""
    rows = ["image,annotation,split"]
    for split in ("train", "val"):
        for folder, end in (("images", "jpg"), ("labels", "txt")):
            path = tmp_path / folder / split / f"0.{end}"
            path.parent.mkdir(parents=True)
            path.write_text(f"{folder} {split}")
        rows.append(f"images/{split}/0.jpg,labels/{split}/0.txt,{split}")
    index = scanned(tmp_path / "list.csv", "\n".join(rows) + "\n")
    assert [one.name for one in index.fields] == ["image", "annotation"]
    assert [one.name for one in index.splits] == ["train", "val"]
    assert (len(index), index.labels) == (2, None)
