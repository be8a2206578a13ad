"""The function that `port` puts into a batch script, and the machine that it is for."""

from __future__ import annotations

import shlex
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...site import config, profile
from ...site.profile import Profile
from ...slurm import script as job_script
from ...slurm.client import Client, SlurmError
from ...slurm.limits import choose_partition
from ...slurm.parse import Partition
from .script import BatchScript

NAME = "on_all_gpus"
_SECONDS = 5.0  # for an answer of Slurm
BEGIN = "# ---- written by `rankup port`: a command on every GPU of every node "


@dataclass(frozen=True)
class Site:
    """The machine; GPUs and cores of a node are None where they are not known."""

    profile: Profile
    gpus: int | None
    cores: int | None


def site_of(script: BatchScript) -> tuple[Site, str]:
    """Return the machine, and a line about it where it was guessed from the partition's name.

    A Slurm that answers knows its own partitions. Only where there is none does the name decide.

    Raises:
        UserError: there is no such partition, or `rankup.toml` is damaged.
    """
    client = Client(timeout=_SECONDS)
    live: dict[str, Partition] = {}
    with suppress(SlurmError):
        live = client.partitions()
    cluster = client.cluster_name if live else None
    found, _ = profile.choose(config.load(Path.cwd()), cluster_name=cluster)
    partition = script.asked("partition")
    note = ""
    if not live and found.name in ("local", "generic") and partition:
        known = [one for one in map(profile.load, profile.names()) if partition in one.partitions]
        if len(known) == 1:
            found = known[0]
            note = f"partition {partition}: taken for {found.title}'s"
    shape = found.shape(partition)
    gpus, cores = (shape.gpus, shape.cores) if shape else (None, None)
    if live:
        try:
            here = choose_partition(partition, found, live)
            gpus, cores = here.gpus or gpus, here.cores or cores
        except UserError as error:
            if partition is not None:  # without one Slurm may have no default
                raise UserError(f"{script.path}: {error}") from None
    elif partition is not None and found.partitions and shape is None:
        raise UserError(
            f"{script.path}: {found.title} has no partition {partition} that is known here "
            f"(known: {', '.join(sorted(found.partitions))}); correct it, or describe it in "
            "rankup.toml: [site.partitions]"
        )
    return Site(found, gpus or None, cores or None), note


def block(site: Profile, ranks: str) -> str:
    """Return the definition of `on_all_gpus`.

    The nodes' meeting place and torchrun's words are those of `rankup run`'s job scripts.
    """
    exports = [f'export {name}="${{{name}:-{value}}}"' for name, value in site.environment.items()]
    if site.list_gpus and ranks == "gpu":
        exports.append("CUDA_VISIBLE_DEVICES=$(seq --separator=, 0 $((SLURM_GPUS_ON_NODE - 1)))")
        exports.append("export CUDA_VISIBLE_DEVICES # srun would bind one GPU")
    per_node = "${SLURM_GPUS_ON_NODE:-1}" if ranks == "gpu" else ranks
    options = "".join(f" {shlex.quote(one)}" for one in site.srun)
    launch = job_script.part("launch", nodes=2, monitor=False, in_container="", torchrun="torchrun")
    inside = [
        "set +eu",
        f"nodes=$SLURM_NNODES ranks={ranks} # of a node",
        f"suffix={shlex.quote(site.host_suffix)} # of a node's name in the fast network",
        *exports,
        "# srun does not take --cpus-per-task over from sbatch since Slurm 22.05",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-${SLURM_JOB_CPUS_PER_NODE%%[!0-9]*}}"',
        'export PYTHONHASHSEED="${PYTHONHASHSEED:-0}" # ranks have one order of a set',
        f"threads=$((SRUN_CPUS_PER_TASK / {per_node})) # torchrun would set 1",
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"',
        'end_attempt() { echo "rankup: $2" >&2 && exit "$1"; }',
        "",
        job_script.part("head").rstrip("\n"),
        "",
        launch.rstrip("\n").replace('"${rank[@]}" "$@"', '"$@"'),
        "",
        'srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpu-bind=none \\',
        # --wait=0: what rank 0 does after the others have ended, an export, may take long.
        f'    --kill-on-bad-exit=1 --wait=0{options} bash -c "$(',
        "        declare -p nodes ranks master_addr master_port",
        "        declare -f launch",
        '    ); launch \\"\\$@\\"" bash "$@"',
    ]
    body = textwrap.indent("\n".join(inside), "    ")
    return (
        f"{BEGIN.ljust(100, '-')}\n"
        "# shellcheck disable=SC2030,SC2031,SC2317,SC2329\n"
        f"{NAME}() ( # {NAME} COMMAND WORD...: in a shell of its own, which leaves nothing behind\n"
        f"{body}\n)\n{'# '.ljust(100, '-')}\n"
    )
