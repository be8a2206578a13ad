"""Sums of DDP's gradient buckets in fewer bytes, inside its communication hook.

With error feedback: as messages of a codec, or by PowerSGD (Vogels et al., 2019), as torch computes
it.
"""

# No postponed annotations here: DDP checks those of its communication hook as objects.
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

from .codecs import Codec, Whole, make
from .names import Compression
from .sums import Feedback, Spent, Sum, bytes_sent, start

# DDP lays out its buckets anew after the first backward; torch asks for two that are sent whole.
_WHOLE = 2


class CompressedExchange(ABC):
    """Sums the buckets of one model, and keeps what this rank owes of each parameter.

    DDP moves parameters between buckets after its first backward, so that nothing is kept by them.

    Attributes:
        spent: what it has cost so far.
    """

    def __init__(self, model: nn.Module) -> None:
        self.spent = Spent()
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._owed: dict[str, torch.Tensor] = {}  # flat

    @property
    def extra_bytes(self) -> int:
        """Memory that it takes, beside the gradients."""
        return sum(residual.nbytes for residual in self._owed.values())

    @abstractmethod
    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """Start the sum of a bucket over the ranks, in place.

        The future holds a list of the bucket's buffer. It is complete when the hook of the last
        bucket has returned: only there are all ranks sure to go on in the same order.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of what this rank owes, float32 in the shape of the parameter, by its name."""
        return {
            name: residual.reshape(self._parameters[name].shape).clone()
            for name, residual in self._owed.items()
        }

    def blank(self) -> dict[str, torch.Tensor]:
        """Zeros for all that `state` may hold."""
        named = self._parameters.items()
        return {name: torch.zeros_like(p, dtype=torch.float32) for name, p in named}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Owe what `state()` once returned on this rank, and nothing else.

        Raises:
            ValueError: a name or a shape is of another model.
        """
        for name, tensor in state.items():
            there = self._parameters.get(name)
            if there is None or there.shape != tensor.shape:
                expected = "no such parameter" if there is None else f"{tuple(there.shape)}"
                raise ValueError(
                    f"what compression owes of {name} has the shape {tuple(tensor.shape)}, and "
                    f"this model has {expected}; load the state of the same model"
                )
        self._owed = {
            name: tensor.to(self._parameters[name].device, torch.float32, copy=True).flatten()
            for name, tensor in state.items()
        }

    def _names_of(self, bucket: dist.GradBucket) -> list[str]:
        return [self._names[id(parameter)] for parameter in bucket.parameters()]

    def _feedback(self, names: list[str]) -> Feedback:
        """The feedback of a bucket, whose residual is flat like the bucket's buffer."""
        if not self._owed.keys() & names:
            return Feedback()
        parameters = [self._parameters[name] for name in names]
        return Feedback(
            torch.cat(
                [
                    self._owed.get(name, torch.zeros(parameter.numel(), device=parameter.device))
                    for name, parameter in zip(names, parameters, strict=True)
                ]
            )
        )

    def _keep(self, names: list[str], feedback: Feedback) -> None:
        """Owe what a bucket's feedback says, once its message is sent."""
        if feedback.residual is not None:
            sizes = [self._parameters[name].numel() for name in names]
            self._owed.update(zip(names, feedback.residual.split(sizes), strict=True))


@dataclass(frozen=True)
class _UnderWay:
    names: list[str]
    feedback: Feedback
    buffer: torch.Tensor
    sum: Sum
    done: torch.futures.Future[Any]


class CodecExchange(CompressedExchange):
    """See `CompressedExchange`; by messages of a codec.

    The first half of a bucket's sum is under way while the backward goes on; the second halves
    follow at the last bucket.
    """

    def __init__(self, model: nn.Module, codec: Codec) -> None:
        super().__init__(model)
        self._codec = codec
        self._under_way: list[_UnderWay] = []
        self._held = 0

    @property
    def extra_bytes(self) -> int:
        return super().extra_bytes + self._held

    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """See `CompressedExchange`."""
        if bucket.index() == 0:
            self._under_way.clear()  # of a backward that failed
        buffer, names = bucket.buffer(), self._names_of(bucket)
        feedback = self._feedback(names)
        sum_ = start(buffer.float(), self._codec, feedback, spent=self.spent)
        done = _future(buffer.device)
        self._under_way.append(_UnderWay(names, feedback, buffer, sum_, done))
        if bucket.is_last():
            self._finish()
        return done

    def _finish(self) -> None:
        self._held = sum(part.sum.held for part in self._under_way)
        for part in self._under_way:
            part.sum.turn()
        for part in self._under_way:
            part.buffer.copy_(part.sum.result())
            self._keep(part.names, part.feedback)
            part.done.set_result([part.buffer])
        self._under_way.clear()


class PowerExchange(CompressedExchange):
    """See `CompressedExchange`; each matrix as a product of two with `rank` columns.

    Torch's hook goes on to its second and third sum in callbacks, which gloo runs in threads: with
    several buckets under way, ranks would meet in different sums. So each bucket is finished before
    the next is begun, and all wait for the last: nothing goes on beside the backward. Waiting and
    computing are not told apart, both are in `spent.waited`.

    Its matrices are drawn anew after `load`; the first two exchanges are always whole.
    """

    def __init__(self, model: nn.Module, rank: int) -> None:
        super().__init__(model)
        self._ranks = dist.get_world_size()
        # Without an epsilon, a gradient of zeros would become NaN.
        self._power = PowerSGDState(
            None, rank, start_powerSGD_iter=_WHOLE, orthogonalization_epsilon=1e-8
        )
        self._under_way: list[tuple[dist.GradBucket, torch.futures.Future[Any]]] = []

    @property
    def extra_bytes(self) -> int:
        matrices = [*self._power.p_memory_dict.values(), *self._power.q_memory_dict.values()]
        return super().extra_bytes + sum(matrix.nbytes for matrix in matrices)

    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """See `CompressedExchange`."""
        if bucket.index() == 0:
            self._under_way.clear()  # of a backward that failed
        done = _future(bucket.buffer().device)
        self._under_way.append((bucket, done))
        if bucket.is_last():
            for one, its in self._under_way:
                with self.spent.at("waited"):
                    self._approximate(one)
                its.set_result([one.buffer()])
            self._under_way.clear()
        return done

    def _approximate(self, bucket: dist.GradBucket) -> None:
        power, index, buffer = self._power, bucket.index(), bucket.buffer()
        whole, counted = power.iter < _WHOLE, power.total_numel_after_compression
        buffer.mul_(self._ranks)  # torch takes the mean
        names = self._names_of(bucket)
        feedback = self._feedback(names)
        if not whole and feedback.residual is not None:
            power.error_dict[index] = feedback.residual.to(buffer.dtype)
        powerSGD_hook(power, bucket).wait()
        numbers = buffer.numel() if whole else power.total_numel_after_compression - counted
        self.spent.bytes_sent += bytes_sent(Whole(), numbers, self._ranks)
        if whole:
            return
        feedback.keep(power.error_dict.pop(index).float())
        self._keep(names, feedback)
        if not torch.isfinite(buffer).all():  # on all ranks alike: draw what is left of it anew
            del power.p_memory_dict[index], power.q_memory_dict[index]

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        super().load(state)
        self._power.iter = 0
        self._power.p_memory_dict.clear()
        self._power.q_memory_dict.clear()


def _future(device: torch.device) -> torch.futures.Future[Any]:
    """One to complete by hand; on a GPU with what its stream does until then."""
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


def compressed(model: nn.Module, compression: Compression) -> CompressedExchange | None:
    """What sums the gradients of `model` on the ranks of the default group; None if they go whole.

    Args:
        model: what DDP is around; its parameters' names are those of `state()`.
    """
    if not compression or dist.get_world_size() == 1:
        return None
    if compression.kind == "powersgd":
        return PowerExchange(model, compression.rank)
    return CodecExchange(model, make(compression))


def mean(
    exchange: CompressedExchange, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over ranks, as DDP takes it without one."""
    bucket.buffer().div_(dist.get_world_size())
    return exchange.share(bucket).then(lambda done: done.value()[0])
