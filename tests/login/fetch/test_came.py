"""What came with a start of a script, from handmade events and real files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.login.fetch.came import (
    broken_off,
    cut_short,
    items,
    made,
    needed,
    new_folders,
    of_programs,
    with_earlier,
    without_outputs,
    written_by_name,
)
from rankup.login.record import Item
from rankup.sandbox.events import Event

from .handmade import event, new, old, rename, url

COMMIT = "5cfbe2e0f003aba48a702f5d7a652c968e1c5de6"


def _items(events: Sequence[Event], hubs: Sequence[Path] = ()) -> tuple[Item, ...]:
    files = made(events)
    needs = needed(files, hubs)
    return items([one for one in files if one.path in needs], events, hubs)


def _write(path: Path, size: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_a_download_is_an_item_with_its_url_and_its_last_place(tmp_path: Path) -> None:
    target = _write(tmp_path / "data/mnist.gz", 500)
    events = [url("http://a/mnist.gz"), new(f"{target}.part"), rename(f"{target}.part", target)]
    [item] = _items(events)
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
    [item] = _items(events)
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
    assert _items(events, hubs=[tmp_path]) == (expected,)
    # It was there already, and the hub was asked whether it is still the newest.
    assert _items([asked], hubs=[tmp_path]) == (expected,)
    assert _items([asked], hubs=[tmp_path / "other"]) == ()


@pytest.mark.parametrize("end", ["", "/tree/main", "/revision/abc"])
@pytest.mark.parametrize("name", ["org/tiny", "gpt2"])
def test_a_repository_that_was_whole_already_is_asked_for_by_its_list_of_files(
    tmp_path: Path, name: str, end: str
) -> None:
    top = tmp_path / f"models--{name.replace('/', '--')}"
    _write(top / "blobs/abc")
    [item] = _items([url(f"https://hub.test/api/models/{name}{end}")], hubs=[tmp_path])
    assert (item.name, item.source, item.path) == (name, f"https://hub.test/{name}", str(top))


def test_what_datasets_has_prepared_is_one_item(tmp_path: Path) -> None:
    folder = tmp_path / "org___lines/default/0.0.0/1fa6"
    files = [_write(folder / "dataset_info.json"), _write(folder / "lines-train.arrow")]
    [item] = _items([*map(new, files)], hubs=[tmp_path])
    assert (item.name, item.path, item.files) == ("org/lines", str(folder), 2)


def test_what_a_program_downloads_or_unpacks_is_known_by_the_url_that_it_was_given() -> None:
    def found(*words: str, files: Sequence[str]) -> dict[str, str]:
        spawn = event("spawn", words=list(words))
        return {one.path: one.url for one in of_programs([spawn], files)}

    assert found("uname", files=["/p/x"]) == {}
    url = "http://a/set.tgz"
    both = ["/p/set.tgz", "/p/set/1"]
    assert found("wget", url, files=both) == {"/p/set.tgz": url, "/p/set/1": ""}
    spawn = event("spawn", words=["tar"])
    files = of_programs([spawn], ["/p/x"])
    assert needed(files, ()) == {"/p/x"}


def test_what_counts_visits_is_no_source(tmp_path: Path) -> None:
    """`datasets` asks for the head of a script of its own, whatever it prepares."""
    files = [_write(tmp_path / "json/x/dataset_info.json"), _write(tmp_path / "json/x/a.arrow")]
    count = event("url", url="https://s3.test/datasets/json.py", method="HEAD")
    assert _items([count, *map(new, files)]) == ()
    [item] = _items([count, *map(new, files)], hubs=[tmp_path])
    assert item.source == "", "a cache is for what a job needs"


def test_a_second_fetch_still_knows_what_the_first_one_brought(tmp_path: Path) -> None:
    here, other = _write(tmp_path / "a"), _write(tmp_path / "d/b")
    first = (
        Item("a", "http://a/a", str(here), 3),
        Item("b", "", str(other), 3),
        Item("gone", "", str(tmp_path / "gone"), 3),
        Item("changed", "", str(here), 99),
    )
    assert with_earlier((), first) == (first[0], first[1])
    folder = Item("d", "", str(tmp_path / "d"), 3, 2)
    assert with_earlier((folder,), first) == (first[0], folder), "b is in d"


def _needed(events: Sequence[Event], *caches: str) -> set[str]:
    return set(needed(made(events), [Path(cache) for cache in caches]))


def _at(one: Event, where: str) -> Event:
    return Event({**one, "where": where})


def test_a_checkpoint_written_after_a_download_is_not_needed() -> None:
    events = [
        _at(new("/p/args.txt"), "train.py:3"),
        url("http://a/data.bin"),
        _at(new("/p/data/data.bin"), "train.py:7"),
        _at(new("/p/runs/1/config.json"), "train.py:9"),
        _at(new("/p/ck/init.pt"), "train.py:11"),
    ]
    assert _needed(events) == {"/p/data/data.bin"}


def test_a_download_of_another_name_is_the_first_file() -> None:
    events = [url("http://a/get?id=1"), new("/p/data.csv"), new("/p/log.txt")]
    assert _needed(events) == {"/p/data.csv"}
    events = [url("http://a/w.pt"), new("/p/w.pt.part"), rename("/p/w.pt.part", "/p/w.pt")]
    assert _needed(events) == {"/p/w.pt"}


def test_what_one_line_unpacks_is_needed() -> None:
    unpacked = [_at(new(f"/p/data/{i}.txt"), "train.py:8") for i in range(3)]
    events = [
        url("http://a/names.tar.gz"),
        _at(new("/p/data/names.tar.gz"), "train.py:7"),
        *unpacked,
        _at(new("/p/last.pt"), "train.py:20"),
    ]
    expected = {"/p/data/names.tar.gz", *(f"/p/data/{i}.txt" for i in range(3))}
    assert _needed(events) == expected
    # Unpacked while it comes, there is no file of its name.
    assert _needed([events[0], *unpacked, events[-1]]) == expected - {"/p/data/names.tar.gz"}


def test_what_lies_in_a_cache_is_needed_unless_a_program_keeps_it_for_itself() -> None:
    events = [new("/c/hf/x.arrow"), new("/c/matplotlib/fonts.json"), new("/p/x")]
    assert _needed(events, "/c") == {"/c/hf/x.arrow"}


def _brought(*paths: str) -> list[Item]:
    return [Item(Path(path).name, "http://a/set.zip", path, 3) for path in paths]


def test_what_a_second_start_writes_again_is_an_output_and_no_need() -> None:
    data, config, best = _brought("/p/data", "/p/config", "/p/best")
    second = [old("/p/config", "truncate"), new("/p/tmp"), rename("/p/tmp", "/p/best")]
    assert without_outputs([data, config, best], second) == (data,)


def test_what_a_library_prepares_for_the_path_of_a_copy_is_no_need() -> None:
    """`datasets` keeps what it has made of local files by their absolute path."""
    [item] = _brought("/c/csv/default-1a/0.0.0/f5")
    item = replace(item, source="", files=2)
    second = [event("mkdir", path="/c/csv/default-7c/0.0.0/f5")]
    assert without_outputs([item], second) == ()


def test_a_file_belongs_to_the_last_url_of_its_process() -> None:
    events = [
        url("http://a/1.bin", pid=1),
        url("http://b/other", pid=2),
        new("/d/one", pid=1),
        new("/d/other", pid=2),
        new("/d/none", pid=3),
    ]
    assert [(file.path, file.url) for file in made(events)] == [
        ("/d/one", "http://a/1.bin"),
        ("/d/other", "http://b/other"),
        ("/d/none", ""),
    ]


def test_a_file_opened_first_is_known_by_the_name_of_the_url() -> None:
    events = [
        new("/d/train.log"),
        url("http://a/x.bin"),
        new("/d/x.bin"),
        new("/d/w.pt.3f2a.partial"),
        url("http://a/w.pt"),
        url("http://a/y"),
        new("/d/c d.part"),
        url("http://a/c%20d"),
        url("http://a/revision/main"),
        url("http://a/"),
        url("http://a/z"),
        new("/d/main.log"),
        new("/d/q.part"),
    ]
    files = {file.path: file.url for file in made(events)}
    assert files["/d/train.log"] == ""
    assert files["/d/x.bin"] == "http://a/x.bin"
    assert files["/d/w.pt.3f2a.partial"] == "http://a/w.pt"
    assert files["/d/c d.part"] == "http://a/c%20d"
    assert files["/d/main.log"] == "http://a/z", "main is no beginning of it"
    assert files["/d/q.part"] == "http://a/z", "nor is an empty name"


def test_renames_of_files_and_of_folders_above_are_followed() -> None:
    events = [
        new("/c/tmp123"),
        rename("/c/tmp123", "/c/model.pt"),
        new("/c/ds.incomplete/train/0.arrow"),
        rename("/c/ds.incomplete", "/c/ds"),
        rename("/c/old", "/elsewhere"),
    ]
    assert [file.path for file in made(events)] == ["/c/model.pt", "/c/ds/train/0.arrow"]
    folders = [event("mkdir", path=path) for path in ("/c/data.tmp", "/c/data.tmp/a")]
    events = [*folders, rename("/c/data.tmp", "/c/data")]
    assert new_folders(events) == {"/c/data", "/c/data/a"}, "links in them move in with them"


def test_a_name_that_is_used_again_for_the_next_download_counts_each_time() -> None:
    events = [
        url("http://a/1"),
        new("/c/tmp"),
        rename("/c/tmp", "/c/1"),
        url("http://a/2"),
        new("/c/tmp"),
        rename("/c/tmp", "/c/2"),
    ]
    assert {file.path: file.url for file in made(events)} == {
        "/c/1": "http://a/1",
        "/c/2": "http://a/2",
    }


def test_a_connection_that_broke_leaves_the_files_of_the_last_url() -> None:
    events = [url("http://a/1"), new("/d/1"), url("http://a/2"), new("/d/2")]
    assert cut_short(events) == {"/d/2"}
    opened_first = [url("http://a/1"), new("/d/1"), new("/d/2.bin"), url("http://a/2.bin")]
    assert cut_short(opened_first) == {"/d/2.bin"}
    assert cut_short([url("http://a/1"), new("/d/1"), url("http://a/2")]) == set()
    assert cut_short([new("/d/1")]) == set()


def test_a_break_that_the_script_did_not_notice_leaves_the_files_of_that_url() -> None:
    cut = event("cut", url="http://a/1.tgz", missing=9)
    events = [
        url("http://a/1.tgz"),
        new("/d/1.tgz"),
        cut,
        new("/d/unpacked"),
        url("http://a/2"),
        new("/d/2"),
    ]
    assert list(broken_off(events)) == ["http://a/1.tgz"]
    assert cut_short(events, last=False) == {"/d/1.tgz", "/d/unpacked"}
    again = [*events, url("http://a/1.tgz")]
    assert (broken_off(again), cut_short(again, last=False)) == ({}, set())


def test_what_is_begun_anew_and_then_renamed_is_new() -> None:
    """A script goes on with what an earlier start has left of a download."""
    events = [url("http://a/x"), old("/d/x.part", "truncate"), rename("/d/x.part", "/d/x")]
    assert [(file.path, file.url) for file in made(events)] == [("/d/x", "http://a/x")]
    assert made([old("/d/x.part", "append"), rename("/d/x.part", "/d/x")]) == []


def test_what_is_written_under_the_name_of_a_url_is_known() -> None:
    again = old("/d/x.tgz", "truncate")
    assert written_by_name([url("http://a/x.tgz"), again]) == {"/d/x.tgz"}
    assert written_by_name([url("http://a/other"), again]) == set()
    part = rename("/d/x.tgz.part", "/d/x.tgz", existed=True)
    assert written_by_name([url("http://a/x.tgz"), part]) == {"/d/x.tgz"}
