"""Scans a file from elsewhere where its crash, its hunger and its endlessness do no harm.

HDF5 and Arrow are C and C++ libraries, and a damaged file can bring them down. A child process
looks at it first and leaves an index, which is checked like any other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.processes import end_group
from ...base.text import clean
from .. import indexes
from ..errors import BadContainer
from ..index import Index
from . import Choice, module

# These are read by Python code alone, which raises where C would crash.
IN_PROCESS = frozenset({"files", "tar", "zip", "numpy"})
SECONDS_VARIABLE = "RANKUP_SCAN_SECONDS"
_SLOWEST = 50e6  # bytes per second: Parquet is read through to learn the lengths of its values
_SAID = 2000  # characters of stderr that go into an error


@dataclass(frozen=True)
class Bounds:
    """What a scan may use.

    Attributes:
        seconds: of wall time; None: `$RANKUP_SCAN_SECONDS`, else 300 and what the size asks for.
        memory: bytes of its own, without the files that it maps.
    """

    seconds: float | None = None
    memory: int = 16 << 30


def scan(name: str, path: Path, choice: Choice, bounds: Bounds | None = None) -> Index:
    """The index of a container, made in a child process where a C library has to look at it.

    Raises:
        BadContainer: it is damaged or hostile; or the child crashed, hung or wanted too much.
        UserError: what `choice` names is not in it.
        OSError: it cannot be read.
    """
    if name in IN_PROCESS:
        return module(name).scan(path, choice)
    bounds = bounds or Bounds()
    seconds = bounds.seconds if bounds.seconds is not None else _seconds(path)
    with tempfile.TemporaryDirectory(prefix="rankup-scan-") as folder:
        out = Path(folder) / "index.npz"
        code, said, words = _run(name, path, choice, out, seconds, bounds.memory)
        if code == 0 and not said:
            return indexes.load(out)  # mapped: it stays when the folder goes
    _raise(said)
    raise BadContainer(_why(code, name, path, seconds, words))


def _run(
    name: str, path: Path, choice: Choice, out: Path, seconds: float, memory: int
) -> tuple[int | None, dict[str, Any], str]:
    """Exit code (None: it took too long), what it reported, the end of its stderr."""
    request = {
        "name": name,
        "path": str(path.absolute()),
        "choice": asdict(choice),
        "out": str(out),
        "seconds": seconds,
        "memory": memory,
        "parent": os.getpid(),
    }
    child = f"{__package__}.isolated_child"
    # The modules that this process has, and none from the folder that it was started in.
    ours = os.pathsep.join(os.path.abspath(one) for one in sys.path if one)
    report = out.with_name("report.json")
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", child, json.dumps(request), str(report)],
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
        words = errors.read().decode(errors="replace").strip()
    said: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        said = json.loads(report.read_bytes())
    return code, said, words


def _raise(said: dict[str, Any]) -> None:
    message = str(said.get("message", ""))
    kind = said.get("kind")
    if kind == "BadContainer":
        raise BadContainer(message)
    if kind == "UserError":
        raise UserError(message)
    if kind == "OSError":
        raise OSError(said.get("errno"), said.get("strerror"), said.get("filename"))


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
