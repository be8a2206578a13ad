"""The index of what lies at a path: a pack has its own, one of other data is kept or made.

HDF5 and Arrow are C and C++ libraries, and a damaged file can bring them down. Where their crash,
hunger or endlessness could do harm, a child process looks at a file from elsewhere first and leaves
an index, which is checked like any other.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from .. import __version__
from ..base.errors import UserError
from ..base.files import write_json
from ..base.processes import die_with, end_group
from ..base.text import clean
from . import indexes, keys, stamp
from .containers import FORMATS, Choice, detect, module
from .errors import BadContainer
from .index import Index
from .stamp import Look

_ENTRIES = 64
_BYTES = 2 << 30
# A file changed again within this many seconds may have the same time after it as before.
_SETTLED = 2.0
_LEFT_BEHIND = 86400.0  # seconds after which the temporary file of a killed writer goes
_SEEN = "seen"
SECONDS_VARIABLE = "RANKUP_SCAN_SECONDS"
_SLOWEST = 50e6  # bytes per second: Parquet is read through to learn the lengths of its values
_SAID = 2000  # characters of stderr that go into an error


@dataclass(frozen=True)
class Found:
    """An index, and where another process finds it.

    Attributes:
        lasting: it is found without a scan.
        kept: the file in rankup's cache that it is kept in; None for that of a pack.
    """

    index: Index
    lasting: bool
    kept: Path | None = None


def found(root: Path, choice: Choice, copy: Path | None = None) -> Found:
    """The index of a pack, or of other data.

    Args:
        copy: the same bytes nearer by, where a scan reads them.

    Raises:
        BadContainer, UserError, OSError: see `opened.open`.
    """
    own = fitting(root)
    if own is not None:
        if choice != Choice():
            raise UserError(f"{root} was packed by rankup: `choice` is for data of others")
        return Found(own, True)
    name = detect.detect(root if copy is None else copy)
    folder = _folder()
    at = _entry(root, choice, folder) if folder is not None else None
    index = _kept(root, name, at) if at is not None else None
    if index is not None:
        return Found(index, True, at)
    seen = stamp.tree(root, name)
    index = scan(name, root if copy is None else copy, choice)
    saved = _keep(index, root, seen, at) if at is not None else None
    return Found(saved or index, saved is not None, at if saved is not None else None)


def fitting(root: Path) -> Index | None:
    """The index that a pack has; None of other data.

    Raises:
        BadContainer: the index is damaged or hostile, or the pack is not what it says.
        UserError: the pack may not be read.
    """
    index = packed(root)
    why = stamp.unfit(index, root) if index is not None else ""
    if why:
        raise BadContainer(
            f"{root} is not what its index describes: {why}: it was changed or cut short since it "
            f"was packed; restore both it and {indexes.place(root)}, or pack the source again"
        )
    return index


def packed(root: Path) -> Index | None:
    """The index that a pack has, whether or not its data is still what it says.

    Raises:
        BadContainer: it is damaged or hostile.
    """
    beside = indexes.place(root)
    if not beside.is_file() or root.name.endswith(detect.PART):
        return None
    index = indexes.load(beside)
    if index.container not in FORMATS:
        raise BadContainer(f"{beside} is of a container {index.container!r}, which is not known")
    stray = indexes.stray(index, root)
    if stray is not None:
        raise BadContainer(
            f"{beside} names a file {keys.shown(stray)}, which is none of a pack: it is damaged"
        )
    return index


def _folder() -> Path | None:
    """Return where indexes are kept; None where rankup's cache is not known."""
    # A pack needs no settings of the site, and starts sooner without their modules.
    from ..site import caches, config
    from ..site import profile as sites

    try:
        settings, _ = config.for_views(Path.cwd())
        profile, _ = sites.choose(settings)
        return caches.caches(settings, profile, os.environ).own / "indexes"
    except (UserError, OSError, KeyError, RuntimeError):  # also: a user without a name or a home
        return None


def _entry(path: Path, choice: Choice, folder: Path) -> Path:
    """Return the file in which the index of a file or folder is kept."""
    what = repr((str(path.resolve()), choice, __version__, indexes.VERSION))
    return folder / f"{xxhash.xxh3_128_hexdigest(what.encode(errors='surrogateescape'))}.npz"


def _kept(path: Path, container: str, entry: Path) -> Index | None:
    """Return the index kept for a file or folder; None without one, or if either has changed.

    Args:
        container: what it is, which the index has to say too.
    """
    try:
        index = indexes.load(entry)
        # A cache may be shared; what is in it is believed no more than the index of a pack.
        if index.container != container or indexes.stray(index, path) is not None:
            return None
        seen = [Look(*one) for one in index.facts.get(_SEEN, [])]
        if not seen or stamp.changed(seen, path):
            return None
        os.utime(entry)  # the one not used for longest goes first
    except (OSError, BadContainer, TypeError, ValueError):
        return None
    return index


def _keep(index: Index, path: Path, seen: list[Look], entry: Path) -> Index | None:
    """Keep an index; return the kept one, mapped, or None where it cannot be kept.

    Args:
        path: of what it is the index.
        seen: `stamp.tree(path, …)` from before the index was made.
    """
    if not seen or time.time() - max(one.time for one in seen) / 1e9 < _SETTLED:
        return None
    try:
        if indexes.stray(index, path) is not None:  # it would not be found
            return None
        entry.parent.mkdir(parents=True, exist_ok=True)
        indexes.save(replace(index, facts={**index.facts, _SEEN: [list(s) for s in seen]}), entry)
        kept = indexes.load(entry)
        _prune(entry.parent)
    except (OSError, BadContainer):
        return None  # no space, no quota: then it is scanned again
    return kept


def _prune(at: Path) -> None:
    entries = []
    for path in at.iterdir():
        with suppress(OSError):
            about = path.stat()
            if path.suffix == ".npz":
                entries.append((about.st_mtime, about.st_size, path))
            elif time.time() - about.st_mtime > _LEFT_BEHIND:
                path.unlink()
    total = 0
    for number, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        total += size
        if number >= _ENTRIES or (number and total > _BYTES):
            path.unlink(missing_ok=True)


def scan(
    name: str,
    path: Path,
    choice: Choice,
    *,
    seconds: float | None = None,
    memory: int = 16 << 30,
) -> Index:
    """Return the index of a container, made in a child where a C library has to look at it.

    Its splits have plain names, see `keys.split_names`.

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
        return _plainly(module(name).scan(path, choice), choice)
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
            # Mapped: it stays when the folder goes.
            return _plainly(indexes.load(out), choice)
    kind, args = found.get("kind"), found.get("args", [])
    for known in (BadContainer, UserError, OSError):
        if kind == known.__name__:
            raise known(*args)
    raise BadContainer(_why(code, name, path, seconds, words))


def _plainly(index: Index, choice: Choice) -> Index:
    names = keys.split_names([one.name for one in index.splits], choice.split)
    pairs = zip(index.splits, names, strict=True)
    return replace(index, splits=tuple(replace(one, name=name) for one, name in pairs))


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
