"""Where a run goes: to Slurm's queue, into the allocation this is in, or onto this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Literal

from ..base.errors import UserError
from ..slurm.client import Client

Place = Literal["slurm", "allocation", "local"]


def place(client: Client, environment: Mapping[str, str], local: bool) -> Place:
    """`slurm` where sbatch is there and a controller answers, `allocation` inside a job.

    Raises:
        UserError: this is one of several tasks that srun started.
    """
    if local:
        return "local"
    if environment.get("SLURM_JOB_ID") and shutil.which("srun", path=environment.get("PATH")):
        if int(environment.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
            raise UserError(
                "srun starts `rankup run` once per task here; run it once inside the allocation, "
                "without srun: it starts its ranks on all nodes itself"
            )
        return "allocation"
    return "slurm" if client.answers() else "local"
