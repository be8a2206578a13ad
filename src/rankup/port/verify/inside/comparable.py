"""Takes away what makes two correct runs differ: dropout, batch statistics, mixed precision, time.

Each is told once it was in use.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from ....login.fetch.inside.functions import change_arguments
from ....login.fetch.inside.journal import Journal
from .progress import Progress

_SEED = 20251
_TICK = 1e-3
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")


class Comparable:
    """What is changed in one rank.

    Args:
        folder: the user's project: its own calls of the clock get the stopped one.
    """

    def __init__(self, folder: str, progress: Progress, journal: Journal) -> None:
        self._folder = folder + "/"
        self._progress, self._journal = progress, journal
        self._calls = 0

    def install(self, torch: Any) -> None:
        """All of it; seeds as well, for a script that sets none."""
        import numpy as np

        torch.manual_seed(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        self._no_dropout(torch)
        self._no_batch_statistics(torch)
        self._no_mixed_precision(torch)
        for name in ("time", "perf_counter", "monotonic", "process_time"):
            setattr(time, name, self._clock(getattr(time, name)))

    def _no_dropout(self, torch: Any) -> None:
        functional = torch.nn.functional
        for name in (*_DROPOUTS, "feature_alpha_dropout"):
            setattr(functional, name, self._same(getattr(functional, name)))
        attention = functional.scaled_dot_product_attention

        @wraps(attention)
        def without(
            query: Any,
            key: Any,
            value: Any,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if dropout_p:
                self._note("dropout: off")
            return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

        functional.scaled_dot_product_attention = without
        torch.nn.modules.module.register_module_forward_pre_hook(self._recurrent)

    def _recurrent(self, module: Any, args: Any) -> None:
        import torch

        if isinstance(module, torch.nn.RNNBase) and module.dropout:
            self._note("dropout: off")
            module.dropout = 0.0

    def _same(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def same(input: Any, p: float = 0.5, training: bool = True, *rest: Any, **kw: Any) -> Any:
            if training and p:
                self._note("dropout: off")
            return input

        return same

    def _no_batch_statistics(self, torch: Any) -> None:
        functional = torch.nn.functional
        original = functional.batch_norm

        @wraps(original)
        def batch_norm(
            input: Any,
            running_mean: Any,
            running_var: Any,
            weight: Any = None,
            bias: Any = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Any:
            if training or running_mean is None:
                self._note(
                    "batch norm: normalises with its running statistics, since those of a batch "
                    "are each rank's own (`port --sync-bn` makes them common)"
                )
            if running_mean is None:
                running_mean = input.new_zeros(input.shape[1])
                running_var = input.new_ones(input.shape[1])
            return original(input, running_mean, running_var, weight, bias, False, momentum, eps)

        functional.batch_norm = batch_norm
        plain = torch.nn.modules.batchnorm._BatchNorm.forward
        torch.nn.SyncBatchNorm.forward = lambda module, input: plain(module, input)

    def _no_mixed_precision(self, torch: Any) -> None:
        def off(given: dict[str, Any]) -> None:
            if given.get("enabled", True):
                self._note("mixed precision: off")
            given["enabled"] = False

        for kind in (torch.amp.autocast_mode.autocast, torch.amp.GradScaler):
            change_arguments(kind, "__init__", off)

    def _clock(self, original: Callable[[], float]) -> Callable[[], float]:
        began = original()

        @wraps(original)
        def clock() -> float:
            # The user's own calls only: threads and libraries wait by this clock.
            if not sys._getframe(1).f_code.co_filename.startswith(self._folder):
                return original()
            self._calls += 1
            return began + self._calls * _TICK

        return clock

    def _note(self, text: str) -> None:
        if self._progress.first("note", text):
            self._journal.tell("note", text=text)
