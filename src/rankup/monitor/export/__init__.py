"""What was recorded, for other programs: `export(recording, directory, form, target)`.

`csv` and `parquet` hold every sample as it was taken; `tensorboard`, `wandb` and `openmetrics` are
made of the recording's bins, by packages that come with extras of rankup. No form needs a network.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UserError, nearest
from ..recording import Recording, Steps

FORMS = ("csv", "parquet", "tensorboard", "wandb", "openmetrics")
# The package that writes a form, and the extra of rankup that brings it.
_PACKAGES = {
    "tensorboard": ("tensorboardX", "export"),
    "wandb": ("wandb", "wandb"),
    "openmetrics": ("prometheus_client", "export"),
}

# The names that channels have outside of rankup: with their unit, as other tools expect it.
NAMES = {
    "gpu": {
        "util": "util_percent",
        "memory": "memory_bytes",
        "power": "power_watts",
        "temperature": "temperature_celsius",
        "clock": "sm_clock_mhz",
        "throttle": "throttle_bits",
        "throttle_power": "throttled_by_power_share",
        "throttle_heat": "throttled_by_heat_share",
        "throttle_hardware": "throttled_by_hardware_share",
        "pcie_rx": "pcie_rx_bytes_per_s",
        "pcie_tx": "pcie_tx_bytes_per_s",
        "nvlink": "nvlink_bytes_per_s",
        "processes": "processes",
    },
    "host": {
        "cpu": "cpu_percent",
        "busiest": "busiest_core_percent",
        "load": "load",
        "memory": "memory_bytes",
        "cgroup": "cgroup_memory_bytes",
        "swap": "swap_bytes",
        "disk_read": "disk_read_bytes_per_s",
        "disk_write": "disk_write_bytes_per_s",
        "net_rx": "net_rx_bytes_per_s",
        "net_tx": "net_tx_bytes_per_s",
        "ib_rx": "infiniband_rx_bytes_per_s",
        "ib_tx": "infiniband_tx_bytes_per_s",
        "fs_read": "network_fs_read_bytes_per_s",
        "fs_write": "network_fs_write_bytes_per_s",
        "fs_operations": "network_fs_operations_per_s",
    },
    "rank": {
        "cpu": "cpu_percent",  # of one core
        "memory": "memory_bytes",
        "workers": "data_workers",
        "workers_cpu": "data_workers_cpu_percent",
        "read": "read_bytes_per_s",
        "write": "write_bytes_per_s",
    },
    "fs": {
        "read": "read_bytes_per_s",
        "write": "write_bytes_per_s",
        "operations": "operations_per_s",
    },
}


def need(form: str) -> Any:
    """Return the package that writes a form, None where there is no need of one.

    Raises:
        UserError: it, or what it needs itself, is not installed.
    """
    if form not in _PACKAGES:
        return None
    package, extra = _PACKAGES[form]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        what = f"the package {package}, "
        if missing == package:
            what += "which is not installed here"
        elif missing:
            what += f"which needs {missing}, and that is not installed here"
        else:
            what += f"which cannot be imported here ({error})"
        raise UserError(
            f"the export to {form} needs {what}: pip install 'rankup[{extra}]'; "
            "csv and parquet need nothing more"
        ) from None


def export(recording: Recording, directory: Path, form: str, target: Path) -> list[Path]:
    """Write a run in another form.

    Args:
        recording: of the run.
        directory: the run directory, of which `csv` and `parquet` read the samples.
        form: one of `FORMS`.
        target: a folder, made where it is missing; of `openmetrics` a file. Each file there is
            replaced as a whole or stays as it was.

    Returns:
        The files written; of `wandb` the folder of its run.

    Raises:
        UserError: there is no such form, its package is missing, or the target cannot be written.
    """
    # Here, as Arrow alone takes a third of a second to import.
    from .openmetrics import write as write_openmetrics
    from .tables import write as write_tables
    from .trackers import write_tensorboard, write_wandb

    if form not in FORMS:
        raise UserError(f"there is no export to {form!r}: {nearest(form, FORMS)}")
    need(form)
    try:
        if form == "openmetrics":
            target.parent.mkdir(parents=True, exist_ok=True)
            return [write_openmetrics(recording, target)]
        target.mkdir(parents=True, exist_ok=True)
        if form == "tensorboard":
            return write_tensorboard(recording, target)
        if form == "wandb":
            return [write_wandb(recording, target)]
        return write_tables(recording, directory, form, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"the export to {target} could not be written: {reason}; make room there, or name "
            "another place"
        ) from error


def of_steps(steps: Steps) -> dict[str, NDArray[np.float64]]:
    """Return what is known of each step, by the names that it has outside; NaN where not said."""
    valid = dict(steps.valid.tolist())
    return {
        "loss": steps.loss,
        "step_seconds": steps.seconds,
        f"{steps.unit or 'units'}_per_s": steps.rate,
        "data_wait_share": steps.data_wait,
        "mfu": steps.mfu,
        "valid_loss": np.array([valid.get(float(step), np.nan) for step in steps.step]),
    }
