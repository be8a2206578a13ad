"""`rankup stage`, from the words of the command line to its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ...base.amounts import size, some
from ...base.errors import EXIT_FAILED, RunFailed, UserError
from ...base.files import user_path
from ...base.signals import ended_as_an_exception
from ...base.text import say
from ..inspect.printing import safe
from ..pack.progress import duration
from ..pack.request import bytes_of
from . import choosing, copying, core, keeping, users
from .copying import Fill
from .core import Staged
from .users import Alive, Job


@dataclass(frozen=True)
class Request:
    """The words of `rankup stage`, as they were given."""

    files: tuple[str, ...]
    to: str | None = None
    fraction: float = 1.0
    reserve: str | None = None
    release: bool = False
    clean: bool = False
    listing: bool = False
    mount: bool = False
    broadcast: bool = False
    as_json: bool = False


def stage(request: Request, alive: Alive) -> int:
    """Do what was asked for, and give the exit code: 1 where a copy could not be made now.

    Args:
        alive: tells whether a job of Slurm lives.

    Raises:
        UserError: the words do not make sense, or a copy cannot be made as asked.
        OSError: the machine cannot read or write it.
    """
    _sensible(request)
    # Outside of a job of Slurm a copy is for the shell or script that this command stands in.
    job = users.current(os.environ, users.starter())
    try:
        if request.release:
            return _release(request, job)
        if request.clean:
            return _clean(request, alive)
        if request.listing:
            return _list(request, alive)
        if request.mount:
            return _mount(request, job)
        with ended_as_an_exception():
            return _stage(request, job, alive)
    except RunFailed as error:
        say(str(error))
        return EXIT_FAILED


def _sensible(request: Request) -> None:
    verbs = {
        "--release": request.release,
        "--clean": request.clean,
        "--list": request.listing,
        "--mount": request.mount,
        "--broadcast": request.broadcast,
    }
    said = [name for name, given in verbs.items() if given]
    if len(said) > 1:
        raise UserError(f"{' and '.join(said)} are different things: give one of them")
    if not request.files and not (request.release or request.clean or request.listing):
        raise UserError("name the FILE to be staged; or --list, --release or --clean")
    if request.files and (request.clean or request.listing):
        raise UserError(
            f"{said[0]} is about all copies on this node: leave away {request.files[0]}"
        )


def _stage(request: Request, job: Job, alive: Alive) -> int:
    reserve = None if request.reserve is None else bytes_of(request.reserve, "--reserve")
    to = None if request.to is None else user_path(request.to, "--to")
    # In a job's script `rankup run` has put it, whose options people then have to change.
    options = choosing.OF_RUN if os.environ.get("RANKUP_RUN_DIR") else choosing.OWN
    done = []
    for name in request.files:
        with _fill(request, name) as fill:
            staged = core.stage(
                user_path(name, "FILE"),
                to=to,
                fraction=request.fraction,
                reserve=reserve,
                job=job,
                alive=alive,
                fill=fill,
                options=options,
                quiet=request.as_json,
            )
        done.append(_about(staged))
        if not request.as_json:
            _print(_words(staged, name))
    if request.as_json:
        print(json.dumps(done, indent=2))
    return 0


def _fill(request: Request, name: str) -> AbstractContextManager[Fill]:
    if not request.broadcast:
        return nullcontext(copying.fill)
    from . import broadcast

    return broadcast.together(user_path(name, "FILE"), os.environ, say)


def _about(staged: Staged) -> dict[str, Any]:
    return {
        "source": str(staged.source),
        "path": str(staged.path),
        "size": staged.size,
        "total": staged.total,
        "seconds": round(staged.seconds, 3),
        "shared": staged.shared,
        "checked": staged.checked,
    }


def _words(staged: Staged, name: str) -> str:
    amount = size(staged.size)
    if staged.size < staged.total:
        amount += f" of {size(staged.total)} (the rest is read from where it is)"
    if staged.shared:
        return f"{name}: {amount}, was there already: {staged.path}"
    speed = f" ({size(staged.size / staged.seconds)}/s)" if staged.seconds > 0 else ""
    how = "each sample has the bytes that were packed"
    if not staged.checked:
        how = "there were no hashes to compare it with (`rankup pack` writes them)"
    return f"{name}: {amount} in {duration(staged.seconds)}{speed}; {how}: {staged.path}"


def _mount(request: Request, job: Job) -> int:
    from . import mount

    where = None if request.to is None else user_path(request.to, "--to")
    for name in request.files:
        mounted = mount.mount(user_path(name, "FILE"), where=where, job=job, say=say)
        print(mounted.point)
    return 0


def _release(request: Request, job: Job) -> int:
    paths = [user_path(name, "FILE") for name in request.files] or None
    done = core.release(job, paths)
    return _told(done, request, f"{users.shown(job)} has nothing staged here")


def _clean(request: Request, alive: Alive) -> int:
    to = None if request.to is None else user_path(request.to, "--to")
    return _told(core.clean(alive, to=to), request, "nothing was left behind here")


def _told(done: Sequence[str], request: Request, nothing: str) -> int:
    if request.as_json:
        print(json.dumps({"done": list(done)}, indent=2))
    else:
        for line in done or [nothing]:
            _print(line)
    return 0


def _list(request: Request, alive: Alive) -> int:
    from . import mount

    copies = keeping.listed(alive)
    mounts = mount.listed()
    if request.as_json:
        print(json.dumps({"copies": copies, "mounts": mounts}, indent=2))
        return 0
    for line in [*map(_row, copies), *mounts] or ["nothing is staged on this node"]:
        _print(line)
    return 0


def _row(copy: Mapping[str, Any]) -> str:
    amount = size(copy["size"])
    if copy.get("total") not in (None, copy["size"]):
        amount += f" of {size(copy['total'])}"
    using = f"used by {some(copy['users'])}" if copy["users"] else "used by nobody"
    gone = f", left by {some(copy['gone'])}" if copy["gone"] else ""
    return f"{copy['source']}: {copy['state']}, {amount}, {using}{gone}: {copy['path']}"


def _print(line: str) -> None:
    print(safe(line), flush=True)
