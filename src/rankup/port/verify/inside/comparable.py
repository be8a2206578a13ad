"""Takes away what makes two correct runs differ: dropout, batch statistics, precision, time.

Each is recorded once it was in use.
"""

from __future__ import annotations

import builtins
import datetime
import time
import timeit
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from ....sandbox.inside.devices import Devices, change_arguments
from ....sandbox.inside.hooks import replaces
from .draws import Progress

_TICK = 1e-3
_APART = 61.0  # seconds between the clocks of two ranks of a free run
_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"
)  # fmt: skip
_NO_DROPOUT = "dropout: off"


class Comparable(Devices):
    """The changes in one rank, whose calls of torch all come by here.

    Args:
        free: dropout stays.
    """

    def __init__(self, progress: Progress, *, free: bool) -> None:
        super().__init__(progress.journal)
        self._progress, self._free = progress, free

    def install(self, torch: Any) -> None:
        """All of it."""
        if not self._free:
            self._no_dropout(torch)
        self._no_batch_statistics(torch)
        self._no_mixed_precision(torch)
        change_arguments(
            torch, "set_default_dtype", lambda given: given.update(d=self._whole(given["d"]))
        )

    def _no_dropout(self, torch: Any) -> None:
        functional = torch.nn.functional

        def off(given: dict[str, Any]) -> None:
            if given.get("training", True) and given.get("p", 0.5):
                self._progress.note(_NO_DROPOUT)
            given["training"] = False

        for name in _DROPOUTS:
            change_arguments(functional, name, off)

        @replaces(functional, "scaled_dot_product_attention")
        def without(
            attention: Any,
            query: Any,
            key: Any,
            value: Any,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if dropout_p:
                self._progress.note(_NO_DROPOUT)
            return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

        torch.nn.modules.module.register_module_forward_pre_hook(self._recurrent)

    def _recurrent(self, module: Any, args: Any) -> None:
        import torch

        if isinstance(module, torch.nn.RNNBase) and module.dropout:
            self._progress.note(_NO_DROPOUT)
            module.dropout = 0.0

    def _no_batch_statistics(self, torch: Any) -> None:
        def running(given: dict[str, Any]) -> None:
            mean = given["running_mean"]
            if mean is None or given.get("training"):
                self._progress.note(
                    "batch norm: normalises with its running statistics, since those of a batch "
                    "are each rank's own (`port --sync-bn` makes them common)"
                )
                self._progress.leave("batch norm's statistics of a batch")
            if mean is None:
                channels, new = given["input"].shape[1], given["input"]
                given["running_mean"] = new.new_zeros(channels)
                given["running_var"] = new.new_ones(channels)
            given["training"] = False

        change_arguments(torch.nn.functional, "batch_norm", running)
        plain = torch.nn.modules.batchnorm._BatchNorm.forward
        torch.nn.SyncBatchNorm.forward = lambda module, input: plain(module, input)

    def _no_mixed_precision(self, torch: Any) -> None:
        def off(given: dict[str, Any]) -> None:
            if given.get("enabled", True):
                self._progress.note("mixed precision: off")
            given["enabled"] = False

        for kind in (torch.amp.autocast_mode.autocast, torch.amp.GradScaler):
            change_arguments(kind, "__init__", off)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Half precision, of a whole model or of single tensors, has three digits."""
        name = getattr(func, "__name__", "")
        if name in ("half", "bfloat16"):
            func = self._note_half(type(args[0]).float)
        elif name in ("to", "type", "_parse_to"):
            args = tuple(map(self._whole, args))
        if "dtype" in kwargs:
            kwargs = {**kwargs, "dtype": self._whole(kwargs["dtype"])}
        return super().call(func, args, kwargs)

    def _whole(self, value: Any) -> Any:
        import torch

        half = value is torch.float16 or value is torch.bfloat16
        return self._note_half(torch.float32) if half else value

    def _note_half(self, instead: Any) -> Any:
        self._progress.note("half precision: float32 in its place")
        return instead


class Clock:
    """A clock that goes by its calls, for the user's code; that of a free run is the rank's own.

    Threads and libraries wait by the real one, and C extensions are built upon the real classes: it
    is the modules `time`, `timeit` and `datetime` that files of the user's import which are others.

    Args:
        folder: the user's project, absolute and without links.
        began: the time of all runs.
        rank: of a free run, else 0.
    """

    def __init__(self, folder: str, began: float, rank: int) -> None:
        self._folder = folder + "/"
        self._began = began + _APART * rank
        self._calls = 0

    def install(self) -> None:
        """Change what `import` gives to the user's code."""
        stopped = {id(time): self._time(), id(datetime): self._datetime()}
        stopped[id(timeit)] = timer = ModuleType("timeit")
        vars(timer).update(vars(timeit), default_timer=self._now)

        @replaces(builtins, "__import__")
        def load(original: Any, name: str, scope: Any = None, *args: Any, **options: Any) -> Any:
            found = original(name, scope, *args, **options)
            own = str((scope or {}).get("__file__")).startswith(self._folder)
            return stopped.get(id(found), found) if own else found

    def _now(self) -> float:
        self._calls += 1
        return self._began + self._calls * _TICK

    def _time(self) -> ModuleType:
        module = ModuleType("time")
        vars(module).update(vars(time))
        for name in ("time", "perf_counter", "monotonic", "process_time"):
            setattr(module, name, self._now)
            setattr(module, f"{name}_ns", lambda: int(self._now() * 10**9))
        for name in ("localtime", "gmtime", "ctime"):
            setattr(module, name, _by_default(getattr(time, name), 0, self._now))
        for name, place in (("asctime", 0), ("strftime", 1)):
            original = getattr(time, name)
            now = _by_default(original, place, lambda: time.localtime(self._now()))
            setattr(module, name, now)
        return module

    def _datetime(self) -> ModuleType:
        clock, real = self._now, datetime.datetime

        class Kind(type):  # classes that are taken for the real ones
            def __instancecheck__(cls, instance: Any) -> bool:
                return isinstance(instance, cls.__mro__[1])

            def __subclasscheck__(cls, kind: Any) -> bool:
                return issubclass(kind, cls.__mro__[1])

        class Date(datetime.date, metaclass=Kind):
            @staticmethod
            def today() -> Any:
                return datetime.date.fromtimestamp(clock())

        class Time(datetime.datetime, metaclass=Kind):
            @staticmethod
            def now(tz: Any = None) -> Any:
                return real.fromtimestamp(clock(), tz)

            @staticmethod
            def today() -> Any:
                return real.fromtimestamp(clock())

            @staticmethod
            def utcnow() -> Any:
                return real.fromtimestamp(clock(), datetime.timezone.utc).replace(tzinfo=None)

        module = ModuleType("datetime")
        vars(module).update(vars(datetime), date=Date, datetime=Time)
        for kind, name in ((Date, "date"), (Time, "datetime")):
            kind.__name__ = kind.__qualname__ = name
            kind.__module__ = "datetime"
        return module


def _by_default(
    original: Callable[..., Any], place: int, now: Callable[[], Any]
) -> Callable[..., Any]:
    """A function of a time that is the present one where none is given."""

    @wraps(original)
    def function(*args: Any) -> Any:
        given = len(args) > place and args[place] is not None
        return original(*args) if given else original(*args[:place], now())

    return function
