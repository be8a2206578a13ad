"""Functions of torch that know devices and are not called through a mode."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from .devices import Devices


def changes(devices: Devices) -> tuple[Callable[[Any], None], ...]:
    """What to do with the module `torch`."""
    return (
        lambda torch: _first_argument(torch, "set_default_device", devices.mapped),
        lambda torch: _first_argument(torch, "set_default_tensor_type", devices.tensor_type),
        _load,
        _storages,
        _streams,
        lambda torch: _generator(torch, devices),
        _compile,
    )


def redirect_parallel(module: Any) -> None:
    """`torch.nn.parallel.distributed`: a module on the CPU has no device ids."""
    change_arguments(
        module.DistributedDataParallel,
        "__init__",
        lambda given: given.update(device_ids=None, output_device=None),
    )


def redirect_data_parallel(module: Any) -> None:
    """`torch.nn.parallel.data_parallel`: likewise, it then only calls the module."""
    kind = module.DataParallel
    original = kind.__init__

    @wraps(original)
    def init(self: Any, inner: Any, *args: Any, **kwargs: Any) -> None:
        super(kind, self).__init__()
        self.module, self.device_ids, self.dim = inner, [], 0
        self.output_device = self.src_device_obj = None

    kind.__init__ = init


def limit_loader(module: Any, threads: int) -> None:
    """`torch.utils.data.dataloader`: few workers, and memory that is not pinned.

    There are no more than threads and cores; 0 workers stay 0, others stay at least 1.
    """
    most = max(1, min(threads, len(os.sched_getaffinity(0))))

    def change(given: dict[str, Any]) -> None:
        workers = given.get("num_workers")
        if isinstance(workers, int) and workers > most:
            given["num_workers"] = most
        given["pin_memory"] = False
        if given.get("pin_memory_device"):
            given["pin_memory_device"] = ""

    change_arguments(module.DataLoader, "__init__", change)


def limit_threads(torch: Any, threads: int) -> None:
    """torch takes no more threads than these, whatever the script says."""
    original = torch.set_num_threads

    @wraps(original)
    def set_num_threads(number: int) -> None:
        original(min(number, threads))

    original(min(threads, torch.get_num_threads()))
    torch.set_num_threads = set_num_threads


def change_arguments(owner: Any, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Let `change` alter the arguments, by name, of each call of a function or method."""
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # it says better what is wrong
        change(bound.arguments)
        for unknown in set(bound.arguments) - set(signature.parameters):
            del bound.arguments[unknown]  # an argument of another version of torch
        return original(*bound.args, **bound.kwargs)

    setattr(owner, name, changed)


def _first_argument(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def changed(first: Any, *args: Any, **kwargs: Any) -> Any:
        return original(change(first), *args, **kwargs)

    setattr(owner, name, changed)


def _load(torch: Any) -> None:
    original = torch.load

    @wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # What was saved on a GPU, and functions that move it to one.
        kept = str(map_location) in ("cpu", "meta")
        return original(f, map_location if kept else "cpu", *args, **kwargs)

    torch.load = torch.serialization.load = load


def _streams(torch: Any) -> None:
    torch.Tensor.record_stream = lambda self, stream: None


def _storages(torch: Any) -> None:
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        kind.cuda = kind.pin_memory = lambda self, *args, **kwargs: self


def _generator(torch: Any, devices: Devices) -> None:
    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return original(device=devices.mapped(device, number=True))

    Generator.__module__, Generator.__qualname__ = original.__module__, original.__qualname__
    torch.Generator = Generator


def _compile(torch: Any) -> None:
    """No compiler runs on a login node: the model as it is does the same."""

    def compile(model: Any = None, **options: Any) -> Any:
        return model if model is not None else lambda given: given

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **kwargs: None
