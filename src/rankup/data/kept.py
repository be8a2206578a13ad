"""Indexes of other people's files, kept so that not every rank of every job scans them anew."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import xxhash

from .. import __version__
from ..base.errors import UserError
from ..site import caches, config, detect
from . import indexes, stamp
from .containers import Choice
from .errors import BadContainer
from .index import Index
from .stamp import Seen

_ENTRIES = 64
_BYTES = 2 << 30
# A file changed again within this many seconds may have the same time after it as before.
_SETTLED = 2.0
_LEFT_BEHIND = 86400.0  # seconds after which the temporary file of a killed writer goes
_SEEN = "seen"


def folder() -> Path | None:
    """Where they are kept; None where rankup's cache is not known."""
    try:
        settings, _ = config.for_views(Path.cwd())
        profile, _ = detect.choose(settings, os.environ, os.uname().nodename)
        return caches.caches(settings, profile, os.environ).own / "indexes"
    except (UserError, OSError, KeyError, RuntimeError):  # also: a user without a name or a home
        return None


def entry(path: Path, choice: Choice, folder: Path) -> Path:
    """The file in which the index of a file or folder is kept."""
    what = repr((str(path.resolve()), choice, __version__, indexes.VERSION))
    return folder / f"{xxhash.xxh3_128_hexdigest(what.encode(errors='surrogateescape'))}.npz"


def find(path: Path, container: str, entry: Path) -> Index | None:
    """The index that is kept for a file or folder; None without one, or if either has changed.

    Args:
        container: what it is, which the index has to say too.
    """
    try:
        index = indexes.load(entry)
        # A cache may be shared; what is in it is believed no more than the index of a pack.
        if index.container != container or indexes.stray(index, path) is not None:
            return None
        if not stamp.unchanged(path, index.facts.get(_SEEN, [])):
            return None
        os.utime(entry)  # the one not used for longest goes first
    except (OSError, BadContainer):
        return None
    return index


def keep(index: Index, path: Path, seen: Seen, entry: Path) -> Index | None:
    """Keep an index; the kept one, mapped. None where it cannot be kept.

    Args:
        path: of what it is the index.
        seen: `stamp.seen(path, …)` from before the index was made.
    """
    if not seen or time.time() - stamp.newest(seen) < _SETTLED:
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
