"""The needs of a job: its Python, what was fetched, a script that is ready for many ranks.

It is looked for before the job starts, and the job is told where it is.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..base.errors import UserError
from ..base.findings import Finding
from ..base.text import clean
from ..login import record
from ..login.record import Record
from ..script.arguments import refused
from ..script.downloads import Download, read
from ..site.config import Config
from ..site.rundir import Job

SYNTAX = "RK100"
_LINES = 4  # of findings; `rankup check` has them all
_MOST_NAMED = 3
_MOST_PLACES = 20
# What bash or Slurm sets itself; a record that is told so was written by somebody else.
_NAME = re.compile(
    r"(?!(SLURM|RANKUP|BASH)_|(PATH|IFS|UID|EUID|PPID|SHELLOPTS|BASHOPTS)$)[A-Za-z_][A-Za-z0-9_]*"
)
_PLAIN = re.compile(r"[\w./:@%+=,-]+")
_GET_TORCH = "load your site's PyTorch module, or pip install 'rankup[train]'"
# The current folder is no place to find it in: a script's ranks do not look there.
_LOOK = (
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; "
    "spec = u.find_spec('torch'); print(bool(spec and spec.origin))"
)


@dataclass(frozen=True)
class Fetched:
    """The things that were fetched for a job.

    Attributes:
        variables: where the caches are.
        offline: what tells the libraries that were used that there is no network.
        places: where the parts lie that are there, by name.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    offline: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Path] = field(default_factory=dict)

    def folders(self) -> list[str]:
        """The caches and the parts' own folders, for those who have to mount them."""
        parts = [path if path.is_dir() else path.parent for path in self.places.values()]
        found = [*self.variables.values(), *map(str, parts)]
        return list(dict.fromkeys(text for text in found if os.path.isabs(text)))


def fetched(project: Path, job: Job, *, with_network: bool) -> Fetched:
    """Return what a job is given, by the records of things fetched by name and of its script.

    Args:
        with_network: the job could still fetch; then only a proof with just its arguments is reason
            enough to forbid it that.
    """
    known = record.read(*_folders(project, job))
    by_name = [one for one in known if not one.key.startswith("script:")]
    own, exact = _of(project, job)
    used = [*sorted(by_name, key=lambda one: one.at), *([own] if own else [])]
    proved = own is not None and exact and own.proved
    told = used if not with_network else [own] if own and proved else []
    return Fetched(
        _merged(one.variables for one in used),
        {k: v for k, v in _merged(one.offline for one in told).items() if _PLAIN.fullmatch(v)},
        _places(used),
    )


def require(config: Config, job: Job, internet: bool | None, *, allow_missing: bool) -> list[str]:
    """Refuse a job that would not find what it needs; what there is to say otherwise, in lines.

    What `rankup.toml` lists has to be there always, what the script fetched only where the nodes
    are not known to have `internet`.

    Raises:
        UserError: what is missing, and what fetches it; with `allow_missing` that is a warning.
    """
    project = config.project(Path.cwd())
    own, exact = _of(project, job)
    listed = record.unmet(config)
    missing = [str(one) for one in listed]
    # What rankup.toml lists is said once.
    known = own is not None and own.key in {one.key for one in listed}
    if own is not None and internet is not True and not known:
        missing += [f"{why}; {command(job)}" for why in own.faults()]
    missing = list(dict.fromkeys(missing))
    if missing and not allow_missing:
        lines = "".join(f"\n  - {clean(line)}" for line in missing)
        raise UserError(
            f"the job would not find all that it needs:{lines}\n"
            "Fetch it on a login node, or run the job without it by --allow-missing"
        )
    said = [f"warning: {line}" for line in missing]
    if job.kind == "script":
        said += [] if known else _doubts(project, job, own, exact, internet)
    return [clean(line) for line in said]


def _doubts(
    project: Path, job: Job, own: Record | None, exact: bool, internet: bool | None
) -> Iterator[str]:
    """Yield what is no reason to refuse the job, and may end it all the same."""
    if own is None:
        if internet is False:
            yield from _unfetched(project, job, "nothing was fetched for this script")
        return
    if not exact:
        yield (
            f"note: {Path(job.target).name} was fetched with other arguments; what these need "
            f"besides, `{command(job)}` brings"
        )
    if internet is True:
        return
    for why in own.doubts():
        yield f"warning: {Path(job.target).name}: {why}; {command(job)}"
    if own.proof == "none" and not own.items and internet is False:
        yield from _unfetched(project, job, "so nothing was fetched for this script")


def command(job: Job) -> str:
    """Return the command that fetches for a script, as it is typed in the job's folder."""
    target = os.path.relpath(job.target, job.cwd)
    return record.command_line(
        ["rankup", "fetch", job.target if target.startswith("..") else target, *job.args]
    )


def elsewhere(
    variables: Mapping[str, str], environment: Mapping[str, str], said: Mapping[str, str]
) -> list[str]:
    """Return notes on caches that the environment has elsewhere than what was fetched.

    Args:
        said: what the user gives the job, which holds.
    """
    return [
        clean(
            f"note: {name} is {environment[name]} here; what was fetched lies in {value}, so that "
            "is what the job gets"
        )
        for name, value in variables.items()
        if name not in said and environment.get(name, value) != value
    ]


def _of(project: Path, job: Job) -> tuple[Record | None, bool]:
    if job.kind != "script":
        return None, False
    return record.of_script(project, Path(job.target), tuple(job.args))


def _folders(project: Path, job: Job) -> tuple[Path, ...]:
    """Return the folders that may have records for this job."""
    return record.folders(project, Path(job.target)) if job.kind == "script" else (project,)


def _places(used: Iterable[Record]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    items = (item for one in used for item in one.items if not item.missing())
    for item in itertools.islice(items, _MOST_PLACES):
        found[item.path if item.name in found else item.name] = Path(item.path)
    return found


def _unfetched(project: Path, job: Job, why: str) -> Iterator[str]:
    """Warnings of what a script fetches by reading it, which may have been fetched otherwise."""
    try:
        found = read(Path(job.target), tuple(job.args), Path(job.cwd)).downloads
    except UserError as error:
        yield f"warning: {error}"
        return
    keys = {one.key for one in record.read(*_folders(project, job))}
    wanted = [one for one in found if not _has(keys, one)]
    if not wanted:
        return
    yield f"warning: {why}, and the nodes have no internet. It wants:"
    yield from (f"  {_line(one, job)}" for one in wanted[:_MOST_NAMED])
    if len(wanted) > _MOST_NAMED:
        yield f"  and {len(wanted) - _MOST_NAMED} more (`rankup fetch --no-run` lists them)"
    yield f"  If that is not here yet: {command(job)}"


def _has(keys: set[str], one: Download) -> bool:
    """Return True if it was fetched by name, at its revision or, without one, at any."""
    key = f"{one.what}:{one.wanted}"
    return any(known == key or (not one.revision and known.startswith(f"{key}@")) for known in keys)


def _line(one: Download, job: Job) -> str:
    file = os.path.relpath(one.file, job.cwd)
    return f"{one.wanted or one.why} ({one.how}, {file}:{one.line})"


def _merged(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The tables laid over each other, without what no job script could set."""
    return {
        name: value
        for table in tables
        for name, value in table.items()
        if isinstance(value, str) and _NAME.fullmatch(name) and value.isprintable()
    }


def before_submit(kind: str, target: str, ranks: int, wanted: bool) -> list[str]:
    """Return what to say about a job's script on so many ranks.

    Raises:
        UserError: Python cannot read it, so the job would end at once; or many ranks would do
            something wrong with it.
    """
    if kind != "script" or not wanted:
        return []
    found = _found(Path(target))
    broken = next((one for one in found if one.code == SYNTAX), None)
    if broken is not None:
        raise UserError(
            f"{broken.place}: {broken.message}; the job would end at once. {broken.todo}".rstrip()
            + " (--no-check submits it all the same)"
        )
    lines = _lines(found, Path(target)) if ranks > 1 else []
    if lines and any(one.level == "error" for one in found):
        text = "\n  ".join(lines)
        raise UserError(
            f"this script is not ready for {ranks} ranks:\n  {text}\n"
            f"Write one that is: rankup port {target}; --no-check submits it as it is"
        )
    return lines


def beside(job: Job, ranks: int, wanted: bool) -> None:
    """The same beside a run on this machine, whose start waits for the compiler alone.

    Raises:
        UserError: Python cannot read the script.
    """
    if job.kind != "script" or not wanted:
        return
    script = Path(job.target)
    try:
        compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f"{script}:{error.lineno}" if isinstance(error, SyntaxError) else str(script)
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(
            f"{place}: {message}; no rank was started (--no-check starts them all the same)"
        ) from None
    if ranks < 2:
        return
    threading.Thread(target=_say, args=(Path(job.target),), daemon=True).start()


def _say(path: Path) -> None:
    try:
        lines = _lines([one for one in _found(path) if one.code != SYNTAX], path)
    except Exception as error:  # it takes nothing from the run
        lines = [f"note: {path.name} was not checked: {type(error).__name__}: {error}"]
    if lines:
        print("\n".join(map(clean, lines)), file=sys.stderr, flush=True)


def _found(path: Path) -> tuple[Finding, ...]:
    from ..port.check import check  # not for each command that starts a run

    return check([path])


def _lines(found: Iterable[Finding], path: Path) -> list[str]:
    """A few lines: the errors first, then how to see all of it."""
    found = sorted(found, key=lambda one: one.level != "error")
    if not found:
        return []
    shown = [f"{one.level}: {one.place}: {one.message} [{one.code}]" for one in found[:_LINES]]
    more = f"{len(found) - _LINES} more, and " if len(found) > _LINES else ""
    return [*shown, f"note: {more}what to do: rankup check {path}"]


def refuse_arguments(job: Job, wanted: bool) -> None:
    """Refuse arguments with which each rank of a script would end at once, where that is known.

    Raises:
        UserError: the script's own parser refuses them.
    """
    if job.kind != "script" or not wanted or {"-h", "--help"} & set(job.args):
        return
    if why := refused(Path(job.target).read_bytes(), job.args):
        raise UserError(
            f"{Path(job.target).name} would end at once: {why} (--no-check starts it all the same)"
        )


def active_environment() -> tuple[Path | None, str]:
    """Return the activated environment that the ranks get, and what to say of one passed over.

    It is one with torch and rankup; None stands for that of the Python that runs this.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        text = os.environ.get(name, "")
        if not os.path.isabs(text) or os.environ.get("CONDA_DEFAULT_ENV") == "base":
            continue
        prefix = Path(text)
        if prefix.resolve() == Path(sys.prefix).resolve():
            return None, ""
        python = prefix / "bin" / "python"
        if not python.exists():
            continue
        torch = _sees_torch(python)
        if torch is None:
            return None, f"the Python of the active environment {prefix} does not answer"
        if torch and (prefix / "bin" / "rankup-rank").exists():  # which starts a rank of a job
            return prefix, ""
        if torch:
            return None, (
                f"the active environment {prefix} has torch, and no rankup of its own: "
                f"{shlex.quote(str(python))} -m pip install rankup"
            )
    return None, ""


@cache
def _sees_torch(python: Path) -> bool | None:
    """Return whether another Python finds torch, wherever that lies; None without an answer."""
    try:
        done = subprocess.run(
            [str(python), "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split()[-1:] == [b"True"]


def python_of_ranks() -> str:
    """Return the Python that starts ranks on this machine: the active environment's, else this one.

    Raises:
        UserError: it has no torch.
    """
    active, passed_over = active_environment()
    if active is not None:
        print(f"note: the ranks run in the active environment {active}", file=sys.stderr)
        return str(active / "bin" / "python")
    require_torch()
    if passed_over:
        print(f"note: the ranks run in {sys.executable}; {passed_over}", file=sys.stderr)
    return sys.executable


def require_torch() -> None:
    """UserError where the Python that runs this has no torch."""
    if importlib.util.find_spec("torch") is None:
        more = active_environment()[1] or _GET_TORCH
        raise UserError(f"{sys.executable}, which runs this, has no torch; {more}")


def environment_of_job(chosen: str | None, project: Path) -> tuple[str | None, list[str]]:
    """Return the file that a job sources for its Python, `chosen` or the project's, and notes.

    Raises:
        UserError: the job would get the Python that runs this, which has no torch.
    """
    notes = []
    if not chosen:
        chosen, note = environment_of_project(project)
        notes += [note] if note else []
    if not chosen and active_environment()[0] is None:
        require_torch()
    stale = staleness(chosen)
    return chosen, [*notes, f"warning: {stale}"] if stale else notes


def own_environment() -> tuple[str | None, str | None]:
    """Return the way to the Python that runs this: a script to source, or a folder for PATH."""
    active, _ = active_environment()
    prefix = active or Path(sys.prefix)
    # The template that JSC's users know keeps the environment in a folder beside activate.sh,
    # which loads the modules, too.
    for candidate in (prefix.parent / "activate.sh", prefix / "bin" / "activate"):
        environment = active is not None or sys.prefix != sys.base_prefix
        if environment and candidate.is_file() and _trusted(candidate):
            return str(candidate), None
    return None, str(prefix / "bin" if active else Path(sys.executable).parent)


def environment_of_project(project: Path) -> tuple[str | None, str]:
    """The `activate.sh` of the environment in `project`/env, where the job should have that one.

    It should where the Python that runs this is in no environment, or in one without torch. With it
    comes what to say about the choice, also where it was passed over.
    """
    active, note = active_environment()
    if active is not None:
        return None, f"note: the job gets the active environment {active}, not that of this Python"
    if note:
        note = f"note: the job gets {sys.executable}; {note}"
    here, _ = own_environment()
    if here is not None and importlib.util.find_spec("torch") is not None:
        return None, note
    script = project / "env" / "activate.sh"
    if not (script.is_file() and (script.parent / "venv" / "bin" / "python").exists()):
        return None, note
    if not _trusted(script):
        return None, f"warning: {script} could be somebody else's work; not used"
    return str(script), f"note: the job gets the environment of {script}, not that of this Python"


def staleness(environment: str | None) -> str:
    """Return that the job's environment is older than its requirements, and what to do, if it is.

    Args:
        environment: the file that the job sources; None for this Python's.
    """
    from ..login import env

    script = own_environment()[0] if environment is None else environment
    if script is None or not (why := env.staleness(Path(script))):
        return ""
    return f"{why}; run: {shlex.join(['rankup', 'env', 'create', str(Path(script).parent)])}"


def _trusted(path: Path) -> bool:
    """Return whether it belongs to whom the environment belongs, and so is nobody else's."""
    owners = {os.getuid(), 0, os.stat(sys.prefix).st_uid}
    return path.stat().st_uid in owners and not path.stat().st_mode & 0o002
