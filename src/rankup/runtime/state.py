"""The tensors of a model and its optimizer under plain names, whatever the model is split into,
and what the ranks do together when they save and load them.

A part of a pipeline holds some of the names; a sharded parameter (DTensor) has its whole shape. A
tensor that stands in several places is listed once, under its first (canonical) name.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from .collectives import all_gather_object, broadcast
from .model import unwrap

T = TypeVar("T")
Shape = tuple[int, ...]
State = dict[torch.Tensor, dict[str, Any]]  # of each parameter of an optimizer

_MOST_LINES = 5
# What torch.compile and activation checkpointing of a part put into the names inside it.
_WRAPPINGS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass
class Held:
    """The tensors that this rank holds.

    Attributes:
        tensors: canonical name -> the tensor itself, not a copy.
        twins: further tensors of this rank that have to equal `tensors[name]`.
        aliases: other name -> canonical name, where a whole model's state dict has both.
        names: id of a parameter -> its canonical name.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    twins: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def shapes(self) -> dict[str, Shape]:
        """Return whole shapes, also of tensors of which this rank has a part."""
        return {name: tuple(value.shape) for name, value in self.tensors.items()}

    @torch.no_grad()
    def settle(self) -> None:
        """Give the twins what their namesakes have."""
        for name, twin in self.twins:
            twin.copy_(self.tensors[name])


def of_model(model: nn.Module, copies: Mapping[str, str] | None = None) -> Held:
    """Return parameters and persistent buffers.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds.
    """
    copies = copies or {}
    held = Held(aliases=dict(copies))
    first: dict[int, str] = {}
    # The state dict, because FSDP makes its parameters the sharded ones for it.
    for raw, value in unwrap(model).state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            continue
        name = plain_name(raw)
        if id(value) in first:
            if first[id(value)] != name:
                held.aliases[name] = first[id(value)]
            continue
        canonical = copies.get(name, name)
        first[id(value)] = held.names[id(value)] = canonical
        if canonical in held.tensors:
            held.twins.append((canonical, value.detach()))
        else:
            held.tensors[canonical] = value.detach()
    return held


class OptimizerState:
    """The state of an optimizer, entry by entry: `<parameter's name>.<key>`.

    Numbers among it (a step count) are shown as tensors without dimensions; `settle` writes those
    back.

    Args:
        state: of each parameter; by default what the optimizer has.

    Raises:
        TypeError: an entry is neither tensor nor number.
        ValueError: a parameter that has state is none of the model's.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: Held, state: State | None = None
    ) -> None:
        self.held = Held()
        self._optimizer = optimizer
        self._state: State = optimizer.state if state is None else state
        self._entries: list[tuple[torch.Tensor, str, str]] = []
        self._numbers: list[tuple[torch.Tensor, str, str, type]] = []
        for parameter, entries in self._state.items():
            if id(parameter) not in model.names:
                raise ValueError(
                    f"the optimizer trains a parameter of shape {list(parameter.shape)} that is "
                    "not the model's; make the optimizer from the parameters of this model"
                )
            for key, value in entries.items():
                self._add(parameter, f"{model.names[id(parameter)]}.{key}", key, value)

    def _add(self, parameter: torch.Tensor, name: str, key: str, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool | int | float):
            self._numbers.append((parameter, key, name, type(value)))
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{type(self._optimizer).__name__} keeps a {type(value).__name__} as {name!r}; "
                "tensors and numbers can be saved"
            )
        self._entries.append((parameter, key, name))
        if name in self.held.tensors:
            self.held.twins.append((name, value.detach()))
        else:
            self.held.tensors[name] = value.detach()

    def settle(self, loaded: Collection[str]) -> None:
        """After the tensors were filled: give the optimizer the state, without entries that were
        not `loaded`.

        A parameter that never had a gradient has no state, neither in a file nor, then, here.
        """
        self.held.settle()
        for parameter, key, name, kind in self._numbers:
            self._state[parameter][key] = kind(self.held.tensors[name].item())
        for parameter, key, name in self._entries:
            if name not in loaded:
                self._state[parameter].pop(key)
        for parameter, entries in list(self._state.items()):
            if entries:
                self._optimizer.state[parameter] = entries
            else:
                self._optimizer.state.pop(parameter, None)


def allocate(optimizer: torch.optim.Optimizer) -> State:
    """Return all the state that the optimizer will ever have, for a file to be read into.

    Of a parameter that has none yet it is what the first step of a copy of the optimizer makes of
    zeros of the same shape and layout. Optimizer and parameters stay as they are.

    Raises:
        TypeError: the optimizer's step takes arguments, so that there is no telling.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # An optimizer that holds another one would take that one's step.
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    state: State = {}
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found = optimizer.state.get(parameter, {})
                if all(value is None for value in found.values()) and parameter.requires_grad:
                    found = _first_state(optimizer, group, parameter)
                if found:
                    state[parameter] = found
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    return state


def to_fill(optimizer: torch.optim.Optimizer, model: Held) -> OptimizerState:
    """Return the state to read a file into; the optimizer has it once it is settled."""
    return OptimizerState(optimizer, model, allocate(optimizer))


def _first_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor
) -> dict[str, Any]:
    """Return the state of a parameter after its first step."""
    kind = type(optimizer)
    if any(
        one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        for one in list(inspect.signature(kind.step).parameters.values())[1:]
    ):
        raise TypeError(
            f"{kind.__name__} cannot be loaded: its step takes arguments (a closure), and what it "
            "keeps is known after one step only; load the model alone"
        )
    zeros = torch.zeros_like(parameter, requires_grad=True)
    zeros.grad = torch.zeros_like(parameter)
    copied = object.__new__(kind)
    vars(copied).update(vars(optimizer))
    # A scheduler puts a step of its own there, which is the optimizer's.
    vars(copied).pop("step", None)
    copied.state = defaultdict(dict)
    own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
    copied.param_groups = [{**own, "params": [zeros]}]
    copied._optimizer_step_pre_hooks = OrderedDict()
    copied._optimizer_step_post_hooks = OrderedDict()
    copied.step()
    return dict(copied.state.get(zeros, {}))


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
            offsets = tuple(chunk.offsets)
            yield local(value), offsets


def local(value: torch.Tensor) -> torch.Tensor:
    """Return what this rank itself stores of a tensor."""
    to_local = getattr(value, "to_local", None)
    return value if to_local is None else to_local()


# --- what the ranks do together


class OtherModelError(ValueError):
    """A file or folder that holds another model or optimizer."""


class DamagedError(ValueError):
    """A file or folder that was never whole, or is not as it was written."""


def agree(error: BaseException | None, group: dist.ProcessGroup | None = None) -> None:
    """Raise on every rank when one failed; collective.

    Raises:
        the first failed rank's error, as far as it can be sent; OSError stays OSError.
    """
    mine = None if error is None else _sendable(error)
    for rank, found in enumerate(all_gather_object(mine, group)):
        if found is not None:
            if error is not None:
                raise error
            raise found if isinstance(found, OSError) else type(found)(f"rank {rank}: {found}")


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
    for part in all_gather_object(rest):
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
