"""What was asked for, and the job it describes: a new one, or one to go on with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from .. import __version__, recipes
from ..base.errors import UserError, nearest
from ..base.files import user_path
from ..site import rundir
from ..site.rundir import Job
from ..slurm.options import JobOptions
from ..train.options import refuse_other_run
from . import code, stage
from .stage import Staging

_OWN = {
    *("--nproc", "--out", "--resume", "--local", "--dry-run", "--follow", "--allow-missing"),
    *("--monitor", "--no-monitor", "--check", "--no-check"),
    *stage.OPTIONS,
    *("--" + field.name.replace("_", "-") for field in fields(JobOptions)),
}
# A script may have options of these names itself.
_COMMON = {"--name", "--env", "--time", "--array", "--environment", "--deadline", "--mail"}


@dataclass(frozen=True)
class Request:
    """What the command line said.

    Attributes:
        target: a recipe's name or a script's path; None to take it from the resumed run.
        args: the words after TARGET; they belong to it.
        nproc: ranks per node; None for every GPU, or one without GPUs.
        out: the run directory itself.
        resume: the run to go on with.
        local: on this machine, also where there is Slurm.
        allow_missing: submit also without what the project needs.
        options: of the Slurm job.
        staging: what each node copies or mounts first.
        monitor: sample what GPUs and nodes do, and report it at the end.
        id: of the new run; None for one by the time.
        check: look at a script first.
    """

    target: str | None
    args: tuple[str, ...] = ()
    nproc: int | None = None
    out: str | None = None
    resume: str | None = None
    local: bool = False
    dry_run: bool = False
    follow: bool = False
    options: JobOptions = field(default_factory=JobOptions)
    allow_missing: bool = False
    staging: Staging = field(default_factory=Staging)
    monitor: bool = True
    id: str | None = None
    check: bool = True


def job_of(target: str, args: tuple[str, ...]) -> tuple[str, str]:
    """`recipe` and its name, or `script` and its absolute path, with arguments that may do.

    Raises:
        UserError: there is no such target, or a recipe refuses its arguments.
    """
    kind, name = _target(target)
    _notice_own_options(kind, args, strict=True)
    if kind == "recipe":
        recipes.find(name).parse(args)
    return kind, name


def new(request: Request, runs: Path, *, strict: bool = False) -> tuple[Path, Job]:
    """The run that is asked for and the folder it will live in; nothing is written yet.

    With `strict`, where a mistake costs a job, options of `rankup run` behind TARGET are refused.
    """
    if request.target is None:
        raise UserError("nothing to run: name a recipe or a script, or --resume a run")
    kind, target = _target(request.target)
    _notice_own_options(kind, request.args, strict)
    if kind == "recipe":
        recipes.find(target).parse(request.args)
    job = Job(
        id=request.id or rundir.new_id(),
        kind=kind,
        target=target,
        args=list(request.args),
        cwd=str(Path.cwd()),
        versions=_versions(),
        git=code.state(Path.cwd()),
    )
    if request.out is None:
        name = target if kind == "recipe" else Path(target).stem
        return (runs / name / job.id).resolve(), job
    return user_path(request.out, "--out").resolve(), job


@contextmanager
def created(directory: Path, job: Job, runs: Path) -> Iterator[None]:
    """Make the run directory with all that the run needs; it goes again if the block raises.

    One that lies elsewhere (`--out`) is linked from among the others in `runs`.
    """
    link = runs / Path(job.target).stem / job.id
    folders = dict.fromkeys((directory, *directory.parents, *link.parents))
    made = [folder for folder in folders if not folder.exists()]
    rundir.create(directory)
    try:
        if job.kind == "recipe":
            recipes.find(job.target).parse(job.args).prepare(directory)
        code.keep(Path(job.cwd), Path(job.target) if job.kind == "script" else None, directory)
        rundir.write(directory, job)
        if link.resolve() != directory.resolve():
            with suppress(OSError):  # who names a folder of their own may have no right to `runs`
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(directory)
        yield
    except BaseException:
        # Half a run directory helps nobody: what was made goes, what was there stays.
        with suppress(OSError):  # what is wrong is what was raised
            if link.is_symlink():
                link.unlink()
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for folder in made:
                folder.rmdir()
        raise


def resumed(request: Request, runs: Path) -> tuple[Path, Job]:
    """The run to go on with, its arguments overridden by what was asked for now."""
    assert request.resume is not None
    if request.out is not None:
        raise UserError("--resume goes on in the run's own directory; leave --out away")
    directory = rundir.find(runs, request.resume)
    job = rundir.read(directory)
    if not Path(job.cwd).is_dir():
        raise UserError(f"{job.cwd}, the folder the run was started in, is not there any more")
    if request.target is None:
        return directory, job
    kind, target = _target(request.target)
    if (kind, target) != (job.kind, job.target):
        raise UserError(
            f"--resume {request.resume} is a run of {job.target}, not of {target}; "
            "leave TARGET away, or start a new run"
        )
    args = [*job.args, *request.args]  # a later flag overrides an earlier one
    if kind == "recipe":
        recipe = recipes.find(target)
        refuse_other_run(recipe.parse(job.args).fixed, recipe.parse(args).fixed)
    return directory, replace(job, args=args)


def require_torch() -> None:
    """UserError where the Python that would run the ranks has no torch."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{sys.executable} has no torch; load your site's PyTorch module, or "
            "pip install 'rankup[train]'"
        )


def _target(text: str) -> tuple[str, str]:
    """`recipe` and its name, or `script` and its absolute path."""
    if text in recipes.RECIPES:
        return "recipe", text
    path = user_path(text, "TARGET")
    if path.is_file():
        if path.suffix == ".ipynb":
            raise UserError(
                f"{text} is a notebook; a run starts a script. Write it as one with "
                f"`jupyter nbconvert --to script {text}`, and run that"
            )
        if path.suffix != ".py":
            raise UserError(f"{text} is not a Python script (.py) and not a recipe")
        return "script", str(path.resolve())
    if path.suffix == ".py" or path.is_dir() or "/" in text:
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{text} {what}; TARGET is a script's path or a recipe's name")
    raise UserError(
        f"{text!r} is neither a script here nor a recipe; {nearest(text, recipes.RECIPES)}"
    )


def _notice_own_options(kind: str, args: tuple[str, ...], strict: bool) -> None:
    """`rankup run TARGET --nproc 2`: what follows TARGET belongs to it, which is easily missed."""
    for word in args:
        if word == "--":  # said on purpose
            return
        name = word.partition("=")[0]
        if name in _OWN and not (kind == "script" and name in _COMMON):
            message = (
                f"{name} stands after TARGET and so belongs to it; as an option of `rankup run`"
            )
            if kind == "recipe":
                raise UserError(f"{message} it has to stand before: rankup run {name} ... TARGET")
            if strict:
                raise UserError(
                    f"{message} it has to stand before. If it is the script's, put `--` before it, "
                    f"which the script then gets, too"
                )
            print(f"warning: {message} it would have to stand before", file=sys.stderr)


def _versions() -> dict[str, str]:
    found = {"rankup": __version__, "python": platform.python_version()}
    if importlib.util.find_spec("torch") is not None:
        found["torch"] = importlib.metadata.version("torch")
    return found
