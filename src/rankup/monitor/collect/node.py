"""The head line of a node: its facts, who answers for its GPUs, and which are this job's."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..lines import Gpu, Head
from . import memory
from .cores import core_times, numbers
from .gpu import Failed, Source
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


def attempt(environment: Mapping[str, str], now: float) -> str:
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
    attempt: str,
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
        attempt=attempt,
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


def open_source() -> tuple[Source | None, str | None]:
    """NVML; None and why where there is no GPU."""
    try:
        from .nvml import Nvml
    except ImportError as error:
        return None, f"nvidia-ml-py is not installed: {error}"
    try:
        return Nvml(), None
    except Failed as error:
        return None, str(error)


def granted(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs with `granted` as far as it is known.

    Slurm's numbers are those of the node; where its cgroup hides the other GPUs, NVML counts anew
    from 0 and sees nothing but granted ones. CUDA_VISIBLE_DEVICES outside a job is what somebody
    wants to use, no grant, and says no more than that the others may be anybody's.
    """
    listed = _listed(environment)
    if listed is None:
        return tuple(gpus)
    names, ids = listed
    indices = {gpu.index for gpu in gpus}
    if not ids <= indices or (len(ids) == len(gpus) and not names):
        return tuple(replace(gpu, granted=True) for gpu in gpus)
    return tuple(
        replace(
            gpu,
            granted=gpu.index in ids or any(gpu.uuid.startswith(name) for name in names),
        )
        for gpu in gpus
    )


def _listed(environment: Mapping[str, str]) -> tuple[frozenset[str], frozenset[int]] | None:
    """(UUIDs, numbers) of granted GPUs; None where nobody says."""
    of_job = numbers(environment.get("SLURM_JOB_GPUS", ""))
    of_step = numbers(environment.get("SLURM_STEP_GPUS", ""))
    # The job's list is the first node's, carried to the others by the environment; the step's is
    # this node's, but a step may have got less than the job.
    best = of_job if set(of_step) <= set(of_job) else of_step
    if best:
        return frozenset(), frozenset(best)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    words = [word.strip() for word in visible.split(",") if word.strip()]
    ids = frozenset(int(word) for word in words if word.isascii() and word.isdigit())
    names = frozenset(word for word in words if word.startswith("GPU-"))
    return (names, ids) if ids or names else None
