"""The files that came with a start of a script, which URL each came from, and which a job needs.

A script that wants its own `config.json` or first checkpoint makes them again; were they asked for
when a job is submitted, a new run could not begin in a clean folder.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ...base.amounts import size
from ...base.text import clean
from ...sandbox.events import Event, inside, of
from ...sandbox.inside.files import PARTIAL
from ..record import Item

_INFO = "/dataset_info.json"  # beside it `datasets` keeps what it has prepared
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
_BRING = (
    "7z", "aria2c", "aws", "azcopy", "bash", "bunzip2", "bzip2", "cp", "curl", "datalad",
    "dvc", "gdown", "git", "gsutil", "gunzip", "gzip", "hf", "huggingface-cli", "kaggle", "ln",
    "lz4", "mv", "rclone", "rsync", "scp", "sftp", "sh", "tar", "unrar", "unzip", "wget", "xz",
    "zstd",
)  # fmt: skip
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
    as some programs do, or threads download at once, it has the URL's name, and that tells.
    """
    found: list[Made] = []
    names: dict[str, int] = {}  # the path now, and the number in `found`
    url: dict[int, str] = {}
    last: dict[int, int] = {}  # of each process, the number of the file that was opened last
    folders: set[str] = set()
    begun: set[str] = set()  # what was there, and was emptied
    for place, event in enumerate(events):
        path, asked = event.text("path"), event.text("url")
        new = event.kind == "open" and event.values.get("existed") is False
        if brings(event) and asked:
            number = last.get(event.pid)
            if number is not None and same_name(found[number].first, asked):
                found[number] = replace(found[number], url=asked)
            else:
                url[event.pid] = asked
        elif event.kind == "mkdir":
            folders.add(path)
        elif new:
            last[event.pid] = len(found)
        elif event.kind == "open" and event.text("how") == "truncate":
            begun.add(path)
        elif event.kind == "rename":
            old, path = event.text("from"), event.text("to")
            # Of C++ in a new folder, from the folder for temporary files, or begun anew.
            ours = event.values.get("made") is True or inside(old, folders) or old in begun
            moving = [one for one in names if inside(one, [old])]
            for one in moving:
                names[path + one[len(old) :]] = names.pop(one)
            folders = _renamed(folders, old, path)
            new = ours and not moving
        if new and path:
            names[path] = len(found)
            found.append(Made(path, path, url.get(event.pid, ""), place))
    named = {_name(event.text("url")): event.text("url") for event in events if brings(event)}
    ends = {number: path for path, number in names.items()}  # without replaced ones
    return [
        replace(
            one,
            path=ends[number],
            url=one.url
            if not one.url or same_name(one.first, one.url)
            else named.get(_last(one.first), one.url),
        )
        for number, one in enumerate(found)
        if number in ends
    ]


def new_folders(events: Iterable[Event]) -> set[str]:
    """Return the folders that the script has made."""
    found: set[str] = set()
    for event in events:
        if event.kind == "mkdir":
            found.add(event.text("path"))
        elif event.kind == "rename":
            found = _renamed(found, event.text("from"), event.text("to"))
    return found


def _renamed(folders: set[str], old: str, new: str) -> set[str]:
    return {new + one[len(old) :] if inside(one, [old]) else one for one in folders}


def brings(event: Event) -> bool:
    """Return True for a request for content: HEAD asks whether it is there, or counts a visit."""
    return event.kind == "url" and event.text("method") not in ("HEAD", "OPTIONS")


def written_by_name(events: Sequence[Event]) -> set[str]:
    """Return the paths that were written to, and have the name of a URL that was asked for.

    So does a data set class that finds its archive broken, with what is there already.
    """
    names = {_name(event.text("url")) for event in events if brings(event)}
    paths = {event.text("to") or event.text("path") for event in of(events, "open", "rename")}
    return {path for path in paths if _last(path) in names}


def cut_short(events: Sequence[Event], *, last: bool = True) -> set[str]:
    """Return the files of which a part is missing, and those that were made of them.

    Args:
        last: the connection of what was asked for last broke, too: that was the script's end.
    """
    asked = [
        (event.text("url"), place) for place, event in enumerate(events) if event.kind == "url"
    ]
    broken = {**broken_off(events), **dict(asked[-1:] if last else ())}
    return {
        one.path
        for one in made(events)
        if one.url in broken
        if same_name(one.first, one.url) or one.place > broken[one.url]
    }


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
    prepared = {os.path.dirname(one.path) for one in here if one.path.endswith(_INFO)}
    for one in here:
        above = os.path.dirname(one.path)
        if match := _REPOSITORY.fullmatch(one.path):
            sources.setdefault(match[1], "")
        else:
            groups[above if above in prepared else _top(one.path, tops)].append(one)
    found = [item for path, source in sources.items() if (item := _repository(path, source))]
    for path, group in groups.items():
        each = [(one.path in needs, file_item(one.path, one.url)) for one in group]
        if path in prepared or len(group) > _SEVERAL:
            each = [(any(needed for needed, _ in each), _folder(path, group))]
        found += [replace(item, needed=needed) for needed, item in each if item]
    return tuple(sorted(found, key=lambda item: item.path))


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
    size; what it needs is there already when it starts for the second time. What `datasets` makes
    of local files it keeps by their path, which is another one in each copy.
    """
    events = of(second, "open", "rename")
    again = {event.text("to") or event.text("path") for event in events}
    prepared = {PurePosixPath(event.text("path")).parts[-2:] for event in of(second, "mkdir")}
    return tuple(
        item
        for item in items
        if item.path not in again
        if item.source or PurePosixPath(item.path).parts[-2:] not in prepared
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


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _top(path: str, new: Collection[str]) -> str:
    """The highest new folder that the file is in, else the one it is in."""
    above = os.path.dirname(path)
    while above in new and os.path.dirname(above) in new:
        above = os.path.dirname(above)
    return above


def file_item(path: str, url: str = "") -> Item | None:
    """Return the item of a file, if it is there."""
    try:
        return Item(Path(path).name, url, path, os.stat(path).st_size)
    except OSError:
        return None


def _folder(path: str, group: Sequence[Made]) -> Item | None:
    sizes = [item.bytes for one in group if (item := file_item(one.path))]
    urls = list(dict.fromkeys(one.url for one in group if one.url))
    above = {url.rpartition("/")[0] for url in urls}
    source = above.pop() if len(urls) > 1 and len(above) == 1 else next(iter(urls), "")
    return Item(_folder_name(path), source, path, sum(sizes), len(sizes)) if sizes else None


def _folder_name(path: str) -> str:
    """The folder's name; of what `datasets` has prepared, the name that was asked for."""
    if os.path.exists(path + _INFO) and len(Path(path).parts) > 4:
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
        for name in (match["name"], match["name"].partition("/")[0]):
            url = f"{match['site']}/{'' if kind == 'models' else kind + '/'}{name}"
            folders = (hub / f"{kind}--{name.replace('/', '--')}" for hub in hubs)
            found.update({str(folder): url for folder in folders if folder.is_dir()})
    return found


def _repository(path: str, source: str) -> Item | None:
    kind, _, rest = Path(path).name.partition("--")
    name = rest.replace("--", "/")
    files = [one for one in Path(path).rglob("*") if one.is_file() and not one.is_symlink()]
    sizes = [
        one.stat().st_size
        for one in files
        if whole(str(one)) and not {"refs", ".no_exist"} & set(one.relative_to(path).parts)
    ]
    if not sizes:
        return None
    snapshots = [one for one in Path(path, "snapshots").glob("*") if one.is_dir()]
    newest = max(snapshots, key=lambda one: one.stat().st_mtime).name if snapshots else ""
    shown = name if kind == "models" else f"{name} ({kind})"
    return Item(shown, source, path, sum(sizes), len(sizes), revision=newest)
