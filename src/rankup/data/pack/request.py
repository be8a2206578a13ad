"""The request of a pack, and the container that OUT's name stands for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError, nearest
from ...base.files import user_path

BAD = ("keep", "skip", "fail")
PRESETS = ("imagenet", "imagewoof")
_SUFFIXES = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    **dict.fromkeys((".sqsh", ".squashfs", ".sfs", ".sqfs"), "squashfs"),
}
# A folder of files with these names each; a name like that for OUT itself says what is wanted.
_FOLDERS = {".arrow": "arrow", ".tar": "tar"}
CONTAINERS = ("hdf5", "arrow", "tar", "squashfs")
# Bytes that are put to OUT's name for a while: of its lock are more than those of the report.
_BESIDE, _LONGEST = 35, 255
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True)
class Request:
    """The words of `rankup pack`, as they were given."""

    source: str
    out: str
    to: str | None = None
    preset: str | None = None
    split: str = "train"
    label: str | None = None
    key: str | None = None
    fields: tuple[str, ...] = ()
    bad: str = "keep"
    resize: int | None = None
    shard_size: str = "1GB"
    resume: bool = False
    fsync: bool = True
    workers: int | None = None
    dry_run: bool = False
    as_json: bool = False


@dataclass(frozen=True)
class Target:
    """Where a pack goes to.

    Attributes:
        out: what it is called once it is complete; absolute.
        container: name of its format.
    """

    out: Path
    container: str

    @property
    def one_file(self) -> bool:
        """True where the container is a single file, with its index beside it."""
        return self.container in ("hdf5", "squashfs")

    @property
    def part(self) -> Path:
        """The folder that everything is in until then."""
        return self.out.with_name(f"{self.out.name}.part")

    @property
    def report(self) -> Path:
        """Where the report lies once the pack is complete."""
        if self.one_file:
            return self.out.with_name(f"{self.out.name}.report.json")
        return self.out / "report.json"

    @property
    def index(self) -> Path:
        """Where the index lies once the pack is complete."""
        if self.one_file:
            return self.out.with_name(f"{self.out.name}.index.npz")
        return self.out / "index.npz"

    @property
    def names(self) -> tuple[Path, ...]:
        """All names that a pack gives outside of its work folder."""
        return (self.out, self.report, self.index) if self.one_file else (self.out,)


def asked(request: Request, goal: Target) -> dict[str, Any]:
    """Return what decides the bytes of a pack; a pack is resumed with the same only."""
    return {
        "SOURCE": os.path.abspath(request.source),
        "--to": goal.container,
        "--preset": request.preset,
        "--split": request.split,
        "--label": request.label,
        "--key": request.key,
        "--fields": ",".join(request.fields) or None,
        "--bad": request.bad,
        "--resize": request.resize,
        "--shard-size": request.shard_size,
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in what two packs were asked for different things; empty: in nothing."""
    return "; ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in now
        if before.get(name) != now.get(name)
    )


def target(out: str, to: str | None) -> Target:
    """Return the target that OUT and --to mean together.

    Raises:
        UserError: the container is not known, not said, or the two do not fit.
    """
    if to is not None and to not in CONTAINERS:
        raise UserError(f"--to {to!r} is no container rankup writes; {nearest(to, CONTAINERS)}")
    path = user_path(out, "OUT")
    # Not resolved: where OUT is a link to elsewhere, it is refused as something that exists.
    path = Path(os.path.abspath(path))
    if not path.name:
        raise UserError(f"OUT {out!r} has no name; give the file or folder to be made")
    too_long = len(os.fsencode(path.name)) + _BESIDE - _LONGEST
    if too_long > 0:
        raise UserError(
            f"OUT {path.name[:40]!r}... is {too_long} bytes too long: what belongs to it has a "
            f"longer name, and {_LONGEST} bytes is the most; choose a shorter one"
        )
    suffix = path.suffix.lower()
    if suffix in _FOLDERS:
        kind, plain = _FOLDERS[suffix], path.with_suffix("").name
        raise UserError(
            f"OUT {out!r}: {kind} is written as a folder with a {suffix} file per split"
            f"{' and shard' if kind == 'tar' else ''}; name that folder: {plain} --to {kind}"
        )
    said = _SUFFIXES.get(suffix)
    if to is None and said is None:
        raise UserError(
            f"OUT {out!r} does not say which container to write: end its name with .h5 or .sqsh, "
            f"or add --to {', '.join(CONTAINERS[:-1])} or {CONTAINERS[-1]}"
        )
    if to is not None and said is not None and to != said:
        raise UserError(f"OUT {out!r} is named as {said}, and --to says {to}; change one of them")
    container = to or said or ""
    if out.endswith("/") and container in ("hdf5", "squashfs"):
        raise UserError(f"OUT {out!r} is a folder, and {container} is one file; name the file")
    return Target(path, container)


def bytes_of(text: str, option: str) -> int:
    """A size that people write: `64MB`, `1.5 GiB`, `1000000`.

    Raises:
        UserError: it is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if not match or (match[3] and not match[2]):
        raise UserError(f"{option} {text!r} is no size; write it as 512MB, 1GB or 2GiB")
    return int(float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2]])


def checked(request: Request, container: str) -> None:
    """Look at what needs no source.

    Args:
        container: that OUT will be.

    Raises:
        UserError: an option has a value that cannot be.
    """
    if request.bad not in BAD:
        raise UserError(f"--bad {request.bad!r}: {nearest(request.bad, BAD)}")
    if request.preset is not None and request.preset not in PRESETS:
        raise UserError(f"--preset {request.preset!r}: {nearest(request.preset, PRESETS)}")
    if request.resize is not None and request.resize < 1:
        raise UserError(f"--resize {request.resize}: the shorter side has at least 1 pixel")
    if request.workers is not None and request.workers < 1:
        raise UserError(f"--workers {request.workers}: at least 1")
    if bytes_of(request.shard_size, "--shard-size") < 1 << 20:
        raise UserError(f"--shard-size {request.shard_size!r} is too small; at least 1MiB")
    if request.shard_size != Request.shard_size and container != "tar":
        raise UserError(f"--shard-size is for a tar, and OUT is to be {container}; leave it away")
    if _URL.match(request.source):
        raise UserError(
            f"SOURCE {request.source!r} is a URL, and pack reads files: `rankup fetch --url` "
            "brings it here first"
        )
    if not request.split or "/" in request.split or request.split in (".", ".."):
        raise UserError(f"--split {request.split!r} cannot be the name of a split")
