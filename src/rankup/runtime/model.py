"""`wrap(model)`: DistributedDataParallel that a single-GPU script does not notice."""

# No postponed annotations here: DDP checks those of its communication hook as objects.
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .collectives import broadcast
from .compress.ddp import compressed
from .compress.names import Compression, parse
from .deal import LEDGER
from .exchange import Exchange, weighted_sum
from .statistics import RunningStatistics
from .world import setup


def wrap(model: nn.Module, *, compress: str = "none") -> nn.Module:
    """Train `model` on all ranks; its attributes, methods and parameter names stay as they were.

    The gradient is the exact mean over the samples of all ranks, also where `shard` dealt uneven
    parts, and over units where the script calls `count`. Custom methods may be trained through.
    Several backwards before a step add up, each weighed by itself; those under `no_sync()` are all
    weighed like the one that exchanges them (with `count`: by the sum of their units), which is
    exact where a rank's part is the same in each.
    Running statistics of batch norm become their mean over the ranks with every gradient exchange.
    Without gradients (`torch.no_grad()`) the plain model runs, so that one rank may evaluate alone.

    All ranks begin with rank 0's values. Ranks that part before the first exchange, by values given
    to the model behind `wrap`, end there with the parameter's name.

    A model that is wrapped already stays as it is. One without a parameter that requires a gradient
    has nothing to exchange: it gets rank 0's values, is left bare, and a line says so.

    Args:
        compress: what ranks send each other instead of whole gradients, for slow networks: `bf16`,
            `int8`, `topk[:FRACTION]` or `powersgd[:RANK]`. What that leaves out of one exchange is
            added to the next, so that gradients are exact over many steps, not in each.

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
    return Wrapped(model, compression)


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


class Wrapped(DistributedDataParallel):
    """See `wrap`."""

    _ready = False

    def __init__(self, model: nn.Module, compression: Compression) -> None:
        super().__init__(model, gradient_as_bucket_view=True, **no_buffer_sync())
        self._exchange = Exchange(
            dict(model.named_parameters()), RunningStatistics(model), compressed(model, compression)
        )
        self.register_comm_hook(self._exchange, weighted_sum)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._only_what_counts)
        # Two of the parameters stand watch for all: a backward reaches the first and the last.
        trained = [p for p in model.parameters() if p.requires_grad]
        for parameter in {id(p): p for p in (trained[0], trained[-1])}.values():
            parameter.register_post_accumulate_grad_hook(self._refuse_unexchanged)
        self._ready = True
        LEDGER.models.add(self)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._refuse_half_exchanged()
            self._exchange.expected = True
            return super().forward(*inputs, **kwargs)
        return self.module(*inputs, **kwargs)

    def _expect_backward(self) -> None:
        """What DDP's forward does once it has run the model, without any collective.

        A method or a part of the model that the script calls by itself may end in a backward.
        """
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._refuse_half_exchanged()
            self._exchange.expected = True
            self.reducer.prepare_for_backward([])

    def _refuse_half_exchanged(self) -> None:
        if self._exchange.started and self.require_backward_grad_sync:
            unused = [
                name
                for name, parameter in self.module.named_parameters()
                if parameter.requires_grad and parameter.grad is None
            ]
            raise RuntimeError(
                "the last backward did not reach all parameters of the wrapped model, so gradients "
                f"were not exchanged; without gradient: {', '.join(unused) or 'unknown'}. Freeze "
                "them (requires_grad_(False)) before wrap, or use them in the loss"
            )

    def _refuse_unexchanged(self, parameter: torch.Tensor) -> None:
        if not self.require_backward_grad_sync:
            return
        self._exchange.started = True
        if not self._exchange.expected:
            raise RuntimeError(
                "a backward reached the wrapped model without a forward through it since the last "
                "one, so its gradient would stay on this rank alone: call the model, one of its "
                "methods or `model.part(...)` before each backward, not a part kept from earlier"
            )

    def _only_what_counts(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Keep a NaN over nothing out of what earlier backwards have left."""
        backward = torch._C._current_graph_task_id()
        if not self.require_backward_grad_sync:
            self._exchange.hold(backward)
        return torch.zeros_like(gradient) if LEDGER.idle(backward) else None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            value = getattr(super().__getattr__("module"), name)
        if isinstance(value, nn.Module):
            self._expect_backward()
            return value
        if not (inspect.ismethod(value) and isinstance(value.__self__, nn.Module)):
            return value

        @functools.wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            self._expect_backward()
            return value(*args, **kwargs)

        return method

    # `model[0]`, `for layer in model`, as with Sequential: Python asks the class for these.

    def __getitem__(self, place: Any) -> Any:
        self._expect_backward()
        return self.module[place]

    def __iter__(self) -> Iterator[Any]:
        self._expect_backward()
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

    def apply(self, fn: Callable[[nn.Module], None]) -> "Wrapped":
        self.module.apply(fn)
        return self

    def train(self, mode: bool = True) -> "Wrapped":
        self.training = mode
        self.module.train(mode)
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> "Wrapped":
        self.module._apply(*args, **kwargs)
        return self

    def __repr__(self) -> str:
        return repr(self.module)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        # A copy (EMA, a teacher) does not train: it is the bare model.
        return copy.deepcopy(self.module, memo)


def strip_prefixes(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameter names without what DDP and `torch.compile` put in front, when all have it."""
    prefixes = ("_orig_mod.", "module.", "_orig_mod.")  # either may stand inside the other
    for prefix in prefixes:
        if state and all(isinstance(key, str) and key.startswith(prefix) for key in state):
            state = {key[len(prefix) :]: value for key, value in state.items()}
    return state
