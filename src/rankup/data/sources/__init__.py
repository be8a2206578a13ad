"""Sources of `rankup pack` beside containers: lists of files, and data sets known by name."""

from __future__ import annotations

from pathlib import Path

from ...base.errors import UserError, nearest
from ..containers import Choice
from ..index import Index
from . import lists, presets, tables


def scan_source(path: Path, choice: Choice, *, preset: str | None = None) -> Index:
    """All samples of a list or a preset, split by split, sorted by the bytes of their keys.

    Args:
        path: what the names of the index's files are relative to; those of a list are absolute.
        preset: `imagenet` or `imagewoof`: a data set that is known by name.

    Raises:
        UserError: there is nothing, or something cannot be a sample; it is named.
        BadContainer: it is damaged or hostile.
        OSError: it cannot be read.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give a folder, a container, or a list of files")
    if preset is not None:
        if preset not in presets.KNOWN:
            raise UserError(f"no preset {preset!r}: {nearest(preset, presets.KNOWN)}")
        return presets.KNOWN[preset](path, choice)
    if path.is_file() and tables.is_list(path):
        return lists.scan(path, choice)
    known = ", ".join(tables.SUFFIXES)
    raise UserError(f"{path} is no list: its name ends with none of {known}")
