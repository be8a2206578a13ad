"""The child that `isolated.scan` starts: one scan, within bounds, its index or its error a file."""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.files import write_json
from ...base.processes import die_with
from .. import indexes
from ..errors import BadContainer
from . import Choice, module


def main(request: dict[str, Any], report: Path) -> None:
    """Scan what is asked for; write the index, or to `report` why not."""
    _bound(request["seconds"], request["memory"], request["parent"])
    choice = Choice(**{**request["choice"], "fields": tuple(request["choice"]["fields"])})
    path = Path(request["path"])
    try:
        indexes.save(module(request["name"]).scan(path, choice), Path(request["out"]))
    except Exception as error:
        write_json(report, _told(error, path, request))


def _told(error: Exception, path: Path, request: dict[str, Any]) -> dict[str, Any]:
    if isinstance(error, BadContainer):
        return {"kind": "BadContainer", "message": str(error)}
    if isinstance(error, UserError):
        return {"kind": "UserError", "message": str(error)}
    if isinstance(error, MemoryError):
        wanted = f"{path} wants more than {request['memory'] >> 20} MiB to be understood"
        return {"kind": "BadContainer", "message": f"{wanted}: it is damaged or hostile"}
    if isinstance(error, OSError) and error.errno is not None:
        names = {"strerror": error.strerror, "filename": str(error.filename or path)}
        return {"kind": "OSError", "errno": error.errno, **names}
    what = f"{type(error).__name__}: {error}"
    why = f"{path} cannot be read as {request['name']}: it is damaged ({what})"
    return {"kind": "BadContainer", "message": why}


def _bound(seconds: float, memory: int, parent: int) -> None:
    # The parent may be killed at any moment, and what hangs in C sees no exception.
    die_with(parent)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Its own memory, unlike the address space, does not count the files that it maps.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
