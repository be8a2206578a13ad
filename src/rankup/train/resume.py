"""Reading of a run's checkpoints: which are whole, and how a run goes on from the newest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn

from ..base.errors import UserError
from ..parallel.build import Built
from ..runtime.checkpoint import MARKER, Marker
from ..runtime.collectives import broadcast
from ..runtime.log import print0
from ..runtime.restore import damage, fingerprint, load, read_marker
from ..runtime.state import DamagedError, OtherModelError
from ..runtime.world import is_root_process
from .checkpoint import Carried, Saved, of_step, steps
from .options import refuse_other_run
from .plan import Place

_MOST = 10**15  # steps, samples


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with a readable marker.

    Attributes:
        aliases: other name -> name in the checkpoint, of what the model has under several names.
    """

    marker: Marker
    saved: Saved
    aliases: dict[str, str]

    @property
    def directory(self) -> Path:
        return self.marker.folder

    def damaged(self) -> list[str]:
        """Return what is wrong with the files, as all ranks find it together."""
        return damage(self.marker, _hash_like)


def _read(directory: Path) -> Candidate | str:
    """Return the candidate, or why it is none."""
    try:
        marker = read_marker(directory)
        about = marker.about.get("extra", marker.about)  # the first version had no `extra`
        place = Place(**{name: _whole(number) for name, number in about["place"].items()})
        if directory.name != of_step(directory.parent, place.step).name:
            raise ValueError(f"it is of step {place.step}")
        best, identity = _best(about["best"], place.step), dict(about["identity"])
        scale = _scale(about.get("loss_scale"))
        saved = Saved(place, identity, best, bool(about["unvalidated"]), scale)
        aliases = {str(n): str(first) for n, first in marker.about.get("aliases", {}).items()}
    except DamagedError as error:
        return str(error)
    except Exception as error:  # whatever somebody, or a disk, has made of it
        return f"its marker {MARKER} is damaged: {error}"
    return Candidate(marker, saved, aliases)


def _hash_like(path: Path, like: str) -> str:
    """Return the hash of a file, of the kind of another: the first version had XXH3-64."""
    if ":" in like:
        return fingerprint(path)[1]
    code = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            code.update(block)
    return code.hexdigest()


def candidates(root: Path) -> tuple[list[Candidate], list[str], bool]:
    """Return the checkpoints with a readable marker, newest first, lines on the others, and
    whether one of those was whole once.

    Raises:
        UserError: `root` is a link to nowhere.
    """
    if root.is_symlink() and not root.exists():
        raise UserError(f"{root} is a link to {root.readlink()}, which is not there")
    whole, passed, spoiled = [], [], False
    for directory in reversed(steps(root)):
        candidate = _read(directory)
        if isinstance(candidate, Candidate):
            whole.append(candidate)
        else:
            passed.append(f"checkpoint {directory.name} is torn ({candidate}); passed over")
            spoiled = spoiled or (directory / MARKER).exists()
    return whole, passed, spoiled


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
    here = candidates(root) if is_root_process() else nothing
    whole, passed, spoiled = broadcast(here)
    for line in passed:
        print0(line, flush=True)
    carried = carried or Carried()
    for candidate in whole:
        refuse_other_run(candidate.saved.identity, identity)
        why = "; ".join(candidate.damaged())
        if not why:
            try:
                beside = load(
                    candidate.marker,
                    model,
                    optimizer,
                    copies,
                    carried.optimizer_among,
                    carried.wanted,
                )
            except OtherModelError as error:
                raise UserError(
                    f"checkpoint {error}\n"
                    "resume with the options the run was started with, or start a new run"
                ) from None
            except (DamagedError, OSError) as error:
                why = f"{error}"
            else:
                carried.resume(beside)
                # What is said to be best has to be there: else the next validation is the best.
                saved, there = candidate.saved, {other.saved.place.step for other in whole}
                return saved if saved.best and saved.best[1] in there else replace(saved, best=None)
        print0(f"checkpoint {candidate.directory.name} is torn ({why}); passed over", flush=True)
    if whole or spoiled:
        raise UserError(
            f"every checkpoint in {root} is damaged; bring the folder back from a copy, or start a "
            "new run"
        )
    return None


def resume(
    root: Path,
    built: Built,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    carried: Carried,
    last: int,
) -> Saved | None:
    """Go back to the newest whole checkpoint, and say so; None when there is none.

    Args:
        last: number of the run's last step.

    Raises:
        UserError: it is of another run or model, or all are damaged.
    """
    saved = restore(root, built.model, optimizer, identity, built.copies, carried)
    step = 0 if saved is None else saved.place.step
    how = f"no whole checkpoint in {root}: " if saved is None else "resuming "
    done = ", which are done: evaluating again" if step >= last else ""
    print0(f"{how}at step {step} of {last}{done}", flush=True)
    return saved


def amend(root: Path, saved: Saved) -> None:
    """Replace, old or new, what the complete checkpoint of this place says of itself.

    Raises:
        OSError, DamagedError: it could not be written; what it said before is unchanged.
    """
    marker = read_marker(of_step(root, saved.place.step))
    replace(marker, about={**marker.about, "extra": asdict(saved)}).write()


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _best(value: Any, step: int) -> tuple[float, int] | None:
    if value is None:
        return None
    loss, at = value
    if not math.isfinite(loss := float(loss)) or not 0 < _whole(at) <= step:
        raise ValueError(f"its best is {value!r:.60}")
    return loss, at


def _scale(value: Any) -> tuple[float, int] | None:
    if value is None:
        return None
    factor, since = value
    if not 0 < (factor := float(factor)) < math.inf:
        raise ValueError(f"its loss scale is {value!r:.60}")
    return factor, _whole(since)
