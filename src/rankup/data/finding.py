"""The index of what lies at a path: a pack has its own, one of other data is kept or made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..base.errors import UserError
from . import indexes, keys, stamp
from .containers import KNOWN, Choice, detect, isolated
from .errors import BadContainer
from .index import Index


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
    from . import kept  # with the settings of the site, which a pack does not need

    name = detect.detect(root if copy is None else copy)
    folder = kept.folder()
    at = kept.entry(root, choice, folder) if folder is not None else None
    index = kept.find(root, name, at) if at is not None else None
    if index is not None:
        return Found(index, True, at)
    seen = stamp.seen(root, name)
    index = isolated.scan(name, root if copy is None else copy, choice)
    saved = kept.keep(index, root, seen, at) if at is not None else None
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
    if index.container not in KNOWN:
        raise BadContainer(f"{beside} is of a container {index.container!r}, which is not known")
    stray = indexes.stray(index, root)
    if stray is not None:
        raise BadContainer(
            f"{beside} names a file {keys.shown(stray)}, which is none of a pack: it is damaged"
        )
    return index
