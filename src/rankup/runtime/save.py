"""Files of a script: written by one rank, the old one or the new, and read to its own GPU."""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .model import strip_prefixes, unwrap
from .world import is_root_process, setup


def save0(value: Any, path: str | os.PathLike[str], *, pickled: bool = False) -> None:
    """`torch.save` on rank 0 alone, old-or-new, of something that loads with `weights_only=True`.

    Models, wherever they stand in nested dictionaries, are saved as the state dict of the user's
    own model; names that DDP or `torch.compile` have prefixed lose the prefix. No collective: other
    ranks return at once. The file is a zip archive with a CRC-32 of each record, which
    `load_full_model` and `python -m zipfile -t` compare; `torch.load` does not.

    Args:
        pickled: save what `torch.save` would, objects of any class and models as whole modules,
            for a script that loads them so (with `weights_only=False`).

    Raises:
        TypeError: `value` holds something that only an unsafe load would bring back, and is not
            `pickled`.
        OSError: the file could not be written; what was there before is unchanged.
    """
    if is_root_process():
        write(_plain(value, pickled), path, pickled=pickled)


def write(value: Any, path: str | os.PathLike[str], *, pickled: bool = False) -> None:
    """What `save0` does on rank 0, here, and with `value` as it is."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        with temporary.open("xb") as file:
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


def _plain(value: Any, pickled: bool) -> Any:
    if isinstance(value, nn.Module):
        return unwrap(value) if pickled else unwrap(value).state_dict()
    if isinstance(value, Mapping):
        if value and all(isinstance(item, torch.Tensor) for item in value.values()):
            return strip_prefixes(value)
        return {key: _plain(item, pickled) for key, item in value.items()}
    return value


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
