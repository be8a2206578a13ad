"""Start the runs, each in a copy of the user's project, by one watched child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.processes import python
from ...sandbox import copies, namespace
from ...sandbox.copies import Sandbox
from ...sandbox.environment import child_environment, offline
from ...sandbox.watch import Interrupt, Limits, Why, default_memory, watch
from ...site import config
from ...site import profile as sites
from ...site.caches import caches
from .protocol import (
    FULL,
    JOURNALS,
    ONE,
    ORIGINAL,
    PAIRS,
    Outcome,
    Plan,
    Run,
    journal_path,
    read_outcomes,
)

_STARTING = 120.0  # seconds for torch to be imported, from a slow disk
_NICE = 10


@dataclass(frozen=True)
class Project:
    """The folder that a script is run in a copy of.

    Attributes:
        root: absolute, without links.
        script, port: of both scripts, below the root.
        made: what `port` has made just now, by its places below the root.
    """

    root: Path
    script: Path
    port: Path
    made: Mapping[Path, str] = field(default_factory=dict)


def runs() -> Iterator[Run]:
    """All runs, without their files: the last batches of the originals have other lengths."""
    yield Run(ORIGINAL, "the original")
    yield Run("1", "the port on 1 rank", 1)
    yield Run("2", "the port on 2 ranks", 2)
    yield Run("free", "the port on 2 ranks with random numbers of their own", 2, free=True)
    pairs: dict[str, Any] = {"samples": PAIRS, "against": "original-pairs"}
    yield Run("original-pairs", "the original with a last batch of six samples", **pairs)
    yield Run("3", "the port on 3 ranks", 3, **pairs)
    one: dict[str, Any] = {"samples": ONE, "against": "original-one"}
    yield Run("original-one", "the original with a last batch of one sample", **one)
    yield Run("one", "the port on 3 ranks, of which two have no part of that batch", 3, **one)
    alike: dict[str, Any] = {"samples": FULL, "alike": True, "against": "original-alike"}
    yield Run("original-alike", "the original on batches of equal halves", **alike)
    yield Run("alike", "the port on 2 ranks with equal parts of each batch", 2, **alike)


@dataclass(frozen=True)
class Made:
    """The runs that were made.

    Attributes:
        why: `exit` where those are all that could be; else which limit ended them.
    """

    outcomes: tuple[Outcome, ...]
    why: Why
    limits: Limits


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """The folders of all runs."""
    with copies.passing("verify") as box:
        journals(box).mkdir()
        yield box


def journals(box: Sandbox) -> Path:
    """Where the plan, the journals and the outcomes are: no copy lies below it."""
    return box.folder / JOURNALS


def run(
    box: Sandbox,
    project: Path,
    runs: Iterable[Run],
    report: Callable[[Run], None],
    *,
    args: Sequence[str] = (),
    stand_ins: Sequence[Path] = (),
    seconds: float = 120.0,
    limits: Limits | None = None,
) -> Made:
    """Make runs; return how they ended. Their journals are in `journals`.

    Args:
        runs: with their copies of the project.
        stand_ins: folders with modules for packages that are missing here.
        seconds: limit of each run.
        limits: of all of them, which then are niced; by default there is time for each, and half
            of the free memory.

    Raises:
        UserError: the machine does not let the runs be made, or no torch is installed.
        KeyboardInterrupt: a signal asked for the end.
    """
    folders = [str(one.resolve()) for one in stand_ins]
    nice = _NICE if limits is not None else 0
    plan = Plan(str(journals(box)), str(box.temporary), args, folders, seconds, [*runs], nice)
    plan.write()
    shown: set[str] = set()

    def look() -> bool:
        for run in plan.runs:
            if run.name not in shown and Path(journal_path(plan.state, run.name, 0)).exists():
                shown.add(run.name)
                report(run)
        return False

    if limits is None:
        # The original may be tried in several ways.
        limits = Limits(_STARTING + seconds * (len(plan.runs) + 3), default_memory())
    output = box.folder / "output.txt"
    with Interrupt() as interrupt, output.open("wb") as out:
        ended = watch(
            namespace.command(python("rankup.port.verify.inside.server"), network=True),
            _variables(box, project),
            limits,
            interrupt,
            look=look,
            stdout=out.fileno(),
        )
    if interrupt.number == signal.SIGINT:
        raise KeyboardInterrupt
    if interrupt.number is not None:
        raise SystemExit(128 + interrupt.number)
    outcomes = tuple(read_outcomes(journals(box)))
    if not outcomes and ended.why == "exit":
        tail = output.read_bytes()[-2000:].decode("utf-8", "replace").strip()
        raise UserError(f"no script could be started here (exit code {ended.code}):\n{tail}")
    return Made(outcomes, ended.why, limits)


def _variables(box: Sandbox, project: Path) -> dict[str, str]:
    settings = config.load(project)
    profile, _ = sites.choose(settings, cluster_name=lambda: None)
    known, given = caches(settings, profile, os.environ), {**os.environ, **offline()}
    return {
        **child_environment(given, known, box.folder, box.temporary, threads=1),
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(box.temporary / "matplotlib"),
    }


def placed(project: Project, box: Sandbox) -> Iterator[Run]:
    """All runs, each with its copy of the project."""
    for run in runs():
        folder = box.copy / run.name
        copy_project(project, folder, ported=bool(run.world))
        script = folder / (project.port if run.world else project.script)
        yield replace(run, script=str(script), folder=str(folder))


def project_of(original: Path, port: Path, made: Mapping[Path, str]) -> Project:
    """The folder that the user works in, where the script lies there, else the script's own.

    Raises:
        UserError: the port lies elsewhere.
    """
    here, original, port = Path.cwd().resolve(), original.resolve(), port.resolve()
    root = here if original.is_relative_to(here) else original.parent
    if not port.is_relative_to(root):
        raise UserError(
            f"{port} lies outside of {root}, the folder that both scripts are run in a copy of; "
            "put them beside one another"
        )
    inner = {path.resolve(): text for path, text in made.items()}
    files = {p.relative_to(root): text for p, text in inner.items() if p.is_relative_to(root)}
    return Project(root, original.relative_to(root), port.relative_to(root), files)


def copy_project(project: Project, target: Path, *, ported: bool = True) -> None:
    """Copy a project to `target`, which is made; what is large is a link.

    Args:
        ported: with what `port` has made, which may be in the places of the originals.

    Raises:
        OSError: something of the project cannot be read, or there is no room.
    """
    target.mkdir(parents=True)
    chain = {project.root / parent for parent in (*project.script.parents, *project.port.parents)}
    copies.fill(project.root, target, chain)
    made = project.made if ported else {}
    files = {path: text.encode("utf-8", "surrogateescape") for path, text in made.items()}
    for path in {project.port if ported else project.script} - files.keys():
        files[path] = (project.root / path).read_bytes()
    for path, data in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).unlink(missing_ok=True)
        (target / path).write_bytes(data)
