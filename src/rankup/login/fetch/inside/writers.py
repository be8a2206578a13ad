"""Functions that write files without Python seeing it: they open them in C++ or Rust."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from .audit import Hook
from .imports import Changes
from .outputs import How, Outputs

# As h5py names them; its default is to read.
_H5PY: Mapping[str, How] = {"w": "truncate", "r+": "update", "a": "update"}


def changes(outputs: Outputs, hook: Hook) -> Changes:
    """What to do after which import, so that such files are kept like others."""

    def written(path: object, how: How, new: bool = False) -> None:
        with hook.unwatched():
            outputs.written(path, how, new=new)

    return {
        "torch.serialization": [lambda module: _save(module, "save", written)],
        "safetensors.torch": [lambda module: _save(module, "save_file", written)],
        "safetensors.numpy": [lambda module: _save(module, "save_file", written)],
        "h5py._hl.files": [lambda module: _h5py(module, written)],
    }


def _save(module: Any, name: str, written: Callable[..., None]) -> None:
    original = getattr(module, name)

    @wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        path = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
        if isinstance(path, str | os.PathLike):
            written(path, "truncate")
        return original(*args, **kwargs)

    setattr(module, name, save)


def _h5py(module: Any, written: Callable[..., None]) -> None:
    original = module.File.__init__

    @wraps(original)
    def init(self: Any, name: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> None:
        if isinstance(name, str | bytes | os.PathLike) and mode != "r":
            written(name, _H5PY.get(mode, "create"), new=mode not in _H5PY)
        original(self, name, mode, *args, **kwargs)

    module.File.__init__ = init
