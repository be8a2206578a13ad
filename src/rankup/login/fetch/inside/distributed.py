"""A process group is a world of one process, with gloo, whatever the script asks for."""

from __future__ import annotations

import os
import socket
import sys
from functools import wraps
from typing import Any

from .devices import Devices

_SRUN = {
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID"), "0"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "1"),
    **dict.fromkeys(("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"), "1"),
    **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), "localhost"),
}


def environment() -> dict[str, str]:
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


def redirect(module: Any, devices: Devices) -> None:
    """`torch.distributed.distributed_c10d`."""
    init, new_group = module.init_process_group, module.new_group
    store: Any = sys.modules["torch._C._distributed_c10d"].HashStore

    @wraps(init)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is not None and "gloo" not in str(backend):
            devices.asked(str(backend))
        if "RANK" not in os.environ:
            os.environ.update(environment())
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        # A store in memory: nobody has to be met.
        return init("gloo", store=store(), rank=0, world_size=1, **timeout)

    @wraps(new_group)
    def new_gloo_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        return new_group(ranks, backend="gloo", **timeout)

    module.init_process_group = init_process_group
    module.new_group = new_gloo_group


def redirect_mesh(module: Any, devices: Devices) -> None:
    """`torch.distributed.device_mesh`."""
    original = module.init_device_mesh

    @wraps(original)
    def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return original(devices.mapped(device_type), *args, **kwargs)

    module.init_device_mesh = init_device_mesh
