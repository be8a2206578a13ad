"""A model with its shapes alone, and the initial values that every layout gives it."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..runtime.keys import derive
from ..runtime.world import World


@torch.no_grad()
def initialize(
    model: nn.Module, seed: int, of: Callable[[nn.Module], bool] = lambda module: True
) -> None:
    """Draw each parameter anew by its module's own `reset_parameters`, keyed by (seed, name).

    What a parameter starts from depends on nothing but its name: not on the order of construction,
    nor on what else this process holds. Modules without `reset_parameters` keep what their
    constructor gave them; `build` seeds construction, so that this is equal everywhere too.

    Args:
        of: the modules whose parameters are meant.
    """
    for names, module in _drawn(model):
        if not of(module):
            continue
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
    """A model on meta, and later the values of what a rank holds of it, one tensor at a time.

    What a module draws by its `reset_parameters` without the help of buffers is drawn by one rank,
    each rank its share of all tensors, and sent to the others from device to device. All else, what
    `reset_parameters` leaves as it was too, comes from rank 0, which builds the model in its host
    memory: it has the constructor's values.

    A constructor that reads values (`.item()`, weights from a file), or that keeps tensors which
    are neither parameters nor buffers, does not work on meta. Then every rank builds the model
    once in its host memory, and keeps the shapes; rank 0 keeps the values until they are sent.

    Args:
        construct: builds the model.
        by_name: False where the constructor's values must stay although modules could draw anew,
            as for models that initialise themselves.
    """

    def __init__(
        self, construct: Callable[[], nn.Module], world: World, seed: int, by_name: bool = True
    ) -> None:
        self._construct, self._world = construct, world
        self._seed, self._by_name = seed, by_name
        self._real: nn.Module | None = None

    def shapes(self) -> nn.Module:
        """The model on meta."""
        found: nn.Module | None = None
        with _unspent(), contextlib.suppress(Exception):  # what is wrong comes up in the next try
            found = on_meta(self._construct, self._seed)
        if found is None or _keeps_tensors(found):
            found = self._in_host_memory()
            self._real = found if self._world.is_root else None
        return _emptied(found)

    def _in_host_memory(self) -> nn.Module:
        torch.manual_seed(derive(self._seed, "construction"))
        with torch.device("cpu"):
            return self._construct().to("cpu")  # wherever the constructor puts them

    @torch.no_grad()
    def fill(
        self,
        model: nn.Module,
        whole: nn.Module,
        names: Mapping[str, str],
        given: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Give a materialised model its values; call on all ranks.

        Args:
            whole: the model on meta, before anything was cut off it.
            names: names in `model` -> names in the whole model, where they differ.
            given: parameters, by their names in the whole model, that get their values afterwards.
        """
        held: dict[str, list[torch.Tensor]] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            held.setdefault(names.get(name, name), []).append(tensor)
        later = {name for name, _ in whole.named_parameters() if given(name)}
        draws = self._draws(whole) if self._by_name else {}
        draws = {name: draw for name, draw in draws.items() if name not in later}
        owners = {name: i % self._world.world_size for i, name in enumerate(draws)}
        values = {name: draw() for name, draw in draws.items() if owners[name] == self._world.rank}
        left = self._left(list(draws), values)
        owners |= dict.fromkeys(left, 0)
        values = {name: value for name, value in values.items() if name not in left}
        later |= _computed(whole)
        tensors = {name: one for name, one in _tensors_of(whole).items() if name not in later}
        if self._world.is_root and len(draws) - len(left) < len(tensors):
            values = self._constructed(left) | values
        for name, like in tensors.items():
            value = self._from(owners.get(name, 0), values.pop(name, None), like)
            for tensor in held.get(name, []):
                place(tensor, value)

    def _draws(self, whole: nn.Module) -> dict[str, Callable[[], torch.Tensor]]:
        """Names of parameters that need nothing but themselves -> what draws one."""
        first = {id(parameter): name for name, parameter in whole.named_parameters()}

        def draw(module: nn.Module, full: str, name: str) -> torch.Tensor:
            empty = copy.deepcopy(module).to_empty(device="cpu")
            for parameter in empty.parameters():
                if not _is_whole(parameter):
                    parameter.fill_(torch.nan)
            return _draw(empty, self._seed, full, name)

        return {
            first[id(parameter)]: functools.partial(draw, module, full, name)
            for names, module in _drawn(whole)
            if not _has_buffers(module)
            for name, full, parameter in names
        }

    def _left(self, names: list[str], values: Mapping[str, torch.Tensor]) -> set[str]:
        """Return the names of what `reset_parameters` has left in part, on any rank, as it was."""
        left = [name in values and _is_left(values[name]) for name in names]
        flags = torch.tensor(left, dtype=torch.uint8, device=self._world.device)
        if self._world.world_size > 1 and names:
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        return {name for name, flag in zip(names, flags.tolist(), strict=True) if flag}

    def _constructed(self, left: set[str]) -> dict[str, torch.Tensor]:
        model, self._real = self._real or self._in_host_memory(), None
        theirs = {id(one) for name, one in model.named_parameters() if name in left}
        if self._by_name:
            initialize(
                model,
                self._seed,
                lambda module: (
                    _has_buffers(module)
                    or any(id(one) in theirs for one in module.parameters(recurse=False))
                ),
            )
        return _tensors_of(model)

    def _from(self, owner: int, value: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """The owner's `value` on every rank's device, shape and type as `like`."""
        device = self._world.device
        if value is None:
            value = torch.empty(like.shape, dtype=like.dtype, device=device)
        value = value.to(device).contiguous()
        if self._world.world_size > 1 and value.numel():
            # As bytes, since not every backend sends every type.
            dist.broadcast(value.reshape(-1).view(torch.uint8), owner)
        return value


def _tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors}


def _computed(model: nn.Module) -> set[str]:
    """Return the names of buffers that modules compute by themselves; see `materialize`."""
    return {
        name
        for prefix, module in model.named_modules()
        if hasattr(module, "rankup_fill_buffers")
        for name, _ in module.named_buffers(prefix, recurse=False)
    }


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _is_left(drawn: torch.Tensor) -> bool:
    """Return True where some of it is NaN still; whole numbers do not show what was set."""
    return _is_whole(drawn) or bool(drawn.isnan().any())


def _has_buffers(module: nn.Module) -> bool:
    return any(True for _ in module.buffers())


def on_meta(build_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model with its shapes alone."""
    torch.manual_seed(derive(seed, "construction"))
    with torch.device("meta"):
        return build_model()


def _emptied(model: nn.Module) -> nn.Module:
    """The model, or a copy, whose tensors are all on meta; what is tied stays tied."""
    if all(tensor.is_meta for tensor in _tensors_of(model).values()):
        return model
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(
            torch.empty_like(parameter, device="meta"), parameter.requires_grad
        )
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _keeps_tensors(model: nn.Module) -> bool:
    """Return True if a module has tensors on meta that nobody would ever give values."""
    return any(
        tensor.is_meta
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules")
        for tensor in _tensors(value)
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


@contextlib.contextmanager
def _unspent() -> Iterator[None]:
    """Python's and numpy's random states stay as they are: the values are drawn later."""
    numpy = sys.modules.get("numpy")
    state, numpys = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpys)


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

    `Module.to_empty` makes a tensor per name, and so unties. Buffers that follow from a module's
    sizes alone get their values by its method `rankup_fill_buffers()`, a name that no model has by
    chance.
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
        if hasattr(module, "rankup_fill_buffers"):
            module.rankup_fill_buffers()  # type: ignore[operator]
