"""A job needs what came, not what its script makes for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankup.sandbox.events import Event
from rankup.login.fetch.needed import of_a_job, without_outputs
from rankup.login.fetch.sources import made
from rankup.login.record import Item

from .handmade import event, new, old, rename, url


def _needed(events: Sequence[Event], *caches: str) -> set[str]:
    return set(of_a_job(made(events), events, [Path(cache) for cache in caches]))


def _at(one: Event, where: str) -> Event:
    return replace(one, where=where)


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


def _items(*paths: str) -> list[Item]:
    return [Item(Path(path).name, "http://a/set.zip", path, 3) for path in paths]


def test_what_a_second_start_writes_again_is_an_output_and_no_need() -> None:
    data, config, best = _items("/p/data", "/p/config", "/p/best")
    second = [old("/p/config", "truncate", 3), new("/p/tmp"), rename("/p/tmp", "/p/best")]
    assert without_outputs([data, config, best], second) == (data,)


def test_what_a_second_start_writes_into_another_new_folder_is_not_needed() -> None:
    """As `runs/<time>/config.json`, or one with a random name."""
    first = _items("/p/runs/20261120-1/config.json", "/p/runs/kbxq/best.pt", "/p/log-17.txt")
    data = _items("/p/data/train/config.csv", "/p/data/a.bin")
    second = [
        event("mkdir", path="/p/runs/20261121-7"),
        event("mkdir", path="/p/runs/zzpa"),
        new("/p/runs/20261121-7/config.json"),
        new("/p/runs/zzpa/best.pt"),
        new("/p/log-23.txt"),
    ]
    found = without_outputs([*first, *data], second)
    assert {item.path for item in found if item.needed} == {item.path for item in data}
    assert {item.path for item in found} == {item.path for item in [*first, *data]}, "still told of"
