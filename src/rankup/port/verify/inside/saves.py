"""The files that the original saves, and its models, into which later the port's are loaded."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from ....sandbox.inside.journal import Journal

_DEPTH = 4
_CLOSE = 1e-2
_MODULE = "module."


# Where in a saved value a state dict stands, and the model it belongs to.
Models = dict[tuple[Any, ...], Any]


class Saves:
    """Watches `torch.save` in the original."""

    def __init__(self, folder: str, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._saved: dict[str, Models] = {}
        self._load: Callable[..., Any] = lambda path: None

    def install(self, torch: Any) -> None:
        """torch, and its `serialization`."""
        original = torch.serialization.save
        self._load = torch.serialization.load

        @wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(obj, f, *args, **kwargs)
            path = f if isinstance(f, str | os.PathLike) else getattr(f, "name", None)
            if isinstance(path, str | os.PathLike):
                self._note(os.path.realpath(path), obj)
            return result

        torch.save = torch.serialization.save = save

    def renamed(self, old: object, new: object, *rest: object) -> None:
        """The audit event `os.rename`: a file saved under another name first."""
        if isinstance(old, str | os.PathLike) and isinstance(new, str | os.PathLike):
            found = self._saved.pop(os.path.realpath(old), None)
            if found is not None:
                self._saved[os.path.realpath(new)] = found

    def names(self) -> list[str]:
        """The files that are there now, below the folder."""
        return sorted(
            os.path.relpath(path, self._folder)
            for path in self._saved
            if os.path.exists(path) and path.startswith(self._folder + os.sep)
        )

    def compare(self, folder: str) -> list[dict[str, Any]]:
        """Load what a port has saved under the same names, in another copy of the project."""
        return [self._compare(name, folder) for name in self.names()]

    def _compare(self, name: str, folder: str) -> dict[str, Any]:
        models = self._saved[os.path.join(self._folder, name)]
        found: dict[str, Any] = {"path": name, "models": len(models), "why": ""}
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            return {**found, "why": "the port has not saved it"}
        try:
            ours = self._load(os.path.join(self._folder, name), weights_only=False)
            theirs = self._load(path, weights_only=False)
        except Exception as error:
            return {**found, "why": f"it cannot be loaded: {_short(error)}"}
        for place, model in models.items():
            state = _state(_at(theirs, place))
            if state is None:
                return {**found, "why": f"has no state dict {_shown(place)}"}
            before = _state(_at(ours, place)) or {}
            if _only_parallel(model) and not any(key.startswith(_MODULE) for key in state):
                # A port takes DataParallel out, and with it what it puts in front of names.
                model = model.module
                before = {key.removeprefix(_MODULE): value for key, value in before.items()}
            try:
                model.load_state_dict(state, strict=True)
            except Exception as error:
                return {**found, "why": f"load_state_dict(strict=True) fails: {_short(error)}"}
            apart = _apart(before, state)
            if apart > _CLOSE:
                return {**found, "why": f"it loads, but its values differ by {apart:.1e}"}
        if not models and _keys(ours) != _keys(theirs):
            return {**found, "why": f"has {_keys(theirs)} and not {_keys(ours)}"}
        return found

    def _note(self, path: str, obj: Any) -> None:
        import torch

        found = self._saved[path] = {}
        modules: list[Any] | None = None
        for place, value in _parts(obj):
            if isinstance(value, torch.nn.Module):
                found[place] = value
                continue
            if modules is None:
                modules = [one for one in gc.get_objects() if isinstance(one, torch.nn.Module)]
            model = next((one for one in modules if _fits(one, value)), None)
            if model is not None:
                found[place] = model


def _parts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Models and dicts of tensors in what is saved."""
    import torch

    if isinstance(value, torch.nn.Module):
        yield place, value
    elif isinstance(value, Mapping) and len(place) < _DEPTH:
        if value and all(isinstance(one, torch.Tensor) for one in value.values()):
            yield place, value
        else:
            for key, one in value.items():
                yield from _parts(one, (*place, key))


def _fits(module: Any, state: Mapping[str, Any]) -> bool:
    own = dict(module.named_parameters())
    if not own or not own.keys() <= state.keys():
        return False
    found = module.state_dict()
    return found.keys() == state.keys() and all(
        found[key].shape == state[key].shape for key in state
    )


def _only_parallel(model: Any) -> bool:
    import torch

    return isinstance(model, torch.nn.DataParallel)


def _state(value: Any) -> Any:
    import torch

    if isinstance(value, torch.nn.Module):
        return value.state_dict()
    return value if isinstance(value, Mapping) else None


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _apart(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Relative distance of all floating point values."""
    far, size = 0.0, 0.0
    for key, value in ours.items():
        if value.is_floating_point() and key in theirs:
            far += float((value.double() - theirs[key].double()).pow(2).sum())
            size += float(value.double().pow(2).sum())
    return float((far / size) ** 0.5) if size else 0.0


def _keys(value: Any) -> list[str]:
    return sorted(map(str, value)) if isinstance(value, Mapping) else [type(value).__name__]


def _shown(place: tuple[Any, ...]) -> str:
    return "at " + "".join(f"[{key!r}]" for key in place) if place else "in it"


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]
