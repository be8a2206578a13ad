"""Sends what is meant for a GPU to the CPU: tensors, modules, and all that takes a `device`.

torch hands the calls of its own functions to a TorchFunctionMode, `torch.device(0)` and
`Module.to` included. A device object stays what the script asked for; it counts where it is used.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
import sys
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


def changes(devices: Devices) -> tuple[Callable[[Any], None], ...]:
    """Return the changes of the module `torch`."""
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


_SRUN = {
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID"), "0"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "1"),
    **dict.fromkeys(("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"), "1"),
    **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "localhost"),
}


def launcher_variables() -> dict[str, str]:
    """torchrun's and srun's variables of a world of one; a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **_SRUN,
    }


def redirect_groups(module: Any, devices: Devices, *, alone: bool) -> None:
    """`torch.distributed.distributed_c10d`: gloo, whatever the script asks for."""
    init, new_group = module.init_process_group, module.new_group
    store: Any = sys.modules["torch._C._distributed_c10d"].HashStore

    @wraps(init)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is not None and "gloo" not in str(backend):
            devices.asked(str(backend))
        if not alone:
            for name in ("device_id", "pg_options"):
                kwargs.pop(name, None)
            return init("gloo", *args, **kwargs)
        if "RANK" not in os.environ:
            os.environ.update(launcher_variables())
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        # A store in memory: nobody has to be met.
        return init("gloo", store=store(), rank=0, world_size=1, **timeout)

    @wraps(new_group)
    def new_gloo_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        return new_group(ranks, backend="gloo", **timeout)

    _put(module, "init_process_group", init_process_group)
    _put(module, "new_group", new_gloo_group)


def redirect_mesh(module: Any, devices: Devices) -> None:
    """`torch.distributed.device_mesh`."""
    original = module.init_device_mesh

    @wraps(original)
    def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return original(devices.mapped(device_type), *args, **kwargs)

    _put(module, "init_device_mesh", init_device_mesh)


def _put(module: Any, name: str, function: Any) -> None:
    """Replace a function, also where torch.distributed has it already."""
    setattr(module, name, function)
    if hasattr(package := sys.modules.get("torch.distributed"), name):
        setattr(package, name, function)
