"""`rankup generate`: what a run's model makes of a prompt or a file, on one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .. import recipes
from ..base.errors import UserError
from ..base.text import clean
from ..recipes import Asked
from ..site import rundir
from . import weights


def generate(run: str, asked: Asked, step: int | None = None, best: bool = False) -> int:
    """Load the model of a run's newest checkpoint, or of another one, and print what it makes.

    Args:
        run: id, Slurm job id, `last` or directory.
        step, best: of the checkpoint; by default the newest whole one.

    Raises:
        UserError: no such run or checkpoint, or one of a script; what was asked for makes no sense.
        OSError: a file cannot be read.
    """
    weights.need("torch", "rankup generate computes with torch")
    folder = weights.folder(run).resolve()  # also behind a change of folder
    job = rundir.read(_run_of(folder))
    if job.kind != "recipe":
        raise UserError(
            f"run {job.id} is of a script, {Path(job.target).name}, and only recipes "
            f"({', '.join(recipes.RECIPES)}) say how to try their model; "
            f"`rankup export {run} --to torch` writes its weights for a script of yours"
        )
    recipe = recipes.find(job.target)
    candidate = weights.checkpoint(folder / "checkpoints", step, best)
    print(f"{job.target}, step {candidate.saved.place.step} of run {job.id}", file=sys.stderr)
    _relative_paths_as_the_run(job)
    for text in recipe.generate(job.args, folder, weights.read(candidate), asked):
        # A model of bytes may make any of them.
        print("\n".join(clean(line) for line in text.split("\n")), flush=True)
    return 0


def _run_of(folder: Path) -> Path:
    """The run that a folder is of: itself, or that of the array whose task it is."""
    return folder if (folder / rundir.JOB).is_file() else folder.resolve().parent.parent


def _relative_paths_as_the_run(job: rundir.Job) -> None:
    """Options of the run may name files relative to where it was started."""
    try:
        os.chdir(job.cwd)
    except OSError:
        print(f"note: {job.cwd}, where the run was started, is not here", file=sys.stderr)
