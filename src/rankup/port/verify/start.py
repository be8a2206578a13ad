"""Start the runs, each in a copy of the user's project, by one watched child."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...login import offline
from ...sandbox import copies, environment, namespace
from ...sandbox.copies import Sandbox
from ...sandbox.inside.spec import STATE
from ...sandbox.watch import Ended, Interrupt, Limits, default_memory, watch
from ...script.source import local_modules, read
from ...site import config, detect
from ...site.caches import caches
from .protocol import FULL, ONE, ORIGINAL, Outcome, Plan, Run, read_outcomes

_CHILD = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.port.verify.inside.server import main; sys.exit(main())"
)
_STARTING = 120.0  # seconds for torch to be imported, from a slow disk
KILL_AT = 2


@dataclass(frozen=True)
class Project:
    """The folder that a script is run in a copy of.

    Attributes:
        root: absolute, without links.
        script, port: of both scripts, below the root.
        port_source: where the port lies, when that is elsewhere.
    """

    root: Path
    script: Path
    port: Path
    port_source: Path | None


@dataclass(frozen=True)
class Job:
    """A request to run a script and its port.

    Attributes:
        seconds: limit of each of the runs.
    """

    project: Project
    args: tuple[str, ...]
    stand_ins: tuple[Path, ...]
    seconds: float


def runs() -> Iterator[Run]:
    """All runs, without their files: the last batches of the originals have other lengths."""
    yield Run(ORIGINAL, "the original")
    yield Run("1", "the port on 1 rank", 1)
    yield Run("2", "the port on 2 ranks", 2)
    yield Run("free", "the port on 2 ranks with random numbers of their own", 2, free=True)
    yield Run("kill", "the port on 2 ranks, one of them killed", 2, kill_at=KILL_AT)
    one: dict[str, Any] = {"samples": ONE, "against": "original-one"}
    yield Run("original-one", "the original with a last batch of one sample", **one)
    yield Run("3", "the port on 3 ranks", 3, **one)
    alike: dict[str, Any] = {"samples": FULL, "alike": True, "against": "original-alike"}
    yield Run("original-alike", "the original on batches of equal halves", **alike)
    yield Run("alike", "the port on 2 ranks with equal parts of each batch", 2, **alike)


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """The folders of all runs; those of killed processes of this machine go first."""
    base = Path(tempfile.gettempdir())
    kind = f"rankup-verify-{platform.node()}"  # TMPDIR may lie on a disk of many machines
    copies.sweep(base, kind, ended=True)
    with copies.sandbox(base, kind=kind) as box:
        journals(box).mkdir()
        yield box


def journals(box: Sandbox) -> Path:
    """Where the plan, the journals and the outcomes are: no copy lies below it."""
    return box.folder / "journals"


def run(
    job: Job, box: Sandbox, report: Callable[[Run], None], placed: Sequence[Run] | None = None
) -> tuple[Outcome, ...]:
    """Make all runs; return how they ended. Their journals are in `journals`.

    Args:
        placed: other runs, with the files that they are of.

    Raises:
        UserError: the machine does not let the runs be made, or no torch is installed.
        KeyboardInterrupt: a signal asked for the end.
    """
    stand_ins = tuple(str(one.resolve()) for one in job.stand_ins)
    each = tuple(placed or _placed(job.project, box))
    state, temporary = str(journals(box)), str(box.temporary)
    plan = Plan(state, temporary, job.args, stand_ins, job.seconds, each)
    plan.write()
    output = box.folder / "output.txt"
    with Interrupt() as interrupt, output.open("wb") as out:
        ended = _watch(job, plan, interrupt, out.fileno(), report)
    if interrupt.number is not None:
        raise (
            KeyboardInterrupt
            if interrupt.number == signal.SIGINT
            else SystemExit(128 + interrupt.number)
        )
    if ended.why == "memory":
        raise UserError(
            f"the scripts took more than {ended.memory / 1e9:.1f} GB of memory, half of what is "
            "free here; verify where there is more, or give a smaller model after `--`"
        )
    outcomes = read_outcomes(journals(box))
    if not outcomes and ended.why != "time":
        tail = output.read_bytes()[-2000:].decode("utf-8", "replace").strip()
        raise UserError(f"no script could be started here (exit code {ended.code}):\n{tail}")
    return outcomes


def _placed(project: Project, box: Sandbox) -> Iterator[Run]:
    for run in runs():
        folder = box.copy / run.name
        copy_project(project, folder)
        script = folder / (project.port if run.world else project.script)
        yield replace(run, script=str(script), folder=str(folder))


def _watch(
    job: Job,
    plan: Plan,
    interrupt: Interrupt,
    out: int,
    report: Callable[[Run], None],
) -> Ended:
    state = Path(plan.state)
    settings = config.load(job.project.root)
    profile, _ = detect.choose(settings, os.environ, os.uname().nodename, cluster_name=lambda: None)
    known = caches(settings, profile, os.environ)
    temporary, quiet = Path(plan.temporary), offline.silent()
    own = environment.child(os.environ, known, state, temporary, 1, Path.home(), quiet)
    package = str(Path(__file__).resolve().parents[3])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        **own,
        STATE: str(state),
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(Path(plan.temporary, "matplotlib")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    shown: set[str] = set()

    def look() -> bool:
        for run in plan.runs:
            if run.name not in shown and (state / f"{run.name}-0.jsonl").exists():
                shown.add(run.name)
                report(run)
        return False

    # The original may be tried in several ways.
    most = _STARTING + job.seconds * (len(plan.runs) + 3)
    return watch(
        namespace.command([sys.executable, "-c", _CHILD], network=True),
        variables,
        Limits(most, default_memory()),
        interrupt,
        mark=str(state),
        look=look,
        stdout=out,
    )


def project_of(original: Path, port: Path, here: Path) -> Project:
    """The folder that the user works in, where the script lies there, else the script's own."""
    original, port, here = original.resolve(), port.resolve(), here.resolve()
    root = here if original.is_relative_to(here) else original.parent
    script = original.relative_to(root)
    if port.is_relative_to(root):
        return Project(root, script, port.relative_to(root), None)
    name = port.name if port.name != original.name else f"{port.stem}_port.py"
    return Project(root, script, script.with_name(name), port)


def copy_project(project: Project, target: Path) -> None:
    """Copy a project to `target`, which is made; what is large is a link.

    Raises:
        OSError: something of the project cannot be read, or there is no room.
    """
    target.mkdir(parents=True)
    chain = {project.root / parent for parent in (*project.script.parents, *project.port.parents)}
    copies.fill(project.root, target, chain)
    for path in (project.script, project.port):
        _own_file(project.root / path, target / path)
    if project.port_source is not None:
        _beside(project.port_source, target / project.port, target)


def _own_file(source: Path, target: Path) -> None:
    if source.is_file():
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)


def _beside(port: Path, target: Path, copy: Path) -> None:
    """A port from elsewhere, with what it may import from there: modules, a vendored runtime."""
    _own_file(port, target)
    for path in (*port.parent.glob("*.py"), *(one.path for one in local_modules(read(port)))):
        place = Path(os.path.normpath(target.parent / os.path.relpath(path, port.parent)))
        newer = path.stem.endswith("_dist") or not place.exists()
        if path != port and newer and place.is_relative_to(copy):
            place.parent.mkdir(parents=True, exist_ok=True)
            _own_file(path, place)
    for path in port.parent.glob("*rankup*"):
        if path.is_dir() and not (target.parent / path.name).exists():
            shutil.copytree(path, target.parent / path.name)
