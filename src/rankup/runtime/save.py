"""One file, written by one rank, the old one or the new: of a script, or the whole of a model.

The file of a whole model is saved from and loaded into any layout. That of a model alone is its
state dict, which plain PyTorch loads into the single-GPU model.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import pickle
import re
import secrets
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .collectives import all_gather_object, broadcast
from .model import strip_prefixes, unwrap
from .state import (
    DamagedError,
    NamedTensors,
    everywhere,
    of_model,
    of_optimizer,
    parts,
    refuse_other,
    union,
)
from .world import is_root_process, rank_and_size, setup

_LIVES = 600.0  # seconds within which who writes a file has come further


def save0(value: Any, path: str | os.PathLike[str], *, pickled: bool = False) -> None:
    """`torch.save` on rank 0 alone, old-or-new, of something that loads with `weights_only=True`.

    Models, wherever they stand in nested dictionaries, are saved as the state dict of the user's
    own model; names that DDP or `torch.compile` have prefixed lose the prefix, and tensors of
    `parallelize` of which rank 0 holds all become ordinary ones. No collective: other ranks return
    at once. The file is a zip archive with a CRC-32 of each record, which
    `load_full_model` and `python -m zipfile -t` compare; `torch.load` does not.

    Args:
        pickled: save what `torch.save` would, objects of any class and models as whole modules,
            for a script that loads them so (with `weights_only=False`).

    Raises:
        TypeError: `value` holds something that only an unsafe load would bring back, and is not
            `pickled`; or a tensor that is spread over ranks, which `save_full_model` saves.
        OSError: the file could not be written; what was there before is unchanged.
    """
    if is_root_process():
        write(_plain(value, pickled), path, pickled=pickled)


def write(value: Any, path: str | os.PathLike[str], *, pickled: bool = False) -> None:
    """What `save0` does on rank 0, here, and with `value` as it is."""
    path = Path(path)
    _sweep(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        with temporary.open("xb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            if not pickled:
                torch.load(temporary, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            raise TypeError(
                f"save0: {path.name} would load with weights_only=False alone: "
                f"{_offender(str(error))}; save state_dict()s, tensors, numbers and strings"
            ) from None
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch reports a full disk as a failed check of its own, with the reason behind it.
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    finally:
        torch.serialization.set_crc32_options(checksums)


def _sweep(path: Path) -> None:
    """Remove what killed saves of this file have left.

    Who is alive has written lately, or holds a lock on his, which other nodes may not see.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if not pattern.fullmatch(left.name) or time.time() - left.stat().st_mtime < _LIVES:
                continue
            with left.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def _plain(value: Any, pickled: bool, name: str = "") -> Any:
    if isinstance(value, nn.Module):
        return unwrap(value) if pickled else _owned(unwrap(value).state_dict())
    if isinstance(value, DTensor):
        return _own(value, name)
    if isinstance(value, Mapping):
        if value and all(isinstance(item, torch.Tensor) for item in value.values()):
            return _owned(strip_prefixes(value))
        return {key: _plain(item, pickled, f"{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, pickled, name) for item in value)
    return value


def _owned(state: Mapping[str, Any]) -> Mapping[str, Any]:
    if not any(isinstance(item, DTensor) for item in state.values()):
        return state
    return {
        key: _own(item, f"{key}") if isinstance(item, DTensor) else item
        for key, item in state.items()
    }


def _own(value: DTensor, name: str) -> torch.Tensor:
    """An ordinary tensor of what this rank holds, where that is all of it."""
    mesh = value.device_mesh
    for axis, placement in enumerate(value.placements):
        if mesh.size(axis) > 1 and not placement.is_replicate():
            raise TypeError(
                f"save0: {name or 'the tensor'} is spread over {mesh.size(axis)} ranks, of which "
                f"rank 0 holds a part; rankup.save_full_model(model, path, optimizer) on every "
                f"rank saves it whole"
            )
    own: torch.Tensor = value.to_local()
    return own.detach()


def _offender(message: str) -> str:
    for line in message.splitlines():
        if "GLOBAL" in line or "Unsupported" in line:
            return line.strip()
    return message.splitlines()[0] if message else "an object torch does not allow"


def here(storage: Any, location: str) -> Any:
    """`torch.load(path, map_location=rankup.here)`: what was saved from a GPU comes to this rank's.

    Without a `map_location` it would come to the GPU it was saved from, on all ranks the same one.
    What was saved from the CPU stays there.
    """
    device = setup().device
    if location.startswith("cuda") and device.type == "cuda":
        return storage.cuda(device.index)
    return storage


def path0(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path on rank 0; on the others a file that swallows what is written.

    For `open(rankup.path0(path), "w")` in a script whose every rank writes the same log.
    """
    if is_root_process():
        return path
    return Path(os.devnull) if isinstance(path, Path) else os.devnull


_PREFIXES = ("_orig_mod.", "module.")


def save_full_model(
    model: nn.Module,
    path: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    copies: Mapping[str, str] | None = None,
    **extra: Any,
) -> None:
    """Write the whole model to one file, old-or-new; call on every rank.

    Parameters come to rank 0's host memory one after another, so no GPU ever holds more than one
    whole parameter beside what it has. Alone, the model is saved as its state dict; with an
    optimizer or `extra` (numbers, strings, tensors) as a dictionary `{"model": ..., "optimizer":
    ..., **extra}`. The optimizer's state is kept by parameter name.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds.

    Raises:
        TypeError: something in `extra` would only load unsafely.
        OSError: the file could not be written; what was there before is unchanged. On every rank.
    """
    if reserved := {"model", "optimizer"} & extra.keys():
        raise TypeError(f"save_full_model: {sorted(reserved)} cannot be names of something extra")
    value: dict[str, Any] = full_state(model, copies)
    if optimizer is not None:
        value = {
            "model": value,
            "optimizer": full_optimizer_state(model, optimizer, copies),
        } | extra
    elif extra:
        value = {"model": value, **extra}
    everywhere(partial(write, value, path) if is_root_process() else dict)


def load_full_model(
    model: nn.Module,
    path: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    copies: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Load a file of `save_full_model`, or a plain state dict, in any layout; call on every rank.

    Each rank maps the file into memory and reads the parts that it holds. First the ranks compare
    the file with the checksums in it, a share each. Nothing is unpickled but tensors and plain
    values.

    Args:
        copies: as for `save_full_model`.

    Returns:
        What was saved as `extra`.

    Raises:
        ValueError: the file is damaged, of another model (the message names what differs), or has
            no optimizer. On every rank; model and optimizer are unchanged.
        TypeError: the optimizer keeps what cannot be loaded, or its step needs a closure.
        OSError: there is no such file, or a rank cannot read it. On every rank.
    """
    everywhere(partial(_verify, path))
    content = everywhere(partial(_read, path))
    if optimizer is not None and "optimizer" not in content:
        raise ValueError(f"load_full_model: {path} holds no optimizer, only a model")
    held = of_model(model, copies)
    aliases = union(held.aliases)
    weights = _named_as(content["model"], {*aliases, *union(held.shapes())})
    weights = {aliases.get(name, name): value for name, value in weights.items()}
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    refuse_other(shapes, held.shapes(), "model", f"{path}", "file")
    if optimizer is not None:
        _load_optimizer(content["optimizer"], model, held, optimizer, f"{path}")
    _fill(held, weights)
    return {k: v for k, v in content.items() if k not in ("model", "optimizer")}


def full_state(model: nn.Module, copies: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The state dict of the whole model, in host memory, on rank 0; `{}` elsewhere. Collective.

    Its tensors may share memory with the model's.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds. The result has both names.
    """
    held = of_model(model, copies)
    whole = dict(_stream(held.tensors))
    aliases = union(held.aliases)
    if not is_root_process():
        return {}
    return whole | {name: whole[first] for name, first in aliases.items()}


def full_optimizer_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    copies: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The optimizer's state by parameter name, on rank 0; `{}` elsewhere. Collective.

    Of the form of `optimizer.state_dict()`, with names in place of numbers.
    """
    held = of_model(model, copies)
    whole = dict(_stream(of_optimizer(optimizer, held).tensors))
    groups = _merged_groups(
        [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            | {"params": [held.names[id(parameter)] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
    )
    if not is_root_process():
        return {}
    state: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in whole.items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(parameter, {})[key] = value
    return {"state": state, "param_groups": groups}


def _merged_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All ranks' parameter groups; each rank has the parameters of its pipeline stages."""
    everyone = all_gather_object(groups)
    merged = everyone[0]
    for others in everyone[1:]:
        for group, other in zip(merged, others, strict=True):
            group["params"] += [name for name in other["params"] if name not in group["params"]]
    return merged


def whole(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor put together from all ranks' parts, on each of those that share it."""
    if not hasattr(value, "full_tensor"):
        return value
    # It warns that a tensor cut twice along one dimension takes two collectives, as it has to.
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        whole: torch.Tensor = value.full_tensor()
    finally:
        logger.setLevel(level)
    return whole


def _stream(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """All ranks' tensors, whole and one by one: on rank 0 in host memory; elsewhere nothing."""
    rank, _ = rank_and_size()
    about = {name: (tuple(t.shape), t.dtype, t.device.type) for name, t in tensors.items()}
    holders = _first_holders(list(tensors))
    for name, (shape, dtype, device) in union(about).items():
        value = tensors.get(name)
        if value is not None:
            value = whole(value)
        if holders[name] and rank == holders[name]:
            assert value is not None
            dist.send(value.contiguous(), 0)
        elif holders[name] and rank == 0:
            value = torch.empty(shape, dtype=dtype, device=device)
            dist.recv(value, holders[name])
        if rank == 0:
            assert value is not None
            yield name, value.cpu()


def _first_holders(names: list[str]) -> dict[str, int]:
    """For each name the first rank that has it. Rank 0's names are sent once, not by all."""
    first = broadcast(names)
    known = set(first)
    holders = dict.fromkeys(first, 0)
    for rank, others in enumerate(all_gather_object([n for n in names if n not in known])):
        for name in others:
            holders.setdefault(name, rank)
    return holders


def _verify(path: str | os.PathLike[str]) -> None:
    """Compare this rank's share of a file's records with the CRC-32 that torch.save puts there."""
    with open(path, "rb") as file:
        if file.read(2) != b"PK":  # torch's format before 1.6 has none
            return
    rank, ranks = rank_and_size()
    try:
        with zipfile.ZipFile(path) as records:
            for record in records.infolist()[rank::ranks]:
                with records.open(record) as content:
                    while content.read(1 << 24):
                        pass
    except Exception as error:  # what a damaged directory of records leads to is of any kind
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that is a wrong offset
            raise
        raise DamagedError(
            f"load_full_model: {path} has changed since it was written ({error}); take another copy"
        ) from None


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    content: Any
    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:  # torch's format before 1.6 cannot be mapped
            if "mmap" not in str(error):
                raise
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise DamagedError(f"load_full_model: {path} cannot be loaded: {error}") from None
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"load_full_model: {path} holds no model's state dict")
    if not isinstance(content.get("model"), Mapping):
        content = {"model": content}
    weights = {k: v for k, v in content["model"].items() if isinstance(v, torch.Tensor)}
    return {**content, "model": weights}


def _named_as(
    weights: Mapping[str, torch.Tensor], known: Collection[str]
) -> Mapping[str, torch.Tensor]:
    """Without what DDP and `torch.compile` put before all names; a model's own may begin so."""
    while weights and not any(name in known for name in weights):
        prefixes = [p for p in _PREFIXES if all(name.startswith(p) for name in weights)]
        if not prefixes:
            break
        weights = {name.removeprefix(prefixes[0]): value for name, value in weights.items()}
    return weights


def _load_optimizer(
    content: Mapping[str, Any],
    model: nn.Module,
    held: NamedTensors,
    optimizer: torch.optim.Optimizer,
    place: str,
) -> None:
    # With it comes torch's distributed checkpoint, which a script that only saves does not need.
    from .restore import allocated, settle_optimizer

    weights = {
        f"{held.aliases.get(name, name)}.{key}": value
        for name, state in content["state"].items()
        for key, value in state.items()
    }
    groups = content["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"{place} has {len(groups)} parameter groups, this optimizer "
            f"{len(optimizer.param_groups)}"
        )
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    with allocated(optimizer, model, held) as state:
        refuse_other(shapes, state.shapes(), "optimizer", place, "file")
        _fill(state, weights)
        settle_optimizer(optimizer, held, state, weights)
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group |= {key: value for key, value in saved.items() if key != "params"}


@torch.no_grad()
def _fill(held: NamedTensors, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy into each tensor the part of the whole one that this rank holds."""
    for name, value in held.tensors.items():
        if name not in weights:
            continue
        for part, offset in parts(value):
            begin = zip(offset, part.shape, strict=True)
            part.copy_(weights[name][tuple(slice(at, at + size) for at, size in begin)])
    held.settle()
