"""Scans a file from elsewhere where its crash, its hunger and its endlessness do no harm.

HDF5 and Arrow are C and C++ libraries, and a damaged file can bring them down. A child process
looks at it first and leaves an index, which is checked like any other.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.files import write_json
from ...base.processes import die_with, end_group
from ...base.text import clean
from .. import indexes
from ..errors import BadContainer
from ..index import Index
from . import FORMATS, Choice, module

SECONDS_VARIABLE = "RANKUP_SCAN_SECONDS"
_SLOWEST = 50e6  # bytes per second: Parquet is read through to learn the lengths of its values
_SAID = 2000  # characters of stderr that go into an error


def scan(
    name: str,
    path: Path,
    choice: Choice,
    *,
    seconds: float | None = None,
    memory: int = 16 << 30,
) -> Index:
    """Return the index of a container, made in a child where a C library has to look at it.

    Args:
        seconds: of wall time that it may take; None: `$RANKUP_SCAN_SECONDS`, else 300 and what the
            size asks for.
        memory: bytes of its own that it may use, without the files that it maps.

    Raises:
        BadContainer: it is damaged or hostile; or the child crashed, hung or wanted too much.
        UserError: what `choice` names is not in it.
        OSError: it cannot be read.
    """
    if not FORMATS[name].child:
        return module(name).scan(path, choice)
    seconds = _seconds(path) if seconds is None else seconds
    with tempfile.TemporaryDirectory(prefix="rankup-scan-") as folder:
        out, report = Path(folder) / "index.npz", Path(folder) / "report.json"
        request = {
            "name": name,
            "path": str(path.absolute()),
            "choice": asdict(choice),
            "out": str(out),
            "report": str(report),
            "seconds": seconds,
            "memory": memory,
            "parent": os.getpid(),
        }
        code, words = _run(request, seconds)
        found: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            found = json.loads(report.read_bytes())
        if code == 0 and not found:
            return indexes.load(out)  # mapped: it stays when the folder goes
    kind, args = found.get("kind"), found.get("args", [])
    for known in (BadContainer, UserError, OSError):
        if kind == known.__name__:
            raise known(*args)
    raise BadContainer(_why(code, name, path, seconds, words))


def _run(request: dict[str, Any], seconds: float) -> tuple[int | None, str]:
    """Exit code (None: it took too long), and the end of its stderr."""
    # The modules that this process has, and none from the folder that it was started in.
    ours = os.pathsep.join(os.path.abspath(one) for one in sys.path if one)
    program = f"from {__name__} import _child; _child()"
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(request)],
            cwd="/",
            env={**os.environ, "PYTHONPATH": ours, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
        code: int | None
        try:
            # It ends itself at its time; this is for one that cannot.
            code = process.wait(seconds + 5)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _SAID))
        return code, errors.read().decode(errors="replace").strip()


def _why(code: int | None, name: str, path: Path, seconds: float, words: str) -> str:
    if code is None or code == -signal.SIGALRM:
        return (
            f"{path} was not understood within {seconds:g} s (as {name}); set ${SECONDS_VARIABLE} "
            f"if it needs longer, else it is damaged"
        )
    end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = "\n".join(clean(line) for line in words.splitlines()[-8:])
    what = (
        f"{path} cannot be opened: reading it as {name} brought down the process that tried "
        f"({end}), so that it is damaged or hostile"
    )
    return f"{what}; its last words:\n{last}" if last else what


def _seconds(path: Path) -> float:
    asked = os.environ.get(SECONDS_VARIABLE)
    if asked:
        try:
            seconds = float(asked)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 1e9:
            raise UserError(f"${SECONDS_VARIABLE} is {asked!r}; it should be a number of seconds")
        return seconds
    files = (one for one in path.rglob("*") if one.is_file()) if path.is_dir() else (path,)
    return 300 + sum(one.stat().st_size for one in files) / _SLOWEST


def _child() -> None:
    """In the child: scan within bounds; write the index, or why there is none."""
    request = json.loads(sys.argv[1])
    # The parent may be killed at any moment, and what hangs in C sees no exception.
    die_with(request["parent"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Its own memory, unlike the address space, does not count the files that it maps.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = request["memory"] if hard == resource.RLIM_INFINITY else min(request["memory"], hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    choice = Choice(**{**request["choice"], "fields": tuple(request["choice"]["fields"])})
    path = Path(request["path"])
    try:
        indexes.save(module(request["name"]).scan(path, choice), Path(request["out"]))
    except Exception as error:
        kind, args = _reported(error, path, request)
        write_json(Path(request["report"]), {"kind": kind, "args": args})


def _reported(error: Exception, path: Path, request: dict[str, Any]) -> tuple[str, list[Any]]:
    if isinstance(error, UserError):
        kind = BadContainer if isinstance(error, BadContainer) else UserError
        return kind.__name__, [str(error)]
    if isinstance(error, MemoryError):
        wanted = f"{path} wants more than {request['memory'] >> 20} MiB to be understood"
        return BadContainer.__name__, [f"{wanted}: it is damaged or hostile"]
    if isinstance(error, OSError) and error.errno is not None:
        return OSError.__name__, [error.errno, error.strerror, str(error.filename or path)]
    what = f"{type(error).__name__}: {error}"
    why = f"{path} cannot be read as {request['name']}: it is damaged ({what})"
    return BadContainer.__name__, [why]
