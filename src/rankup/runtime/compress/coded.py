"""DDP's buckets as messages of a codec, with error feedback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .codecs import Codec
from .residuals import Residuals
from .sums import Spent, Sum, start


@dataclass(frozen=True)
class _UnderWay:
    buffer: torch.Tensor
    sum: Sum
    done: torch.futures.Future[Any]


class CodecExchange:
    """See `CompressedExchange`; with error feedback, and messages of a codec.

    The first half of a bucket's sum is under way while the backward goes on; the second halves
    follow at the last bucket.
    """

    def __init__(self, model: nn.Module, codec: Codec) -> None:
        self.spent = Spent()
        self._codec = codec
        self._residuals = Residuals(model)
        self._under_way: list[_UnderWay] = []
        self._held = 0

    @property
    def extra_bytes(self) -> int:
        return self._residuals.bytes + self._held

    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """See `CompressedExchange`."""
        if bucket.index() == 0:
            self._under_way.clear()  # of a backward that failed
        buffer = bucket.buffer()
        feedback = self._residuals.of(bucket)
        sum_ = start(buffer.float(), self._codec, feedback, spent=self.spent)
        done = future(buffer.device)
        self._under_way.append(_UnderWay(buffer, sum_, done))
        if bucket.is_last():
            self._finish()
        return done

    def _finish(self) -> None:
        self._held = sum(part.sum.held for part in self._under_way)
        for part in self._under_way:
            part.sum.turn()
        for part in self._under_way:
            part.buffer.copy_(part.sum.result())
            part.done.set_result([part.buffer])
        self._under_way.clear()

    def state(self) -> dict[str, torch.Tensor]:
        return self._residuals.state()

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._residuals.load(state)


def future(device: torch.device) -> torch.futures.Future[Any]:
    """One to complete by hand; on a GPU with what its stream does until then."""
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)
