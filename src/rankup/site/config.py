"""`rankup.toml`: what the user has set for this project."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path

from ..base.errors import UserError, nearest
from ..base.files import user_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "rankup.toml"


@dataclass(frozen=True)
class Config:
    """The keys of `rankup.toml`.

    Attributes:
        runs: the folder that run directories are made in, relative to the file.
    """

    runs: Path = Path("runs")


def load(start: Path) -> Config:
    """Read the nearest `rankup.toml` in `start` or a folder above it; defaults without one.

    Raises:
        UserError: not TOML, an unknown key (the nearest is named), a value of the wrong type.
    """
    for folder in (start, *start.parents):
        path = folder / NAME
        if path.is_file():
            return _read(path)
    return Config(runs=start / Config.runs)


def _read(path: Path) -> Config:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    known = [field.name for field in fields(Config)]
    for key, value in values.items():
        if key not in known:
            raise UserError(f"{path}: unknown key {key!r}; {nearest(key, known)}")
        if not isinstance(value, str):
            raise UserError(f"{path}: {key} must be a string, found {value!r}")
    runs = user_path(values.get("runs", str(Config.runs)), f"{path}: runs")
    return Config(runs=path.parent / runs)
