"""Checkpoints of a run: a folder per step, written by all ranks, trusted by its marker alone.

checkpoints/step-00000200/__0_0.distcp   tensors of the model and the optimizer
                          .metadata      which tensor lies where (torch's)
                          COMPLETE       the marker, written last: hashes, and how far the run was
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import xxhash
from torch import nn

from ..base.errors import UserError
from ..runtime.collectives import broadcast
from ..runtime.folder import MARKER, OPTIMIZER, Marker, Target, Writer, fingerprint, load, named
from ..runtime.log import print0
from ..runtime.state import DamagedError, OtherModelError
from ..runtime.world import is_root_process
from .ema import Average
from .options import refuse_other_run
from .plan import Place

# What the end of a failing run gives a checkpoint that is being written.
GRACE_SECONDS = 60.0
_NAME = re.compile(r"step-\d{8,}")
_EXCHANGE = "exchange."
_MOST = 10**15  # steps, samples


@dataclass(frozen=True)
class Saved:
    """The description of a complete checkpoint.

    Attributes:
        place: how far the run had come.
        identity: the options that define the run.
        best: lowest validation loss so far and the step it was seen at, whose checkpoint is kept;
            None before the first.
        unvalidated: the validation that belongs to this step was left when the run was stopped.
        loss_scale: the factor of float16, and the steps since it changed.
    """

    place: Place
    identity: dict[str, Any]
    best: tuple[float, int] | None
    unvalidated: bool = False
    loss_scale: tuple[float, int] | None = None


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
        return self.marker.damage(_hash_like)


def _read(directory: Path) -> Candidate | str:
    """Return the candidate, or why it is none."""
    try:
        marker = Marker.read(directory)
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
    found, passed, spoiled = [], [], False
    for directory in reversed(_steps(root)):
        candidate = _read(directory)
        if isinstance(candidate, Candidate):
            found.append(candidate)
        else:
            passed.append(f"checkpoint {directory.name} is torn ({candidate}); passed over")
            spoiled = spoiled or (directory / MARKER).exists()
    return found, passed, spoiled


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
    found, passed, spoiled = broadcast(here)
    for line in passed:
        print0(line, flush=True)
    carried = carried or Carried()
    for candidate in found:
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
                saved, there = candidate.saved, {other.saved.place.step for other in found}
                return saved if saved.best and saved.best[1] in there else replace(saved, best=None)
        print0(f"checkpoint {candidate.directory.name} is torn ({why}); passed over", flush=True)
    if found or spoiled:
        raise UserError(
            f"every checkpoint in {root} is damaged; bring the folder back from a copy, or start a "
            "new run"
        )
    return None


# --- writing


class Saver:
    """Saves checkpoints of an attempt, one at a time; make, use and close it on all ranks.

    Args:
        root: the folder of checkpoints.
        keep: how many complete ones are left after each save, beside the one that was best.
        asynchronous: write in a thread; else `save` returns when all is on disk.

    Attributes:
        seconds: the longest time that a save took, from its call to its marker.
    """

    def __init__(self, root: Path, keep: int, asynchronous: bool = True) -> None:
        self._root, self._keep = root, keep
        self._asynchronous, self._writer = asynchronous, Writer()
        self._done: Future[None] = Future()
        self._told = True
        self.seconds = 0.0

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        saved: Saved,
        copies: Mapping[str, str] | None = None,
        carried: Carried | None = None,
    ) -> None:
        """Write a checkpoint; returns once model and optimizer may be changed again.

        A save that is still being written is waited for. What fails on the way to the disk is told
        by the next `wait`. A kill at any moment leaves the earlier checkpoints as they were.

        Args:
            copies: name of a parameter here -> name under which its tied copies are saved once.
            carried: what this rank's copy of the model has beside it.
        """
        began = time.monotonic()

        def ended(done: Future[None]) -> None:
            if done.exception() is None:
                self.seconds = max(self.seconds, time.monotonic() - began)

        carried = carried or Carried()
        tensors, aliases = named(model, optimizer, copies, carried.optimizer)
        target = _Step(self._root, saved, self._keep)
        about = {"extra": asdict(saved)}
        self._done = self._writer.save(
            target, tensors | carried.state(), aliases, about, self._asynchronous
        )
        self._told = False
        self._done.add_done_callback(ended)

    def wait(self) -> str:
        """Wait for the last save: empty, or why it was not written; the same on every rank.

        Each failure is told once.
        """
        self._writer.wait()
        told, self._told = self._told, True
        error = None if told else self._done.exception()
        return f"{type(error).__name__}: {error}".splitlines()[0] if error else ""

    @property
    def written(self) -> bool:
        """True once the last save came to its end, and well."""
        return self._done.done() and self._done.exception() is None

    def close(self) -> None:
        """Let a save that is being written come to its end, within bounds, and leave the group."""
        self._writer.close(GRACE_SECONDS)


class _Step(Target):
    """The folder of a step, and those before it that go when it is there."""

    def __init__(self, root: Path, saved: Saved, keep: int) -> None:
        directory = of_step(root, saved.place.step)
        super().__init__(directory, directory)
        self._keep = keep
        self._best = saved.best and of_step(root, saved.best[1])
        self._complete = False

    def begin(self) -> None:
        self.folder.parent.mkdir(exist_ok=True)
        if self.folder.is_symlink() or self.folder.exists():
            remove(self.folder)
        for path in _steps(self.folder.parent):
            if not (path / MARKER).exists():
                remove(path)
        self.folder.mkdir()

    def commit(self, marker: Marker) -> None:
        super().commit(marker)
        self._complete = True
        prune(self.folder, self._keep, self._best)

    def undo(self, error: BaseException) -> None:
        # A peer that dies after the marker takes nothing with it.
        if not self._complete:
            with contextlib.suppress(OSError):
                (self.folder / MARKER).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)


def amend(root: Path, saved: Saved) -> None:
    """Replace, old or new, what the complete checkpoint of this place says of itself.

    Raises:
        OSError, DamagedError: it could not be written; what it said before is unchanged.
    """
    marker = Marker.read(of_step(root, saved.place.step))
    replace(marker, about={**marker.about, "extra": asdict(saved)}).write()


def of_step(root: Path, step: int) -> Path:
    """Return the folder of a step."""
    return root / f"step-{step:08d}"


def prune(newest: Path, keep: int, best: Path | None = None) -> None:
    """Keep `newest`, the `keep - 1` complete checkpoints before it, and `best`.

    Later ones are of a future that was abandoned when the run fell back; they go too.
    """
    others = [path for path in _steps(newest.parent) if path != newest]
    before = [path for path in others if _number(path) < _number(newest)]
    for path in {*others} - {*before[max(0, len(before) - (keep - 1)) :], best}:
        with contextlib.suppress(OSError):  # the new one is whole, whatever becomes of this
            remove(path)


def remove(directory: Path) -> None:
    """Remove a checkpoint, its marker first, so that half of it is never trusted.

    A link to one that was moved elsewhere goes; what it points to is somebody's.
    """
    if not directory.is_dir() or directory.is_symlink():
        directory.unlink(missing_ok=True)
    else:
        (directory / MARKER).unlink(missing_ok=True)
        shutil.rmtree(directory)


def _steps(root: Path) -> list[Path]:
    """Return the folders of checkpoints, oldest first; not what else somebody keeps beside them."""
    found = [path for path in root.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_number)


def _number(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))


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


# --- beside the model


class Exchange(Protocol):
    """The way in which copies of a model meet, and the part that a resumed run needs."""

    def state(self) -> dict[str, torch.Tensor]: ...

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]: ...

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None: ...


class Carried:
    """Names under which a rank keeps what its copy of the model alone has.

    The first copy's optimizer has the name that the optimizer of any other layout has, so that a
    run may go on under another strategy.

    Args:
        copy: which of the copies this rank belongs to, from 0.

    Attributes:
        average: of the weights, where the run has one.
    """

    def __init__(self, copy: int = 0, exchange: Exchange | None = None) -> None:
        self._copy, self._exchange = copy, exchange
        self.average: Average | None = None

    @property
    def optimizer(self) -> str:
        """Prefix of the names of this copy's optimizer state."""
        return _prefix(self._copy)

    def optimizer_among(self, names: Collection[str]) -> str:
        """The same in a checkpoint of these names. Copies that have no state there, as they are new
        or had no work, take that of another."""
        found = (re.match(r"copy\.(\d{1,9})\.", name) for name in names)
        copies = {int(match[1]) for match in found if match}
        if not copies or any(name.startswith(OPTIMIZER) for name in names):
            copies.add(0)
        there = sorted(copies)
        return _prefix(self._copy if self._copy in there else there[self._copy % len(there)])

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors of exchange and average, to be saved."""
        state = {} if self._exchange is None else self._exchange.state()
        found = {_EXCHANGE + name: value for name, value in state.items()}
        return found | (self.average.state() if self.average else {})

    def wanted(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the tensors to be filled from a checkpoint of these names."""
        found = self.average.wanted(names) if self.average else {}
        if self._exchange is None:
            return found
        saved = [n.removeprefix(_EXCHANGE) for n in names if n.startswith(_EXCHANGE)]
        wanted = self._exchange.wanted(saved)
        return found | {_EXCHANGE + name: value for name, value in wanted.items()}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Go on from what was filled."""
        if self._exchange is not None:
            theirs = {n: t for n, t in loaded.items() if n.startswith(_EXCHANGE)}
            self._exchange.resume({n.removeprefix(_EXCHANGE): t for n, t in theirs.items()})
        if self.average is not None:
            self.average.resume(loaded)


def _prefix(copy: int) -> str:
    return f"copy.{copy}.{OPTIMIZER}" if copy else OPTIMIZER
