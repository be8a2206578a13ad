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
    world = setup()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"wrap: no parameter of {type(model).__name__} requires a gradient; "
            "use the model as it is, it needs no wrapping"
        )
    return Wrapped(model, [world.device] if world.device.type == "cuda" else None)


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

    def __init__(self, model: nn.Module, device_ids: list[torch.device] | None) -> None:
        super().__init__(
            model, device_ids=device_ids, gradient_as_bucket_view=True, **no_buffer_sync()
        )
        self._exchange = _Exchange(RunningStatistics(model))
        self.register_comm_hook(self._exchange, _weighted_sum)
        self._ready = True
        LEDGER.models.add(self)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return super().forward(*inputs, **kwargs)
        return self.module(*inputs, **kwargs)

    def _arm(self, output: Any) -> Any:
        """Tell DDP that a backward through `output`, computed outside forward, will come."""
        module = self.module
        own = module.__dict__.get("forward")
        module.forward = lambda: output
        try:
            return super().forward()
        finally:
            if own is None:
                del module.forward
            else:
                module.forward = own

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            value = getattr(super().__getattr__("module"), name)
        if not (inspect.ismethod(value) and isinstance(value.__self__, nn.Module)):
            return value

        @functools.wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            output = value(*args, **kwargs)
            if torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(output)):
                return self._arm(output)
            return output

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        # A script sets attributes on what it takes for its model: they belong there.
        if self._ready and name not in self.__dict__ and not hasattr(type(self), name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(strip_prefixes(state_dict), *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        # A copy (EMA, a teacher) does not train: it is the bare model.
        return copy.deepcopy(self.module, memo)


def strip_prefixes(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameter names without what DDP and `torch.compile` put in front, when all have it."""
    for prefix in ("module.", "_orig_mod."):
        if state and all(isinstance(key, str) and key.startswith(prefix) for key in state):
            state = {key[len(prefix) :]: value for key, value in state.items()}
    return state


class _Exchange:
    """State of one model's gradient exchange: this backward's weight, and its statistics."""

    def __init__(self, statistics: RunningStatistics) -> None:
        self.statistics = statistics
        self.weight = 1.0
        self.total: torch.Tensor | None = None
        self.total_work: dist.Work | None = None
        self.first = True

    def begin(self, device: torch.device) -> None:
        """At the first bucket of a backward: how much this rank's gradient counts."""
        self.total = self.total_work = None
        units, samples = LEDGER.units, LEDGER.samples
        LEDGER.units = None
        if units is not None:
            # A rank that was dealt nothing computes on a stand-in sample that counts for nothing.
            self.weight = units if samples is None or samples[0] else 0.0
            self.total = torch.tensor([self.weight], dtype=torch.float64, device=device)
            self.total_work = dist.all_reduce(self.total, async_op=True)
        elif samples is not None:
            self.weight = samples[0] / samples[1]
        else:
            self.weight = 1.0 / dist.get_world_size()


def _weighted_sum(
    exchange: _Exchange, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: sum over ranks of weight x gradient, weights summing to one."""
    buffer = bucket.buffer()
    if bucket.index() == 0:
        exchange.begin(buffer.device)
    total, total_work = exchange.total, exchange.total_work
    # Multiplying by zero would keep an idle rank's NaN.
    buffer = buffer.mul_(exchange.weight) if exchange.weight else buffer.zero_()
    future = dist.all_reduce(buffer, async_op=True).get_future()
    statistics = _share_statistics(exchange, buffer.device) if bucket.is_last() else None

    def finish(done: torch.futures.Future[Any]) -> torch.Tensor:
        result: torch.Tensor = done.value()[0]
        if total is not None and total_work is not None:
            total_work.wait()
            result.div_(total.clamp(min=torch.finfo(torch.float64).tiny).to(result.dtype))
        if statistics is not None:
            statistics[0].wait()
            exchange.statistics.assign(statistics[1][:-1] / statistics[1][-1])
        return result

    if bucket.is_last() and exchange.first:
        exchange.first = False
        after_first_step()
    return future.then(finish)


def _share_statistics(
    exchange: _Exchange, device: torch.device
) -> tuple[dist.Work, torch.Tensor] | None:
    """Start the sum of running statistics over the ranks that had samples, and their number."""
    if not exchange.statistics.size:
        return None
    works = exchange.weight > 0
    flat = exchange.statistics.flat() if works else torch.zeros(exchange.statistics.size)
    packed = torch.cat([flat.double().to(device), torch.tensor([float(works)], device=device)])
    return dist.all_reduce(packed, async_op=True), packed


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a method's result: nested tuples, lists, dicts and dataclass-like objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))
