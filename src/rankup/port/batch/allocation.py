"""What a batch file asks of Slurm, as Slurm resolves it: the allocation that is made up of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from .options import Option, gpus_of

_SYNONYMS = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir"}
# What a login shell may have and a job has of its own.
_OWN = re.compile(
    r"SLURM|SBATCH|SRUN|PMI|MASTER_|BASH|PS4|(?:\w*_)?(?:RANK|SIZE|PROMPT)$|__|CUDA_VISIBLE"
)
_NUMBER = re.compile(r"[0-9]{1,9}")


def asked(options: Sequence[Option]) -> dict[str, str]:
    """The options by their names, of each the last one."""
    return {_SYNONYMS.get(one.name, one.name): (one.value or "").strip() for one in options}


def number(text: str | None) -> int | None:
    """A whole number; None for what is none."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


@dataclass(frozen=True)
class Allocation:
    """What a job is given.

    Attributes:
        asked: the options by their names.
        nodes: None where Slurm chooses, of a range or by the tasks.
        tasks: of the job.
        given: tasks were asked for; else there is one for each node.
        gpus: of a node; 0 where none are asked for, None where that cannot be told.
        cpus: of a task; None where none are asked for.
        seconds: the time limit; None without one.
    """

    asked: dict[str, str]
    nodes: int | None
    tasks: int | None
    given: bool
    gpus: int | None
    cpus: int | None
    seconds: int | None

    @property
    def shown(self) -> int:
        """The nodes of the made-up allocation."""
        return self.nodes or 2 if "nodes" in self.asked else self.nodes or 1

    @property
    def nodelist(self) -> str:
        return "n1" if self.shown == 1 else f"n[1-{self.shown}]"

    def environment(self, path: Path, number: int) -> dict[str, str]:
        """The variables that the batch shell has."""
        nodes, tasks = self.shown, self.tasks or self.shown
        cpus = str(self.cpus or 1)
        here = -(-tasks // nodes)
        user = os.environ.get("USER") or "user"
        found = {
            "SLURM_JOB_ID": str(number), "SLURM_JOBID": str(number),
            "SLURM_JOB_NAME": self.asked.get("job-name") or path.name,
            "SLURM_CLUSTER_NAME": f"cluster-{number}",
            "SLURM_JOB_NODELIST": self.nodelist, "SLURM_NODELIST": self.nodelist,
            "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_SUBMIT_DIR": str(path.resolve().parent), "SLURM_SUBMIT_HOST": "login",
            "SLURM_JOB_PARTITION": self.asked.get("partition") or f"partition-{number}",
            "SLURM_JOB_ACCOUNT": self.asked.get("account") or f"account-{number}",
            "SLURM_JOB_USER": user,
            "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n1",
            "SLURM_TASKS_PER_NODE": f"{here}(x{nodes})" if nodes > 1 else str(here),
            "SLURM_CPUS_ON_NODE": str((self.cpus or 1) * here),
            "SLURM_JOB_CPUS_PER_NODE": f"{(self.cpus or 1) * here}" + f"(x{nodes})" * (nodes > 1),
            "SLURM_GTIDS": "0", "SLURM_RESTART_COUNT": "0", "SLURM_EXPORT_ENV": "ALL",
            "SLURM_JOB_START_TIME": "1700000000", "SLURM_JOB_END_TIME": "1700086400",
            "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": str(number),
            "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_CONF": "/etc/slurm/slurm.conf",
            "SLURM_TMPDIR": gettempdir(), "SLURM_MEM_PER_NODE": "65536",
            "ENVIRONMENT": "BATCH", "HOSTNAME": "n1", "HOME": str(Path.home()), "USER": user,
            "LOGNAME": user, "SHELL": "/bin/bash", "TMPDIR": gettempdir(), "LANG": "C.UTF-8",
            "PATH": "/nonexistent", "LD_LIBRARY_PATH": "", "PYTHONPATH": "", "PWD": str(Path.cwd()),
        }  # fmt: skip
        login = {k: v for k, v in os.environ.items() if not _OWN.match(k) and len(v) < 4096}
        found = login | found
        if "array" not in self.asked:
            found = {k: v for k, v in found.items() if not k.startswith("SLURM_ARRAY")}
        if self.given:
            found |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
        if each := self.asked.get("ntasks-per-node"):
            found |= {"SLURM_NTASKS_PER_NODE": each}
        if self.cpus is not None:
            found |= {"SLURM_CPUS_PER_TASK": cpus}
        if self.gpus:
            found |= {
                "SLURM_GPUS_ON_NODE": str(self.gpus),
                "SLURM_JOB_GPUS": ",".join(map(str, range(self.gpus))),
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.gpus))),
            }
        else:
            found.pop("CUDA_VISIBLE_DEVICES", None)
        for name, variable in (
            ("gpus", "SLURM_GPUS"),
            ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
            ("gpus-per-task", "SLURM_GPUS_PER_TASK"),
        ):
            if value := self.asked.get(name):
                found[variable] = value.rpartition(":")[2]
        return found


def allocation(options: Sequence[Option]) -> Allocation:
    """What Slurm makes of the options of sbatch: a number of tasks wins over tasks per node."""
    said = asked(options)
    total, each = number(said.get("ntasks")), number(said.get("ntasks-per-node"))
    nodes: int | None = 1
    if "nodes" in said:
        nodes = number(said["nodes"])
        low, dash, high = said["nodes"].partition("-")
        if dash and low == high:
            nodes = number(low)
    elif total and each:
        nodes = -(-total // each)
    elif total != 1 and {"ntasks", "nodelist", "gpus"} & {*said}:
        nodes = None
    tasks = total
    if total is None and "ntasks" not in said and nodes is not None:
        tasks = each * nodes if each else (None if "ntasks-per-node" in said else nodes)
    if total is not None and nodes is not None and total < nodes:
        nodes = total
    given = "ntasks" in said or "ntasks-per-node" in said
    gpus = _gpus(said, nodes, tasks)
    return Allocation(
        said,
        nodes,
        tasks,
        given,
        gpus,
        number(said.get("cpus-per-task")),
        seconds(said.get("time")),
    )


def _gpus(said: dict[str, str], nodes: int | None, tasks: int | None) -> int | None:
    """The GPUs of a node."""
    if "gpu" in said.get("gres", ""):
        return gpus_of(said["gres"])
    if (text := said.get("gpus-per-node")) is not None:
        return gpus_of(f"gpu:{text}")
    if (text := said.get("gpus")) is not None:
        count = gpus_of(f"gpu:{text}")
        return None if count is None or not nodes or count % nodes else count // nodes
    if (text := said.get("gpus-per-task")) is not None:
        count = gpus_of(f"gpu:{text}")
        if count is None or not tasks or not nodes or tasks % nodes:
            return None
        return count * (tasks // nodes)
    if {"gpus-per-socket", "ntasks-per-gpu", "tres-per-task"} & {*said}:
        return None
    return 0


def seconds(text: str | None) -> int | None:
    """A time limit as Slurm writes it: `30`, `1:30:00`, `2-12`, `1-0:0`."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text or "")
    if match is None:
        return None
    days, *parts = (int(one) if one is not None else None for one in match.groups())
    first, second, third = parts
    if days is not None:
        hours, minutes, rest = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, rest = first or 0, second or 0, third
    else:
        hours, minutes, rest = 0, first or 0, second or 0
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
