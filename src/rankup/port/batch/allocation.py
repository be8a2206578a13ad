"""What a batch file asks of Slurm, as Slurm resolves it: the allocation that is made up of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
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
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def number(text: str | None) -> int | None:
    """A whole number; None for what is none."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


@dataclass(frozen=True)
class Allocation:
    """What a job is given.

    Attributes:
        asked: the options by their names, of each the last one.
        nodes: None where Slurm chooses, of a range or by the tasks.
        tasks: of the job.
        gpus: of a node; 0 where none are asked for, None where that cannot be told.
        cpus: of a task; None where none are asked for.
        seconds: the time limit; None without one.
    """

    asked: dict[str, str]
    nodes: int | None
    tasks: int | None
    gpus: int | None
    cpus: int | None
    seconds: int | None

    @property
    def shown(self) -> int:
        """The nodes of the made-up allocation."""
        return self.nodes or (2 if "nodes" in self.asked else 1)

    @property
    def nodelist(self) -> str:
        return "n1" if self.shown == 1 else f"n[1-{self.shown}]"

    def environment(self, path: Path, number: int) -> dict[str, str]:
        """The variables that the batch shell has, of a job with a number."""
        asked, nodes, tasks = self.asked, self.shown, self.tasks or self.shown
        here, user = -(-tasks // nodes), os.environ.get("USER") or "user"
        cpus = str((self.cpus or 1) * here)
        times = f"(x{nodes})" if nodes > 1 else ""
        login = {k: v for k, v in os.environ.items() if not _OWN.match(k) and len(v) < 4096}
        variables = login | {
            "SLURM_JOB_ID": str(number), "SLURM_JOBID": str(number),
            "SLURM_JOB_NAME": asked.get("job-name") or path.name,
            "SLURM_CLUSTER_NAME": f"cluster-{number}",
            "SLURM_JOB_NODELIST": self.nodelist, "SLURM_NODELIST": self.nodelist,
            "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_SUBMIT_DIR": str(path.resolve().parent), "SLURM_SUBMIT_HOST": "login",
            "SLURM_JOB_PARTITION": asked.get("partition") or f"partition-{number}",
            "SLURM_JOB_ACCOUNT": asked.get("account") or f"account-{number}",
            "SLURM_JOB_USER": user,
            "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n1",
            "SLURM_TASKS_PER_NODE": f"{here}{times}",
            "SLURM_CPUS_ON_NODE": cpus, "SLURM_JOB_CPUS_PER_NODE": f"{cpus}{times}",
            "SLURM_GTIDS": "0", "SLURM_RESTART_COUNT": "0", "SLURM_EXPORT_ENV": "ALL",
            "SLURM_JOB_START_TIME": "1700000000", "SLURM_JOB_END_TIME": "1700086400",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
            "SLURM_TMPDIR": gettempdir(), "SLURM_MEM_PER_NODE": "65536",
            "ENVIRONMENT": "BATCH", "HOSTNAME": "n1", "HOME": str(Path.home()), "USER": user,
            "LOGNAME": user, "SHELL": "/bin/bash", "TMPDIR": gettempdir(), "LANG": "C.UTF-8",
            "PATH": "/nonexistent", "LD_LIBRARY_PATH": "", "PYTHONPATH": "", "PWD": str(Path.cwd()),
        }  # fmt: skip
        if "array" in asked:
            variables |= {
                "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1",
                "SLURM_ARRAY_JOB_ID": str(number),
            }  # fmt: skip
        if {"ntasks", "ntasks-per-node"} & {*asked}:  # else there is one for each node
            variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
        if self.cpus is not None:
            variables["SLURM_CPUS_PER_TASK"] = str(self.cpus)
        if self.gpus:
            listed = ",".join(map(str, range(self.gpus)))
            variables |= {
                "SLURM_GPUS_ON_NODE": str(self.gpus),
                "SLURM_JOB_GPUS": listed,
                "CUDA_VISIBLE_DEVICES": listed,
            }
        for name in ("ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task"):
            if value := asked.get(name):
                variable = f"SLURM_{name.upper().replace('-', '_')}"
                variables[variable] = value.rpartition(":")[2]
        return variables


def allocation(options: Sequence[Option]) -> Allocation:
    """What Slurm makes of the options of sbatch: a number of tasks wins over tasks per node."""
    asked = {_SYNONYMS.get(option.name, option.name): (option.value or "").strip()
             for option in options}  # fmt: skip
    total, each = number(asked.get("ntasks")), number(asked.get("ntasks-per-node"))
    nodes: int | None = 1
    if "nodes" in asked:
        low, _, high = asked["nodes"].partition("-")
        nodes = number(low if low == high else asked["nodes"])
    elif total and each:
        nodes = -(-total // each)
    elif total != 1 and {"ntasks", "nodelist", "gpus"} & {*asked}:
        nodes = None
    tasks = total
    if total is None and "ntasks" not in asked and nodes is not None:
        tasks = each * nodes if each else (None if "ntasks-per-node" in asked else nodes)
    if total is not None and nodes is not None:
        nodes = min(nodes, total)
    gpus = gpus_of_node(asked, nodes, tasks)
    cpus = number(asked.get("cpus-per-task"))
    return Allocation(asked, nodes, tasks, gpus, cpus, seconds(asked.get("time")))


def gpus_of_node(asked: Mapping[str, str], nodes: int | None, tasks: int | None) -> int | None:
    """The GPUs of a node that options of sbatch or srun ask for.

    0 where they ask for none, None where that cannot be told.
    """
    if "gpu" in asked.get("gres", ""):
        return gpus_of(asked["gres"])
    if "gpus-per-node" in asked:
        return gpus_of(f"gpu:{asked['gpus-per-node']}")
    if "gpus" in asked:
        return _share(gpus_of(f"gpu:{asked['gpus']}"), nodes)
    if "gpus-per-task" in asked:
        count, here = gpus_of(f"gpu:{asked['gpus-per-task']}"), _share(tasks, nodes)
        return None if count is None or here is None else count * here
    unclear = asked.get("gres") == "none" or (
        {"gpus-per-socket", "ntasks-per-gpu", "tres-per-task"} & {*asked}
    )
    return None if unclear else 0


def _share(count: int | None, parts: int | None) -> int | None:
    return None if count is None or not parts or count % parts else count // parts


def seconds(text: str | None) -> int | None:
    """A time limit as Slurm writes it: `30`, `1:30:00`, `2-12`, `1-0:0`."""
    match = _TIME.fullmatch(text or "")
    if match is None:
        return None
    days, *parts = (int(part) if part is not None else None for part in match.groups())
    if days is None and parts[2] is None:  # minutes, and seconds
        parts = [0, *parts[:2]]
    hours, minutes, rest = (part or 0 for part in parts)
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
