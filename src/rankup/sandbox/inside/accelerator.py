"""torch.cuda, torch.xpu, torch.mps and torch.accelerator on a machine without any of them.

Whether there is a GPU is answered truthfully, unless the parent wants one pretended: some scripts
do not start without. What is done with a GPU does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from . import devices
from .devices import Devices
from .hooks import Change

_NAME = "NVIDIA A100-SXM4-40GB"
_MEMORY = 40 * 10**9
_CAPABILITY = (8, 0)
_NOTHING = (
    *("set_device", "synchronize", "empty_cache", "ipc_collect", "init"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
    *("reset_accumulated_memory_stats", "set_per_process_memory_fraction", "set_stream"),
    *("set_sync_debug_mode", "set_device_index", "set_device_idx"),
)
_ZERO = (
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("memory_cached", "max_memory_cached", "current_device", "utilization", "initial_seed"),
    *("current_allocated_memory", "driver_allocated_memory", "current_device_index"),
    *("current_device_idx", "temperature", "power_draw", "clock_rate"),
)
_QUESTIONS = ("is_available", "device_count")


Redirections = dict[str, list[Change]]


class Done:
    """A queue of work, or a moment in it: all is done, and there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Done:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query(self) -> bool:
        """Return True: it has happened."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Return the milliseconds between the two."""
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return event or Done()

    def synchronize(self, *args: Any) -> None:
        """Do nothing."""

    record = wait = wait_event = wait_stream = synchronize


def redirections(mapped: Devices, threads: int, *, pretend: bool, alone: bool) -> Redirections:
    """Return what is done to torch's modules, so that what is meant for a GPU runs on the CPU.

    Args:
        pretend: a GPU is there, if the script asks.
        alone: whatever the script says of its world, it is a world of one.
    """
    return {
        "torch": [
            lambda torch: stand_in(torch, mapped, pretend),
            *devices.changes(mapped),
            lambda torch: devices.limit_threads(torch, threads),
            lambda torch: devices.redirect(torch, mapped),
        ],
        "torch.nn.parallel.distributed": [devices.redirect_parallel],
        "torch.nn.parallel.data_parallel": [devices.redirect_data_parallel],
        "torch.distributed.distributed_c10d": [
            lambda module: devices.redirect_groups(module, mapped, alone=alone)
        ],
        "torch.distributed.device_mesh": [lambda module: devices.redirect_mesh(module, mapped)],
    }


def stand_in(torch: Any, devices: Devices, pretend: bool) -> None:
    """Change torch's modules of accelerators."""
    for name in ("cuda", "xpu", "mps", "accelerator"):
        module = getattr(torch, name, None)
        if module is not None:
            _stand_in(module, name, torch, devices, pretend and name in ("cuda", "accelerator"))
    _types_of_tensors(torch)


def _stand_in(module: Any, name: str, torch: Any, devices: Devices, pretend: bool) -> None:
    state = torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(_NOTHING, lambda: None),
        **dict.fromkeys(_ZERO, lambda: 0),
        **dict.fromkeys(("current_stream", "default_stream"), Done),
        "get_device_name": lambda: _NAME,
        "get_device_properties": _properties,
        "get_device_capability": lambda: _CAPABILITY,
        "get_arch_list": lambda: ["sm_80"],
        "memory_stats": dict,
        "memory_summary": str,
        "memory_snapshot": list,
        "mem_get_info": lambda: (_MEMORY, _MEMORY),
        "recommended_max_memory": lambda: _MEMORY,
        "get_rng_state": state.clone,
        "get_rng_state_all": lambda: [state.clone()] if pretend else [],
        "can_device_access_peer": lambda: False,
        "is_available": lambda: pretend,
        "device_count": lambda: int(pretend),
    }
    if pretend:
        answers["is_bf16_supported"] = answers["is_initialized"] = lambda: True
        answers["current_accelerator"] = lambda: torch.device("cuda")
    for attribute, answer in answers.items():
        told = f"torch.{name}.{attribute}()" if attribute in _QUESTIONS else ""
        _replace(module, attribute, _call(answer, told, devices))
    for attribute in ("stream", "device", "device_of", "device_index"):
        _replace(module, attribute, contextmanager(_context))
    for attribute in ("Stream", "ExternalStream", "Event"):
        _replace(module, attribute, type(attribute, (Done,), {}))
    for attribute in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        _replace(getattr(module, "nvtx", None), attribute, _call(int, "", devices))


def _replace(module: Any, attribute: str, new: Any) -> None:
    """Put something in the place of what is there.

    `new` must be an object of its own: torch._dynamo has a table of all these functions.
    """
    if getattr(module, attribute, None) is not None:
        setattr(module, attribute, new)


def _call(answer: Callable[[], Any], what: str, devices: Devices) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if what:
            devices.asked(what)
        return answer()

    return call


def _types_of_tensors(torch: Any) -> None:
    for name in dir(torch.cuda):
        plain = getattr(torch, name, None)
        if name.endswith(("Tensor", "Storage")) and plain is not None and not name.startswith("_"):
            setattr(torch.cuda, name, plain)


def _context(which: Any = None) -> Iterator[Any]:
    yield which


def _properties() -> SimpleNamespace:
    major, minor = _CAPABILITY
    return SimpleNamespace(
        name=_NAME,
        major=major,
        minor=minor,
        total_memory=_MEMORY,
        multi_processor_count=108,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=163 << 10,
        regs_per_multiprocessor=65536,
        L2_cache_size=40 << 20,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid="",
    )
