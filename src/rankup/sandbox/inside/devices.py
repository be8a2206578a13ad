"""Sends what is meant for a GPU to the CPU: tensors, modules, and all that takes a `device`.

torch hands the calls of its own functions to a TorchFunctionMode, `torch.device(0)` and
`Module.to` included. A device object stays what the script asked for; it counts where it is used.
Of torch.cuda, torch.xpu, torch.mps and torch.accelerator the functions do nothing. Whether there is
a GPU is answered truthfully, unless the parent wants one pretended: some scripts do not start
without.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any

from .hooks import Change, replaces
from .journal import Journal

_ACCELERATORS = ("cuda", "mps", "xpu", "hpu", "npu", "mtia")
_NAME = re.compile(rf"({'|'.join(_ACCELERATORS)})(:\d+)?")
_TENSOR_TYPE = re.compile(rf"torch\.(?:{'|'.join(_ACCELERATORS)})\.")
# Methods whose first argument may be the number of a GPU.
_TO = ("to", "_parse_to", "to_empty")
_GPU = "NVIDIA A100-SXM4-40GB"
_MEMORY = 40 * 10**9
_CAPABILITY = (8, 0)
_QUESTIONS = ("is_available", "device_count")
# Functions of torch.cuda and its like that return a number; most others return nothing.
_ZERO = re.compile(
    r"(?:max_)?memory_(?:allocated|reserved|cached)|(?:current|driver)_allocated_memory|"
    r"current_device(?:_index|_idx)?|utilization|initial_seed|temperature|power_draw|clock_rate"
)
_NO = re.compile("(?:is|can|has)_")  # as of a stream that is being captured, by transformers
_TRUE_OF_A_GPU = ("is_available", "is_bf16_supported", "is_tf32_supported", "is_initialized")
_SRUN = {
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID"), "0"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "1"),
    **dict.fromkeys(("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"), "1"),
    **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "localhost"),
}


def redirections(
    devices: Devices, threads: int, *, gpus: int, alone: bool
) -> dict[str, list[Change]]:
    """Return what is done to torch's modules, so that what is meant for a GPU runs on the CPU.

    Args:
        gpus: that are there, if the script asks.
        alone: whatever the script says of its world, it is a world of one.
    """
    return {
        "torch": [
            lambda torch: _stand_in(torch, devices, gpus),
            lambda torch: _default_device(torch, devices),
            _load,
            _tensors,
            lambda torch: _generator(torch, devices),
            _compile,
            lambda torch: _limit_threads(torch, threads),
            lambda torch: _redirect(torch, devices),
        ],
        "torch.nn.parallel.distributed": [_parallel],
        "torch.nn.parallel.data_parallel": [_data_parallel],
        "torch.distributed.distributed_c10d": [lambda module: _groups(module, devices, alone)],
        "torch.distributed.device_mesh": [lambda module: _mesh(module, devices)],
    }


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

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of torch's."""
        name = getattr(func, "__name__", "")
        if name == "device":
            if len(args) == 1 and isinstance(args[0], int) and not kwargs:
                args = ("cuda", args[0])  # torch itself only knows this where there is a GPU
            return func(*args, **kwargs)
        if name in _ACCELERATORS and args:
            self.asked(f".{name}()")
            return args[0]
        if name == "pin_memory" and args:
            return args[0]
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
        return func(*args, **kwargs)

    def tensor_type(self, kind: Any) -> Any:
        """`torch.FloatTensor` for `torch.cuda.FloatTensor`, both as names."""
        if not isinstance(kind, str | type):
            return kind
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not _TENSOR_TYPE.match(name):
            return kind
        self.asked(name)
        return _TENSOR_TYPE.sub("torch.", name)


def _is_device(value: Any) -> bool:
    return type(value).__name__ == "device" and type(value).__module__ == "torch"


def _redirect(torch: Any, devices: Devices) -> None:
    """Let all calls of torch from now on, in this thread and in new ones, go through `devices`."""

    class ToCPU(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            return devices.call(func, args, kwargs or {})

    ToCPU().__enter__()

    @replaces(threading.Thread, "start")
    def start_with_mode(start: Any, thread: threading.Thread) -> None:
        run = thread.run

        def run_with_mode() -> None:
            del thread.run  # type: ignore[method-assign]
            with ToCPU():  # torch keeps its modes per thread
                run()

        thread.run = run_with_mode  # type: ignore[method-assign]
        start(thread)


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


def _default_device(torch: Any, devices: Devices) -> None:
    for name, argument, change in (
        ("set_default_device", "device", devices.mapped),
        ("set_default_tensor_type", "t", devices.tensor_type),
    ):
        change_arguments(torch, name, _changing(argument, change))


def _changing(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update({name: change(given[name])})


def _load(torch: Any) -> None:
    def load(given: dict[str, Any]) -> None:
        # What was saved on a GPU, and functions that move it to one.
        if str(given.get("map_location")) not in ("cpu", "meta"):
            given["map_location"] = "cpu"

    change_arguments(torch, "load", load)
    torch.serialization.load = torch.load


def _tensors(torch: Any) -> None:
    torch.Tensor.record_stream = lambda self, stream: None
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        kind.cuda = kind.pin_memory = lambda self, *args, **kwargs: self
    for name in dir(torch.cuda):  # torch.cuda.FloatTensor
        plain = getattr(torch, name, None)
        if name.endswith(("Tensor", "Storage")) and plain is not None and not name.startswith("_"):
            setattr(torch.cuda, name, plain)


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


def _limit_threads(torch: Any, threads: int) -> None:
    """torch takes no more threads than these, whatever the script says."""
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    replaces(torch, "set_num_threads")(lambda original, number: original(min(number, threads)))


def limit_loader(module: Any, threads: int) -> None:
    """`torch.utils.data.dataloader`: few workers, and memory that is not pinned.

    There are no more than threads and cores; 0 workers stay 0, others stay at least 1.
    """
    most = max(1, min(threads, len(os.sched_getaffinity(0))))

    def change(given: dict[str, Any]) -> None:
        workers = given.get("num_workers")
        if isinstance(workers, int) and workers > most:
            given["num_workers"] = most
        not_pinned(given)

    change_arguments(module.DataLoader, "__init__", change)


def not_pinned(given: dict[str, Any]) -> None:
    """Change the arguments of a DataLoader."""
    given["pin_memory"] = False
    if given.get("pin_memory_device"):
        given["pin_memory_device"] = ""


def _parallel(module: Any) -> None:
    """`torch.nn.parallel.distributed`: a module on the CPU has no device ids."""
    change_arguments(
        module.DistributedDataParallel,
        "__init__",
        lambda given: given.update(device_ids=None, output_device=None),
    )


def _data_parallel(module: Any) -> None:
    """`torch.nn.parallel.data_parallel`: it only calls the module."""

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    module.DataParallel.forward = forward


def _groups(module: Any, devices: Devices, alone: bool) -> None:
    """`torch.distributed.distributed_c10d`: gloo, whatever the script asks for."""
    store: Any = sys.modules["torch._C._distributed_c10d"].HashStore

    @replaces(module, "init_process_group")
    def init_process_group(init: Any, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
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

    @replaces(module, "new_group")
    def new_group(original: Any, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        return original(ranks, backend="gloo", **timeout)

    _reexport(module, "init_process_group", "new_group")


def _mesh(module: Any, devices: Devices) -> None:
    """`torch.distributed.device_mesh`."""
    change_arguments(module, "init_device_mesh", _changing("device_type", devices.mapped))
    _reexport(module, "init_device_mesh")


def _reexport(module: Any, *names: str) -> None:
    """Put replaced functions where torch.distributed has the original ones already."""
    package = sys.modules.get("torch.distributed")
    for name in names:
        if hasattr(package, name):
            setattr(package, name, getattr(module, name))


def launcher_variables() -> dict[str, str]:
    """torchrun's and srun's variables of a world of one."""
    return {**torchrun_variables(0, 1, free_port()), **_SRUN}


def torchrun_variables(rank: int, world: int, port: int) -> dict[str, str]:
    """torchrun's variables of a rank, on one machine."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world)),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class _Done:
    """A queue of work, or a moment in it: all is done, and there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Done:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        return event or _Done()

    def synchronize(self, *args: Any) -> None:
        pass

    record = wait = wait_event = wait_stream = synchronize


def _stand_in(torch: Any, devices: Devices, gpus: int) -> None:
    """Change torch's modules of accelerators."""
    for name in ("cuda", "xpu", "mps", "accelerator"):
        if module := getattr(torch, name, None):
            there = gpus if name in ("cuda", "accelerator") else 0
            _replace_functions(module, name, torch, devices, there)


def _replace_functions(module: Any, name: str, torch: Any, devices: Devices, gpus: int) -> None:
    state = torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(("current_stream", "default_stream"), _Done),
        "get_device_name": lambda: _GPU,
        "get_device_properties": _properties,
        "get_device_capability": lambda: _CAPABILITY,
        "get_arch_list": lambda: ["sm_80"],
        "memory_stats": dict,
        "memory_summary": str,
        "memory_snapshot": list,
        **dict.fromkeys(("mem_get_info", "get_memory_info"), lambda: (_MEMORY, _MEMORY)),
        "recommended_max_memory": lambda: _MEMORY,
        "get_rng_state": state.clone,
        "get_rng_state_all": lambda: [state.clone()] * gpus,
        **dict.fromkeys(_TRUE_OF_A_GPU, lambda: gpus > 0),
        "device_count": lambda: gpus,
        "current_accelerator": lambda: torch.device("cuda") if gpus else None,
    }
    for attribute in module.__all__:
        found = getattr(module, attribute, None)
        if callable(found) and not isinstance(found, type):
            usual = (
                int if _ZERO.fullmatch(attribute) else bool if _NO.match(attribute) else _nothing
            )
            answer = answers.get(attribute, usual)
            asked = f"torch.{name}.{attribute}()" if attribute in _QUESTIONS else ""
            setattr(module, attribute, _call(answer, asked, devices))
    for attribute in ("stream", "device", "device_of", "device_index"):
        _replace(module, attribute, contextmanager(_context))
    for attribute in ("Stream", "ExternalStream", "Event"):
        _replace(module, attribute, type(attribute, (_Done,), {}))
    for attribute in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        _replace(getattr(module, "nvtx", None), attribute, _call(int, "", devices))


def _replace(module: Any, attribute: str, new: Any) -> None:
    """Put something in the place of what is there.

    `new` must be an object of its own: torch._dynamo has a table of all these functions.
    """
    if getattr(module, attribute, None) is not None:
        setattr(module, attribute, new)


def _nothing() -> None:
    pass


def _call(answer: Callable[[], Any], what: str, devices: Devices) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if what:
            devices.asked(what)
        return answer()

    return call


def _context(which: Any = None) -> Iterator[Any]:
    yield which


def _properties() -> SimpleNamespace:
    major, minor = _CAPABILITY
    return SimpleNamespace(
        name=_GPU,
        major=major,
        minor=minor,
        total_memory=_MEMORY,
        multi_processor_count=108,
        warp_size=32,
        uuid=os.environ.get("LOCAL_RANK", ""),
    )
