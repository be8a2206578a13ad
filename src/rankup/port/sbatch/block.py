"""The function that `port` puts into a batch script, and the machine that it is for."""

from __future__ import annotations

import os
import shlex
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import UserError
from ...site import config, detect, profile
from ...site.profile import Profile
from ...slurm import script as job_script
from ...slurm.client import Client, SlurmError
from ...slurm.limits import choose_partition
from ...slurm.partitions import Partition
from .script import BatchScript

NAME = "on_all_gpus"
_SECONDS = 5.0  # for an answer of Slurm
BEGIN = "# ---- written by `rankup port`: a command on every GPU of every node "


@dataclass(frozen=True)
class Site:
    """The machine, as far as a launch has to know it.

    Attributes:
        gpus, cores: of a node; None where they are not known.
        suffix: of a node's name in the fast network.
        list_gpus: srun binds a task to one GPU unless they are all named.
        variables: exported for the ranks, unless they are set.
        srun: further options of srun.
    """

    gpus: int | None = None
    cores: int | None = None
    suffix: str = ""
    list_gpus: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    srun: tuple[str, ...] = ()


def site_of(script: BatchScript) -> tuple[Site, str]:
    """Return the machine, and a line about it where it was guessed from the partition's name.

    A Slurm that answers knows its own partitions. Only where there is none does the name decide.

    Raises:
        UserError: there is no such partition, or `rankup.toml` is damaged.
    """
    client = Client(timeout=_SECONDS)
    live = _live(client)
    cluster = client.cluster_name if live else None
    found, _ = detect.choose(
        config.load(Path.cwd()), os.environ, os.uname().nodename, cluster_name=cluster
    )
    partition = script.asked("partition")
    note = ""
    if not live and found.name in ("local", "generic") and partition:
        known = [one for one in map(profile.load, profile.names()) if partition in one.partitions]
        if len(known) == 1:
            found = known[0]
            note = f"partition {partition}: taken for {found.title}'s"
    if found.name == "local" and not live:
        return Site(), note
    shape = found.shape(partition)
    gpus, cores = (shape.gpus, shape.cores) if shape else (None, None)
    if live and (here := _partition(script, partition, found, live)) is not None:
        gpus, cores = here.gpus or gpus, here.cores or cores
    elif not live and partition is not None and found.partitions and shape is None:
        raise UserError(
            f"{script.path}: {found.title} has no partition {partition} that is known here "
            f"(known: {', '.join(sorted(found.partitions))}); correct it, or describe it in "
            "rankup.toml: [site.partitions]"
        )
    return Site(
        gpus=gpus or None,
        cores=cores or None,
        suffix=found.host_suffix,
        list_gpus=found.list_gpus,
        variables=dict(found.environment),
        srun=found.srun,
    ), note


def _live(client: Client) -> dict[str, Partition]:
    """The partitions of this machine's Slurm; empty where none answers."""
    try:
        return client.partitions() if client.reachable(timeout=2) else {}
    except SlurmError:
        return {}


def _partition(
    script: BatchScript, asked: str | None, found: Profile, live: dict[str, Partition]
) -> Partition | None:
    """The partition that the job goes to; None where Slurm has no default."""
    if asked is None:
        return next((one for one in live.values() if one.default), None)
    try:
        return choose_partition(asked, found, live)
    except UserError as error:
        raise UserError(f"{script.path}: {error}") from None


def block(site: Site, ranks: str) -> str:
    """Return the definition of `on_all_gpus`.

    The nodes' meeting place and torchrun's words are those of `rankup run`'s job scripts.
    """
    exports = [f'export {name}="${{{name}:-{value}}}"' for name, value in site.variables.items()]
    if site.list_gpus and ranks == "gpu":
        exports.append("CUDA_VISIBLE_DEVICES=$(seq --separator=, 0 $((SLURM_GPUS_ON_NODE - 1)))")
        exports.append("export CUDA_VISIBLE_DEVICES # srun would bind one GPU")
    per_node = "${SLURM_GPUS_ON_NODE:-1}" if ranks == "gpu" else ranks
    options = "".join(f" {shlex.quote(one)}" for one in site.srun)
    inside = [
        "set +eu",
        f"nodes=$SLURM_NNODES ranks={ranks} # of a node",
        f"suffix={shlex.quote(site.suffix)} # of a node's name in the fast network",
        *exports,
        "# srun does not take --cpus-per-task over from sbatch since Slurm 22.05",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-${SLURM_JOB_CPUS_PER_NODE%%[!0-9]*}}"',
        f"threads=$((SRUN_CPUS_PER_TASK / {per_node})) # torchrun would set 1",
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"',
        'end_life() { echo "rankup: $2" >&2 && exit "$1"; }',
        "",
        job_script.part("head").partition("\n")[2].rstrip("\n"),
        "",
        job_script.part("launch_nodes").rstrip("\n").replace('"${rank[@]}" "$@"', '"$@"'),
        "",
        'srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpu-bind=none \\',
        f'    --kill-on-bad-exit=1 --wait=120{options} bash -c "$(',
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
