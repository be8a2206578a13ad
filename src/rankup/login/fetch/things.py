"""Things that are fetched by name: each with its key, its place and how it is fetched.

A tar archive of the web becomes a folder, whole or not at all; nothing lands outside of it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from ...base import lock, progress
from ...base.errors import UserError
from ...base.files import fsync_directory, user_path, write_json
from ...base.text import say
from ...base.urls import identity, public
from ...site.caches import Caches
from ...site.config import Needs, Url
from ..record import Item, Record, key_of_url
from . import hub
from .hub import Name
from .request import FetchFailed, Request, place

# In an unpacked folder; written last, before the folder gets its name.
MARKER = ".rankup-unpacked.json"
_AS_TEXT = ("wikitext-2",)  # its splits are plain text, too, below rankup's own data sets


@dataclass(frozen=True)
class Archive:
    """A tar archive of the web.

    Attributes:
        folder: what it unpacks to, there and here.
        parts: folders that must be in it; a tar file that is cut short may not show otherwise.
    """

    url: str
    sha256: str
    folder: str
    parts: tuple[str, ...]


# Data sets that have a name of ours, at one revision each, so that a result can be repeated. Public
# projects name the commits in their own records of runs; the checksum is that of FastAI.jl's
# registry of data sets.
NAMED: dict[str, Name | Archive] = {
    "wikitext-2": Name(
        "dataset",
        "Salesforce/wikitext",
        "wikitext-2-v1",
        "b08601e04326c79dfdd32d625aee71d232d685c3",
    ),
    "xsum": Name("dataset", "EdinburghNLP/xsum", None, "7d4d486c2f8ef850b1a11aead99b894ff3dd7da9"),
    "imagewoof-320": Archive(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz",
        "4e4905ed7643120daaf9bf3b2ef7f3a7e8396d9bdaf254a38c6f01f618b4973d",
        "imagewoof2-320",
        ("train", "val"),
    ),
}


@dataclass(frozen=True)
class Thing:
    """One data set, model or file.

    Attributes:
        key: of its record.
        place: a folder that it will lie in.
        get: brings it here, given an earlier record of it; returns its record, and what a user
            should know: what was left out, how it is loaded.
    """

    key: str
    place: Path
    get: Callable[[Record | None], tuple[Record, list[str]]]


def asked(request: Request) -> Needs:
    """Return what the command line names, in the form that `rankup.toml` has."""
    each = zip_longest(request.urls, request.sha256, request.to, fillvalue="")
    urls = tuple(
        Url(url, sha256.lower(), Path.cwd() / user_path(to, "--to") if to else None)
        for url, sha256, to in each
    )
    return Needs(None, request.datasets, request.models, urls)


def things(needs: Needs, caches: Caches) -> list[Thing]:
    """Return all of them but the scripts, in the order of data sets, models, files.

    Raises:
        UserError: a name is none, the libraries that fetch it are not installed, or two files would
            become one.
    """
    found = [_dataset(text, caches) for text in dict.fromkeys(needs.datasets)]
    found += [
        _on_hub(f"model:{text}", hub.parse(text, "model"), caches)
        for text in dict.fromkeys(needs.models)
    ]
    targets: dict[str, Url] = {}
    for url in dict.fromkeys(needs.urls):
        target = url.to or place(url.url, caches.own / "files")
        other = targets.setdefault(os.path.realpath(target), url)
        if identity(other.url) != identity(url.url):
            raise UserError(
                f"{public(other.url)} and {public(url.url)} would both be {target}; two files "
                "cannot be one: give each its own (--to)"
            )
        found.append(_url(url, target))
    return found


def _dataset(text: str, caches: Caches) -> Thing:
    key, known = f"dataset:{text}", NAMED.get(text)
    if isinstance(known, Archive):
        archive = known
        return Thing(key, caches.own, lambda _: _fetch_archive(key, archive, caches))
    if known is not None:
        folder = caches.own / "datasets" / text if text in _AS_TEXT else None
        return _on_hub(key, known, caches, folder)
    if "/" not in text and (near := get_close_matches(text, NAMED)):
        # The hub has some names without an owner, too: so this is no more than a hint.
        say(f"{text} is taken for a name on the hub; did you mean {near[0]}?")
    return _on_hub(key, hub.parse(text, "dataset"), caches)


def _on_hub(key: str, name: Name, caches: Caches, texts: Path | None = None) -> Thing:
    hub.check_installed(name.kind)
    return Thing(key, hub.hub_cache(caches), lambda _: hub.fetch(key, name, caches, texts))


def _url(url: Url, target: Path) -> Thing:
    key = key_of_url(url)

    def get(earlier: Record | None) -> tuple[Record, list[str]]:
        from .download import download  # httpx takes a tenth of a second

        item = download(url.url, target, sha256=url.sha256, replace=url.to is None)
        for known in earlier.items if earlier and not item.sha256 else ():
            if replace(known, sha256="") == item:  # it has been there since it was fetched
                item = known
        # In the cache its place says which URL it is of; elsewhere it may be anything.
        guessed = url.to is not None and not item.sha256
        line = "was there already, and is taken as it is; remove it to fetch it, or give --sha256"
        return Record(key, items=(item,)), [line] if guessed else []

    return Thing(key, target.parent, get)


def _fetch_archive(key: str, known: Archive, caches: Caches) -> tuple[Record, list[str]]:
    """Download and unpack; the archive does not stay, it would only be there twice.

    Raises:
        FetchFailed: it did not come, is no such archive, or holds what does not belong into one.
        OSError: the folder cannot be written to.
    """
    from .download import download  # httpx takes a tenth of a second

    folder = caches.own / "datasets" / known.folder
    if (found := _unpacked(folder, known)) is None:
        with lock.held(folder, say, doing="fetching") as held:
            if (found := _unpacked(folder, known)) is None:
                archive = place(known.url, caches.own / "files")
                download(known.url, archive, sha256=known.sha256, replace=True)
                found = _unpack(archive, folder, known, held)
                archive.unlink(missing_ok=True)
    files, size = found
    item = Item(known.folder, public(known.url), str(folder), size, files, known.sha256)
    return Record(key, items=(item,)), [f"in it: {', '.join(known.parts)}"]


def _unpacked(folder: Path, known: Archive) -> tuple[int, int] | None:
    """Return the numbers of files and bytes that lie there, where it is whole."""
    if not folder.exists():
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        note = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if note["sha256"] == known.sha256 and all((folder / one).is_dir() for one in known.parts):
            return note["files"], note["bytes"]
    raise FetchFailed(
        f"{folder} is there, and is not what rankup has unpacked; remove it, or move it away"
    )


def _unpack(archive: Path, folder: Path, known: Archive, held: lock.Held) -> tuple[int, int]:
    """Make `folder` from the folder of that name in a tar archive; return its files and bytes.

    What an interrupted one has left is thrown away: to go on from it would mean to read the archive
    from its beginning all the same.
    """
    part = folder.with_name(f"{folder.name}.part")
    if os.path.lexists(part):  # another user's can only be moved out of the way
        aside = part.with_name(f".{part.name}.{secrets.token_hex(4)}")
        part.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    part.mkdir(parents=True)
    files = size = 0
    try:
        with (
            progress.shown(f"unpacking {archive.name}") as show,
            tarfile.open(archive, "r|*") as tar,
        ):
            for member in tar:
                path = PurePosixPath(member.name)
                outside = path.is_absolute() or ".." in path.parts
                # A link could lead the next file anywhere, a device is no data.
                if outside or not (member.isfile() or member.isdir()):
                    why = "would land outside" if outside else "is no file or folder"
                    raise FetchFailed(f"{archive}: {member.name!r} {why}; not unpacked")
                if path.parts[:1] != (folder.name,):
                    continue
                held.check()
                target = part.joinpath(*path.parts[1:])
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None  # it is a regular file
                with content, target.open("xb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
                files, size = files + 1, size + member.size
                show(size, None)
        if lacking := [name for name in known.parts if not (part / name).is_dir()]:
            raise FetchFailed(
                f"{archive} holds no folder {folder.name}/{lacking[0]}; nothing is unpacked"
            )
        write_json(part / MARKER, {"sha256": known.sha256, "files": files, "bytes": size})
        held.check()
        part.rename(folder)
        fsync_directory(folder.parent)
    except (tarfile.TarError, EOFError) as error:
        raise FetchFailed(f"{archive} cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return files, size
