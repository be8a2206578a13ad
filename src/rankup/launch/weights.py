"""The model of a run, in one process, whatever layout its checkpoints have: `rankup export` writes
it into one file, `rankup generate` tries it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import recipes
from ..base import gone
from ..base.errors import UserError
from ..base.files import fsync_directory, user_path
from ..base.text import clean
from ..recipes import Asked
from ..site import rundir
from . import meant

if TYPE_CHECKING:
    import torch

    from ..recipes.llama import LlamaShape
    from ..train.resume import Candidate

_PREFIX = "model."
SUFFIXES = {"safetensors": ".safetensors", "torch": ".pt", "hf": "-hf"}
# What another --out would mend.
_ELSEWHERE = (errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR)


def export(
    run: str,
    to: str,
    out: str | None = None,
    step: int | None = None,
    best: bool = False,
    force: bool = False,
    ema: bool = False,
) -> int:
    """Write the model of a run into one file, old-or-new, and print where.

    Args:
        run: id, Slurm job id, `last` or directory.
        to: `safetensors` or `torch`, which is the state dict that `load_state_dict` takes; `hf`
            makes a folder that transformers loads, of a Llama.
        out: the file, or folder; by default beside the checkpoints, named by their step.
        step: of the checkpoint; by default the newest whole one.
        best: the checkpoint with the lowest validation loss instead.
        ema: the moving average of the weights instead of these.

    Raises:
        UserError: no such run, no such checkpoint, the file exists, a package is missing.
        OSError: it could not be written; what was there before is unchanged.
    """
    if to not in SUFFIXES:
        raise UserError(f"--to {to!r}: known are {', '.join(SUFFIXES)}")
    need("torch", "rankup export reads checkpoints with torch")
    if to != "torch":
        need("safetensors", f"--to {to} writes with the package safetensors")
    place = folder(run).resolve()
    where = user_path(out, "--out").absolute() if out is not None else None
    llama, scale = _llama(place) if to == "hf" else (None, 1.0)
    candidate = checkpoint(place / "checkpoints", step, best)
    name = "best" if best else candidate.directory.name
    path = where or place / f"model-{name}{'-ema' * ema}{SUFFIXES[to]}"
    if llama is not None and path.exists():
        raise UserError(f"{path} exists; --out names another folder")
    _refuse_existing(path, force)
    tensors = read(candidate, ema)
    _say_gone(place)
    what = f"step {candidate.saved.place.step}"
    if llama is not None:
        from ..recipes import lora

        tensors = lora.merged(tensors, scale)
        llama = replace(llama, vocab_size=len(tensors["tokens.weight"]))
    _write(tensors, path, to, llama)
    count = sum(tensor.numel() for name, tensor in tensors.items())
    print(f"{what}, {len(tensors)} tensors, {count:,} numbers: {clean(str(path))}")
    return 0


def _llama(folder: Path) -> tuple[LlamaShape, float]:
    """The sizes of the Llama that a run has trained, and what its adapters, if any, count by.

    Raises:
        UserError: it has trained something else.
    """
    job = rundir.read(folder)
    if job.kind == "recipe" and job.target in recipes.RECIPES:
        _relative_paths_as_the_run(job)
        options = recipes.find(job.target).parse(job.args, job.kept)
        if (llama := getattr(options, "llama", None)) is not None:
            found: LlamaShape = replace(llama, longest=max(llama.longest, options.seq_len))
            return found, options.lora_scale
    raise UserError(
        "--to hf writes models of `rankup run language-model --model llama-…`, and this run "
        "trained another one; --to safetensors writes its weights by their own names"
    )


def _say_gone(folder: Path) -> None:
    """Say of weights that a recipe of 0.2 has trained who reads them now."""
    if (folder / rundir.JOB).is_file():
        job = rundir.read(folder)
        if job.kind == "recipe" and (said := gone.of_run(job.target, job.args)):
            _say(f"note: {said}; the weights are written by their own names")


def _refuse_existing(path: Path, force: bool) -> None:
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it")
    if path.exists() and not force:
        raise UserError(f"{path} exists; --force replaces it, --out names another")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}")


def _write(
    tensors: Mapping[str, torch.Tensor], path: Path, to: str, llama: LlamaShape | None
) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if llama is not None:
            from ..recipes import llama_weights

            temporary.mkdir()
            llama_weights.save(tensors, llama, temporary)
            for part in temporary.iterdir():
                with part.open("rb") as written:
                    os.fsync(written.fileno())
            fsync_directory(temporary)
        elif to == "torch":
            import torch

            with temporary.open("xb") as file:  # torch's own would hide why it cannot write
                torch.save(dict(tensors), file)
        else:
            _write_safetensors(tensors, temporary)
        if llama is None:
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
    except BaseException as error:
        if llama is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _ELSEWHERE:
            why = f"{path} cannot be written: {error.strerror}; name another place with --out"
            raise UserError(why) from None
        # torch reports a full disk as a failed check of its own, with the reason behind it.
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    fsync_directory(path.parent)


def _write_safetensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain = {}
    for name, value in tensors.items():
        # The format has no two names for one tensor.
        again = value.untyped_storage().data_ptr() in seen
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value.clone() if again else value.contiguous()
    try:
        save_file(plain, path, metadata={"format": "pt"})
    except SafetensorError as error:  # so it says that the disk is full
        raise OSError(f"{path.name} could not be written: {error}") from None


def generate(
    run: str, asked: Asked, step: int | None = None, best: bool = False, ema: bool = False
) -> int:
    """Load the model of a run's newest checkpoint, or of another one, and print what it makes.

    Args:
        run: id, Slurm job id, `last` or directory.
        step, best: of the checkpoint; by default the newest whole one.
        ema: the moving average of the weights instead of these.

    Raises:
        UserError: no such run or checkpoint, or one of a script; what was asked for makes no sense.
        OSError: a file cannot be read.
    """
    need("torch", "rankup generate computes with torch")
    place = folder(run).resolve()  # also behind a change of folder
    job = rundir.read(place)
    if job.kind != "recipe":
        raise UserError(
            f"run {job.id} is of a script, {Path(job.target).name}, and only recipes "
            f"({', '.join(recipes.RECIPES)}) say how to try their model; "
            f"`rankup export {run} --to torch` writes its weights for a script of yours"
        )
    recipe = recipes.find(job.target)
    candidate = checkpoint(place / "checkpoints", step, best)
    tensors = read(candidate, ema)
    what = f"step {candidate.saved.place.step} of run {job.id}"
    what += ", averaged weights" if ema else ""
    print(f"{job.target}, {what}", file=sys.stderr)
    _relative_paths_as_the_run(job)
    for text in recipe.generate(job.args, place, tensors, asked):
        # A model of bytes may make any of them.
        print("\n".join(clean(line) for line in text.split("\n")), flush=True)
    return 0


def _relative_paths_as_the_run(job: rundir.Job) -> None:
    """Options of the run may name files relative to where it was started."""
    try:
        os.chdir(job.cwd)
    except OSError:
        print(f"note: {job.cwd}, where the run was started, is not here", file=sys.stderr)


def need(package: str, why: str) -> None:
    """UserError saying how to install a package that is not here."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{why}, which is not here; pip install {package}")


def folder(run: str) -> Path:
    """Return the folder of a run.

    Raises:
        UserError: no such run.
    """
    here, client = meant.here()
    return meant.locate(here.runs, run, client)


def checkpoint(root: Path, step: int | None, best: bool) -> Candidate:
    """The newest whole checkpoint, the best, or the one of a step; what is passed over is said.

    Raises:
        UserError: there is none, or both were asked for.
    """
    if best and step is not None:
        raise UserError("--best and --step name two models; give one of them")
    from ..train.resume import candidates

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


def read(candidate: Candidate, ema: bool = False) -> dict[str, torch.Tensor]:
    """The model's tensors of a checkpoint, under every name that the model's state dict has.

    Args:
        ema: of what has a moving average, that.

    Raises:
        UserError: it is no checkpoint of ours, or damaged, or has no average.
        OSError: a file cannot be read.
    """
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from ..runtime.restore import SafeReader
    from ..train.ema import PREFIX as AVERAGE

    reader = SafeReader(candidate.directory)
    try:
        entries = reader.read_metadata().state_dict_metadata
        wanted = (_PREFIX, AVERAGE) if ema else (_PREFIX,)
        state = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in entries.items()
            if name.startswith(wanted) and isinstance(entry, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group is as it should be
            dcp.load({**state}, storage_reader=reader, no_dist=True)
    except OSError:
        raise
    except (CheckpointException, Exception) as error:  # a hostile .metadata shows in many ways
        raise UserError(f"{candidate.directory} cannot be read: {error}") from None
    tensors = {
        name.removeprefix(_PREFIX): state.get(name.replace(_PREFIX, AVERAGE, 1), value)
        for name, value in state.items()
        if name.startswith(_PREFIX)
    }
    if ema and not any(name.startswith(AVERAGE) for name in state):
        raise UserError(
            f"{candidate.directory} has no moving average of the weights, which a run keeps with "
            "--ema DECAY; leave --ema away"
        )
    lost = [name for name, first in candidate.aliases.items() if first not in tensors]
    if lost:
        raise UserError(f"{candidate.directory} cannot be read: {lost[0]!r} is not in it")
    return tensors | {name: tensors[first] for name, first in candidate.aliases.items()}


def _say(line: str) -> None:
    """To stderr: what a verb found stands on stdout alone."""
    print(clean(line), file=sys.stderr)
