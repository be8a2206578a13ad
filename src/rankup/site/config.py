"""`rankup.toml`: what the user has set for this project."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import urls
from ..base.errors import UserError, nearest
from ..base.files import user_path
from . import jobspec, profile, rules
from .rules import Kind, setting

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "rankup.toml"


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
    """The needs of a project before its jobs run.

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


_NEEDS = rules.table(Needs)
_ONE_URL = rules.table(Url)


@dataclass(frozen=True)
class Config:
    """The keys of `rankup.toml`.

    Attributes:
        runs: the folder that run directories are made in, relative to the file.
        runs_set: whether the file says so; else it is `./runs`.
        profile: the site, instead of the detected one.
        site: what is laid over the site's profile (`[site]`, see `profile.override`).
        job: defaults of options of `rankup run` (`[job]`); `environment`, and `container` where
            it is no URI, are absolute paths, relative ones being relative to the file.
        file: where this was read; None without a file.
        fetch: what the project needs from the network (`[fetch]`).
    """

    runs: Path = Path("runs")
    runs_set: bool = False
    profile: str | None = None
    site: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None
    fetch: Needs = field(default_factory=Needs)

    def project(self, start: Path) -> Path:
        """The folder that the project is: that of the file, else `start`."""
        return start if self.file is None else self.file.parent


FILE = rules.Table(
    {
        "runs": rules.STRING,
        "profile": rules.TEXT,
        "site": profile.TABLE,
        "job": jobspec.TABLE,
        "fetch": _NEEDS,
    }
)


def load(start: Path) -> Config:
    """Read the nearest `rankup.toml` in `start` or a folder above it; defaults without one.

    What it says is run in jobs (`[job] environment`), so that one which anybody may have put there,
    as into `/tmp`, is not taken.

    Raises:
        UserError: not TOML, an unknown key (the nearest is named), a value of the wrong type.
    """
    path = _nearest(start)
    return Config(runs=start / Config.runs) if path is None else _read(path)


def _nearest(start: Path) -> Path | None:
    paths = (folder / NAME for folder in (start, *start.parents))
    return next((path for path in paths if path.is_file() and _trusted(path)), None)


def _trusted(path: Path) -> bool:
    if path.stat().st_uid in (os.getuid(), 0) or not path.parent.stat().st_mode & stat.S_IWOTH:
        return True
    print(f"warning: {path} is somebody else's, in a folder for all; ignored", file=sys.stderr)
    return False


def for_views(start: Path) -> tuple[Config, str]:
    """As `load`, for verbs that look at runs or end them; with what is wrong with the file.

    A key that is not known is no reason not to cancel a job: then only `runs` is taken from the
    file, where that can be read, and the second value is the message, else it is empty.
    """
    path = _nearest(start)
    if path is None:
        return Config(runs=start / Config.runs), ""
    try:
        return _read(path), ""
    except UserError as error:
        message = str(error)
    try:
        runs = _values(path).get("runs")
        if isinstance(runs, str):
            folder = path.parent / user_path(runs, f"{path}: runs")
            return Config(runs=folder, runs_set=True, file=path), message
    except UserError:
        pass
    return Config(runs=path.parent / Config.runs, file=path), message


def _values(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _read(path: Path) -> Config:
    values = _values(path)
    rules.check(values, FILE, str(path))
    chosen = values.get("profile")
    if chosen is not None and chosen not in profile.names():
        raise UserError(f"{path}: no profile {chosen!r}; {nearest(chosen, profile.names())}")
    runs = user_path(values.get("runs", str(Config.runs)), f"{path}: runs")
    return Config(
        runs=path.parent / runs,
        runs_set="runs" in values,
        profile=chosen,
        site=values.get("site", {}),
        job=_job(values.get("job", {}), path),
        fetch=_needs(values.get("fetch", {}), path),
        file=path,
    )


def _job(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    job = dict(values)
    for key in ("container", "environment"):
        if key in job and not (key == "container" and "://" in job[key]):
            job[key] = str(path.parent / user_path(job[key], f"{path}: job.{key}"))
    return job


def _needs(values: Mapping[str, Any], file: Path) -> Needs:
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
