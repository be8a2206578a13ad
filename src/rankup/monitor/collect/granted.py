"""Which GPUs of the node Slurm has given to this job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..lines import Gpu
from .cores import numbers


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
