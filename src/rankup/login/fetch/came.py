"""The files that came with a start of a script, which URL each came from, and which a job needs.

A script that wants its own `config.json` or first checkpoint makes them again; were they asked for
when a job is submitted, a new run could not begin in a clean folder.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ...base.amounts import size
from ...base.text import clean
from ...sandbox.events import Event, inside, of
from ...sandbox.inside.files import PARTIAL
from ..record import Item

# Of a folder with more new files than these, the folder is named.
_SEVERAL = 20
_REPOSITORY = re.compile(r"(.*?/(models|datasets|spaces)--([^/]+))(?:/.*)?")
_HUB_URL = re.compile(
    r"(?P<site>https?://[^/]+)/(?:(?P<kind>datasets|spaces)/)?"
    r"(?P<name>[\w.-]+(?:/[\w.-]+)?)/resolve/.+"
)
# Of a repository that is here already the hub's library may ask for no more than this.
_HUB_API = re.compile(
    r"(?P<site>https?://[^/]+)/api/(?P<kind>models|datasets|spaces)/"
    r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:/.*)?"
)
# Programs that download or unpack; others (uname, lscpu, a compiler) bring nothing a job needs.
_BRING = {
    "7z",
    "aria2c",
    "aws",
    "azcopy",
    "bash",
    "bunzip2",
    "bzip2",
    "cp",
    "curl",
    "datalad",
    "dvc",
    "gdown",
    "git",
    "gsutil",
    "gunzip",
    "gzip",
    "hf",
    "huggingface-cli",
    "kaggle",
    "ln",
    "lz4",
    "mv",
    "rclone",
    "rsync",
    "scp",
    "sftp",
    "sh",
    "tar",
    "unrar",
    "unzip",
    "wget",
    "xz",
    "zstd",
}
_ARCHIVE = re.compile(
    r"\.(zip|tar|tgz|tbz2?|txz|tzst|7z|rar|gz|bz2|xz|zst|lz4)(\.\d+)?$", re.IGNORECASE
)
# Of caches, what programs make there for themselves, on each machine anew.
_REMADE = {"fontconfig", "matplotlib", "numba", "pip", "torch_extensions", "triton", "uv"}


@dataclass(frozen=True)
class Made:
    """A file that was not there before.

    Attributes:
        path: where it is in the end.
        first: where it was made.
        url: from where, as far as can be told; else empty.
        place: the number of its event among all.
    """

    path: str
    first: str
    url: str
    place: int


def made(events: Sequence[Event]) -> list[Made]:
    """Return the new files in the order in which they were opened, gone ones among them.

    A file belongs to the last URL that its process had asked for. Where the file is opened first,
    as some programs do, it has the URL's name, and that tells.
    """
    found: list[tuple[int, str, str]] = []  # number of the event, path then, URL
    url: dict[int, str] = {}
    last: dict[int, int] = {}  # of each process, the entry of `found` that was opened last
    names = _Names()
    begun: set[str] = set()  # what was there, and was emptied
    for place, event in enumerate(events):
        path, asked = event.text("path"), event.text("url")
        if event.kind == "url" and asked:
            entry = last.get(event.pid)
            if not brings(event):
                continue
            if entry is not None and same_name(found[entry][1], asked):
                found[entry] = (*found[entry][:2], asked)
            else:
                url[event.pid] = asked
            continue
        if event.kind == "mkdir":
            names.folders.add(path)
        new = event.kind == "open" and event.values.get("existed") is False
        if new:
            last[event.pid] = len(found)
        elif event.kind == "open" and event.text("how") == "truncate":
            begun.add(path)
        elif event.kind == "rename":
            path = event.text("to")
            # Of C++ in a new folder, from the folder for temporary files, or begun anew.
            old = event.text("from")
            ours = event.values.get("made") is True or names.is_new(old) or old in begun
            new = not names.rename(old, path) and ours
        if new and path:
            names.files[path] = len(found)
            found.append((place, path, url.get(event.pid, "")))
    ends = {number: path for path, number in names.files.items()}  # without replaced ones
    # Of threads that download at once, the last URL is anybody's; the name tells.
    named = {_name(event.text("url")): event.text("url") for event in events if brings(event)}
    return [
        Made(
            ends[number],
            path,
            source if not source or same_name(path, source) else named.get(_last(path), source),
            place,
        )
        for number, (place, path, source) in enumerate(found)
        if number in ends
    ]


def new_folders(events: Iterable[Event]) -> set[str]:
    """Return the folders that the script has made."""
    names = _Names()
    for event in events:
        if event.kind == "mkdir":
            names.folders.add(event.text("path"))
        elif event.kind == "rename":
            names.rename(event.text("from"), event.text("to"))
    return names.folders


class _Names:
    """Numbers of new files by the names that they have now, and new folders."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders: set[str] = set()

    def is_new(self, path: str) -> bool:
        """Return True in a folder that is new."""
        return any(str(parent) in self.folders for parent in PurePosixPath(path).parents)

    def rename(self, old: str, new: str) -> bool:
        """Rename a file or a folder; True for one that holds new files."""
        for path in [one for one in self.folders if inside(one, [old])]:
            self.folders.remove(path)
            self.folders.add(new + path[len(old) :])
        moving = [path for path in self.files if inside(path, [old])]
        for path in moving:
            self.files[new + path[len(old) :]] = self.files.pop(path)
        return bool(moving)


def brings(event: Event) -> bool:
    """Return True for a request for content: HEAD asks whether it is there, or counts a visit."""
    return event.kind == "url" and event.text("method") not in ("HEAD", "OPTIONS")


def renewed(events: Sequence[Event]) -> dict[str, set[str]]:
    """Return the files that were there, and were written anew with what a URL brought.

    So does a data set class that finds its archive broken. By path: the URL and those that had
    sent the script there.
    """
    found = {}
    asked: dict[int, int] = {}
    for place, event in enumerate(events):
        if event.kind == "url":
            asked[event.pid] = place
            continue
        filled = event.kind == "rename" or event.text("how") == "truncate"
        path = event.text("to" if event.kind == "rename" else "path")
        if filled and event.pid in asked and event.values.get("existed") is True:
            _, urls = _hops(events, asked[event.pid])
            if _last(path) in map(_name, urls):
                found[path] = urls
    return found


def cut_short(events: Sequence[Event], *, last: bool = True) -> set[str]:
    """Return the files of which a part is missing, and those that were made of them.

    Args:
        last: the connection of what was asked for last broke, too: that was the script's end.
    """
    places = [place for place, event in enumerate(events) if event.kind == "url"]
    broken = list(broken_off(events).values()) + (places[-1:] if last else [])
    files = made(events) if broken else []
    found = set()
    for place in broken:
        start, urls = _hops(events, place)
        for one in files:
            named = any(same_name(one.first, url) for url in urls)
            if one.url in urls and (named or one.place > start):
                found.add(one.path)
    return found


def broken_off(events: Sequence[Event]) -> dict[str, int]:
    """Return the URLs of which not all came, and which were not asked for again, by their events.

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
    """Return the URLs of a chain of redirects that ends with this event, and where it starts."""
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
    """Return True for a file with the name of a URL, or that name with something after it.

    While it comes, `weights.pt` is `weights.pt.4652adb6.partial` for torch.hub.
    """
    name, of = _last(path), _name(url)
    return bool(of) and (name == of or name.startswith(f"{of}."))


def _last(path: str) -> str:
    return PurePosixPath(path).name


def _name(url: str) -> str:
    return unquote(PurePosixPath(urlsplit(url).path).name)


def of_programs(events: Sequence[Event], others: Iterable[str]) -> list[Made]:
    """Return those of the `other` new files of a copy that programs like wget or tar have brought.

    They tell of no file themselves.
    """
    spawned = [event.texts("words") for event in of(events, "spawn")]
    bring = [words for words in spawned if len(words) > 1 or _brings(words)]
    if not bring:
        return []
    urls = [word for words in spawned for word in words if "://" in word]
    urls += [event.text("url") for event in events if brings(event)]
    archive = next((url for url in reversed(urls) if is_archive(url)), "")
    rest = archive or (urls[0] if len(set(urls)) == 1 else "")
    return [
        Made(path, path, next((url for url in urls if same_name(path, url)), rest), len(events))
        for path in others
    ]


def _brings(words: Sequence[str]) -> bool:
    return bool(words) and (words[0] in _BRING or words[0].endswith(".sh"))


def needed(
    files: Iterable[Made], events: Sequence[Event], caches: Iterable[Path]
) -> frozenset[str]:
    """Return the paths of what came from the network, or was unpacked, or lies in a cache.

    After a download a script may write a checkpoint as well as unpack an archive. What tells them
    apart is the name of the file, and the line of the script: an archive is unpacked by one.
    """
    folders = tuple(caches)
    found = set()
    by_url: dict[str, list[Made]] = defaultdict(list)
    for one in files:
        cache = next((str(path) for path in folders if inside(one.path, [path])), "")
        if cache and not _REMADE & set(PurePosixPath(one.path[len(cache) :]).parts[:3]):
            found.add(one.path)
        if one.place == len(events):
            found.add(one.path)  # of a program that brings files
        elif one.url:
            by_url[one.url].append(one)
    for url, those in by_url.items():
        found |= {one.path for one in _of_url(url, those, events)}
    return frozenset(found)


def _of_url(url: str, files: Sequence[Made], events: Sequence[Event]) -> list[Made]:
    """Return the files that have followed a URL and are its content."""
    # Without a file of its name it went into one of another name, the first.
    heads = [one for one in files if same_name(one.first, url)]
    heads = heads or [one for one in files if one.place == files[0].place]
    if not is_archive(url):
        return heads
    rest = [one for one in files if one not in heads]
    lines = {events[one.place].where for one in [*heads, *rest[:1]]}
    return heads + [one for one in rest if events[one.place].where in lines]


def is_archive(url: str) -> bool:
    """Return True for a URL whose content is unpacked, by its name."""
    return _ARCHIVE.search(urlsplit(url).path) is not None


def whole(path: str) -> bool:
    """Return False for a name of something that is not data, or not whole yet."""
    return not path.endswith((*PARTIAL, ".lock", ".pyc", "/CACHEDIR.TAG"))


def items(
    files: Sequence[Made], events: Sequence[Event], caches: Iterable[Path], needs: Collection[str]
) -> tuple[Item, ...]:
    """Return what is here now, one item per file, or per folder of many, or repository of a hub.

    Args:
        files: new ones, gone ones among them.
        caches: where libraries keep what they download. A hub's repository that was asked for
            counts if it was there already.
        needs: the paths of those that a job needs.
    """
    here = [one for one in files if whole(one.path) and os.path.isfile(one.path)]
    sources = _asked(events, tuple(caches))
    groups: dict[str, list[Made]] = defaultdict(list)
    tops = new_folders(events)
    prepared = {str(Path(one.path).parent) for one in here if _is_info(one.path)}
    for one in here:
        if match := _REPOSITORY.fullmatch(one.path):
            sources.setdefault(match[1], "")
        elif (above := str(Path(one.path).parent)) in prepared:
            groups[above].append(one)
        else:
            groups[_top(one.path, tops)].append(one)
    found = [_repository(path, source) for path, source in sources.items()]
    for path, group in groups.items():
        together = path in prepared or len(group) > _SEVERAL
        made_into = [_folder(path, group)] if together else [_file(one) for one in group]
        found += [_marked(item, group, needs) for item in made_into if item]
    return tuple(sorted((item for item in found if item), key=lambda item: item.path))


def _marked(item: Item, group: Sequence[Made], needs: Collection[str]) -> Item:
    """The item, needed where a job needs one of its files."""
    wanted = any(one.path in needs and inside(one.path, [item.path]) for one in group)
    return replace(item, needed=wanted)


def with_earlier(new: tuple[Item, ...], earlier: Iterable[Item]) -> tuple[Item, ...]:
    """Return the items, and those that an earlier fetch brought and that are as they were.

    A second start downloads nothing, and needs the same. What the script made itself is told once.
    """
    known = {item.path for item in new}
    kept = [
        item
        for item in earlier
        if item.needed and not item.missing()
        if item.path not in known and not inside(item.path, known)
    ]
    return tuple(sorted((*new, *kept), key=lambda item: item.path))


def without_outputs(items: Iterable[Item], second: Sequence[Event]) -> tuple[Item, ...]:
    """Return the items but those that a second start, without a network, has written again.

    They are the script's own output (`config.json`), which a job will write anew, with another
    size; what it needs is there already when it starts for the second time. What differs from such
    a file by the name of its new folder, or by digits (`runs/2026-11-20/config.json`), is kept,
    as something that nobody needs.
    """
    opened, renamed = of(second, "open"), of(second, "rename")
    again = {event.text("path") for event in opened} | {event.text("to") for event in renamed}
    fresh = {event.text("path") for event in opened if event.values.get("existed") is False}
    fresh |= {event.text("to") for event in renamed}
    folders = {event.text("path") for event in of(second, "mkdir")}
    alike = {shape for path in fresh for shape in _shapes(path, folders)}
    alike |= {shape for path in folders for shape in _shapes(path, folders) if "*" in shape}
    alike |= {_digits(path) for path in folders if _digits(path) != path}
    kept = (item for item in items if item.path not in again)
    return tuple(
        replace(item, needed=False) if item.needed and _is_like(item, alike) else item
        for item in kept
    )


def table(items: Sequence[Item]) -> list[str]:
    """Return a line for each item and one for all, fit for a terminal."""
    rows = [
        (clean(one.name), size(one.bytes), _files(one.files), clean(one.path), clean(one.source))
        for one in items
    ]
    wide = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = []
    for name, amount, files, path, source in rows:
        line = f"  {name:{wide[0]}}  {amount:>{wide[1]}}  {files:>{wide[2]}}  {path}"
        lines.append(f"{line}  from {source}" if source else line)
    total = size(sum(one.bytes for one in items))
    return [*lines, f"  {total} in {_files(sum(one.files for one in items))}"]


def unseen_by_jobs(items: Iterable[Item], mounted: Mapping[str, bool | None]) -> list[str]:
    """Return the paths that compute nodes do not mount, as far as that is known."""
    return [item.path for item in items if mounted.get(item.path) is False]


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _is_info(path: str) -> bool:
    """True for the file beside which `datasets` keeps what it has prepared."""
    return path.endswith("/dataset_info.json")


def _top(path: str, new: Collection[str]) -> str:
    """The highest new folder that the file is in, else the one it is in."""
    parents = [str(parent) for parent in Path(path).parents]
    above = parents[0]
    for parent in parents:
        if parent not in new:
            break
        above = parent
    return above


def _file(one: Made) -> Item | None:
    try:
        return Item(Path(one.path).name, one.url, one.path, os.stat(one.path).st_size)
    except OSError:
        return None


def _folder(path: str, group: Sequence[Made]) -> Item | None:
    sizes = [item.bytes for one in group if (item := _file(one))]
    urls = list(dict.fromkeys(one.url for one in group if one.url))
    above = {url.rpartition("/")[0] for url in urls}
    source = above.pop() if len(urls) > 1 and len(above) == 1 else next(iter(urls), "")
    return Item(_folder_name(path), source, path, sum(sizes), len(sizes)) if sizes else None


def _folder_name(path: str) -> str:
    """The folder's name; of what `datasets` has prepared, the name that was asked for."""
    if os.path.exists(os.path.join(path, "dataset_info.json")) and len(Path(path).parts) > 4:
        name, configuration = Path(path).parts[-4:-2]
        return f"{name.replace('___', '/')}:{configuration} (prepared)"
    return Path(path).name


def _asked(events: Iterable[Event], hubs: Sequence[Path]) -> dict[str, str]:
    """Folders of the repositories that a hub was asked for, with their URLs."""
    found = {}
    for event in of(events, "url"):
        asked = event.text("url")
        match = _HUB_URL.fullmatch(asked) or _HUB_API.fullmatch(asked)
        if match is None:
            continue
        kind = match["kind"] or "models"
        # `gpt2/tree` is the list of the files of `gpt2`.
        for name in dict.fromkeys((match["name"], match["name"].partition("/")[0])):
            url = f"{match['site']}/{'' if kind == 'models' else kind + '/'}{name}"
            for hub in hubs:
                folder = hub / f"{kind}--{name.replace('/', '--')}"
                if folder.is_dir():
                    found[str(folder)] = url
    return found


def _repository(path: str, source: str) -> Item | None:
    kind, _, rest = Path(path).name.partition("--")
    name = rest.replace("--", "/")
    sizes = []
    for root, _, names in os.walk(path):
        for file in names:
            full = os.path.join(root, file)
            kept = not {"refs", ".no_exist"} & set(Path(full).relative_to(path).parts)
            if kept and not os.path.islink(full) and whole(full) and os.path.isfile(full):
                sizes.append(os.stat(full).st_size)
    shown = name if kind == "models" else f"{name} ({kind})"
    if not sizes:
        return None
    return Item(shown, source, path, sum(sizes), len(sizes), revision=_revision(Path(path)))


def _revision(repository: Path) -> str:
    """The newest commit that is there."""
    try:
        snapshots = list((repository / "snapshots").iterdir())
        return max(snapshots, key=lambda path: path.stat().st_mtime).name if snapshots else ""
    except OSError:
        return ""


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
