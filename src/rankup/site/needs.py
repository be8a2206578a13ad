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
from .rules import Kind, Table

_SHA256 = Kind(
    "64 hexadecimal digits",
    lambda value: isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64}", value) is not None,
)
_ONE_URL = Table({"url": rules.STRING, "sha256": _SHA256, "to": rules.TEXT})
TABLE = Table(
    {
        "cache": rules.TEXT,
        "datasets": rules.TEXTS,
        "models": rules.TEXTS,
        "scripts": rules.TEXTS,
        "urls": Kind("a list of tables ([[fetch.urls]])", lambda value: isinstance(value, list)),
    }
)


@dataclass(frozen=True)
class Url:
    """A file from the web.

    Attributes:
        sha256: 64 hexadecimal digits in lower case; empty where not known.
        to: the file it becomes, absolute; None: one in the cache.
    """

    url: str
    sha256: str = ""
    to: Path | None = None


@dataclass(frozen=True)
class Needs:
    """What a project has to have before its jobs run.

    Attributes:
        cache: the folder for all caches; None: see `caches`.
        datasets: names as `rankup fetch --dataset` takes them.
        models: `NAME[@revision]`.
        scripts: command lines (`train.py --epochs 1`), relative to the file's folder.
    """

    cache: Path | None = None
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    urls: tuple[Url, ...] = ()
    scripts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.datasets or self.models or self.urls or self.scripts)


def parse(values: Mapping[str, Any], file: Path) -> Needs:
    """The table as it stands in `file`; paths are relative to its folder.

    Raises:
        UserError: an entry of `urls` is not as it should be.
    """
    found = []
    for number, entry in enumerate(values.get("urls", ())):
        key = f"fetch.urls[{number}]"
        rules.check(entry, _ONE_URL, str(file), key)
        if "url" not in entry:
            raise UserError(f"{file}: {key}: url is missing")
        if urls.web_parts(entry["url"]) is None:
            shown = urls.public(entry["url"])  # it may hold a password
            raise UserError(f"{file}: {key}.url must be {urls.WEB}, found {shown!r}")
        to = entry.get("to")
        path = None if to is None else file.parent / user_path(to, f"{file}: {key}.to")
        found.append(Url(entry["url"], entry.get("sha256", "").lower(), path))
    cache = values.get("cache")
    return Needs(
        None if cache is None else file.parent / user_path(cache, f"{file}: fetch.cache"),
        tuple(values.get("datasets", ())),
        tuple(values.get("models", ())),
        tuple(found),
        tuple(values.get("scripts", ())),
    )
