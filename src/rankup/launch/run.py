"""`rankup run`: check what was asked, make the run directory, start the ranks. No torch here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import __version__, recipes
from ..base.errors import EXIT_BAD_INPUT, UserError, nearest
from ..base.files import user_path
from ..site import config, gpus, rundir
from ..site.rundir import Job
from ..train.options import refuse_other_run
from . import local


@dataclass(frozen=True)
class Request:
    """What the command line said.

    Attributes:
        target: a recipe's name or a script's path; None to take it from the resumed run.
        args: the words after TARGET; they belong to it.
        nproc: ranks on this node; None for every GPU, or one without GPUs.
        out: the run directory itself.
        resume: the run to go on with.
    """

    target: str | None
    args: tuple[str, ...] = ()
    nproc: int | None = None
    out: str | None = None
    resume: str | None = None


def run(request: Request, extra: Mapping[str, str] | None = None) -> int:
    """Do it, with `extra` variables in the ranks' environment; returns the job's exit code.

    Raises:
        UserError: what was asked for cannot be done; nothing has been started or left behind.
    """
    extra = dict(extra or {})
    nproc = _ranks(request.nproc, {**os.environ, **extra})
    _require_torch()
    if request.resume is not None:
        directory, job = _resumed(request)
    else:
        directory, job = _new(request)
    if job.kind == "recipe":
        _warn_of_idle_ranks(recipes.find(job.target).parse(job.args), nproc)
    with rundir.locked(directory):
        life = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "nproc": nproc,
            "node": platform.node(),
        }
        before = rundir.read(directory)
        rundir.write(directory, replace(job, lives=[*job.lives, life]))
        print(f"run {job.id} in {directory}", file=sys.stderr)
        code = local.start(job, directory, nproc, request.resume is not None, extra)
        if code == EXIT_BAD_INPUT and job.kind == "recipe":  # what was refused does not stick
            rundir.write(directory, before)
    if code not in (0, EXIT_BAD_INPUT) and (directory / "checkpoints").is_dir():
        print(f"go on with: rankup run --resume {_shown(directory, job)}", file=sys.stderr)
    return code


def _new(request: Request) -> tuple[Path, Job]:
    if request.target is None:
        raise UserError("nothing to run: name a recipe or a script, or --resume a run")
    kind, target = _target(request.target)
    _notice_own_options(kind, request.args)
    options = recipes.find(target).parse(request.args) if kind == "recipe" else None
    job = Job(
        id=rundir.new_id(),
        kind=kind,
        target=target,
        args=list(request.args),
        cwd=str(Path.cwd()),
        versions=_versions(),
        git=_git(),
    )
    name = target if kind == "recipe" else Path(target).stem
    if request.out is None:
        directory = config.load(Path.cwd()).runs / name / job.id
    else:
        directory = user_path(request.out, "--out")
    directory = directory.resolve()
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    rundir.create(directory)
    try:
        if options is not None:
            options.prepare(directory)
        rundir.write(directory, job)
    except BaseException:
        # Half a run directory helps nobody: what was made goes, what was there stays.
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in made:
            folder.rmdir()
        raise
    return directory, job


def _resumed(request: Request) -> tuple[Path, Job]:
    assert request.resume is not None
    if request.out is not None:
        raise UserError("--resume goes on in the run's own directory; leave --out away")
    directory = rundir.find(config.load(Path.cwd()).runs, request.resume)
    job = rundir.read(directory)
    if not Path(job.cwd).is_dir():
        raise UserError(f"{job.cwd}, the folder the run was started in, is not there any more")
    if request.target is not None:
        kind, target = _target(request.target)
        if (kind, target) != (job.kind, job.target):
            raise UserError(
                f"--resume {request.resume} is a run of {job.target}, not of {target}; "
                "leave TARGET away, or start a new run"
            )
        args = [*job.args, *request.args]  # a later flag overrides an earlier one
        if kind == "recipe":
            recipe = recipes.find(target)
            refuse_other_run(recipe.parse(job.args).identity, recipe.parse(args).identity)
        job = replace(job, args=args)
    return directory, job


def _target(text: str) -> tuple[str, str]:
    """`recipe` and its name, or `script` and its absolute path."""
    if text in recipes.RECIPES:
        return "recipe", text
    path = user_path(text, "TARGET")
    if path.is_file():
        if path.suffix != ".py":
            raise UserError(f"{text} is not a Python script (.py) and not a recipe")
        return "script", str(path.resolve())
    if path.suffix == ".py" or path.is_dir() or "/" in text:
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{text} {what}; TARGET is a script's path or a recipe's name")
    raise UserError(
        f"{text!r} is neither a script here nor a recipe; {nearest(text, recipes.RECIPES)}"
    )


def _notice_own_options(kind: str, args: tuple[str, ...]) -> None:
    """`rankup run TARGET --nproc 2`: what follows TARGET belongs to it, which is easily missed."""
    for word in args:
        name = word.partition("=")[0]
        if name in ("--nproc", "--out", "--resume"):
            message = (
                f"{name} stands after TARGET and so belongs to it; as an option of `rankup run`"
            )
            if kind == "recipe":
                raise UserError(f"{message} it has to stand before: rankup run {name} ... TARGET")
            print(f"warning: {message} it would have to stand before", file=sys.stderr)


def _ranks(asked: int | None, environment: Mapping[str, str]) -> int:
    present = gpus.visible_gpus(environment)
    if asked is None:
        return max(1, present)
    if 0 < present < asked:
        raise UserError(
            f"--nproc {asked} asks for more ranks than the {present} GPU(s) of this node; "
            f"give --nproc {present} or less, or set CUDA_VISIBLE_DEVICES= to run on CPU"
        )
    return asked


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{sys.executable} has no torch; load your site's PyTorch module, or "
            "pip install 'rankup[train]'"
        )


def _warn_of_idle_ranks(options: Any, nproc: int) -> None:
    idle = options.idle_ranks(nproc)
    if idle:
        print(
            f"warning: a global batch of {options.global_batch} in micro-batches of "
            f"{options.micro_batch} feeds {nproc - idle} of {nproc} ranks; {idle} will idle. "
            "The result is the same; a smaller --micro-batch or fewer ranks wastes nothing",
            file=sys.stderr,
        )


def _versions() -> dict[str, str]:
    return {
        "rankup": __version__,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def _git() -> dict[str, Any]:
    """Commit of the working directory, and whether anything was changed since."""

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words],  # noqa: S607 - the user's own git
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "changed": bool(ask("status", "--porcelain"))}


def _shown(directory: Path, job: Job) -> str:
    """The shortest name that finds the run from here."""
    try:
        known = config.load(Path.cwd()).runs.resolve() in directory.parents
    except UserError:  # rankup.toml was broken meanwhile: no reason to lose the job's exit code
        known = False
    return job.id if known else str(directory)
