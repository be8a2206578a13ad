"""Which of the new files a job needs: what came, not what the script made for itself.

A script that wants its own `config.json` or first checkpoint makes them again; were they asked for
when a job is submitted, a new run could not begin in a clean folder.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from ..record import Item
from . import events as journal
from .events import Event
from .sources import Made, same_name

_ARCHIVE = re.compile(
    r"\.(zip|tar|tgz|tbz2?|txz|tzst|7z|rar|gz|bz2|xz|zst|lz4)(\.\d+)?$", re.IGNORECASE
)
# Of caches, what programs make there for themselves, on each machine anew.
_REMADE = {"fontconfig", "matplotlib", "numba", "pip", "torch_extensions", "triton", "uv"}


def of_a_job(
    files: Iterable[Made], events: Sequence[Event], caches: Iterable[Path]
) -> frozenset[str]:
    """The paths of the files that came from the network, or were unpacked, or lie in a cache.

    After a download a script may write a checkpoint as well as unpack an archive. What tells them
    apart is the name of the file, and the line of the script: an archive is unpacked by one.
    """
    folders = tuple(caches)
    found = set()
    by_url: dict[str, list[Made]] = defaultdict(list)
    for one in files:
        cache = next((str(path) for path in folders if journal.inside(one.path, [path])), "")
        if cache and not _REMADE & set(PurePosixPath(one.path[len(cache) :]).parts[:3]):
            found.add(one.path)
        if one.url:
            by_url[one.url].append(one)
    for url, those in by_url.items():
        found |= {one.path for one in _of_url(url, those, events)}
    return frozenset(found)


def _of_url(url: str, files: Sequence[Made], events: Sequence[Event]) -> list[Made]:
    """What of the files that followed a URL is its content."""
    # Without a file of its name it went into one of another name, the first.
    heads = [one for one in files if same_name(one.first, url)]
    heads = heads or [one for one in files if one.place == files[0].place]
    if not is_archive(url):
        return heads
    rest = [one for one in files if one not in heads]
    lines = {_line(one, events) for one in [*heads, *rest[:1]]}
    return heads + [one for one in rest if _line(one, events) in lines]


def is_archive(url: str) -> bool:
    """Whether what a URL brings is unpacked, by its name."""
    return _ARCHIVE.search(urlsplit(url).path) is not None


def _line(one: Made, events: Sequence[Event]) -> str:
    """The user's line that made a file; of one that another program made nothing is known."""
    return events[one.place].where if one.place < len(events) else ""


def without_outputs(items: Iterable[Item], second: Sequence[Event]) -> tuple[Item, ...]:
    """The items but those that a second start, without a network, has written again.

    They are the script's own output (`config.json`), which a job will write anew, with another
    size; what it needs is there already when it starts for the second time. What differs from such
    a file by the name of its new folder, or by digits (`runs/2026-11-20/config.json`), is kept,
    as something that nobody needs.
    """
    opened = journal.of(second, "open")
    renamed = [event for event in journal.of(second, "rename") if event.values.get("made", True)]
    again = {event.text("path") for event in opened} | {event.text("to") for event in renamed}
    fresh = {event.text("path") for event in opened if event.values.get("existed") is False}
    fresh |= {event.text("to") for event in renamed}
    folders = {event.text("path") for event in journal.of(second, "mkdir")}
    alike = {shape for path in fresh for shape in _shapes(path, folders)}
    alike |= {_digits(path) for path in folders if _digits(path) != path}
    kept = (item for item in items if item.path not in again)
    return tuple(
        Item(**{**vars(item), "needed": False}) if item.needed and _is_like(item, alike) else item
        for item in kept
    )


def _is_like(item: Item, alike: set[str]) -> bool:
    if same_name(item.path, item.source):
        return False
    folders = {str(parent) for parent in PurePosixPath(item.path).parents}
    return not alike.isdisjoint(_shapes(item.path, folders))


def _shapes(path: str, folders: Iterable[str]) -> set[str]:
    """The path with any digits; and, for each of `folders` above it, with any name for that."""
    found = {_digits(path)}
    for folder in folders:
        if path.startswith(folder + "/"):
            above = os.path.dirname(folder)
            found.add(f"{_digits(above)}/*{_digits(path[len(folder) :])}")
    return found


def _digits(path: str) -> str:
    return re.sub(r"\d+", "#", path)
