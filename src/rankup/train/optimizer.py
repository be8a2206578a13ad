"""The optimizers a recipe offers, their rates step by step, and the loss scale of float16."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from ..runtime.state import local
from .options import TrainOptions

_SECOND_BETA = 0.95  # of AdamW
_MOST_SCALE = 2.0**24  # of float16's losses
FLOOR = 0.1  # the cosine ends at this part of the peak

# Of fastai's `fit_one_cycle` and `fine_tune` (fastai/callback/schedule.py): the part of a cycle in
# which the rate rises, and what the peak is divided by at its beginning and at its end.
_CYCLE = (0.25, 25.0, 1e5)
_FROZEN_CYCLE = (0.99, 25.0, 1e5)
_THAWED_CYCLE = (0.3, 5.0, 1e5)
_MOMENTUM = (0.95, 0.85)  # at its ends, at its peak


def build_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW or SGD for what is trained; matrices decay, norms and biases do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    vectors = [p for p in trained if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)
    # One kernel: on a GPU it saves launches, on a CPU five of six passes through memory.
    fused = {p.device.type for p in trained} in ({"cuda"}, {"cpu"}) or None
    betas = (options.momentum, _SECOND_BETA)
    return torch.optim.AdamW(groups, lr=options.lr, betas=betas, fused=fused)


class Rates(NamedTuple):
    """The rates that a step is taken with.

    Attributes:
        lr: learning rate.
        momentum: of sgd, or adamw's beta1; None: the optimizer's own.
    """

    lr: float
    momentum: float | None = None


def rates(
    step: int,
    last: int,
    peak: float,
    warmup: int,
    schedule: str,
    frozen: int = 0,
    decayed: float = 1.0,
    decay: float = 0.0,
) -> Rates:
    """The rates of step `step` (from 1) of a run of `last` steps.

    Args:
        frozen: steps at the beginning in which most of the model stays as it is; `one-cycle` gives
            them a cycle of their own, and the rest one of half the peak, as fastai's `fine_tune`.
        decayed: what the epochs before this step have left of the peak, of the schedule `step`.
        decay: part of the run, or steps, in which `wsd` falls.
    """
    if schedule == "wsd":
        return Rates(warmup_stable_decay(step, last, peak, warmup, decay))
    if schedule == "step":
        return Rates(learning_rate(step, last, peak, warmup, "constant") * decayed)
    if schedule != "one-cycle":
        return Rates(learning_rate(step, last, peak, warmup, schedule))
    if step <= frozen:
        return one_cycle(step, min(frozen, last), peak, *_FROZEN_CYCLE)
    if frozen:
        return one_cycle(step - frozen, last - frozen, peak / 2, *_THAWED_CYCLE)
    return one_cycle(step, last, peak, *_CYCLE)


def one_cycle(step: int, last: int, peak: float, rising: float, begin: float, end: float) -> Rates:
    """Half a cosine up and half a cosine down, momentum the other way (Smith and Topin, 2018).

    Args:
        rising: part of the cycle in which the rate rises to `peak`.
        begin, end: the rate begins at peak / begin, and ends at peak / end.
    """
    at = (step - 1) / last
    far, near = _MOMENTUM
    if at < rising:
        part = at / rising
        return Rates(_between(peak / begin, peak, part), _between(far, near, part))
    part = (at - rising) / (1 - rising)
    return Rates(_between(peak, peak / end, part), _between(near, far, part))


def _between(first: float, last: float, part: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * part))


def learning_rate(step: int, last: int, peak: float, warmup: int, schedule: str) -> float:
    """Learning rate of step `step` (from 1) of a run of `last` steps.

    Linear from `peak / warmup` to `peak`, then a half cosine down to `FLOOR * peak` (Loshchilov and
    Hutter, "SGDR", 2017, one cycle), or constant.
    """
    if step <= warmup:
        return peak * step / warmup
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, last - warmup)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


def warmup_stable_decay(step: int, last: int, peak: float, warmup: int, decay: float) -> float:
    """Learning rate that rises, stays at its peak, and falls (Hu et al., "MiniCPM", 2024).

    It falls linearly, and would be 0 one step after the last. Where a short run makes the two lines
    cross, the lower one counts.

    Args:
        decay: part of the run that it falls in; from 1 on, steps.
    """
    falling = max(1, round(decay if decay >= 1 else decay * last))
    return peak * min(1.0, step / max(1, warmup), (last + 1 - step) / falling)


def set_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Take the next step with these."""
    for group in optimizer.param_groups:
        group["lr"] = rates.lr
        if rates.momentum is None:
            continue
        if "betas" in group:
            group["betas"] = (rates.momentum, group["betas"][1])
        else:
            group["momentum"] = rates.momentum


class LossScale:
    """The factor that keeps gradients of float16 within its range.

    It halves after an overflow and doubles after many steps without, as `torch.amp.GradScaler`'s.
    That one judges by the gradients that a rank holds, which under FSDP, TP and PP are a part of
    them; the norm over all ranks, which a step computes anyway, says it to all alike.

    Attributes:
        value: the factor.
        since: steps since it changed.
    """

    _DOUBLES = 2000  # steps without an overflow

    def __init__(self, value: float = 65536.0, since: int = 0) -> None:
        self.value, self.since = value, since

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by it."""
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.value)

    def overflowed(self, norm: torch.Tensor) -> bool:
        """Go on to the next step's value; return True where this gradient is no longer finite."""
        overflowed = not math.isfinite(norm.item())
        self.since = 0 if overflowed else self.since + 1
        if overflowed or self.since == self._DOUBLES:
            self.value = min(self.value * (0.5 if overflowed else 2), _MOST_SCALE)
            self.since = 0
        return overflowed
