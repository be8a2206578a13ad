"""The request of a pack: its options, the container that OUT's name stands for, its Slurm task."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.amounts import bytes_of
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
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


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
class Step:
    """The tasks that `srun -n N rankup pack` has started together, which share the units.

    They meet by `begun.json`: the first one scans and writes it, the others wait for one that
    names their step. That one which has failed ends all is for srun (`--kill-on-bad-exit`).

    Attributes:
        task, tasks: this one's number, and how many there are.
        name: of the step; another one where a job starts again.
    """

    task: int = 0
    tasks: int = 1
    name: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Step:
        """Return the step of this process; one of a single task where there is none.

        Only srun sets these variables, for each of its steps; in a batch script they are those of
        no step.
        """
        try:
            task, tasks = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
            name = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
        except (KeyError, ValueError):
            return cls()
        if tasks < 2 or not 0 <= task < tasks:
            return cls()
        # A job that starts again has the same numbers, and not everywhere counts its starts.
        again = [environ.get(f"SLURM_{one}", "") for one in ("RESTART_COUNT", "JOB_START_TIME")]
        return cls(task, tasks, ".".join([name, *again]))


def asked(request: Request, container: str) -> dict[str, Any]:
    """Return what decides the bytes of a pack; a pack is resumed with the same only."""
    return {
        "SOURCE": os.path.abspath(request.source),
        "--to": container,
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


def target(out: str, to: str | None) -> tuple[Path, str]:
    """Return the absolute path and the container that OUT and --to mean together.

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
    return path, container


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
