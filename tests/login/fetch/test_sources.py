"""Where files are in the end, and which URL each came from."""

from __future__ import annotations

from rankup.login.fetch.sources import broken_off, cut_short, made

from .handmade import event, new, rename, url


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
    ]
    files = {file.path: file.url for file in made(events)}
    assert files["/d/train.log"] == ""
    assert files["/d/x.bin"] == "http://a/x.bin"
    assert files["/d/w.pt.3f2a.partial"] == "http://a/w.pt"
    assert files["/d/c d.part"] == "http://a/c%20d"


def test_renames_of_files_and_of_folders_above_are_followed() -> None:
    events = [
        new("/c/tmp123"),
        rename("/c/tmp123", "/c/model.pt"),
        new("/c/ds.incomplete/train/0.arrow"),
        rename("/c/ds.incomplete", "/c/ds"),
        rename("/c/ds.incomplete-2", "/elsewhere", made=False),
    ]
    assert [file.path for file in made(events)] == ["/c/model.pt", "/c/ds/train/0.arrow"]


def test_a_name_that_is_used_again_for_the_next_download_counts_each_time() -> None:
    """A path is told of once; its second file is known by its rename."""
    events = [
        url("http://a/1"),
        new("/c/tmp"),
        rename("/c/tmp", "/c/1"),
        url("http://a/2"),
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
