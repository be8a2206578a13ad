"""`rankup stage`, from the words of the command line to its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.amounts import bytes_of, duration, size
from ...base.errors import EXIT_FAILED, RunFailed, UserError
from ...base.files import user_path
from ...base.processes import ended_as_an_exception
from ...base.text import say
from ..inspect.printing import safe
from ..tokenize.folder import is_one as is_tokens
from . import mount, place, staging
from .place import Copy


@dataclass(frozen=True)
class Request:
    """The words of `rankup stage`, as they were given."""

    files: tuple[str, ...]
    to: str | None = None
    reserve: str | None = None
    release: bool = False
    listing: bool = False
    mount: bool = False
    sent: bool = False
    as_json: bool = False


def stage(request: Request) -> int:
    """Do what was asked for, and give the exit code: 1 where a copy could not be made now.

    Raises:
        UserError: the words do not make sense, or a copy cannot be made as asked.
        OSError: the machine cannot read or write it.
    """
    _sensible(request)
    to = None if request.to is None else user_path(request.to, "--to").absolute()
    paths = [user_path(name, "FILE") for name in request.files]
    job = place.current(os.environ)
    try:
        if request.release:
            done = staging.release(job, paths or None, to=to)
            return _show(done, request, f"{place.shown(job)} has nothing staged here")
        if request.listing:
            return _list(request, to)
        if request.mount:
            for path in paths:
                print(mount.mount(path, to=to))
            return 0
        with ended_as_an_exception():
            return _stage(request, paths, to)
    except RunFailed as error:
        say(str(error))
        return EXIT_FAILED


def _sensible(request: Request) -> None:
    verbs = {
        "--release": request.release,
        "--list": request.listing,
        "--mount": request.mount,
    }
    said = [name for name, given in verbs.items() if given]
    if len(said) > 1:
        raise UserError(f"{' and '.join(said)} are different things: give one of them")
    if not request.files and not (request.release or request.listing):
        raise UserError("name the FILE to be staged; or --list or --release")
    if request.files and request.listing:
        raise UserError(f"--list is about all copies on this node: leave away {request.files[0]}")


def _stage(request: Request, paths: Sequence[Path], to: Path | None) -> int:
    reserve = None if request.reserve is None else bytes_of(request.reserve, "--reserve")
    # In a job's script `rankup run` has put it, whose options people then have to change.
    prefix = "--stage-" if os.environ.get("RANKUP_RUN_DIR") else "--"
    done = []
    for number, (name, path) in enumerate(zip(request.files, paths, strict=True)):
        copy = staging.stage(
            path,
            to=to,
            reserve=reserve,
            sent=number if request.sent else None,
            prefix=prefix,
            quiet=request.as_json,
        )
        done.append(copy)
        if not request.as_json:
            _print(_words(copy, name))
    if request.as_json:
        print(json.dumps(list(map(_about, done)), indent=2))
    if to is not None and to not in place.bases(os.environ):
        say(f"set {place.VARIABLE}={to} where it is opened: copies are looked for there alone")
    return 0


def _about(copy: Copy) -> dict[str, Any]:
    return {
        "source": str(copy.source),
        "path": str(copy.root),
        "size": copy.size,
        "seconds": round(copy.seconds, 3),
        "shared": copy.shared,
        "checked": copy.checked,
    }


def _words(copy: Copy, name: str) -> str:
    if copy.shared:
        return f"{name}: {size(copy.size)}, was there already: {copy.root}"
    how = "each sample has the bytes that were packed"
    if is_tokens(copy.root):
        how = "each shard has the tokens that were written"
    elif not copy.checked:
        how = "there were no hashes to compare it with (`rankup pack` writes them)"
    return (
        f"{name}: {size(copy.size)} in {duration(copy.seconds)} "
        f"({size(copy.size / copy.seconds)}/s); {how}: {copy.root}"
    )


def _show(done: Sequence[str], request: Request, nothing: str) -> int:
    if request.as_json:
        print(json.dumps({"done": list(done)}, indent=2))
    else:
        for line in done or [nothing]:
            _print(line)
    return 0


def _list(request: Request, to: Path | None) -> int:
    copies = staging.listed(to=to)
    points = [point for root in place.roots(os.environ, to) for point in mount.below(root)]
    if request.as_json:
        print(json.dumps({"copies": copies, "mounts": list(map(str, points))}, indent=2))
        return 0
    mounted = (f"{point}: a mounted image" for point in points)
    for line in [*map(_row, copies), *mounted] or ["nothing is staged on this node"]:
        _print(line)
    return 0


def _row(copy: Mapping[str, Any]) -> str:
    return f"{copy['source']}: {copy['state']}, {size(copy['size'])}, {copy['job']}: {copy['path']}"


def _print(line: str) -> None:
    print(safe(line), flush=True)
