"""`[fetch]` in `rankup.toml`: the data sets, models, files and scripts that a project needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import urls
from ..base.errors import UserError
from ..base.files import user_path
from . import rules
from .rules import Kind, setting

_SHA256 = Kind(
    "64 hexadecimal digits",
    lambda value: isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64}", value) is not None,
)
_TABLES = Kind("a list of tables ([[fetch.urls]])", lambda value: isinstance(value, list))


@dataclass(frozen=True)
class Url:
    """A file from the web.

    Attributes:
        sha256: 64 hexadecimal digits in lower case; empty where not known.
        to: the file it becomes, absolute; None: one in the cache.
    """

    url: str = setting(rules.STRING)
    sha256: str = setting(_SHA256, "")
    to: Path | None = setting(rules.TEXT, None)


@dataclass(frozen=True)
class Needs:
    """What a project has to have before its jobs run.

    Attributes:
        cache: the folder for all caches; None: see `caches`.
        datasets: names as `rankup fetch --dataset` takes them.
        models: `NAME[@revision]`.
        scripts: command lines (`train.py --epochs 1`), relative to the file's folder.
    """

    cache: Path | None = setting(rules.TEXT, None)
    datasets: tuple[str, ...] = setting(rules.TEXTS, ())
    models: tuple[str, ...] = setting(rules.TEXTS, ())
    urls: tuple[Url, ...] = setting(_TABLES, ())
    scripts: tuple[str, ...] = setting(rules.TEXTS, ())

    def __bool__(self) -> bool:
        return bool(self.datasets or self.models or self.urls or self.scripts)


TABLE = rules.table(Needs)
_ONE_URL = rules.table(Url)


def parse(values: Mapping[str, Any], file: Path) -> Needs:
    """The table as it stands in `file`; paths are relative to its folder.

    Raises:
        UserError: an entry of `urls` is not as it should be.
    """
    found = []
    for number, entry in enumerate(values.get("urls", ())):
        place = f"fetch.urls[{number}]"
        rules.check(entry, _ONE_URL, str(file), place)
        if "url" not in entry:
            raise UserError(f"{file}: {place}: url is missing")
        if urls.web_parts(entry["url"]) is None:
            shown = urls.public(entry["url"])  # it may hold a password
            raise UserError(f"{file}: {place}.url must be {urls.WEB}, found {shown!r}")
        to = _path(entry.get("to"), f"{place}.to", file)
        sha256 = entry.get("sha256", "").lower()
        found.append(rules.make(Url, entry, sha256=sha256, to=to))
    cache = _path(values.get("cache"), "fetch.cache", file)
    return rules.make(Needs, values, cache=cache, urls=tuple(found))


def _path(text: str | None, place: str, file: Path) -> Path | None:
    return None if text is None else file.parent / user_path(text, f"{file}: {place}")
