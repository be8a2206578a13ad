"""What Slurm's commands say when they refuse, in plain words."""

from __future__ import annotations

import re

_UNREACHABLE = (
    r"unable to contact slurm controller|socket timed out|connection refused"
    r"|zero bytes were transmitted|controller .*not responding"
)

# Looked for in this order in what the command said: (pattern, what it means and what to do).
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"invalid account or account/partition",
        "The account does not exist, you are no member of it, or it may not use this partition. "
        "Name another with --account or --partition; `sacctmgr show assoc user=$USER` lists yours.",
    ),
    (
        r"(requested time limit is invalid|invalid --time|time limit .*exceed)",
        "The time is longer than the partition or your quality of service (QOS) allows, or is "
        "missing. Give a shorter --time; `sinfo -o '%P %l'` lists the limits.",
    ),
    (
        r"requested node configuration is not available",
        "No node of the partition has what the job asks for together: nodes, GPUs, cores or "
        "memory. Ask for less per node, or for another --partition.",
    ),
    (
        r"invalid partition( name)? specified",
        "There is no such partition here, or it is hidden from you. `sinfo -s` lists them.",
    ),
    (
        _UNREACHABLE,
        "Slurm's controller does not answer: it is overloaded, in maintenance, or not reachable "
        "from this machine. Try again in some minutes; `scontrol ping` tells whether it is back.",
    ),
    (
        r"node count specification invalid|more nodes than permitted|requested partition .*nodes",
        "The partition allows fewer or more nodes per job. Change --nodes or --partition.",
    ),
    (
        r"invalid qos",
        "This quality of service (QOS) does not exist or is not open to your account. "
        "Change or leave out --qos.",
    ),
    (
        r"violates accounting/qos policy|job submit limit|max.*submit|accounting_policy",
        "A limit of your account or QOS is reached: jobs in the queue, size or time of one job, or "
        "the compute budget. Wait for jobs to end, ask for less, or ask the site.",
    ),
    (
        r"reservation is invalid|access denied to requested reservation|invalid reservation",
        "There is no such reservation, it is over, or you may not use it. "
        "`scontrol show reservation` lists them.",
    ),
    (
        r"job dependency problem|dependency specification",
        "A job named in --dependency does not exist any more, or the form is wrong: "
        "afterok:ID, afterany:ID.",
    ),
    (
        r"invalid (job )?array|array .*(specification|index)",
        "The --array is malformed or larger than the site allows (`scontrol show config` says "
        "MaxArraySize).",
    ),
    (
        r"invalid generic resource|invalid gres|invalid tres",
        "The partition has no GPUs under this name. `sinfo -o '%P %G'` shows how they are called.",
    ),
    (
        r"invalid feature specification|invalid --constraint",
        "No node has the feature named in --constraint. `sinfo -o '%P %f'` lists them.",
    ),
    (
        r"memory specification can not be satisfied|memory required by task",
        "No node of the partition has that much memory. Lower --mem, or leave it out.",
    ),
    (
        r"requested partition .*(down|drain|inactive)|partition .*not available",
        "The partition is closed at present. Choose another --partition, or wait.",
    ),
    (
        r"(user|group) .*not permitted|access/permission denied|permission denied",
        "Slurm does not allow you this. The job may be another user's, or the partition closed "
        "to your groups.",
    ),
    (
        r"job is pending execution|already completing or completed|invalid job id",
        "The job is not in the state for that, or Slurm has forgotten it.",
    ),
    (
        r"unable to open file|batch script is empty|does not start with #!|dos line breaks",
        "sbatch cannot read the job script as a script.",
    ),
    (
        r"pathname .* too long|argument list too long|environment .*too large|script .*too large",
        "Names, the environment or the script are too large for Slurm. Shorten them.",
    ),
    (
        r"munge|protocol authentication|invalid authentication|credential",
        "This machine cannot prove who you are to Slurm (munge). The site has to repair that.",
    ),
    (
        r"unrecognized option|invalid option|requires an argument",
        "This version of Slurm does not know an option. Look at the extra #SBATCH lines.",
    ),
    (
        r"cannot stat file|could not establish a configuration source|dns srv lookup failed",
        "Slurm's commands are here, but not their configuration: this may be no login node.",
    ),
    (
        r"disk quota|no space left",
        "A disk is full: yours, or the controller's.",
    ),
)

_NOISE = re.compile(r"^(?:\w+: )?(?:error: |fatal: )?")


def advice(said: str) -> str:
    """What a refusal means and what to do about it; empty for one that is not known."""
    for pattern, words in _KNOWN:
        if re.search(pattern, said, re.IGNORECASE):
            return words
    return ""


def is_unreachable(said: str) -> bool:
    """Whether the controller did not answer, rather than refused."""
    return bool(re.search(_UNREACHABLE, said, re.IGNORECASE))


def tidy(said: str) -> str:
    """What a command said, without "sbatch: error:" before each line; the last lines of much."""
    lines = [_NOISE.sub("", line.strip(), count=1) for line in said.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines[-4:]))
