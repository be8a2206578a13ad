"""Process groups of several ranks here: gloo, whatever the script asks for."""

from __future__ import annotations

from functools import wraps
from typing import Any

from ....login.fetch.inside.devices import Devices


def redirect(module: Any) -> None:
    """`torch.distributed.distributed_c10d`."""
    init, new = module.init_process_group, module.new_group

    @wraps(init)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        return init("gloo", *args, **kwargs)

    @wraps(new)
    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        return new(ranks, backend="gloo", **timeout)

    import torch.distributed as dist

    module.init_process_group = dist.init_process_group = init_process_group
    module.new_group = dist.new_group = new_group


def number_gpus(torch: Any, rank: int, world: int) -> None:
    """Each rank has its own pretended GPU."""
    properties = torch.cuda.get_device_properties

    def own(*args: Any, **kwargs: Any) -> Any:
        found = properties(*args, **kwargs)
        found.uuid = f"verify-{rank}"
        return found

    torch.cuda.get_device_properties = own
    torch.cuda.device_count = lambda: max(1, world)


def redirect_mesh(module: Any, devices: Devices) -> None:
    """`torch.distributed.device_mesh`."""
    original = module.init_device_mesh

    @wraps(original)
    def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return original(devices.mapped(device_type), *args, **kwargs)

    import torch.distributed as dist

    module.init_device_mesh = dist.init_device_mesh = init_device_mesh
