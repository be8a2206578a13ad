"""The function that `port` puts into a batch script: a command on every GPU of every node."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import dataclass, field

from ...slurm import script

NAME = "on_all_gpus"
BEGIN = "# ---- written by `rankup port`: a command on every GPU of every node "


@dataclass(frozen=True)
class Site:
    """What a machine wants of a launch.

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


def block(site: Site, ranks: str) -> str:
    """The definition of `on_all_gpus`, with line breaks at its end.

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
        script.part("head").partition("\n")[2].rstrip("\n"),
        "",
        script.part("launch_nodes").rstrip("\n").replace('"${rank[@]}" "$@"', '"$@"'),
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
