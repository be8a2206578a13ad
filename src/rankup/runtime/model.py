"""`wrap(model)`: DistributedDataParallel that a single-GPU script does not notice."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .collectives import broadcast
from .compression import Compression, parse
from .context import CONTEXT, ShardContext
from .exchange import Exchange
from .random_state import DRAWN, STREAMS
from .statistics import RunningStatistics
from .world import setup


def wrap(model: nn.Module, *, compress: str = "none") -> nn.Module:
    """Train `model` on all ranks; its attributes, methods and parameter names stay as they were.

    The gradient is the exact mean over the samples of all ranks, also where `shard` gives them
    uneven parts, and over units where the script calls `count`. Each backward is an exchange,
    through the model, its methods or its parts; every rank has to come to the same ones. Several
    before a step add up, each weighed by itself, under `no_sync()` too.
    Parameters that a backward does not reach count as zeros on this rank. Where no rank's has
    reached one, its gradient stays None, as on one GPU; only where every parameter was reached on
    all ranks in the first backward, and one is left out later, it is zero.
    Running statistics of batch norm become their mean over the ranks with every gradient exchange.

    All ranks begin with rank 0's values. Ranks that part before the first exchange, by values given
    to the model behind `wrap`, end there with the parameter's name.

    A model that is wrapped already stays as it is. One without a parameter that requires a gradient
    has nothing to exchange: it gets rank 0's values, is left bare, and a line says so.

    Args:
        compress: what ranks send each other instead of whole gradients, for slow networks, by
            torch's own hooks of DDP: `bf16` rounds them; `powersgd[:RANK]` sends matrices of low
            rank, and what that leaves out of one exchange is added to the next.

    Raises:
        ValueError: there is no such compression.
    """
    compression = parse(compress)
    world = setup()
    if isinstance(model, Wrapped):
        return model
    if not any(parameter.requires_grad for parameter in model.parameters()):
        if world.is_root:
            print(
                f"wrap: no parameter of {type(model).__name__} requires a gradient; "
                "there is nothing to exchange, the model stays as it is",
                flush=True,
            )
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data.copy_(broadcast(tensor.data))
        return model
    named = type(type(model).__name__, (Wrapped,), {})  # `type(model).__name__` stays as it was
    return cast("nn.Module", named(model, compression, CONTEXT))


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own model inside `wrap`, DistributedDataParallel and `torch.compile`."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := model.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def no_buffer_sync() -> dict[str, Any]:
    """The argument that keeps DDP's forward free of collectives, as this torch names it."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {name: False}


def exchange_by(replica: DistributedDataParallel, compression: Compression) -> None:
    """Let DDP average its buckets of gradients over the ranks, compressed or whole, by torch's own
    hooks.

    That of whole ones divides a bucket at once, where DDP without one divides each gradient: a
    kernel per parameter.
    """
    if compression.kind == "bf16":
        # Under its own name torch takes it on NCCL alone; gloo adds up bf16 as well.
        replica.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
    elif compression.kind == "powersgd":
        # DDP lays out its buckets anew after the first backward: torch asks for two whole ones.
        # Without an epsilon, a gradient of zeros would become NaN.
        state = PowerSGDState(
            None, compression.rank, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8
        )
        replica.register_comm_hook(
            state, lambda state, bucket: _one_by_one(powerSGD_hook(state, bucket))
        )
    else:
        replica._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


def _one_by_one(
    exchanged: torch.futures.Future[torch.Tensor],
) -> torch.futures.Future[torch.Tensor]:
    """On the CPU, wait for a bucket: gloo begins its second and third sum in threads of its own,
    and with several buckets under way ranks would meet in different sums."""
    if dist.get_backend() == "gloo":
        exchanged.wait()
    return exchanged


class Wrapped(DistributedDataParallel):
    """See `wrap`."""

    _ready = False
    _moved = False  # to another device or type, which what was registered is not of

    def __init__(self, model: nn.Module, compression: Compression, context: ShardContext) -> None:
        self._build(model, compression, context)
        context.models.add(self)

    @property  # type: ignore[misc]  # `isinstance(model, Net)` asks for it
    def __class__(self) -> type:
        return type(self.__dict__.get("_modules", {}).get("module", self))

    def _build(self, model: nn.Module, compression: Compression, context: ShardContext) -> None:
        """Register the parameters that require a gradient."""
        training = model.training
        if (before := self.__dict__.get("_exchange")) is not None:
            before.remove()
        super().__init__(model, gradient_as_bucket_view=True, **no_buffer_sync())
        self.training = training
        self._compression, self._shard_context = compression, context
        self._exchange = Exchange(self, RunningStatistics(model), context)
        exchange_by(self, compression)
        self._ready = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and (self._moved or self._exchange.thawed()):
            self._ready = self._moved = False
            self._build(self.module, self._compression, self._shard_context)
        if torch.compiler.is_compiling():  # traced as a whole, as fullgraph=True demands
            return self.module(*inputs, **kwargs)
        # Within DDP's forward torch cuts a compiled model at the buckets: gradients of a part are
        # exchanged beside the backward of the next.
        return self._run_ddp_forward(*inputs, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self.module.compile(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __prepare_scriptable__(self) -> nn.Module:
        """The user's own model, of which torch.jit.script makes a script."""
        return self.module

    # `model[0]`, `for layer in model`, as with Sequential: Python asks the class for these.

    def __getitem__(self, place: Any) -> Any:
        return self.module[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)

    def __len__(self) -> int:
        return len(self.module)

    def __bool__(self) -> bool:
        return True  # as a model is that has no length

    def __setattr__(self, name: str, value: Any) -> None:
        # A script sets attributes on what it takes for its model: they belong there.
        if not self._ready or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        elif isinstance(value, nn.Module | nn.Parameter):
            raise ValueError(
                f"wrap: {name!r} would train on this rank alone; change the model before wrap"
            )
        else:
            setattr(self.module, name, value)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not state_dict.keys() & self.module.state_dict().keys():
            state_dict = strip_prefixes(state_dict)
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        if not self._ready:  # DDP's own constructor looks at itself
            return super().named_modules(*args, **kwargs)
        return self.module.named_modules(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        return self.module.named_children()

    # What `Module` does by way of its children would leave out what the model has of its own.

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if self._ready:
            self.module.add_module(name, module)
        else:
            super().add_module(name, module)

    def apply(self, fn: Callable[[nn.Module], None]) -> Wrapped:
        self.module.apply(fn)
        return self

    def train(self, mode: bool = True) -> Wrapped:
        if not mode:  # an evaluation between two batches from `deal`
            STREAMS.end(DRAWN)
        self.training = mode
        self.module.train(mode)
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> Wrapped:
        before = [(one.device, one.dtype) for one in self.module.parameters()]
        self.module._apply(*args, **kwargs)
        if before != [(one.device, one.dtype) for one in self.module.parameters()]:
            self._moved = True
        return self

    def __repr__(self) -> str:
        return repr(self.module)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        # A copy (EMA, a teacher) does not train: it is the bare model.
        return copy.deepcopy(self.module, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A file that a script pickles its model into has the bare model, as that of one GPU. By the
        # first protocol: pickle refuses the `__newobj__` of later ones for another class.
        return self.module.__reduce_ex__(min(protocol, 1))


def strip_prefixes(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameter names without what DDP and `torch.compile` put in front, when all have it."""
    prefixes = ("_orig_mod.", "module.", "_orig_mod.")  # either may stand inside the other
    for prefix in prefixes:
        if state and all(isinstance(key, str) and key.startswith(prefix) for key in state):
            state = {key[len(prefix) :]: value for key, value in state.items()}
    return state
