"""The whole model out of a run's checkpoints, in one process, whatever layout has written them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import UserError
from ..base.text import clean
from ..site import config, rundir
from ..slurm.client import Client
from . import attempts, meant

if TYPE_CHECKING:
    import torch

    from ..train.checkpoint import Candidate

_PREFIX = "model."


def need(package: str, why: str) -> None:
    """UserError saying how to install a package that is not here."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{why}, which is not here; pip install {package}")


def folder(run: str) -> Path:
    """Where a run, or one task of an array, keeps its checkpoints.

    Raises:
        UserError: no such run, or an array where one of its tasks is meant.
    """
    here, _ = config.for_views(Path.cwd())
    path, task = meant.locate(here.runs, run, Client(timeout=attempts.TIMEOUT))
    tasks = sorted(p.name for p in (path / "array").glob("*")) if task is None else []
    if tasks and not (path / "checkpoints").exists():
        raise UserError(
            f"{path} is an array of runs; give the folder of one task: "
            + ", ".join(f"{path}/array/{name}" for name in tasks[:5])
        )
    return meant.folder(path, task)


def job_of(folder: Path) -> rundir.Job:
    """Read what was asked of the run that a folder is of: itself, or the array of a task."""
    own = (folder / rundir.JOB).is_file()
    return rundir.read(folder if own else folder.resolve().parent.parent)


def stand_where_it_started(job: rundir.Job) -> None:
    """Change the folder: options of a run may name files relative to where it was started."""
    try:
        os.chdir(job.cwd)
    except OSError:
        _say(f"note: {job.cwd}, where the run was started, is not here")


def checkpoint(root: Path, step: int | None, best: bool) -> Candidate:
    """The newest whole checkpoint, the best, or the one of a step; what is passed over is said.

    Raises:
        UserError: there is none, or both were asked for.
    """
    if best and step is not None:
        raise UserError("--best and --step name two models; give one of them")
    from ..train.checkpoint import candidates

    found, passed, _ = candidates(root)
    for line in passed:
        _say(line)
    if best:
        step = _best_step(root, found)
    if step is not None:
        return _of_step(root, found, step)
    for candidate in found:
        damage = candidate.damaged()
        if not damage:
            return candidate
        _say(f"checkpoint {candidate.directory.name} is torn ({'; '.join(damage)})")
    raise UserError(f"no complete checkpoint in {root}")


def _best_step(root: Path, found: list[Candidate]) -> int:
    """The step with the lowest validation loss, as the newest checkpoint knows it."""
    if not found:
        raise UserError(f"no complete checkpoint in {root}")
    if found[0].saved.best is None:
        raise UserError(
            f"{found[0].directory} knows of no best model: the run has not validated yet, or has "
            "nothing to validate on; leave --best away for its newest checkpoint"
        )
    loss, step = found[0].saved.best
    _say(f"the lowest validation loss, {loss:.6g}, was at step {step}")
    return step


def _of_step(root: Path, found: list[Candidate], step: int) -> Candidate:
    known = ", ".join(str(candidate.saved.place.step) for candidate in found) or "none"
    chosen = [candidate for candidate in found if candidate.saved.place.step == step]
    if not chosen:
        raise UserError(f"no complete checkpoint of step {step} in {root}; there are: {known}")
    if damage := chosen[0].damaged():
        raise UserError(
            f"the checkpoint of step {step} is torn ({'; '.join(damage)}); there are: {known}"
        )
    return chosen[0]


def read(candidate: Candidate) -> dict[str, torch.Tensor]:
    """The model's tensors of a checkpoint, under every name that the model's state dict has.

    Raises:
        UserError: it is no checkpoint of ours, or damaged.
        OSError: a file cannot be read.
    """
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from ..runtime.folder import SafeReader

    reader = SafeReader(candidate.directory)
    try:
        entries = reader.read_metadata().state_dict_metadata
        state = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in entries.items()
            if name.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group is as it should be
            dcp.load({**state}, storage_reader=reader, no_dist=True)
    except OSError:
        raise
    except (CheckpointException, Exception) as error:  # a hostile .metadata shows in many ways
        raise UserError(f"{candidate.directory} cannot be read: {error}") from None
    tensors = {name.removeprefix(_PREFIX): value for name, value in state.items()}
    lost = [name for name, first in candidate.aliases.items() if first not in tensors]
    if lost:
        raise UserError(f"{candidate.directory} cannot be read: {lost[0]!r} is not in it")
    return tensors | {name: tensors[first] for name, first in candidate.aliases.items()}


def _say(line: str) -> None:
    """To stderr: what a verb found stands on stdout alone."""
    print(clean(line), file=sys.stderr)
