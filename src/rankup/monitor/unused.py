"""When a GPU is one that nobody uses, and what to do about it: RK701, during the job and after it.

The sampler, the live view and the report all ask here, and say the same. The report looks at the
mean and the peaks of a whole run (`diagnose.gpu`), by the same thresholds. Nothing heavy is
imported: the sampler starts with it.
"""

from __future__ import annotations

from .thresholds import LIMITS

CODE = "RK701"


def untouched(util: float | None, memory: float | None, processes: float | None) -> bool:
    """Whether one sample of a GPU is that of one which nobody uses.

    A GPU whose use (`util`, %) is not known is none of those. Memory (bytes) and processes that are
    not known count as none: a start that takes long, as data are prepared, has its GPUs taken.
    """
    if util is None or util > LIMITS.unused_util:
        return False
    return not processes and (memory is None or memory < LIMITS.unused_memory)


def advice(unused: int, billed: int, ranks: int | None, per_node: int, used_nodes: int = 0) -> str:
    """What uses the GPUs that were not, or gives them back.

    Args:
        unused: GPUs, of those `billed`; where only one node is seen, its own.
        ranks: per node; None where nobody says.
        per_node: GPUs that the job is billed for on a node.
        used_nodes: nodes of which something was used, where all GPUs of others were not; else 0.
    """
    if unused >= billed:
        return (
            "nothing ran on any of them: see that the script finds them "
            "(`torch.cuda.is_available()`) and moves the model there (`model.to(device)`); data "
            "are better prepared before the job"
        )
    if not used_nodes and ranks is not None and ranks >= per_node:
        return (
            "all ranks share the other GPUs: `torch.cuda.set_device(local_rank)`, or "
            "`rankup.setup()`, before the model is made"
        )
    fewer = f"`rankup run --nodes {used_nodes} …` asks for what is used; " if used_nodes else ""
    return (
        f"{fewer}to use all of it, start one rank per GPU, `rankup run …` or `torchrun "
        "--nproc-per-node=gpu …`, with the model in DDP: `model = rankup.wrap(model)`"
    )
