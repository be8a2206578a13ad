"""The model that a run has come to, for other programs to load.

A run whose ranks hold the whole model leaves model-final.pt, a state dict. One whose ranks share
it leaves a folder in the form of Hugging Face's sharded checkpoints, and no rank holds it whole:

model-final/model-1f2e3d4c-00001-of-00004.safetensors    whole tensors, each in one of the files
            model.safetensors.index.json                 which one; written last
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import torch

from ..base.files import write_atomic
from ..parallel.build import Built
from ..runtime.collectives import all_gather_object, broadcast
from ..runtime.save import full_state, whole, write
from ..runtime.state import everywhere, of_model, union
from ..runtime.world import is_root_process, rank_and_size

FILE, FOLDER, INDEX = "model-final.pt", "model-final", "model.safetensors.index.json"


def write_final(built: Built, directory: Path, say: Callable[[str], None]) -> str:
    """Write the model; return on every rank the name of what could not be written, as a rule empty.

    Collective. A kill at any moment leaves what was there before, or the new.
    """
    layout = built.mesh.layout
    shared = layout.shard_size * layout.tp * layout.pp > 1
    try:
        if shared:
            _write_shards(built, directory / FOLDER)
        else:
            _write_file(built, directory / FILE)
    except OSError as error:
        say(f"{FOLDER if shared else FILE} could not be written ({error})")
        return FOLDER if shared else FILE
    former = FILE if shared else FOLDER  # of an attempt on other ranks, and of an older step
    try:
        if is_root_process():
            _remove(directory, former)
    except OSError as error:
        say(f"{former}, the model of an earlier attempt, could not be removed ({error})")
    return ""


def _write_file(built: Built, path: Path) -> None:
    state = full_state(built.model, built.copies)
    everywhere(lambda: write(state, path) if is_root_process() else None)


def _write_shards(built: Built, folder: Path) -> None:
    held = of_model(built.model, built.copies)
    aliases = union(held.aliases)
    # Copies of the model that train by themselves have met: the first one writes for all.
    mine = {} if built.mesh.apart and built.mesh.dp_replicate else held.tensors
    sizes = {name: value.nbytes for name, value in mine.items()}
    owners = _owners(all_gather_object(sizes))
    rank, _ = rank_and_size()
    files = sorted({*owners.values()})
    tag = broadcast(secrets.token_hex(4))
    names = {
        owner: f"model-{tag}-{number:05d}-of-{len(files):05d}.safetensors"
        for number, owner in enumerate(files, 1)
    }
    # In one order on all ranks: of each the ranks that share it put it together.
    shard: dict[str, torch.Tensor] = {}
    for name in sorted(mine):
        tensor = whole(mine[name])
        if owners[name] == rank:
            shard[name] = tensor.cpu().contiguous()
    for name, first in aliases.items():
        if first in shard:  # the format has no two names for one tensor
            shard[name] = shard[first].clone()
    everywhere(lambda: folder.mkdir(exist_ok=True) if is_root_process() else None)
    try:
        everywhere(lambda: _write_shard(shard, folder / names[rank]) if shard else None)
        places = {
            name: names[owner]
            for owner, shards in enumerate(all_gather_object([*shard]))
            for name in shards
        }
        order = {name: place for place, name in enumerate(built.whole.state_dict())}
        weights = {name: places[name] for name in sorted(places, key=lambda n: order.get(n, -1))}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weights}
        everywhere(lambda: _commit(folder, index) if is_root_process() else None)
    except BaseException:
        with contextlib.suppress(OSError, ValueError):  # of an index that nobody can read it stays
            if rank in names and names[rank] not in _named(folder):
                (folder / names[rank]).unlink(missing_ok=True)
        raise


def _owners(everyone: list[dict[str, int]]) -> dict[str, int]:
    """Return which rank writes each tensor: of its holders the one with the least so far."""
    holders: dict[str, list[int]] = {}
    size: dict[str, int] = {}
    for rank, sizes in enumerate(everyone):
        size |= sizes
        for name in sizes:
            holders.setdefault(name, []).append(rank)
    loads = [0] * len(everyone)
    owners = {}
    for name in sorted(holders, key=lambda name: (-size[name], name)):
        owners[name] = min(holders[name], key=lambda rank: (loads[rank], rank))
        loads[owners[name]] += size[name]
    return owners


def _write_shard(tensors: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # so it says that the disk is full
        raise OSError(f"{path.name} could not be written: {error}") from None
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _commit(folder: Path, index: dict[str, object]) -> None:
    """Let the shards of an index count, and remove all others."""
    write_atomic(folder / INDEX, json.dumps(index, indent=2) + "\n")
    named = _named(folder)
    for path in folder.glob("model-*.safetensors"):
        if path.name not in named:
            with contextlib.suppress(OSError):  # it takes room, and no index names it
                path.unlink(missing_ok=True)


def _named(folder: Path) -> set[str]:
    """Return the shards that count."""
    if not (folder / INDEX).exists():
        return set()
    return {*json.loads((folder / INDEX).read_text())["weight_map"].values()}


def _remove(directory: Path, name: str) -> None:
    """Remove the model in the form that it no longer has."""
    if name == FILE:
        (directory / FILE).unlink(missing_ok=True)
    elif (directory / FOLDER).is_dir():
        (directory / FOLDER / INDEX).unlink(missing_ok=True)  # first: it counts no more
        for path in (directory / FOLDER).glob("model-*.safetensors"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody has put more there
            (directory / FOLDER).rmdir()
