"""What came, from handmade events and real files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.login.fetch.arrived import items, with_earlier
from rankup.sandbox.events import Event
from rankup.login.record import Item

from .handmade import event, new, rename, url

COMMIT = "5cfbe2e0f003aba48a702f5d7a652c968e1c5de6"


def _items(
    events: Sequence[Event],
    tmp_path: Path,
    gone: Sequence[str] = (),
    ignored: Sequence[Path] = (),
    hubs: Sequence[Path] = (),
) -> tuple[Item, ...]:
    return items(events, gone, ignored, tmp_path, hubs)


def _write(path: Path, size: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_a_download_is_an_item_with_its_url_and_its_last_place(tmp_path: Path) -> None:
    target = _write(tmp_path / "data/mnist.gz", 500)
    events = [url("http://a/mnist.gz"), new(f"{target}.part"), rename(f"{target}.part", target)]
    [item] = _items(events, tmp_path)
    assert item == Item("mnist.gz", "http://a/mnist.gz", str(target), 500)


def test_many_files_of_a_new_folder_are_one_item(tmp_path: Path) -> None:
    top = tmp_path / "imagenette"
    files = [_write(top / f"train/{number % 5}/{number}.jpg", 10) for number in range(40)]
    folders = [top, top / "train", *(top / f"train/{number}" for number in range(5))]
    events = [
        url("http://a/imagenette.tgz"),
        *(event("mkdir", path=folder) for folder in folders),
        *map(new, files),
    ]
    [item] = _items(events, tmp_path)
    assert item == Item("imagenette", "http://a/imagenette.tgz", str(top), 400, 40)


def _repository(hub: Path) -> Path:
    top = hub / "models--org--tiny"
    blob = _write(top / "blobs/abc", 100)
    link = top / "snapshots" / COMMIT / "model.safetensors"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    _write(top / "refs/main", 40)
    return top


def test_a_repository_of_a_hub_is_one_item_with_its_commit(tmp_path: Path) -> None:
    top = _repository(tmp_path)
    asked = url("https://hub.test/org/tiny/resolve/main/model.safetensors")
    events = [asked, new(top / "blobs/abc"), new(top / "refs/main")]
    expected = Item("org/tiny", "https://hub.test/org/tiny", str(top), 100, revision=COMMIT)
    assert _items(events, tmp_path, hubs=[tmp_path]) == (expected,)
    # It was there already, and the hub was asked whether it is still the newest.
    assert _items([asked], tmp_path, hubs=[tmp_path]) == (expected,)
    assert _items([asked], tmp_path, hubs=[tmp_path / "other"]) == ()


@pytest.mark.parametrize("end", ["", "/tree/main", "/revision/abc"])
@pytest.mark.parametrize("name", ["org/tiny", "gpt2"])
def test_a_repository_that_was_whole_already_is_asked_for_by_its_list_of_files(
    tmp_path: Path, name: str, end: str
) -> None:
    top = tmp_path / f"models--{name.replace('/', '--')}"
    _write(top / "blobs/abc")
    [item] = _items([url(f"https://hub.test/api/models/{name}{end}")], tmp_path, hubs=[tmp_path])
    assert (item.name, item.source, item.path) == (name, f"https://hub.test/{name}", str(top))


def test_what_datasets_has_prepared_is_one_item(tmp_path: Path) -> None:
    folder = tmp_path / "org___lines/default/0.0.0/1fa6"
    files = [_write(folder / "dataset_info.json"), _write(folder / "lines-train.arrow")]
    [item] = _items([*map(new, files)], tmp_path)
    assert (item.name, item.path, item.files) == (
        "org/lines:default (prepared)",
        str(folder),
        2,
    )


def test_files_of_other_programs_are_found_in_the_folder(tmp_path: Path) -> None:
    before = _write(tmp_path / "old")
    spawned = before.stat().st_ctime + 10
    words = ["wget", "http://a/data.bin"]
    start = Event("spawn", spawned, 1, "", {"words": words})
    assert _items([start], tmp_path) == ()
    start = Event("spawn", before.stat().st_ctime - 1, 1, "", {"words": words})
    _write(tmp_path / "data.bin")
    _write(tmp_path / ".hidden/x")
    found = {item.name: item.source for item in _items([start], tmp_path)}
    assert found == {"data.bin": "http://a/data.bin"}, "nobody knows who has written `old`"


def test_what_a_program_unpacks_or_names_otherwise_is_found(tmp_path: Path) -> None:
    words = ["sh", "http://a/set.tgz"]
    first = _write(tmp_path / "notes.txt").stat().st_ctime - 1
    _write(tmp_path / "set.tgz")
    unpacked = [_write(tmp_path / "set" / str(number)) for number in range(3)]
    found = _items([Event("spawn", first, 1, "", {"words": words})], tmp_path)
    assert [item.path for item in found if item.needed] == [
        str(tmp_path / "set.tgz"),
        *map(str, unpacked),
    ]
    assert len(found) == 4
    (tmp_path / "other").mkdir()
    mine = _write(tmp_path / "other/mine.bin")
    words = ["curl", "http://a/get?id=1"]
    spawn = Event("spawn", first, 1, "", {"words": words})
    [item] = items([spawn], (), (), mine.parent, ())
    assert (item.path, item.source, item.needed) == (str(mine), "http://a/get?id=1", True)
    assert items([spawn], [str(mine)], (), mine.parent, ()) == (), "put back as it was"


def test_what_counts_visits_is_no_source(tmp_path: Path) -> None:
    """`datasets` asks for the head of a script of its own, whatever it prepares."""
    files = [_write(tmp_path / "json/x/dataset_info.json"), _write(tmp_path / "json/x/a.arrow")]
    count = event("url", url="https://s3.test/datasets/json.py", method="HEAD")
    [item] = _items([count, *map(new, files)], tmp_path)
    assert (item.source, item.needed) == ("", False)
    [item] = _items([count, *map(new, files)], tmp_path, hubs=[tmp_path])
    assert (item.source, item.needed) == ("", True), "a cache is for what a job needs"


def test_a_second_fetch_still_knows_what_the_first_one_brought(tmp_path: Path) -> None:
    here, other = _write(tmp_path / "a"), _write(tmp_path / "d/b")
    first = (
        Item("a", "http://a/a", str(here), 3),
        Item("b", "", str(other), 3),
        Item("gone", "", str(tmp_path / "gone"), 3),
        Item("changed", "", str(here), 99),
    )
    assert with_earlier((), first) == (first[0], first[1])
    assert with_earlier((), (replace(first[0], needed=False),)) == (), "told once"
    folder = Item("d", "", str(tmp_path / "d"), 3, 2)
    assert with_earlier((folder,), first) == (first[0], folder), "b is in d"
