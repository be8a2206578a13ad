"""What is meant for a GPU goes to the CPU: tensors, modules, and all that takes a `device`.

torch hands the calls of its own functions to a TorchFunctionMode, `torch.device(0)` and
`Module.to` included. A device object stays what the script asked for; it counts where it is used.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from .journal import Journal

_ACCELERATORS = ("cuda", "mps", "xpu", "hpu", "npu", "mtia")
_NAME = re.compile(rf"({'|'.join(_ACCELERATORS)})(:\d+)?")
_TENSOR_TYPE = re.compile(rf"torch\.(?:{'|'.join(_ACCELERATORS)})\.")
# Methods whose first argument may be the number of a GPU.
_TO = ("to", "_parse_to", "to_empty")


class Devices:
    """Maps devices, and tells which were asked for."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def asked(self, what: str) -> None:
        """The script asks for a GPU, or whether there is one."""
        if self._journal.once("gpu", what):
            self._journal.tell("gpu", what=what, where=self._journal.where())

    def mapped(self, device: Any, *, number: bool = False) -> Any:
        """`device`, or "cpu" where it is a GPU by name, as an object or, with `number`, an int."""
        if isinstance(device, str):
            is_gpu = _NAME.fullmatch(device) is not None
        elif isinstance(device, int):
            is_gpu = number and not isinstance(device, bool) and device >= 0
        else:
            is_gpu = _is_device(device) and device.type in _ACCELERATORS
        if not is_gpu:
            return device
        self.asked(str(device))
        return "cpu"

    def call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, Any, tuple[Any, ...], dict[str, Any]]:
        """A call of torch's: (whether it is answered here, the answer, or else its arguments)."""
        name = getattr(func, "__name__", "")
        if name == "device":
            if len(args) == 1 and isinstance(args[0], int) and not kwargs:
                args = ("cuda", args[0])  # torch itself only knows this where there is a GPU
            return False, None, args, kwargs
        if name in _ACCELERATORS and args:
            self.asked(f".{name}()")
            return True, args[0], args, kwargs
        if name == "pin_memory" and args:
            return True, args[0], args, kwargs
        if name == "type" and len(args) > 1:
            args = (args[0], self.tensor_type(args[1]), *args[2:])
        first = 0 if name == "_parse_to" else 1
        args = tuple(
            self.mapped(one, number=name in _TO and place == first)
            for place, one in enumerate(args)
        )
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self.mapped(kwargs["device"], number=True)}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return False, None, args, kwargs

    def tensor_type(self, kind: Any) -> Any:
        """`torch.FloatTensor` for `torch.cuda.FloatTensor`, both as names."""
        if not isinstance(kind, str | type):
            return kind
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not _TENSOR_TYPE.match(name):
            return kind
        self.asked(name)
        return _TENSOR_TYPE.sub("torch.", name)


def redirect(torch: Any, devices: Devices) -> None:
    """Let all calls of torch from now on, in this thread and in new ones, go through `devices`."""

    class ToCPU(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            answered, answer, args, kwargs = devices.call(func, args, kwargs or {})
            return answer if answered else func(*args, **kwargs)

    ToCPU().__enter__()
    _in_new_threads(ToCPU)


def _in_new_threads(mode: Callable[[], Any]) -> None:
    """torch keeps its modes per thread."""
    start = threading.Thread.start

    @wraps(start)
    def start_with_mode(thread: threading.Thread) -> None:
        run = thread.run

        def run_with_mode() -> None:
            del thread.run  # type: ignore[method-assign]
            with mode():
                run()

        thread.run = run_with_mode  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_with_mode  # type: ignore[assignment, method-assign]


def _is_device(value: Any) -> bool:
    return type(value).__name__ == "device" and type(value).__module__ == "torch"
