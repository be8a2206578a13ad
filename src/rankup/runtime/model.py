"""`wrap(model)`: DistributedDataParallel that a single-GPU script does not notice."""

# No postponed annotations here: DDP checks those of its communication hook as objects.
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .deal import LEDGER
from .statistics import RunningStatistics
from .world import after_first_step, setup


def wrap(model: nn.Module) -> "Wrapped":
    """Train `model` on all ranks; its attributes, methods and parameter names stay as they were.

    The gradient is the exact mean over the samples of all ranks, also where `shard` dealt uneven
    parts, and over units where the script calls `count`. Custom methods may be trained through.
    Running statistics of batch norm become their mean over the ranks with every gradient exchange.
    Without gradients (`torch.no_grad()`) the plain model runs, so that one rank may evaluate alone.

    Raises:
        ValueError: no parameter requires a gradient: there is nothing to exchange, leave it bare.
    """
    setup()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"wrap: no parameter of {type(model).__name__} requires a gradient; "
            "use the model as it is, it needs no wrapping"
        )
    return Wrapped(model)


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

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, gradient_as_bucket_view=True, **no_buffer_sync())
        self._exchange = _Exchange(RunningStatistics(model))
        self.register_comm_hook(self._exchange, _weighted_sum)
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


class _Exchange:
    """One model's gradient exchange.

    Attributes:
        expected: a forward has prepared DDP for the next backward.
        started: a backward has come, and its exchange is not complete.
        weight: how much this rank's gradient counts in the present backward.
        total: sum of the weights over the ranks, where only they together know it.
    """

    def __init__(self, statistics: RunningStatistics) -> None:
        self.statistics = statistics
        self.expected = self.started = False
        self.weight = 1.0
        self.total: torch.futures.Future[Any] | None = None
        self._backwards = 0
        self._passed: torch.cuda.Event | None = None

    def begin(self, device: torch.device) -> None:
        """At the first bucket of a backward: find the weights."""
        self._shorten_timeout(device)
        self.total = None
        units, samples = LEDGER.units, LEDGER.samples
        LEDGER.units = None
        if units is not None:
            # A rank that was dealt nothing computes on a stand-in sample that counts for nothing.
            self.weight = units if samples is None or samples[0] else 0.0
            self.total = _sum(torch.full((1,), self.weight, dtype=torch.float64, device=device))
        elif samples is not None:
            self.weight = samples[0] / samples[1]
        else:
            self.weight = 1.0 / dist.get_world_size()

    def share_statistics(self, device: torch.device) -> torch.futures.Future[Any]:
        """Start the sum of running statistics over the ranks that had samples, and their number."""
        works = torch.full((1,), float(self.weight > 0), dtype=torch.float64, device=device)
        return _sum(torch.cat([torch.where(works > 0, self.statistics.flat(), 0.0), works]))

    def _shorten_timeout(self, device: torch.device) -> None:
        """Once the first exchange is over; on a GPU the host only learns of that later."""
        self._backwards += 1
        if self._backwards == 2 and device.type == "cuda":
            self._passed = torch.cuda.Event()
            self._passed.record()
        elif self._backwards == 2 or (self._passed is not None and self._passed.query()):
            self._passed = None
            after_first_step()


def _weighted_sum(
    exchange: _Exchange, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: sum over ranks of weight x gradient, weights summing to one."""
    buffer = bucket.buffer()
    if bucket.index() == 0:
        exchange.begin(buffer.device)
    # Multiplying by zero would keep an idle rank's NaN.
    buffer = buffer.mul_(exchange.weight) if exchange.weight else buffer.zero_()
    parts = {"gradient": _sum(buffer)}
    if exchange.total is not None:
        parts["total"] = exchange.total
    if bucket.is_last():
        exchange.expected = exchange.started = False
        if exchange.statistics.size:
            parts["statistics"] = exchange.share_statistics(buffer.device)

    def finish(done: torch.futures.Future[Any]) -> torch.Tensor:
        values = dict(zip(parts, (part.value()[0] for part in done.value()), strict=True))
        gradient: torch.Tensor = values["gradient"]
        if "total" in values:
            # No units on any rank: the gradient is a sum of nothing, not 0 / 0.
            total = values["total"]
            gradient.div_(torch.where(total > 0, total, 1.0).to(gradient.dtype))
        if "statistics" in values:
            total, ranks = values["statistics"].split([exchange.statistics.size, 1])
            mean = total / ranks.clamp(min=1.0)
            exchange.statistics.assign(torch.where(ranks > 0, mean, exchange.statistics.flat()))
        return gradient

    return torch.futures.collect_all(list(parts.values())).then(finish)


def _sum(tensor: torch.Tensor) -> torch.futures.Future[Any]:
    """Start the sum of a tensor over the ranks, in place."""
    return dist.all_reduce(tensor, async_op=True).get_future()
