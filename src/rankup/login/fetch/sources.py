"""Where the files of a run are in the end, and from which URL each came; read from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from .events import Event, inside

# What programs append to a name until all of it is there.
PARTIAL = (".part", ".partial", ".incomplete", ".tmp", ".temp", ".download", ".crdownload")


@dataclass(frozen=True)
class Made:
    """A file that was not there before.

    Attributes:
        path: where it is once what was there before has its old names again.
        last: where it was when the run ended.
        first: where it was made.
        url: from where, as far as can be told; else empty.
        place: the number of its event among all.
    """

    path: str
    last: str
    first: str
    url: str
    place: int


def made(events: Sequence[Event]) -> list[Made]:
    """The new files in the order in which they were opened, gone ones among them.

    A file belongs to the last URL that its process had asked for. Where the file is opened first,
    as some programs do, it has the URL's name, and that tells.
    """
    found: list[tuple[int, str, str]] = []  # number of the event, path then, URL
    url: dict[int, str] = {}
    last: dict[int, int] = {}  # of each process, the entry of `found` that was opened last
    kept, every = _Names(), _Names()
    for place, event in enumerate(events):
        path, asked = event.text("path"), event.text("url")
        if event.kind == "url" and asked:
            if not brings(event):
                continue
            entry = last.get(event.pid)
            if entry is not None and same_name(found[entry][1], asked):
                found[entry] = (*found[entry][:2], asked)
            else:
                url[event.pid] = asked
            continue
        if event.kind == "rename":
            old, path = event.text("from"), event.text("to")
            came = event.values.get("made") is not False
            known = every.rename(old, path)
            if came:
                kept.rename(old, path)
            # The name was used before, for another file, and is told of once only.
            new = came and not known
        else:
            new = event.kind == "open" and event.values.get("existed") is False
            last.update({event.pid: len(found)} if new else {})
        if new and path:
            kept.add(path, len(found))
            every.add(path, len(found))
            found.append((place, path, url.get(event.pid, "")))
    names, ends = kept.by_number(), every.by_number()
    # Of threads that download at once, the last URL is anybody's; the name tells.
    named = {_name(event.text("url")): event.text("url") for event in events if brings(event)}
    return [
        Made(
            names.get(number, path),
            ends.get(number, path),
            path,
            source if not source or same_name(path, source) else named.get(_last(path), source),
            place,
        )
        for number, (place, path, source) in enumerate(found)
    ]


def brings(event: Event) -> bool:
    """Whether a request asks for content: HEAD asks whether it is there, or counts a visit."""
    return event.kind == "url" and event.text("method") not in ("HEAD", "OPTIONS")


class _Names:
    """Numbers of files by the names that they have now."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, path: str, number: int) -> None:
        self._numbers[path] = number

    def rename(self, old: str, new: str) -> bool:
        """Rename a file or a folder; whether there is one."""
        moving = [old] if old in self._numbers else []
        moving = moving or [path for path in self._numbers if inside(path, [old])]
        for path in moving:
            self._numbers[new + path[len(old) :]] = self._numbers.pop(path)
        return bool(moving)

    def by_number(self) -> dict[int, str]:
        """The names by the numbers; a file that another has replaced has none."""
        return {number: path for path, number in self._numbers.items()}


class Renames:
    """What a run gave another name for good, with the numbers of the events.

    A new name of what was there before is undone, and does not count.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        renames = [
            (place, event.text("from"), event.text("to"))
            for place, event in enumerate(events)
            if event.kind == "rename" and event.text("from") and event.text("to")
            if event.values.get("made") is not False
        ]
        self._last = {new: place for place, _, new in renames}
        files = {event.text("path") for event in events if event.kind == "open"}
        self._folders = [rename for rename in renames if rename[1] not in files]

    def onto(self, path: str, place: int) -> bool:
        """Whether something was renamed to `path` after the event number `place`."""
        return self._last.get(path, -1) > place

    def moved(self, path: str, place: int) -> str:
        """Where that folder of then is in the end; one above it may have been renamed, too."""
        for number, old, new in self._folders:
            if number > place and path.startswith(old) and inside(path, [old]):
                path = new + path[len(old) :]
        return path


def renewed(events: Sequence[Event]) -> dict[str, set[str]]:
    """Files that were there, and were written anew with what a URL of their name brought.

    So does a data set class that finds its archive broken. By path: the URL and those that had
    sent the script there.
    """
    found = {}
    asked: dict[int, int] = {}
    for place, event in enumerate(events):
        if event.kind == "url":
            asked[event.pid] = place
        elif event.pid in asked and (path := _filled(event)):
            _, urls = _hops(events, asked[event.pid])
            if PurePosixPath(path).name in map(_name, urls):
                found[path] = urls
    return found


def _filled(event: Event) -> str:
    """The path whose old content makes room for something new."""
    if event.kind == "open" and event.text("how") == "truncate":
        return event.text("path")
    new = event.kind == "rename" and event.values.get("made") is not False
    return event.text("to") if new else ""


def cut_short(events: Sequence[Event], *, last: bool = True) -> set[str]:
    """The files of which a part is missing, and what was made of them.

    Args:
        last: the connection of what was asked for last broke, too: that was the script's end.
    """
    places = [place for place, event in enumerate(events) if event.kind == "url"]
    broken = list(broken_off(events).values()) + (places[-1:] if last else [])
    files = made(events) if broken else []
    found = set()
    for place in broken:
        start, urls = _hops(events, place)
        found |= {path for path, those in renewed(events).items() if those & urls}
        for one in files:
            named = any(same_name(one.first, url) for url in urls)
            if one.url in urls and (named or one.place > start):
                found.add(one.path)
    return found


def broken_off(events: Sequence[Event]) -> dict[str, int]:
    """URLs of which not all came, and which were not asked for again; their events' numbers.

    Programs that read until nothing comes do not notice that a connection broke.
    """
    asked: dict[str, int] = {}
    found: dict[str, int] = {}
    for place, event in enumerate(events):
        url = event.text("url")
        if event.kind == "url":
            found.pop(url, None)
            asked[url] = place
        elif event.kind == "cut" and url in asked:
            found[url] = asked[url]
    return found


def _hops(events: Sequence[Event], place: int) -> tuple[int, set[str]]:
    """The URLs of a chain of redirects that ends with this event, and where it starts."""
    pid, urls = events[place].pid, {events[place].text("url")}
    for before in range(place - 1, -1, -1):
        event = events[before]
        if event.pid == pid and event.kind == "open":
            break
        if event.pid == pid and event.kind == "url":
            urls.add(event.text("url"))
            place = before
    return place, urls


def same_name(path: str, url: str) -> bool:
    """Whether a file has the name of a URL, or that name with something after it.

    While it comes, `weights.pt` is `weights.pt.4652adb6.partial` for torch.hub.
    """
    name, of = PurePosixPath(path).name, _name(url)
    return bool(of) and (name == of or name.startswith(f"{of}."))


def _last(path: str) -> str:
    return PurePosixPath(path).name


def _name(url: str) -> str:
    return unquote(PurePosixPath(urlsplit(url).path).name)
