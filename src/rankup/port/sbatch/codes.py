"""The codes of findings in batch files. They are stable; `docs/rules/CODE.md` explains each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONFLICT = "RK150"
NOT_READ = "RK151"
TOO_LATE = "RK152"
NOT_A_SCRIPT = "RK153"
BAD_OPTION = "RK154"
NO_LIMIT = "RK155"
FIXED_PORT = "RK156"
WRONG_NODE = "RK157"
MANY_IDS = "RK158"
ONE_CORE = "RK159"
LOST_STATUS = "RK160"
IDLE_GPUS = "RK161"
TOO_MANY_AGENTS = "RK162"
IDLE_NODES = "RK163"
NEVER_MEET = "RK164"
NO_FILE = "RK165"
NO_LOG = "RK166"
PLACEHOLDER = "RK167"
TOO_MANY_RANKS = "RK168"
NO_BASH = "RK169"
NOT_WAITED = "RK170"
NO_CPUS = "RK171"

TITLES: Mapping[str, str] = MappingProxyType(
    {
        CONFLICT: "git's conflict markers",
        NOT_READ: "a directive that sbatch takes for a comment",
        TOO_LATE: "a directive behind the first command",
        NOT_A_SCRIPT: "no script to sbatch",
        BAD_OPTION: "a directive that sbatch refuses or misreads",
        NO_LIMIT: "no time limit",
        FIXED_PORT: "a fixed port",
        WRONG_NODE: "a node's or rank's number, expanded too early",
        MANY_IDS: "a rendezvous id of its own on each node",
        ONE_CORE: "srun does not get the CPUs",
        LOST_STATUS: "a failed job that ends as COMPLETED",
        IDLE_GPUS: "GPUs asked for and not used",
        TOO_MANY_AGENTS: "several torchruns on a node",
        IDLE_NODES: "nodes asked for and not used",
        NEVER_MEET: "nodes that do not meet",
        NO_FILE: "a file that is not there",
        NO_LOG: "a log in a folder that is not there",
        PLACEHOLDER: "a placeholder was left",
        TOO_MANY_RANKS: "more ranks than GPUs",
        NO_BASH: "bash cannot read it",
        NOT_WAITED: "a job that does not wait for its processes",
        NO_CPUS: "CPUs are not asked for",
    }
)
