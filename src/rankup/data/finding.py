"""The index of what lies at a path: a pack has its own, one of other data is kept or made."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from .. import __version__
from ..base.errors import UserError
from . import indexes, keys, stamp
from .containers import FORMATS, Choice, detect, isolated
from .errors import BadContainer
from .index import Index
from .stamp import Look

_ENTRIES = 64
_BYTES = 2 << 30
# A file changed again within this many seconds may have the same time after it as before.
_SETTLED = 2.0
_LEFT_BEHIND = 86400.0  # seconds after which the temporary file of a killed writer goes
_SEEN = "seen"


@dataclass(frozen=True)
class Found:
    """An index, and where another process finds it.

    Attributes:
        lasting: it is found without a scan.
        kept: the file in rankup's cache that it is kept in; None for that of a pack.
    """

    index: Index
    lasting: bool
    kept: Path | None = None


def found(root: Path, choice: Choice, copy: Path | None = None) -> Found:
    """The index of a pack, or of other data.

    Args:
        copy: the same bytes nearer by, where a scan reads them.

    Raises:
        BadContainer, UserError, OSError: see `opened.open`.
    """
    own = fitting(root)
    if own is not None:
        if choice != Choice():
            raise UserError(f"{root} was packed by rankup: `choice` is for data of others")
        return Found(own, True)
    name = detect.detect(root if copy is None else copy)
    folder = _folder()
    at = _entry(root, choice, folder) if folder is not None else None
    index = _kept(root, name, at) if at is not None else None
    if index is not None:
        return Found(index, True, at)
    seen = stamp.tree(root, name)
    index = isolated.scan(name, root if copy is None else copy, choice)
    saved = _keep(index, root, seen, at) if at is not None else None
    return Found(saved or index, saved is not None, at if saved is not None else None)


def fitting(root: Path) -> Index | None:
    """The index that a pack has; None of other data.

    Raises:
        BadContainer: the index is damaged or hostile, or the pack is not what it says.
        UserError: the pack may not be read.
    """
    index = packed(root)
    why = stamp.unfit(index, root) if index is not None else ""
    if why:
        raise BadContainer(
            f"{root} is not what its index describes: {why}: it was changed or cut short since it "
            f"was packed; restore both it and {indexes.place(root)}, or pack the source again"
        )
    return index


def packed(root: Path) -> Index | None:
    """The index that a pack has, whether or not its data is still what it says.

    Raises:
        BadContainer: it is damaged or hostile.
    """
    beside = indexes.place(root)
    if not beside.is_file() or root.name.endswith(detect.PART):
        return None
    index = indexes.load(beside)
    if index.container not in FORMATS:
        raise BadContainer(f"{beside} is of a container {index.container!r}, which is not known")
    stray = indexes.stray(index, root)
    if stray is not None:
        raise BadContainer(
            f"{beside} names a file {keys.shown(stray)}, which is none of a pack: it is damaged"
        )
    return index


def _folder() -> Path | None:
    """Return where indexes are kept; None where rankup's cache is not known."""
    # A pack needs no settings of the site, and starts sooner without their modules.
    from ..site import caches, config
    from ..site import detect as sites

    try:
        settings, _ = config.for_views(Path.cwd())
        profile, _ = sites.choose(settings, os.environ, os.uname().nodename)
        return caches.caches(settings, profile, os.environ).own / "indexes"
    except (UserError, OSError, KeyError, RuntimeError):  # also: a user without a name or a home
        return None


def _entry(path: Path, choice: Choice, folder: Path) -> Path:
    """Return the file in which the index of a file or folder is kept."""
    what = repr((str(path.resolve()), choice, __version__, indexes.VERSION))
    return folder / f"{xxhash.xxh3_128_hexdigest(what.encode(errors='surrogateescape'))}.npz"


def _kept(path: Path, container: str, entry: Path) -> Index | None:
    """Return the index kept for a file or folder; None without one, or if either has changed.

    Args:
        container: what it is, which the index has to say too.
    """
    try:
        index = indexes.load(entry)
        # A cache may be shared; what is in it is believed no more than the index of a pack.
        if index.container != container or indexes.stray(index, path) is not None:
            return None
        seen = [Look(*one) for one in index.facts.get(_SEEN, [])]
        if not seen or stamp.changed(seen, path):
            return None
        os.utime(entry)  # the one not used for longest goes first
    except (OSError, BadContainer, TypeError, ValueError):
        return None
    return index


def _keep(index: Index, path: Path, seen: list[Look], entry: Path) -> Index | None:
    """Keep an index; return the kept one, mapped, or None where it cannot be kept.

    Args:
        path: of what it is the index.
        seen: `stamp.tree(path, …)` from before the index was made.
    """
    if not seen or time.time() - max(one.time for one in seen) / 1e9 < _SETTLED:
        return None
    try:
        if indexes.stray(index, path) is not None:  # it would not be found
            return None
        entry.parent.mkdir(parents=True, exist_ok=True)
        indexes.save(replace(index, facts={**index.facts, _SEEN: [list(s) for s in seen]}), entry)
        kept = indexes.load(entry)
        _prune(entry.parent)
    except (OSError, BadContainer):
        return None  # no space, no quota: then it is scanned again
    return kept


def _prune(at: Path) -> None:
    entries = []
    for path in at.iterdir():
        with suppress(OSError):
            about = path.stat()
            if path.suffix == ".npz":
                entries.append((about.st_mtime, about.st_size, path))
            elif time.time() - about.st_mtime > _LEFT_BEHIND:
                path.unlink()
    total = 0
    for number, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        total += size
        if number >= _ENTRIES or (number and total > _BYTES):
            path.unlink(missing_ok=True)
