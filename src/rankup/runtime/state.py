"""The tensors of a model and its optimizer under plain names, whatever the model is split into,
and what the ranks do together when they save and load them.

A part of a pipeline holds some of the names; a sharded parameter (DTensor) has its whole shape. A
tensor that stands in several places is listed once, under its first (canonical) name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .collectives import broadcast
from .model import unwrap

T = TypeVar("T")
Shape = tuple[int, ...]

_MOST_LINES = 5
# What torch.compile and activation checkpointing of a part put into the names inside it.
_WRAPPINGS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass
class NamedTensors:
    """The tensors that this rank holds of a model or an optimizer.

    Attributes:
        tensors: canonical name -> the tensor itself, not a copy.
        twins: further tensors of this rank that have to equal `tensors[name]`.
        aliases: other name -> canonical name, where a whole model's state dict has both.
        names: id of a parameter -> its canonical name.
        elsewhere: canonical names of parameters that another pipeline stage holds, and writes.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    twins: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)

    def shapes(self) -> dict[str, Shape]:
        """Return whole shapes, also of tensors of which this rank has a part."""
        return {name: tuple(value.shape) for name, value in self.tensors.items()}

    def add(self, name: str, value: torch.Tensor) -> None:
        """Take a tensor, the first one of its name or a twin of that."""
        if name in self.tensors:
            self.twins.append((name, value.detach()))
        else:
            self.tensors[name] = value.detach()

    @torch.no_grad()
    def settle(self) -> None:
        """Give the twins what their namesakes have."""
        for name, twin in self.twins:
            twin.copy_(self.tensors[name])


def of_model(model: nn.Module, copies: Mapping[str, str] | None = None) -> NamedTensors:
    """Return parameters and persistent buffers.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds.
    """
    copies = copies or {}
    held = NamedTensors(aliases=dict(copies))
    first: dict[int, str] = {}
    own = set()
    if isinstance(model, DistributedDataParallel) or "_orig_mod" in model._modules:
        model = unwrap(model)
    # The state dict, because FSDP makes its parameters the sharded ones for it.
    for raw, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            continue
        name = plain_name(raw)
        if id(value) in first:
            if first[id(value)] != name:
                held.aliases[name] = first[id(value)]
            continue
        canonical = copies.get(name, name)
        first[id(value)] = held.names[id(value)] = canonical
        held.add(canonical, value)
        if name == canonical:
            own.add(name)
    held.elsewhere = {*copies.values()} - own
    return held


def of_optimizer(optimizer: torch.optim.Optimizer, model: NamedTensors) -> NamedTensors:
    """Return the state of an optimizer, entry by entry: `<parameter's name>.<key>`.

    Numbers among it (a step count) are shown as tensors without dimensions.

    Raises:
        TypeError: an entry is neither tensor nor number.
        ValueError: a parameter that has state is none of the model's.
    """
    held = NamedTensors()
    for parameter, entries in optimizer.state.items():
        if id(parameter) not in model.names:
            raise ValueError(
                f"the optimizer trains a parameter of shape {list(parameter.shape)} that is "
                "not the model's; make the optimizer from the parameters of this model"
            )
        owner = model.names[id(parameter)]
        for key, value in entries.items():
            name = f"{owner}.{key}"
            if value is None:
                continue
            if isinstance(value, bool | int | float):
                kind = torch.float64 if isinstance(value, float) else None
                value = torch.tensor(value, dtype=kind)
            if not isinstance(value, torch.Tensor):
                raise TypeError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} as {name!r}; "
                    "tensors and numbers can be saved"
                )
            held.add(name, value)
            if owner in model.elsewhere:
                held.elsewhere.add(name)
    return held


def plain_name(name: str) -> str:
    """Return a parameter's name without what wrappers of parts of the model have put into it."""
    for wrapping in _WRAPPINGS:
        name = name.replace(wrapping, "")
    return name


def parts(value: torch.Tensor) -> Iterator[tuple[torch.Tensor, Shape]]:
    """Yield this rank's parts of a tensor, and where in the whole each begins."""
    chunks = getattr(value, "__create_chunk_list__", None)  # DTensor's word to checkpoints
    if chunks is None:
        yield value, (0,) * value.dim()
        return
    for chunk in chunks():
        if 0 not in chunk.sizes or 0 in value.shape:
            yield local(value), tuple(chunk.offsets)


def local(value: torch.Tensor) -> torch.Tensor:
    """Return what this rank itself stores of a tensor."""
    to_local = getattr(value, "to_local", None)
    return value if to_local is None else to_local()


# --- what the ranks do together


class OtherModelError(ValueError):
    """A file or folder that holds another model or optimizer."""


class DamagedError(ValueError):
    """A file or folder that was never whole, or is not as it was written."""


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return every rank's picklable value, in rank order."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def agree(error: BaseException | None, group: dist.ProcessGroup | None = None) -> None:
    """Raise on every rank when one failed; collective.

    Raises:
        the first failed rank's error, as far as it can be sent; OSError stays OSError.
    """
    failures = gather(None if error is None else _sendable(error), group)
    for rank, failure in enumerate(failures):
        if failure is not None:
            if error is not None:
                raise error
            if isinstance(failure, OSError):
                raise failure
            raise type(failure)(f"rank {rank}: {failure}")


def everywhere(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Return what `action` gives on this rank; an error of one rank is raised on all. Collective.

    Raises:
        as `agree`.
    """
    result, failure = cast("T", None), None
    try:
        result = action()
    except Exception as error:
        failure = error
    agree(failure, group)
    return result


def _sendable(error: BaseException) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    for kind in (OtherModelError, DamagedError, ValueError, TypeError):
        if type(error) is kind:
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


def union(here: Mapping[str, T]) -> dict[str, T]:
    """Return all ranks' entries, rank 0's first. Collective; cheap where they are the same.

    Where two ranks differ on a name the later one's entry counts.
    """
    merged = dict(broadcast(dict(here)))
    rest = {name: value for name, value in here.items() if merged.get(name) != value}
    for part in gather(rest):
        merged |= part
    return merged


def refuse_other(
    there: Mapping[str, Shape], here: Mapping[str, Shape], what: str, place: str, kind: str
) -> None:
    """Compare what is in a file or folder with what all ranks hold. Collective.

    Args:
        here: this rank's.
        what: `model` or `optimizer`. A parameter that never had a gradient has no state in a file,
            unless no other one has any, either: then it is of an optimizer that keeps other things.
        place, kind: its name, and whether it is a file or a checkpoint.

    Raises:
        OtherModelError: names what differs, on every rank.
    """
    ours = union(here)
    if what == "optimizer" and there:
        known = {name.rpartition(".")[0] for name in there}
        ours = {name: shape for name, shape in ours.items() if name.rpartition(".")[0] in known}
    lines = [
        f"\n  {name}: {_words(there.get(name))} in the {kind}, {_words(ours.get(name))} in this "
        f"{what}"
        for name in sorted({*there, *ours})
        if there.get(name) != ours.get(name)
    ]
    if lines:
        more = f"\n  and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
        raise OtherModelError(f"{place} is of another {what}:{''.join(lines[:_MOST_LINES])}{more}")


def _words(shape: Shape | None) -> str:
    return "absent" if shape is None else str(list(shape))
