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

from ...sandbox.events import Event, inside, of
from ...sandbox.inside.files import PARTIAL
from ..record import Item

_INFO = "dataset_info.json"  # beside it `datasets` keeps what it has prepared
# Of a folder with more new files than these, the folder is named.
_SEVERAL = 20
_REPOSITORY = re.compile(r".*?/(?:models|datasets|spaces)--[^/]+")
# Programs that download or unpack; others (uname, lscpu, a compiler) bring nothing a job needs.
_BRING = re.compile(
    r"7z|aria2c|aws|azcopy|bash|b?unzip2?|bzip2|cp|curl|datalad|dvc|gdown|git|gsutil|gunzip|gzip|hf"
    r"|huggingface-cli|kaggle|ln|lz4|mv|rclone|rsync|scp|sftp|sh|tar|unrar|wget|xz|zstd|.*\.sh"
)
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
        where: the line of the user's code that made it.
        program: another program brought it, which tells of no file itself.
    """

    path: str
    first: str
    url: str
    place: int
    where: str = ""
    program: bool = False


def made(events: Sequence[Event]) -> list[Made]:
    """Return the new files in the order in which they were opened, gone ones among them.

    A file belongs to the URL that has its name, else to the last one that its process had asked
    for. The name tells where the file is opened first, or threads download at once.
    """
    found: dict[str, Made] = {}  # by the path now
    last: dict[int, str] = {}  # the URL of each process
    folders: set[str] = set()
    begun: set[str] = set()  # what was there, and was emptied
    for place, event in enumerate(events):
        path, new = event.text("path"), False
        if _brings(event):
            last[event.pid] = event.text("url")
        elif event.kind == "mkdir":
            folders.add(path)
        elif event.kind in ("open", "link"):
            new = not event.get("existed")
            if not new and event.text("how") == "truncate":
                begun.add(path)
        elif event.kind == "rename":
            old, path = event.text("from"), event.text("to")
            # Of C++ in a new folder, from the folder for temporary files, or begun anew.
            ours = event.get("made") is True or inside(old, folders) or old in begun
            moving = [old] if old in found else [one for one in found if inside(one, [old])]
            for one in moving:
                target = path + one[len(old) :]
                found[target] = replace(found.pop(one), path=target)
            folders = _renamed(folders, old, path)
            new = ours and not moving
        if new and path:
            found[path] = Made(path, path, last.get(event.pid, ""), place, event.where)
    names = _by_name(events)
    return sorted((_named(one, names) for one in found.values()), key=lambda one: one.place)


def _named(one: Made, names: Mapping[str, str]) -> Made:
    """The file, with the URL whose name it has."""
    if same_name(one.first, one.url):
        return one
    name = _last(one.first)
    while name not in names and name and not whole(one.first):
        name = name.rpartition(".")[0]  # of `weights.pt.4652adb6.partial` for `weights.pt`
    return replace(one, url=names[name]) if name and name in names else one


def new_folders(events: Iterable[Event]) -> set[str]:
    """Return the folders that the script has made, by their names in the end."""
    found: set[str] = set()
    for event in of(events, "mkdir", "rename"):
        if event.kind == "mkdir":
            found.add(event.text("path"))
        else:
            found = _renamed(found, event.text("from"), event.text("to"))
    return found


def _renamed(folders: set[str], old: str, new: str) -> set[str]:
    return {new + one[len(old) :] if inside(one, [old]) else one for one in folders}


def _by_name(events: Iterable[Event]) -> dict[str, str]:
    """Return the URLs of which content was asked for, by the names of their files."""
    return {_name(event.text("url")): event.text("url") for event in events if _brings(event)}


def _brings(event: Event) -> bool:
    """Return True for a request for content: HEAD asks whether it is there, or counts a visit."""
    return event.kind == "url" and event.text("method") not in ("HEAD", "OPTIONS")


def written_by_name(events: Sequence[Event]) -> set[str]:
    """Return the paths that were written to, and have the name of a URL that was asked for.

    So does a data set class that finds its archive broken, with what is there already.
    """
    names = _by_name(events)
    return {path for path in written(events) if _last(path) in names}


def written(events: Iterable[Event]) -> set[str]:
    """Return the paths that were opened for writing, renamed to, or made as links."""
    return {
        event.text("to") or event.text("path") for event in of(events, "open", "rename", "link")
    }


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
    """Return those of the other new files of a copy that programs like wget or tar have brought."""
    spawned = [event.texts("words") for event in of(events, "spawn")]
    if not any(words[1:] or (words and _BRING.fullmatch(words[0])) for words in spawned):
        return []
    names = {_name(word): word for words in spawned for word in words if "://" in word}
    return [_named(Made(path, path, "", len(events), program=True), names) for path in others]


def needed(files: Iterable[Made], caches: Iterable[Path]) -> set[str]:
    """Return the paths of what came from the network, or was unpacked, or lies in a cache.

    After a download a script may write a checkpoint as well as unpack an archive. What tells them
    apart is the name of the file, and the line of the script: an archive is unpacked by one.
    """
    folders = tuple(map(str, caches))
    found = set()
    by_url: dict[str, list[Made]] = defaultdict(list)
    for one in files:
        cache = next((path for path in folders if inside(one.path, [path])), "")
        if cache and not _REMADE & set(PurePosixPath(one.path[len(cache) :]).parts[:3]):
            found.add(one.path)
        if one.program:
            found.add(one.path)
        elif one.url:
            by_url[one.url].append(one)
    for url, those in by_url.items():
        # Without a file of its name it went into one of another name, the first.
        heads = [one for one in those if same_name(one.first, url)] or those[:1]
        archive = _ARCHIVE.search(urlsplit(url).path)
        rest = [one for one in those if one not in heads] if archive else []
        lines = {one.where for one in (*heads, *rest[:1])}
        found.update(one.path for one in (*heads, *rest) if one.where in lines)
    return found


def whole(path: str) -> bool:
    """Return False for a name of something that is not data, or not whole yet."""
    return not path.endswith((*PARTIAL, ".lock", ".pyc", "/CACHEDIR.TAG"))


def items(files: Iterable[Made], events: Sequence[Event], hubs: Iterable[Path]) -> tuple[Item, ...]:
    """Return what is here now, one item per file, or per folder of many, or repository of a hub.

    Args:
        files: those that a job needs, gone ones among them.
        hubs: where repositories may lie. One that was asked for counts if it was there already.
    """
    repositories = _asked(events, hubs)
    groups: dict[str, list[Item]] = defaultdict(list)
    tops = new_folders(events)
    here = [one for one in files if whole(one.path)]
    prepared = {os.path.dirname(one.path) for one in here if _last(one.path) == _INFO}
    for one in here:
        above = os.path.dirname(one.path)
        if match := _REPOSITORY.match(one.path):
            repositories.setdefault(match[0], "")
        elif item := file_item(one.path, one.url):
            groups[above if above in prepared else _top(above, tops)].append(item)
    found = [item for path, url in repositories.items() if (item := _repository(path, url))]
    for path, group in groups.items():
        joined = path in prepared or len(group) > _SEVERAL
        found += [_folder(path, group, path in prepared)] if joined else group
    return tuple(sorted(found, key=lambda item: item.path))


def with_earlier(new: tuple[Item, ...], earlier: Iterable[Item]) -> tuple[Item, ...]:
    """Return the items, and those that an earlier fetch brought and that are as they were.

    A second start downloads nothing, and needs the same.
    """
    known = {item.path for item in new}
    kept = [item for item in earlier if not item.missing() and not inside(item.path, known)]
    return tuple(sorted((*new, *kept), key=lambda item: item.path))


def without_outputs(items: Iterable[Item], second: Sequence[Event]) -> tuple[Item, ...]:
    """Return the items but those that a second start, without a network, has written again.

    They are the script's own output (`config.json`), which a job will write anew, with another
    size; what it needs is there already when it starts for the second time. What `datasets` makes
    of local files it keeps by their path, which is another one in each copy.
    """
    again = written(second)
    prepared = {PurePosixPath(event.text("path")).parts[-2:] for event in of(second, "mkdir")}
    return tuple(
        item
        for item in items
        if item.path not in again
        if item.source or PurePosixPath(item.path).parts[-2:] not in prepared
    )


def _top(folder: str, new: Collection[str]) -> str:
    """The highest new folder that a folder is in, else itself."""
    while folder in new and os.path.dirname(folder) in new:
        folder = os.path.dirname(folder)
    return folder


def file_item(path: str, url: str = "") -> Item | None:
    """Return the item of a file, if it is there."""
    if not os.path.isfile(path):
        return None
    return Item(Path(path).name, url, path, os.path.getsize(path))


def _folder(path: str, group: Sequence[Item], prepared: bool) -> Item:
    """The item of a folder of many files, or of what `datasets` has prepared."""
    name = PurePosixPath(path).parts[-4:][0].replace("___", "/") if prepared else Path(path).name
    urls = {one.source for one in group if one.source}
    source = urls.pop() if len(urls) == 1 else ""
    return Item(name, source, path, sum(one.bytes for one in group), len(group))


def _asked(events: Iterable[Event], hubs: Iterable[Path]) -> dict[str, str]:
    """Folders of the repositories that a hub was asked for, with their URLs."""
    urls = [f"{event.text('url')}/" for event in of(events, "url")]
    found = {}
    for folder in (one for hub in hubs for one in hub.glob("*s--*")):
        kind, _, rest = folder.name.partition("--")
        name = "/".join(("" if kind == "models" else f"/{kind}", *rest.split("--")))
        for url in urls:
            before, asked, _ = url.partition(f"{name}/")
            if asked and not before.endswith(("/datasets", "/spaces")):
                found[str(folder)] = "/".join(url.split("/")[:3]) + name
    return found


def _repository(path: str, source: str) -> Item | None:
    kind, _, rest = Path(path).name.partition("--")
    name = rest.replace("--", "/")
    files = [one for top in ("blobs", "snapshots") for one in Path(path, top).rglob("*")]
    # A link in `snapshots` leads to a blob; without links the files themselves are there.
    own = [one for one in files if one.is_file() and not one.is_symlink() and whole(str(one))]
    if not own:
        return None
    snapshots = [one for one in Path(path, "snapshots").glob("*") if one.is_dir()]
    newest = max(snapshots, key=lambda one: one.stat().st_mtime).name if snapshots else ""
    shown = name if kind == "models" else f"{name} ({kind})"
    size = sum(one.stat().st_size for one in own)
    return Item(shown, source, path, size, len(own), revision=newest)
