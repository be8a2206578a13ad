"""Initial weights drawn per parameter, so that every layout starts from the same ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..runtime.keys import derive
from ..runtime.world import is_root_process


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Draw each parameter anew by its module's own `reset_parameters`, keyed by (seed, name).

    What a parameter starts from depends on nothing but its name: not on the order of construction,
    nor on what else this process holds. Modules without `reset_parameters` keep what their
    constructor gave them; `build` seeds construction, so that this is equal everywhere too.
    """
    for names, module in _drawn(model):
        kept = [(p, p.clone()) for p in module.parameters(recurse=False)]
        values = {id(own): _draw(module, seed, full, name) for name, full, own in names}
        for parameter, before in kept:
            # Tied parameters keep the draw of their first name.
            parameter.copy_(values.get(id(parameter), before))


def _drawn(
    model: nn.Module,
) -> Iterator[tuple[list[tuple[str, str, nn.Parameter]], nn.Module]]:
    """Modules that draw their own parameters: ([(local name, full name, it)], module)."""
    drawn: set[int] = set()
    for prefix, module in model.named_modules():
        own = [
            (name, f"{prefix}.{name}" if prefix else name, parameter)
            for name, parameter in module.named_parameters(recurse=False)
            if id(parameter) not in drawn
        ]
        if own and getattr(module, "reset_parameters", None) is not None:
            drawn.update(id(parameter) for _, _, parameter in own)
            yield own, module


def _draw(module: nn.Module, seed: int, full_name: str, name: str) -> torch.Tensor:
    """What `reset_parameters` gives one parameter; the process's random state stays."""
    state = torch.get_rng_state()
    torch.manual_seed(derive(seed, "parameter", full_name))
    module.reset_parameters()  # type: ignore[operator]
    torch.set_rng_state(state)
    return module.get_parameter(name).detach().clone()


class Initial:
    """Where the values of a model that was built on meta come from, one tensor at a time.

    Made from the whole model on meta, before anything is cut off it. Where every parameter is
    drawn by a `reset_parameters` and there are no buffers, each is drawn by itself and nothing
    larger than one module is ever whole in memory. Otherwise the constructor has the values: rank
    0 builds the model for real in its host memory and hands out its tensors one after the other.

    Args:
        whole: the model on meta.
        construct: builds it for real.
        by_name: False where the constructor's values must stay although modules could draw anew,
            as for models that initialise themselves.
    """

    def __init__(
        self, whole: nn.Module, construct: Callable[[], nn.Module], seed: int, by_name: bool = True
    ) -> None:
        self._seed, self._construct = seed, construct
        self._names_draw = by_name
        self._templates: dict[str, tuple[nn.Module, str]] = {}
        for names, module in _drawn(whole):
            template = copy.deepcopy(module)
            self._templates.update({full: (template, name) for name, full, _ in names})
        self._tensors = {
            name: tensor.detach()
            for name, tensor in (*whole.named_parameters(), *whole.named_buffers())
        }
        buffers = any(True for _ in whole.buffers())
        everything = {name for name, _ in whole.named_parameters()}
        self.one_by_one = by_name and not buffers and everything <= self._templates.keys()

    @torch.no_grad()
    def fill(self, model: nn.Module, names: Mapping[str, str]) -> None:
        """Give a materialised model its values; call on all ranks.

        Args:
            names: names in `model` -> names in the whole model, where they differ.
        """
        held: dict[str, list[torch.Tensor]] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            held.setdefault(names.get(name, name), []).append(tensor)
        if self.one_by_one:
            for name, tensors in held.items():
                value = self._drawn_value(name)
                for tensor in tensors:
                    place(tensor, value)
            return
        source = self._constructed() if is_root_process() else {}
        for name, like in self._tensors.items():
            value = _from_root(source.get(name), like)
            for tensor in held.get(name, []):
                place(tensor, value)

    def _drawn_value(self, name: str) -> torch.Tensor:
        template, own = self._templates[name]
        real = copy.deepcopy(template).to_empty(device="cpu")
        return _draw(real, self._seed, name, own)

    def _constructed(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(derive(self._seed, "construction"))
        with torch.device("cpu"):
            model = self._construct()
        if self._names_draw:
            initialize(model, self._seed)
        tensors = (*model.named_parameters(), *model.named_buffers())
        return {name: tensor.detach() for name, tensor in tensors}


def _from_root(value: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Rank 0's `value` on every rank, shape and type as `like`."""
    if value is None:
        value = torch.empty(like.shape, dtype=like.dtype)
    value = value.contiguous()
    if dist.is_initialized() and dist.get_world_size() > 1 and value.numel():
        # As bytes, since not every backend sends every type.
        dist.broadcast(value.reshape(-1).view(torch.uint8), 0)
    return value


def place(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this rank's part of `whole` into a tensor, which may be a DTensor of its shape."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(whole)
        return
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    cut = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    tensor.to_local().copy_(whole[cut])


def materialize(model: nn.Module, device: torch.device, parameters: torch.device) -> None:
    """Give meta buffers memory on `device`, and parameters on theirs; what is tied stays tied.

    `Module.to_empty` makes a tensor per name, and so unties.
    """
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(
                        torch.empty_like(parameter, device=parameters), parameter.requires_grad
                    )
                module._parameters[name] = made[id(parameter)]  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
