"""`rankup generate`: what a run's model makes of a prompt or a file, on one process."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import recipes
from ..base.errors import UserError
from ..base.text import clean
from ..recipes import Asked
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
    job = weights.job_of(folder)
    if job.kind != "recipe":
        raise UserError(
            f"run {job.id} is of a script, {Path(job.target).name}, and only recipes "
            f"({', '.join(recipes.RECIPES)}) say how to try their model; "
            f"`rankup export {run} --to torch` writes its weights for a script of yours"
        )
    recipe = recipes.find(job.target)
    candidate = weights.checkpoint(folder / "checkpoints", step, best)
    print(f"{job.target}, step {candidate.saved.place.step} of run {job.id}", file=sys.stderr)
    weights.stand_where_it_started(job)
    for text in recipe.generate(job.args, folder, weights.read(candidate), asked):
        # A model of bytes may make any of them.
        print("\n".join(clean(line) for line in text.split("\n")), flush=True)
    return 0
