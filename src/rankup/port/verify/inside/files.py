"""Output of a rank, the numbers of its files, and a check that what a port saves loads.

Writing anywhere but in the rank's copy of the project and other programs are refused.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from zipfile import BadZipFile, ZipFile

from ....sandbox.inside import files
from ....sandbox.inside.hooks import replaces
from ....sandbox.inside.journal import Journal
from .draws import Progress

_MOST = 2000  # printed lines
_LONGEST = 400  # characters of a line
_DEPTH = 4
_LARGEST = 256 << 10  # bytes of a file that is compared by its lines or numbers
_CLOSE = 1e-2
_MODULE = "module."
_FEW = 3  # names that are shown

Place = tuple[str, ...]


class Writing(files.Files):
    """The handlers of one rank.

    Args:
        folder: the copy, without links.
        temporary, state: folders in which anything goes and nothing is recorded.
    """

    new_elsewhere = False
    why = "verify lets a script write only below its own folder"

    def __init__(self, folder: str, temporary: str, state: str, journal: Journal) -> None:
        super().__init__(journal, folder, (temporary, state), (), temporary)
        self._folder = folder

    def note(self, event: str, **fields: Any) -> None:
        """Record paths as they are in the copy."""
        for name in {"path", "from", "to"} & fields.keys():
            fields[name] = os.path.relpath(fields[name], self._folder)
        super().note(event, **fields)

    def start(self, program: str, words: Iterable[str]) -> None:
        """Refuse to start a program.

        Raises:
            FileNotFoundError: always.
        """
        name = os.path.basename(program)
        self._journal.tell("refused", what=f"starting {name}", where=self._journal.where())
        raise FileNotFoundError(errno.ENOENT, "rankup verify starts no other program", name)


class Lines(io.RawIOBase):
    """Records what is printed; the rest of an endless output is dropped."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._journal = progress, progress.journal
        self._rest = b""
        self._count = 0

    def install(self) -> None:
        """Be `sys.stdout`."""
        stream = io.TextIOWrapper(
            io.BufferedWriter(self), encoding="utf-8", errors="replace", write_through=True
        )
        stream.reconfigure(line_buffering=True)
        sys.stdout = sys.__stdout__ = stream  # type: ignore[misc]

        # A log goes to stderr, where a progress bar and warnings are as well.
        @replaces(logging.StreamHandler, "__init__")
        def init(original: Any, handler: Any, given: Any = None) -> None:
            original(handler, sys.stdout if given in (None, sys.stderr) else given)

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """That of stdout: for those that ask how wide it is."""
        return 1

    def write(self, data: Any) -> int:
        """Record the lines that are whole."""
        given = bytes(data)
        *lines, rest = (self._rest + given).split(b"\n")
        self._rest = rest[-_LONGEST:]
        for line in lines:
            self._record(line)
        return len(given)

    def finish(self) -> None:
        """Record what has no line end."""
        if self._rest:
            self._record(self._rest)
            self._rest = b""

    def _record(self, line: bytes) -> None:
        self._count += 1
        if self._count == _MOST:
            self._progress.note(f"printed lines: only {_MOST} are compared")
        if self._count < _MOST:
            # Of a bar drawn over and over the last state counts.
            text = line.rpartition(b"\r")[2] if not line.endswith(b"\r") else line
            shown = text.decode("utf-8", "replace")[:_LONGEST]
            fields = {"phase": self._progress.phase, "bar": text is not line}
            self._journal.tell("line", text=shown, **fields)


def content(path: str) -> list[str] | None:
    """Return the lines of a text file, or the numbers that NumPy, pickle or torch has saved.

    None: it is something else, or too large.
    """
    import numpy as np
    import torch

    # Whatever a reader of a user's file raises, it is not compared.
    with suppress(Exception):
        if _is_saved(path):
            saved = torch.load(path, weights_only=False)
        elif os.path.islink(path) or os.path.getsize(path) > _LARGEST:
            return None
        elif path.endswith((".npy", ".npz")):
            saved = np.load(path)
            saved = dict(saved) if path.endswith(".npz") else saved
        elif path.endswith((".pkl", ".pickle")):
            with open(path, "rb") as file:
                saved = pickle.load(file)  # noqa: S301  (the script has just written it)
        else:
            with open(path, encoding="utf-8") as text:
                return text.read().splitlines()
        return list(_numbers(saved))
    return None


def _numbers(value: Any, name: str = "") -> Iterator[str]:
    """Yield a line for each number that is no value of a model, and no random state."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor) and not value.dim():
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, int | float | np.number):
        yield f"{name} = {value}"
    elif isinstance(value, Mapping):
        if not _is_state(value):
            for key, one in value.items():
                yield from _numbers(one, f"{name}[{key!r}]")
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one, f"{name}[]")


def compare(names: Iterable[str], ours: str, theirs: str) -> list[dict[str, Any]]:
    """Compare what a port has saved with the original's files.

    A model that has saved a state dict loads another one, `strict=True`, where that has the same
    names and shapes.

    Args:
        names: of all files that the original has written.
        ours, theirs: the folders of both.
    """
    saved = [name for name in sorted(names) if _is_saved(os.path.join(ours, name))]
    return [_compare(name, ours, theirs) for name in saved]


def _is_saved(path: str) -> bool:
    """Return True for a file of `torch.save`; one of TorchScript has constants as well."""
    with suppress(OSError, BadZipFile), ZipFile(path) as file:
        names = {os.path.basename(name) for name in file.namelist()}
        return "data.pkl" in names and "constants.pkl" not in names
    return False


def _compare(name: str, ours: str, theirs: str) -> dict[str, Any]:
    import torch

    found = {"path": name, "models": 0, "why": ""}
    if not os.path.exists(os.path.join(theirs, name)):
        return {**found, "why": "the port has not saved it"}
    try:
        mine = torch.load(os.path.join(ours, name), weights_only=False)
        other = torch.load(os.path.join(theirs, name), weights_only=False)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = f"it cannot be loaded: {type(error).__name__}: {' '.join(lines[:3])}"
        return {**found, "why": why[:400]}
    states = dict(_states(mine))
    for place, state in states.items():
        value = other
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        value = value.state_dict() if isinstance(value, torch.nn.Module) else value
        if not isinstance(value, Mapping):
            shown = "at " + "".join(f"[{key!r}]" for key in place) if place else "in it"
            return {**found, "why": f"has no state dict {shown}"}
        if why := _unlike(state, value):
            return {**found, "why": why}
    if not states and _keys(mine) != _keys(other):
        return {**found, "why": f"has {_keys(other)} and not {_keys(mine)}"}
    return {**found, "models": len(states)}


def _states(value: Any, place: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """State dicts of models in what is saved; those of optimizers have numbers for names."""
    import torch

    if isinstance(value, torch.nn.Module):
        yield place, value.state_dict()
    elif isinstance(value, Mapping) and len(place) < _DEPTH:
        if _is_state(value):
            yield place, value
        else:
            for key, one in value.items():
                if isinstance(key, str):
                    yield from _states(one, (*place, key))


def _is_state(value: Mapping[Any, Any]) -> bool:
    """Return True for a state dict of a model; tensors that are all numbers are of the training."""
    import torch

    tensors = [one for one in value.values() if isinstance(one, torch.Tensor)]
    return len(tensors) == len(value) and any(one.dim() for one in tensors)


def _unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return why a state dict does not load in the other's place, or holds other values."""
    if all(one.startswith(_MODULE) for one in ours) and not any(
        one.startswith(_MODULE) for one in theirs
    ):
        # A port takes DataParallel out, and with it what it puts in front of names.
        ours = {key.removeprefix(_MODULE): value for key, value in ours.items()}
    fails = "load_state_dict(strict=True) fails"
    for what, names in (("missing", ours.keys() - theirs), ("unexpected", theirs.keys() - ours)):
        if names:
            return f"{fails}: {what} {', '.join(sorted(names)[:_FEW])}"
    far = size = 0.0
    for key, value in ours.items():
        if value.shape != theirs[key].shape:
            return f"{fails}: {key} is {tuple(theirs[key].shape)}, and not {tuple(value.shape)}"
        if value.is_floating_point():
            far += float((value.double() - theirs[key].double()).pow(2).sum())
            size += float(value.double().pow(2).sum())
    apart = (far / size) ** 0.5 if size else 0.0
    return f"it loads, but its values differ by {apart:.1e}" if apart > _CLOSE else ""


def _keys(value: Any) -> list[str]:
    return sorted(map(str, value)) if isinstance(value, Mapping) else [type(value).__name__]
