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
        UserError: this is one of several tasks that srun started, or Slurm does not answer: a
            login node is no place to train on by mistake.
    """
    if local:
        return "local"
    if environment.get("SLURM_JOB_ID") and shutil.which("srun", path=environment.get("PATH")):
        if environment.get("SLURM_STEP_NUM_TASKS", "1") not in ("", "1"):
            raise UserError(
                "srun starts `rankup run` once per task here; run it once inside the allocation, "
                "without srun: it starts its ranks on all nodes itself"
            )
        return "allocation"
    there = client.presence()
    if there == "silent":
        raise UserError(
            "this machine has Slurm, but its controller does not answer (`scontrol ping`); try "
            "again in some minutes, or --local to run on this machine, which may be a login node"
        )
    return "slurm" if there == "answers" else "local"
