"""Checkpoints: a directory per step, written by all ranks with DCP, trusted by its marker alone.

checkpoints/step-00000200/__0_0.distcp   tensors of the model and the optimizer
                          .metadata      which tensor lies where (torch's)
                          COMPLETE       the marker, written last

`saver.py` writes them; here they are found and loaded, whatever layout wrote them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from ..base.errors import UserError
from ..runtime.collectives import all_gather_object, broadcast
from ..runtime.log import print0
from ..runtime.reader import SafeReader
from ..runtime.state import Shape, of_model, to_fill
from ..runtime.together import differences, everywhere, shortened, union, unseen
from ..runtime.world import is_root_process
from . import marker
from .carried import Carried
from .marker import Candidate, Saved
from .options import refuse_other_run
from .saver import reason

# A flipped bit or a hostile file shows as one of these; DCP's own is no Exception.
_UNREADABLE = (CheckpointException, pickle.UnpicklingError, OSError, EOFError, ValueError, KeyError)
_MODEL = "model."


def restore(
    root: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    copies: Mapping[str, str] | None = None,
    carried: Carried | None = None,
) -> Saved | None:
    """Load the newest whole checkpoint on all ranks, whatever layout and world size wrote it.

    Torn or changed ones are passed over, with a printed line each. None when none was ever whole.

    Args:
        copies: name of a parameter here -> name under which its tied copies were saved once.
        carried: what this rank's copy of the model has beside it.

    Raises:
        UserError: the checkpoint is of another run or model (the message names what differs), or
            all that once were whole are damaged.
    """
    nothing: tuple[list[Candidate], list[str], bool] = ([], [], False)
    here = marker.candidates(root) if is_root_process() else nothing
    found, passed, spoiled = broadcast(here)
    for line in passed:
        print0(line, flush=True)
    for candidate in found:
        refuse_other_run(candidate.saved.identity, identity)
        why = _damage(candidate)
        if not why:
            try:
                _load(candidate.directory, model, optimizer, copies, carried or Carried())
                return _without_lost_best(candidate.saved, found)
            except _UNREADABLE as error:
                why = reason(error)
        print0(f"checkpoint {candidate.directory.name} is torn ({why}); passed over", flush=True)
    if found or spoiled:
        raise UserError(
            f"every checkpoint in {root} is damaged; bring the folder back from a copy, or start a "
            "new run"
        )
    return None


def _without_lost_best(saved: Saved, found: list[Candidate]) -> Saved:
    """What is said to be best has to be there: else the next validation is the best."""
    if saved.best is None or saved.best[1] in {other.saved.place.step for other in found}:
        return saved
    return replace(saved, best=None)


def _load(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    copies: Mapping[str, str] | None,
    carried: Carried,
) -> None:
    """Fill model, optimizer and what is carried from one checkpoint."""
    reader = SafeReader(directory)
    there = _read_shapes(reader)
    held = of_model(model, copies)
    state = everywhere(partial(to_fill, optimizer, held))
    own = carried.optimizer_among(there)
    _refuse_other_model(there, held.shapes(), state.held.shapes(), directory, own)
    wanted = {f"{_MODEL}{name}": value for name, value in held.tensors.items()}
    loaded = {f"{own}{name}": value for name, value in state.held.tensors.items()}
    loaded = {name: value for name, value in loaded.items() if name in there}
    beside = carried.wanted(there)
    dcp.load(
        {**wanted, **loaded, **beside}, storage_reader=reader, no_dist=not dist.is_initialized()
    )
    held.settle()
    state.settle({name.removeprefix(own) for name in loaded})
    carried.resume(beside)


def _read_shapes(reader: SafeReader) -> dict[str, Shape]:
    """What is in a checkpoint, read on every rank; an error of one is raised on all."""
    shapes: dict[str, Shape] = {}
    failure = ""
    try:
        shapes = reader.shapes()
    except Exception as error:
        failure = reason(error)
    failures = [text for text in all_gather_object(failure) if text]
    if failures:
        raise pickle.UnpicklingError(failures[0])
    return shapes


def _damage(candidate: Candidate) -> str:
    """What is wrong with a checkpoint's files, as all ranks found it together; empty if nothing."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    mine = candidate.damaged(sorted(candidate.files)[rank::ranks])
    return "; ".join(line for part in all_gather_object(mine) for line in part)


def _refuse_other_model(
    there: Mapping[str, Shape],
    model: Mapping[str, Shape],
    optimizer: Mapping[str, Shape],
    directory: Path,
    own: str,
) -> None:
    """Compare all ranks' names and shapes with the checkpoint's; the same verdict on each."""
    # The model's own names say it best; the optimizer's repeat them.
    for what, prefix, held in (
        ("model", _MODEL, model),
        ("optimizer", own, optimizer),
    ):
        theirs = {
            name.removeprefix(prefix): shape
            for name, shape in there.items()
            if name.startswith(prefix)
        }
        ours = union(held)
        if what == "optimizer":
            ours = {name: ours[name] for name in ours.keys() - unseen(theirs, ours)}
        differing = differences(theirs, ours, "checkpoint", what)
        if differing:
            raise UserError(
                f"checkpoint {directory} is of another {what}:{shortened(differing)}\n"
                "resume with the options the run was started with, or start a new run"
            )
