"""A Hugging Face data set saved to disk (`save_to_disk`): Arrow streams, listed by JSON beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from .. import keys
from ..errors import BadContainer
from ..index import Index
from . import Choice, arrow
from .arrow_index import File, in_order
from .arrow_index import scan as index_of
from .arrow_tables import Tables


def scan(path: Path, choice: Choice) -> Index:
    """A folder of `save_to_disk`, of one data set or a dictionary of splits; see `Format.scan`.

    Class names are those of `dataset_info.json`; what is taken for what else: see `arrow.scan`.
    """
    if (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits")
        if not isinstance(splits, list) or not splits:
            raise BadContainer(f"{path / 'dataset_dict.json'} lists no splits")
        folders = [(str(split), str(split)) for split in splits]
    else:
        folders = [("", choice.split)]
    files: list[File] = []
    features: dict[str, Any] = {}
    for folder, split in folders:
        if folder and (not keys.safe(folder.encode("utf-8", "replace")) or "/" in folder):
            raise BadContainer(f"{path / 'dataset_dict.json'} has a split {folder!r}")
        files += _files(path, folder, split)
        info = path / folder / "dataset_info.json"
        found = _json(info).get("features") if info.is_file() else None
        if isinstance(found, dict):
            if features and found != features:
                raise UserError(
                    f"the splits of {path} have different columns or classes; pack them apart"
                )
            features = found
    return index_of(arrow.source(path, in_order(files), features, "hf"), choice)


def fallback(index: Index, root: Path) -> Tables:
    """Reads what has a negative offset."""
    return arrow.fallback(index, root)


def _files(path: Path, folder: str, split: str) -> list[File]:
    state = path / folder / "state.json"
    if not state.is_file():
        raise BadContainer(
            f"{path / folder} has no state.json, so it was not saved by save_to_disk, or not wholly"
        )
    about = _json(state)
    if about.get("_indices_files"):
        raise UserError(
            f"{state} selects rows through a list of indices; save the data set anew after "
            f"flatten_indices()"
        )
    listed = about.get("_data_files")
    try:
        names = [str(one["filename"]) for one in listed or []]
    except (TypeError, KeyError):
        raise BadContainer(f"{state} does not list its files") from None
    if not names:
        raise BadContainer(f"{state} lists no files")
    for name in names:
        if not keys.safe(name.encode("utf-8", "replace")) or "/" in name:
            raise BadContainer(f"{state} lists {name!r}, which is no file of this folder")
        if not (path / folder / name).is_file():
            raise BadContainer(f"{state} lists {name}, which is missing in {path / folder}")
    return [File(f"{folder}/{name}" if folder else name, split, folder) for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadContainer(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadContainer(f"{path} should hold a JSON object, and holds {type(found).__name__}")
    return found
