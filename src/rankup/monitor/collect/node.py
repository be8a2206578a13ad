"""What the head line says of this node."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..lines import Gpu, Head
from . import memory
from .cores import core_times
from .reading import text

_TOLD = (
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
)
_LONGEST = 200


def name(environment: Mapping[str, str]) -> str:
    """Slurm's name of this node, else the host name, fit to be a file's name."""
    given = environment.get("SLURMD_NODENAME") or socket.gethostname()
    return safe(given)


def safe(given: str) -> str:
    """A name of anybody's as a file's name: nothing in it leads elsewhere or hides."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", given)[:_LONGEST].lstrip(".") or "node"


def life(environment: Mapping[str, str], now: float) -> str:
    """`<job>.<restart>` of Slurm, else when the sampler started."""
    job = environment.get("SLURM_JOB_ID")
    if job:
        return f"{job}.{environment.get('SLURM_RESTART_COUNT') or 0}"
    return f"{now:.0f}"


def head(
    environment: Mapping[str, str],
    *,
    now: float,
    every: float,
    life: str,
    usable: tuple[int, ...],
    limit: float | None,
    gpus: Sequence[Gpu],
    gpu_error: str | None,
    ranks: int | None,
    root: Path = Path("/"),
) -> Head:
    """The head line of a sampler that starts now; see `Head`."""
    found = memory.read(str(root))
    return Head(
        node=name(environment),
        t=round(now, 3),
        every=every,
        life=life,
        cores=len(core_times(text(str(root / "proc/stat")) or "")) or len(usable),
        usable=usable,
        memory=found.total if found else 0.0,
        memory_limit=limit,
        swap=found.swap if found else 0.0,
        gpus=tuple(gpus),
        gpu_error=gpu_error,
        ranks=ranks,
        environment={key: environment[key] for key in _TOLD if key in environment},
    )
