"""Reads files that a script has saved, without running anything of them, and compares two of them.

A pickled file may come from elsewhere: a script copies a checkpoint as well as it writes one. So
nothing but arrays and containers is made of it; in the place of any other class stands an object
that keeps what it was given, whose values are compared as all others are.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile, ZipFile

from ..lines import near, parse

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Pages and scripts, of which those of a port are others all the same.
_UNLIKE = (".eps", ".html", ".mp4", ".pdf", ".ps", ".py", ".svg")
_LARGEST = 256 << 20  # bytes
_LONGEST = 256 << 10  # bytes of a text
_MOST = 100_000  # values of a file
_DEPTH = 16
_MODEL = 1e-2  # relative: Adam makes steps of the noise in a gradient that is zero
_ARRAY = 2e-3  # relative, of all values of an array together
_SHADES, _PIXELS = 8, 1e-3  # of 256; the share of a picture's values that may be further apart
_RANDOM_STATES = {("uint8", (5056,)), ("uint8", (16,)), ("uint32", (624,))}
_MODULE = "module."
_OPTIMIZER = {"state", "param_groups"}  # of a state dict
_FEW = 3  # names that are shown
_SAFE = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list object set slice str "
    "tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "copyreg": "_reconstructor",
    "numpy": "dtype ndarray",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "torch": "Size device",
    "torch._utils": "_rebuild_parameter _rebuild_tensor _rebuild_tensor_v2",
}


class NotRead(Exception):  # noqa: N818
    """The contents of a file cannot be compared: why, in words."""


class Kept:
    """An object of a class that is not made: what it was given.

    Attributes:
        path: the class' module and name.
        given: arguments.
        state: its attributes.
        items: what was appended or set.
    """

    path = ""

    def __new__(cls, *given: Any, **named: Any) -> Kept:
        self = object.__new__(cls)
        self.given, self.state, self.items = (*given, *named.items()), None, []
        return self

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given: tuple[Any, ...]
        self.state: Any
        self.items: list[Any]

    def __call__(self, *given: Any) -> Kept:
        """What a method of it would give."""
        return Kept(self, *given)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, value: Any) -> None:
        """Keep it."""
        self.items.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        """Keep them."""
        self.items.extend(values)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if name in _SAFE.get(module, "").split():
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: _torch(io.BytesIO(data))
        return type(name, (Kept,), {"path": f"{module}.{name}"})


def _torch(file: Any) -> Any:
    import torch

    def load(file: Any, **options: Any) -> Any:
        return _Unpickler(file).load()

    module = SimpleNamespace(Unpickler=_Unpickler, load=load, __name__="pickle")
    return torch.load(file, map_location="cpu", pickle_module=module, weights_only=False)


@dataclass
class Picture:
    """The pixels of a picture, shape (height, width, channels), or of several."""

    pixels: Any


@dataclass
class Text:
    """The lines of a text file."""

    lines: list[str]


def read(path: str) -> Any:
    """What a file holds: a text, a picture, or arrays, numbers and strings in containers.

    Raises:
        NotRead: it is none of these.
    """
    name = path.lower()
    if os.path.islink(path):
        raise NotRead("it is a link")
    if os.path.getsize(path) > _LARGEST:
        raise NotRead(f"it is larger than {_LARGEST >> 20} MiB")
    try:
        if _is_torch(path):
            return _torch(path)
        if name.endswith((".npy", ".npz")):
            return _numpy(path)
        if name.endswith(PICTURES):
            return _picture(path)
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        if name.endswith((".pkl", ".pickle")):
            with open(path, "rb") as file:
                return _Unpickler(file).load()
        if name.endswith((".pt", ".pth", ".ckpt")):
            return _torch(path)  # in the format before zip files
    except Exception as error:  # whatever a library says of a user's file
        raise NotRead(f"it cannot be read: {type(error).__name__}: {_line(error)}") from None
    return _text(path, name)


def _text(path: str, name: str) -> Text:
    if name.endswith(_UNLIKE):
        raise NotRead("pages and scripts are not looked at")
    if os.path.getsize(path) > _LONGEST:
        raise NotRead(f"of files that are larger than {_LONGEST >> 10} KiB it reads no lines")
    with open(path, "rb") as file:
        data = file.read()
    if b"\0" not in data:
        with suppress(UnicodeDecodeError):
            return Text(data.decode("utf-8").splitlines())
    raise NotRead("it is neither text nor of a format that verify reads")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _is_torch(path: str) -> bool:
    """True for a file of `torch.save`; one of TorchScript has constants as well."""
    with suppress(OSError, BadZipFile), ZipFile(path) as file:
        names = {os.path.basename(name) for name in file.namelist()}
        return "data.pkl" in names and "constants.pkl" not in names
    return False


def _numpy(path: str) -> Any:
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    return dict(loaded) if path.endswith(".npz") else loaded


def _picture(path: str) -> Picture:
    import numpy as np
    from PIL import Image, ImageSequence

    with Image.open(path) as image:
        frames = [np.asarray(one.convert("RGBA")) for one in ImageSequence.Iterator(image)]
    return Picture(np.stack(frames) if len(frames) > 1 else frames[0])


@dataclass
class Comparison:
    """The contents of a port's file against the original's.

    Attributes:
        values: that were compared.
        models: state dicts among them.
        wrong: a place of the file, how it differs, and whether it is an array.
        unseen: places that were not compared, with the reason.
    """

    values: int = 0
    models: int = 0
    wrong: list[tuple[str, str, bool]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def compare(
    ours: Any, theirs: Any, world: int = 1, folders: tuple[str, str] = ("", "")
) -> Comparison:
    """Compare what `read` has given of both, or the parts of two figures.

    Args:
        world: numbers that are the original's over so many ranks are right, too.
        folders: in which both have run, the original's first.
    """
    found = Comparison()
    left, right = _groups(ours), _groups(theirs)
    for place in left.keys() & right.keys():
        _models(found, place, left[place], right[place])
    for place in left.keys() - right.keys():
        found.wrong.append((place, f"the port's has no state dict {_at(place)}", True))
    mine, its = dict(_flat(ours, left.keys(), found)), dict(_flat(theirs, right.keys(), found))
    for place, value in mine.items():
        if place not in its:
            found.wrong.append((place, f"the port's has no {place or 'such value'}", True))
        elif why := _unlike(value, _moved(its[place], *folders), world):
            if why == _RANDOM:
                found.unseen.append(f"{place}: {why}")
            else:
                array = hasattr(value, "shape") or isinstance(value, Picture)
                found.wrong.append((place, why, array))
        else:
            found.values += 1
    for place in its.keys() - mine.keys():
        found.wrong.append((place, f"the original's has no {place or 'such value'}", True))
    found.unseen = list(dict.fromkeys(found.unseen))
    found.wrong.sort(key=lambda one: one[0])
    return found


_RANDOM = "a random state"


def _moved(value: Any, ours: str, theirs: str) -> Any:
    """A text as if it had been written in the original's folder."""
    return value.replace(theirs, ours) if isinstance(value, str) and theirs else value


def _at(place: str) -> str:
    return f"at {place}" if place else "in it"


def _groups(value: Any, place: str = "", depth: int = 0) -> dict[str, dict[str, Any]]:
    """Tensors that are compared together, by their places: a model's, an optimizer's of a kind."""
    if isinstance(value, Kept) and isinstance(value.state, Mapping):
        whole = "_parameters" in value.state and "_modules" in value.state
        return {place: dict(_state_of(value))} if whole else {}
    if not isinstance(value, Mapping) or depth > _DEPTH:
        return {}
    if _is_state(value):
        return {place: {str(name): one for name, one in value.items()}}
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    if value.keys() >= _OPTIMIZER:
        for number, name, one in _kept_by(value["state"]):
            if getattr(one, "shape", ()):
                found[f"{place}['state'][...][{name!r}]"][str(number)] = one
    else:
        for key, one in value.items():
            found |= _groups(one, f"{place}[{key!r}]", depth + 1)
    return found


def _kept_by(state: Any) -> Iterator[tuple[Any, Any, Any]]:
    """What an optimizer keeps: the parameter's number, a name, and the value."""
    for number, kept in state.items() if isinstance(state, Mapping) else ():
        for name, value in kept.items() if isinstance(kept, Mapping) else ():
            yield number, name, value


def _is_state(value: Mapping[Any, Any]) -> bool:
    """True for a state dict of a model; tensors that have other names are of the training."""
    import torch

    tensors = [one for one in value.values() if isinstance(one, torch.Tensor)]
    names = all(isinstance(one, str) and re.fullmatch(r"[\w.]+", one) for one in value)
    learned = any(str(one).rpartition(".")[2] in ("weight", "bias") for one in value)
    dotted = any("." in str(one) for one in value)
    return bool(tensors) and len(tensors) == len(value) and names and (learned or dotted)


def _state_of(module: Kept, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The state dict of a model that was pickled whole."""
    state = module.state
    for kind in ("_parameters", "_buffers"):
        for name, value in state.get(kind, {}).items():
            if hasattr(value, "shape"):
                yield prefix + name, value
    for name, child in state["_modules"].items():
        if isinstance(child, Kept) and isinstance(child.state, Mapping):
            yield from _state_of(child, f"{prefix}{name}.")


def _models(found: Comparison, place: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Whether a state dict loads in the other's place, `strict=True`, with the same values."""
    if all(one.startswith(_MODULE) for one in ours) and not any(
        one.startswith(_MODULE) for one in theirs
    ):
        # A port takes DataParallel out, and with it what it puts in front of names.
        ours = {key.removeprefix(_MODULE): value for key, value in ours.items()}
    fails = f"load_state_dict(strict=True) fails {_at(place)}"
    for what, names in (("missing", ours.keys() - theirs), ("unexpected", theirs.keys() - ours)):
        if names:
            why = f"{fails}: {what} {', '.join(sorted(names)[:_FEW])}"
            found.wrong.append((place, why, True))
            return
    far = size = 0.0
    for key, value in ours.items():
        mine, its = _array(value), _array(theirs[key])
        if mine.shape != its.shape:
            why = f"{fails}: {key} is {its.shape}, and not {mine.shape}"
            found.wrong.append((place, why, True))
            return
        if mine.dtype.kind == "f":
            far += float(((mine - its) ** 2).sum())
            size += float((mine**2).sum())
    apart = math.sqrt(far / size) if size else math.sqrt(far)
    if not apart <= _MODEL and not (math.isnan(far) and math.isnan(size)):
        why = f"the values {_at(place)} differ by {apart:.1e}"
        found.wrong.append((place, f"it loads, but {why}", True))
    found.models += "['state']" not in place
    found.values += len(ours)


def _flat(
    value: Any, taken: Iterable[str], found: Comparison, place: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield all values that are in no group, with their places."""
    if depth == 0:
        every = _flat(value, frozenset(taken), found, place, 1)
        for number, one in enumerate(every):
            if number == _MOST:
                found.unseen.append(f"all behind the first {_MOST:,} values")
                return
            yield one
        return
    if place in taken:
        return
    if depth > _DEPTH:
        found.unseen.append(f"{place}: it lies too deep")
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            where = f"{place}[{key!r}]"
            if key == "state" and value.keys() >= _OPTIMIZER:
                for number, name, kept in _kept_by(one):
                    if not getattr(kept, "shape", ()):
                        yield f"{where}[{number!r}][{name!r}]", kept
            else:
                yield from _flat(one, taken, found, where, depth + 1)
        return
    if isinstance(value, list | tuple | deque):
        inner = [(f"{place}[{number}]", one) for number, one in enumerate(value)]
    elif isinstance(value, set | frozenset):
        inner = [(f"{place}[{number}]", one) for number, one in enumerate(sorted(value, key=repr))]
    elif isinstance(value, Kept):
        yield f"{place}.__class__", value.path
        parts = {"()": value.given, "": value.state, "[]": value.items}
        inner = [(place + name, one) for name, one in parts.items() if one]
    else:
        yield place, value
        return
    for where, one in inner:
        yield from _flat(one, taken, found, where, depth + 1)


def _array(value: Any) -> Any:
    """A tensor or an array as one of NumPy's, in float64 where it has fractions."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.to_dense() if value.is_sparse else value
        value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
        value = value.resolve_conj().cpu().numpy()
    array = np.asarray(value)
    return array.astype("float64") if array.dtype.kind == "f" else array


def _unlike(ours: Any, theirs: Any, world: int) -> str:
    """How a value differs from the original's; empty where it does not."""
    if isinstance(ours, Picture) or isinstance(theirs, Picture):
        return _other_pixels(ours, theirs)
    if isinstance(ours, Text) and isinstance(theirs, Text):
        ours, theirs = "\n".join(ours.lines), "\n".join(theirs.lines)
    if hasattr(ours, "shape") and hasattr(theirs, "shape"):
        mine, its = _array(ours), _array(theirs)
        if mine.shape or its.shape:
            return _other_values(mine, its)
        ours, theirs = mine.item(), its.item()
    if type(ours) is not type(theirs) and not _are_numbers(ours, theirs):
        return f"is of type {type(theirs).__name__}, and not {type(ours).__name__}"
    if isinstance(ours, str):
        mine, its = parse(ours), parse(theirs)
        same = mine.words == its.words and all(map(near, mine.numbers, its.numbers))
        return "" if same else f"is {theirs[:60]!r} where the original's is {ours[:60]!r}"
    if _are_numbers(ours, theirs):
        whole = isinstance(ours, int) and isinstance(theirs, int)
        if ours == theirs or (not whole and near(repr(ours), repr(theirs))):
            return ""
        if world > 1 and abs(ours - theirs * world) <= 1e-4 * abs(ours):
            return ""
        if math.isnan(ours) and math.isnan(theirs):
            return ""
    elif ours == theirs:
        return ""
    return f"is {theirs!r:.60} where the original's is {ours!r:.60}"


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _other_values(ours: Any, theirs: Any) -> str:
    import numpy as np

    if ours.shape != theirs.shape:
        return f"has shape {theirs.shape} where the original's has {ours.shape}"
    if ours.dtype.kind != theirs.dtype.kind:
        return f"has values of type {theirs.dtype} where the original's has {ours.dtype}"
    if ours.dtype.kind not in "fc":
        other = int((ours != theirs).sum())
        if not other:
            return ""
        if (ours.dtype.name, ours.shape) in _RANDOM_STATES:
            return _RANDOM
        return f"has {other} of {ours.size} values that are not the original's"
    both = np.isnan(ours) & np.isnan(theirs)
    ours, theirs = np.where(both, 0, ours), np.where(both, 0, theirs)
    alike = ours == theirs  # infinities too
    ours, theirs = np.where(alike, 0, ours), np.where(alike, 0, theirs)
    far = float(np.linalg.norm(ours - theirs))
    size = float(np.linalg.norm(np.where(alike, 0, ours)))
    if far <= _ARRAY * size + 1e-7 * math.sqrt(ours.size):
        return ""
    return f"has values that differ by {far / size if size else far:.1e} from the original's"


def _other_pixels(ours: Any, theirs: Any) -> str:
    import numpy as np

    if not (isinstance(ours, Picture) and isinstance(theirs, Picture)):
        return "is no picture in both"
    mine, its = ours.pixels.astype(int), theirs.pixels.astype(int)
    if mine.shape != its.shape:
        return f"has {_size(its)} pixels where the original's has {_size(mine)}"
    share = float((np.abs(mine - its) > _SHADES).mean())
    if share <= _PIXELS:
        return ""
    return f"has other pixels than the original's ({share:.0%} of their values)"


def _size(pixels: Any) -> str:
    *frames, height, width, _ = pixels.shape
    return f"{width} x {height}" + (f" x {frames[0]}" if frames else "")
