"""What is done around a user's forward, so that it looks as on one GPU."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ...base.errors import UserError
from ...runtime.collectives import all_gather_object
from ...runtime.keys import derive, reseed
from ..mesh import Mesh
from ..tensor.apply import plain

Forward = Callable[..., Any]


def replace_forward(model: nn.Module, around: Callable[..., Any], *own: Any) -> None:
    """Let `model(...)` call `around(its forward, *own, ...)`; the signature stays."""
    forward = model.forward
    changed = functools.partial(around, forward, *own)
    changed.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    model.forward = changed  # type: ignore[method-assign]


class Peers:
    """The ranks of a tensor-parallel group, which have to compute one forward together.

    They get the same random draws, whatever the script does with its own random state, and the
    whole of what the model returns.
    """

    def __init__(self, mesh: Mesh, seed: int) -> None:
        self._mesh, self._seed = mesh, seed
        self._forwards = 0
        self._checked = False

    def compute(self, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        if not self._checked and torch.is_grad_enabled():
            self._checked = True
            check_same_batch(self._mesh, (args, kwargs))
        self._forwards += 1
        seed = derive(self._seed, "forward", self._forwards, self._mesh.data_rank)
        with draws(seed, self._mesh.world.device):
            output = forward(*args, **kwargs)
        return map_tensors(output, plain)


@contextlib.contextmanager
def draws(seed: int, device: torch.device) -> Iterator[None]:
    """Random draws of a seed; the random state of the script stays as it was."""
    state = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    reseed(seed, device)
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)


def check_same_batch(mesh: Mesh, batch: Any) -> None:
    """Once, whether ranks that compute one batch together have the same one. Collective.

    Raises:
        UserError: they have not; names two of them. On every rank.
    """
    found: list[str] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        found.append(_digest(tensor))
        return tensor

    map_tensors(batch, look)
    first: dict[int, tuple[int, list[str]]] = {}
    everyone = all_gather_object((mesh.data_rank, found))
    for rank, (data_rank, theirs) in enumerate(everyone):
        other, before = first.setdefault(data_rank, (rank, theirs))
        if theirs != before:
            raise UserError(
                f"ranks {other} and {rank} compute one batch together, but got different ones: "
                f"deal the data with rankup.shard(loader), which gives ranks of one tensor "
                f"group the same samples; draw augmentations from torch's generator, and "
                f"do not seed it by rank after parallelize"
            )


def _digest(tensor: torch.Tensor) -> str:
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = tensor.detach().reshape(-1).double()
    places = torch.arange(flat.numel(), device=flat.device) % 97 + 1
    return f"{tuple(tensor.shape)} {tensor.dtype} {float((flat * places).sum())!r}"


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with its tensors changed, in tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [map_tensors(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [map_tensors(item, change) for item in value]
    if isinstance(value, Mapping):  # also a Hugging Face ModelOutput, whose entries are attributes
        changed: Any = copy.copy(value)
        for key, item in value.items():
            changed[key] = map_tensors(item, change)
        return changed
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(
            value, **{name: map_tensors(getattr(value, name), change) for name in names}
        )
    return value
