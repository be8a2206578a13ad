"""`rankup export`: one file with the whole model, out of a run's newest or best checkpoint."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import recipes
from ..base.errors import UserError
from ..base.files import fsync_directory, user_path
from ..base.text import clean
from . import weights

if TYPE_CHECKING:
    import torch

    from ..recipes.llama import LlamaShape

SUFFIXES = {"safetensors": ".safetensors", "torch": ".pt", "hf": "-hf"}


def export(
    run: str,
    to: str,
    out: str | None = None,
    step: int | None = None,
    best: bool = False,
    force: bool = False,
) -> int:
    """Write the model of a run into one file, old-or-new, and print where.

    Args:
        run: id, Slurm job id, `last` or directory.
        to: `safetensors` or `torch`, which is the state dict that `load_state_dict` takes; `hf`
            makes a folder that transformers loads, of a Llama.
        out: the file, or folder; by default beside the checkpoints, named by their step.
        step: of the checkpoint; by default the newest whole one.
        best: the checkpoint with the lowest validation loss instead.

    Raises:
        UserError: no such run, no such checkpoint, the file exists, a package is missing.
        OSError: it could not be written; what was there before is unchanged.
    """
    if to not in SUFFIXES:
        raise UserError(f"--to {to!r}: known are {', '.join(SUFFIXES)}")
    weights.need("torch", "rankup export reads checkpoints with torch")
    if to != "torch":
        weights.need("safetensors", f"--to {to} writes with the package safetensors")
    folder = weights.folder(run).resolve()
    where = user_path(out, "--out").absolute() if out is not None else None
    llama = _llama(folder) if to == "hf" else None
    candidate = weights.checkpoint(folder / "checkpoints", step, best)
    name = "best" if best else candidate.directory.name
    path = where or folder / f"model-{name}{SUFFIXES[to]}"
    _refuse_existing(path, force and to != "hf")
    tensors = weights.read(candidate)
    what = f"step {candidate.saved.place.step}"
    if llama is not None:
        llama = replace(llama, vocab_size=len(tensors["tokens.weight"]))
    _write(tensors, path, to, llama)
    count = sum(tensor.numel() for name, tensor in tensors.items())
    print(f"{what}, {len(tensors)} tensors, {count:,} numbers: {clean(str(path))}")
    return 0


def _llama(folder: Path) -> LlamaShape:
    """The sizes of the Llama that a run has trained.

    Raises:
        UserError: it has trained something else.
    """
    job = weights.job_of(folder)
    if job.kind == "recipe" and job.target in recipes.RECIPES:
        weights.stand_where_it_started(job)
        options = recipes.find(job.target).parse(job.args)
        if (llama := getattr(options, "llama", None)) is not None:
            found: LlamaShape = replace(llama, longest=max(llama.longest, options.seq_len))
            return found
    raise UserError(
        "--to hf writes models of `rankup run language-model --model llama-…`, and this run "
        "trained another one; --to safetensors writes its weights by their own names"
    )


def _refuse_existing(path: Path, force: bool) -> None:
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it")
    if path.exists() and not force:
        raise UserError(f"{path} exists; --force replaces it, --out names another")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}")


# What another --out would mend.
_ELSEWHERE = (errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR)


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
