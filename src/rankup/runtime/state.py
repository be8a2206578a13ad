"""The tensors of a model and its optimizer under plain names, whatever the model is split into.

A part of a pipeline holds some of the names; a sharded parameter (DTensor) has its whole shape. A
tensor that stands in several places is listed once, under its first (canonical) name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .model import unwrap

Shape = tuple[int, ...]

# What torch.compile and activation checkpointing of a part put into the names inside it.
_WRAPPINGS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass
class Held:
    """What this rank holds.

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
        """Whole shapes, also of tensors of which this rank has a part."""
        return {name: tuple(value.shape) for name, value in self.tensors.items()}

    @torch.no_grad()
    def settle(self) -> None:
        """Give the twins what their namesakes have."""
        for name, twin in self.twins:
            twin.copy_(self.tensors[name])


def of_model(model: nn.Module, copies: Mapping[str, str] | None = None) -> Held:
    """Parameters and persistent buffers.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds; by default what `parallelize` has noted in the model.
    """
    copies = copies or vars(model).get("rankup_copies") or {}
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

    Raises:
        TypeError: an entry is neither tensor nor number.
        ValueError: a parameter that has state is none of the model's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: Held) -> None:
        self.held = Held()
        self._optimizer = optimizer
        self._entries: list[tuple[torch.Tensor, str, str]] = []
        self._numbers: list[tuple[torch.Tensor, str, str, type]] = []
        for parameter, state in optimizer.state.items():
            if id(parameter) not in model.names:
                raise ValueError(
                    f"the optimizer trains a parameter of shape {list(parameter.shape)} that is "
                    "not the model's; make the optimizer from the parameters of this model"
                )
            for key, value in state.items():
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
        """After the tensors were filled: write numbers back, drop entries that were not `loaded`.

        A parameter that never had a gradient has no state, neither in a file nor, then, here.
        """
        self.held.settle()
        for parameter, key, name, kind in self._numbers:
            self._optimizer.state[parameter][key] = kind(self.held.tensors[name].item())
        for parameter, key, name in self._entries:
            if name not in loaded:
                self._optimizer.state[parameter].pop(key)
                if not self._optimizer.state[parameter]:
                    del self._optimizer.state[parameter]


def prime(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer make all the state it will ever have, for a file to be read into.

    That is one step with gradients of zero at a learning rate of zero. Parameters that have state
    keep it as it is, and all keep their gradients. Whatever the step does to the parameters (weight
    decay at a rate of its own), they have to be loaded after it.
    """
    made = {
        parameter: state
        for parameter, state in optimizer.state.items()
        if any(value is not None for value in state.values())
    }
    gradients = []
    groups = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradients.append((parameter, parameter.grad))
            fresh = parameter.requires_grad and parameter not in made
            parameter.grad = torch.zeros_like(parameter) if fresh else None
        groups.append({key: value for key, value in group.items() if key != "params"})
        for key, value in group.items():
            if key == "lr":
                group[key] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0.0
            elif isinstance(value, torch.Tensor):
                group[key] = value.clone()
    # A hook of the step may yet give such a parameter a gradient; its state is out of reach.
    for parameter in made:
        del optimizer.state[parameter]
    try:
        optimizer.step()
    finally:
        optimizer.state.update(made)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextlib.contextmanager
def primed(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """`prime`, taken back when the block raises; it may look at the state, not fill it."""
    before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    keys = [set(group) for group in optimizer.param_groups]
    try:
        prime(optimizer)
        yield
    except BaseException:
        for parameter in list(optimizer.state):
            if parameter in before:
                optimizer.state[parameter].clear()
                optimizer.state[parameter].update(before[parameter])
            else:
                del optimizer.state[parameter]
        for group, known in zip(optimizer.param_groups, keys, strict=True):
            for key in group.keys() - known:
                del group[key]
        raise


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers of parts of the model have put into it."""
    for wrapping in _WRAPPINGS:
        name = name.replace(wrapping, "")
    return name


def parts(value: torch.Tensor) -> Iterator[tuple[torch.Tensor, Shape]]:
    """This rank's part of a tensor, and where in the whole it begins."""
    chunks = getattr(value, "__create_chunk_list__", None)  # DTensor's word to checkpoints
    if chunks is None:
        yield value, (0,) * value.dim()
        return
    for chunk in chunks():
        if 0 not in chunk.sizes or 0 in value.shape:
            offsets = tuple(chunk.offsets)
            yield local(value), offsets


def local(value: torch.Tensor) -> torch.Tensor:
    """What this rank itself stores of a tensor."""
    to_local = getattr(value, "to_local", None)
    return value if to_local is None else to_local()
