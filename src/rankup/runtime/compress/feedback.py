"""Error feedback: what a message leaves out is kept, and added to what is sent next.

So a value that is too small to be sent adds up until it is not, and everything sent together with
what is kept is everything given (Seide et al., 2014; Karimireddy et al., 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from .codecs import Codec


@dataclass
class Feedback:
    """What one sender still owes.

    Attributes:
        residual: float32 of the values' shape; None before the first message.
    """

    residual: torch.Tensor | None = None

    def owed(self, values: torch.Tensor) -> torch.Tensor:
        """Values with the residual, in a tensor of their own."""
        return values.clone() if self.residual is None else values + self.residual

    def keep(self, rest: torch.Tensor) -> None:
        """Owe `rest` from now on.

        A message that is not finite has been reported as such, and whoever receives it cannot use
        it: what was owed before is owed still, and nothing of that message is.
        """
        before = torch.zeros_like(rest) if self.residual is None else self.residual
        self.residual = torch.where(torch.isfinite(rest).all(), rest, before)

    def pack(self, values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
        """A message of `values` and of what is owed: its bytes, and what they decode to.

        Args:
            values: float32 of shape `(n,)`, the same `n` each time.
        """
        owed = self.owed(values)
        data = codec.encode(owed)
        sent = codec.decode(data, values.shape[-1])
        self.keep(owed - sent)
        return data, sent


class Residuals:
    """A `Feedback` for each bucket, whose residual stays with its parameters.

    DDP moves parameters between buckets after its first backward.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._buckets: dict[int, tuple[tuple[str, ...], Feedback]] = {}
        self._begun: set[int] = set()  # buckets of the present backward
        self._apart: dict[str, torch.Tensor] = {}  # of parameters that are in no bucket yet

    @property
    def bytes(self) -> int:
        """Memory that the residuals take."""
        kept = [feedback.residual for _, feedback in self._buckets.values()]
        return sum(tensor.nbytes for tensor in [*kept, *self._apart.values()] if tensor is not None)

    def of(self, bucket: dist.GradBucket) -> Feedback:
        """The feedback of a bucket, whose residual is flat like the bucket's buffer."""
        if bucket.index() == 0:
            self._begun.clear()
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        found = self._buckets.get(bucket.index())
        if found is None or found[0] != names:
            self._take_apart()
            found = (names, Feedback(self._joined(names)))
            self._buckets[bucket.index()] = found
        self._begun.add(bucket.index())
        return found[1]

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the residuals, float32 in the parameter's shape, by its name."""
        found = dict(self._apart)
        for names, feedback in self._buckets.values():
            found |= self._split(names, feedback)
        return {
            name: tensor.reshape(self._parameters[name].shape).clone()
            for name, tensor in found.items()
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take residuals of `state()` in place of what there is.

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
        self._buckets.clear()
        self._apart = {
            name: tensor.to(self._parameters[name].device, torch.float32, copy=True).flatten()
            for name, tensor in state.items()
        }

    def _take_apart(self) -> None:
        """Another layout: what its old buckets owe is of their parameters alone again."""
        for index in self._buckets.keys() - self._begun:
            self._apart |= self._split(*self._buckets.pop(index))

    def _split(self, names: tuple[str, ...], feedback: Feedback) -> dict[str, torch.Tensor]:
        if feedback.residual is None:
            return {}
        sizes = [self._parameters[name].numel() for name in names]
        return dict(zip(names, feedback.residual.split(sizes), strict=True))

    def _joined(self, names: tuple[str, ...]) -> torch.Tensor | None:
        """The residual of a new bucket; None where nothing is owed."""
        if not self._apart.keys() & set(names):
            return None
        parameters = [self._parameters[name] for name in names]
        return torch.cat(
            [
                self._apart.pop(name, torch.zeros(parameter.numel(), device=parameter.device))
                for name, parameter in zip(names, parameters, strict=True)
            ]
        )
