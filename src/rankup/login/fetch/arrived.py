"""What came in a run, and lies there now: files, folders, and repositories of a hub."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...base.text import clean
from ..record import Item
from . import events as journal
from .events import Event
from .needed import is_archive, of_a_job
from .progress import size
from .sources import PARTIAL, Made, Renames, brings, made, same_name

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
_MOST_LOOKED_AT = 20_000
# Programs that download or unpack; others (uname, lscpu, a compiler) bring nothing a job needs.
_BRING = {
    *("7z", "aria2c", "aws", "azcopy", "bash", "bunzip2", "bzip2", "cp", "curl", "datalad"),
    *("dvc", "gdown", "git", "gsutil", "gunzip", "gzip", "hf", "huggingface-cli", "kaggle"),
    *("ln", "lz4", "mv", "rclone", "rsync", "scp", "sftp", "sh", "tar", "unrar", "unzip"),
    *("wget", "xz", "zstd"),
}
_LONGEST_LOOK = 3.0  # seconds
# Not data, and edited while the script is fetched.
_CODE = (".py", ".pyc", ".ipynb")


def items(
    events: Sequence[Event],
    gone: Collection[str],
    ignored: Iterable[Path],
    folder: Path,
    caches: Iterable[Path],
) -> tuple[Item, ...]:
    """What came, or was made, one item per file, or per folder of many, or per repository of a hub.

    Args:
        gone: files that were removed after the run.
        ignored: folders that do not count.
        folder: where programs that are no Python may have put something.
        caches: where libraries keep what they download. A hub's repository that was asked for
            counts if it was there already.
    """
    ignored = tuple(ignored)
    files = [one for one in made(events) if one.path not in gone]
    files += _of_programs(events, {one.path for one in files} | set(gone), folder)
    files = [one for one in files if _counts(one.path) and not journal.inside(one.path, ignored)]
    caches = tuple(caches)
    sources = _asked(events, caches)
    needed = of_a_job(files, events, caches)
    groups: dict[str, list[Made]] = defaultdict(list)
    tops = _new_folders(events)
    prepared = {str(Path(one.path).parent) for one in files if _is_info(one.path)}
    for one in files:
        if match := _REPOSITORY.fullmatch(one.path):
            sources.setdefault(match[1], "")
        elif (above := str(Path(one.path).parent)) in prepared:
            groups[above].append(one)
        else:
            groups[_top(one.path, tops)].append(one)
    found = [_repository(path, source) for path, source in sources.items()]
    for path, group in groups.items():
        whole = path in prepared or len(group) > _SEVERAL
        made_into = [_folder(path, group)] if whole else [_file(one) for one in group]
        found += [_marked(item, group, needed) for item in made_into if item]
    return tuple(sorted((item for item in found if item), key=lambda item: item.path))


def _marked(item: Item, group: Sequence[Made], needed: Collection[str]) -> Item:
    """The item, and whether a job needs it: of a folder, whether it needs one of its files."""
    return replace(
        item,
        needed=any(one.path in needed and journal.inside(one.path, [item.path]) for one in group),
    )


def with_earlier(new: tuple[Item, ...], earlier: Iterable[Item]) -> tuple[Item, ...]:
    """The items, and those that an earlier fetch brought and that are still as they were.

    A second start downloads nothing, and needs the same. What the script made itself is told once.
    """
    known = {item.path for item in new}
    kept = [
        item
        for item in earlier
        if item.needed and not item.missing()
        if item.path not in known and not journal.inside(item.path, known)
    ]
    return tuple(sorted((*new, *kept), key=lambda item: item.path))


def table(items: Sequence[Item]) -> list[str]:
    """A line for each item and one for all, fit for a terminal."""
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


def _counts(path: str) -> bool:
    named = path.endswith((*PARTIAL, ".lock", ".pyc", "/CACHEDIR.TAG"))
    return not named and os.path.isfile(path)


def _is_info(path: str) -> bool:
    """Whether it is the file beside which `datasets` keeps what it has prepared."""
    return path.endswith("/dataset_info.json")


def _new_folders(events: Iterable[Event]) -> set[str]:
    events = list(events)
    renames = Renames(events)
    return {
        renames.moved(event.text("path"), place)
        for place, event in enumerate(events)
        if event.kind == "mkdir" and event.text("path")
    }


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


def _asked(events: Iterable[Event], hubs: Iterable[Path]) -> dict[str, str]:
    """Folders of the repositories that a hub was asked for, with their URLs."""
    found = {}
    hubs = tuple(hubs)
    for event in journal.of(events, "url"):
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
            if kept and not os.path.islink(full) and _counts(full):
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


def _brings(words: Sequence[str]) -> bool:
    """Whether a program may have brought files: it was given a URL, or is made for that."""
    name = words[0] if words else ""
    return len(words) > 1 or name in _BRING or name.endswith(".sh")


def _of_programs(events: Sequence[Event], known: Collection[str], folder: Path) -> list[Made]:
    """Files that came while the script ran other programs (wget, tar), which tell us nothing.

    Only `folder` is searched, and not to the end where it is large. What has neither the name of a
    URL, nor lies in a new folder while an archive came, may be anybody's, and is left out.
    """
    spawned = [event for event in journal.of(events, "spawn") if _brings(event.texts("words"))]
    if not spawned:
        return []
    # File systems round times; what was there when the script started is not new all the same.
    first = max(spawned[0].time - 1, events[0].time)
    urls = [word for event in spawned for word in event.texts("words") if "://" in word]
    urls += [event.text("url") for event in events if brings(event)]
    new = [(path, alone) for path, alone in _new_files(folder, first) if path not in known]
    archive = next((url for url in reversed(urls) if is_archive(url)), "")
    found = []
    for path, alone in new:
        named = next((url for url in urls if same_name(path, url)), "")
        only = urls[0] if len(set(urls)) == len(new) == 1 else ""  # curl -o NAME URL
        if url := named or (archive if alone else "") or only:
            found.append(Made(path, path, path, url, len(events)))
    return found


def _new_files(folder: Path, first: float) -> Iterator[tuple[str, bool]]:
    """Files since the time `first`, and whether all is new in a file's folder."""
    seen, until = 0, time.monotonic() + _LONGEST_LOOK
    for root, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name != "__pycache__"
        ]
        new = [name for name in names if _changed(os.path.join(root, name)) >= first]
        alone = root != str(folder) and len(new) == len(names)
        yield from ((os.path.join(root, name), alone) for name in new if not name.endswith(_CODE))
        seen += len(names)
        if seen > _MOST_LOOKED_AT or time.monotonic() > until:
            return


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


def unseen_by_jobs(items: Iterable[Item], mounted: Mapping[str, bool | None]) -> list[str]:
    """Paths that compute nodes do not mount, as far as that is known."""
    return [item.path for item in items if mounted.get(item.path) is False]
