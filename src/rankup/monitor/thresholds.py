"""Every number that a verdict, a finding or a warning rests on, in one table.

`docs/findings` names them too. The two numbers that only a comparison of several runs needs
stand where they are used, in `report/scaling.py`. And when a GPU is one that nobody uses (RK701),
and what to do about it: the sampler and the report ask here, and say the same.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Thresholds:
    """Percent where a name says use, shares (0 to 1), seconds, bytes; the comments say where from.

    "jobstats" and "LLview" are the rules that those monitors publish; "ours" is a judgement, with
    its reason.
    """

    # What counts as work (billing.py).
    power_floor: float = 0.20  # share of the limit. Ours: idle is 10-15 % (A100, H100, GH200),
    # a collective that spins 17-25 %
    power_full: float = 0.50  # ours: bandwidth-bound training draws 50-65 %, and is all there is
    usual: float = 0.90  # efficiency of a run without waste: start-up and small waits are the
    # rest. What a finding wasted is counted from there, where it has no time of its own
    cpu_full: float = 50.0  # % of usable cores; LLview: load / (0.5 x cores), as every second
    # core may be a hyperthread

    # What is looked at (diagnose/common.py).
    warm_up: float = 120.0  # s of each attempt: imports, compilation, first batches; notes: 60-120
    judged_least: float = 120.0  # s of a run after it; less says nothing
    pause_least: float = 5.0  # s between steps, and
    pause_times: float = 5.0  # x the median step: a pause (checkpoint, validation) or a stall

    # GPUs (gpu.py).
    unused_util: float = 1.0  # %, for at least
    unused_share: float = 0.95  # of the time. jobstats: exactly 0
    unused_memory: float = 500 * MIB  # a CUDA context alone takes 300-600 MiB
    unused_soon: float = 90.0  # s of a running rank, after which its job's log says it: an unused
    # GPU is to be known within two minutes
    idle_util: float = 5.0  # %, mean
    idle_stretch: float = 900.0  # s in a row; ours: longer than most validations
    idle_share: float = 0.10  # of the time looked at
    low_util: float = 25.0  # %, mean; jobstats: red 15, warns up to 25

    # Spinning (training.py).
    spin_util: float = 95.0  # %
    spin_power: float = 0.45  # share of the limit
    spin_flat: float = 0.30  # of the limit at most, where the training says no steps
    spin_least: float = 120.0  # s in a row
    spin_swing: float = 0.06  # of the limit between the 5th and 95th percentile: a GPU that
    # computes swings more between forward, backward and optimizer
    spin_traffic: float = 0.10  # of what the same GPU receives over PCIe while it computes

    # A step that stalls (training.py). Ours: a pause of a few seconds is any file system's
    stall_least: float = 30.0  # s, and
    stall_times: float = 10.0  # x the median step

    # Data (training.py).
    data_wait: float = 0.15  # of the time; ours: below it nothing worth a change is won
    saw_low: float = 5.0  # % and
    saw_high: float = 70.0  # %: mean use of a GPU that waits for data now and then
    saw_swing: float = 40.0  # % between the 10th and 90th percentile of its samples
    workers_busy: float = 85.0  # % of a core for each worker
    workers_idle: float = 50.0  # % of a core for each worker that waits itself

    # Balance (gpu.py).
    imbalance: float = 0.25  # (most - least) / most of mean use
    imbalance_power: float = 0.40  # the same of power above the floor

    # Memory (gpu.py, nodes.py).
    memory_near: float = 0.97  # peak share
    host_near: float = 0.95  # peak share of the cgroup's limit or of the node's memory

    # CPU (nodes.py).
    load: float = 1.2  # x cores; LLview colours above it
    load_use: float = 30.0  # % of usable cores; high load with less is the SRUN_CPUS_PER_TASK trap
    one_core: float = 90.0  # % of the only core that works
    other_cores: float = 10.0  # % of all others

    # Throttling (gpu.py).
    throttle_power: float = 0.20  # of the time, and
    throttle_clock: float = 0.65  # of the highest clock. Ours: an H100 that multiplies matrices at
    # its limit of 700 W runs at 70-85 %, which is as it should be
    throttle_heat: float = 0.05  # of the time

    # File systems and checkpoints (training.py).
    checkpoint_share: float = 0.05  # of the time
    checkpoint_least: float = 30.0  # s in all

    # Limits (nodes.py).
    limit_share: float = 0.25  # of the time limit used; notes: below it backfill suffers
    limit_least: float = 1800.0  # s of limit that were not needed
    short: float = 180.0  # s: less than warm-up and a minute
    queue_times: float = 10.0  # x the run's time, and
    queue_least: float = 600.0  # s in the queue

    # Lost GPUs (nodes.py).
    gap_least: float = 60.0  # s without a value; notes: omnistat flags three samples

    # The words of the verdict (diagnose).
    healthy: float = 0.75  # efficiency from which a run without a finding is called healthy. Ours:
    # lower than `usual`, as validations and batches of uneven length cost 15-25 %
    headline_waste: float = 0.02  # of the bill: a waste that the headline names
    named_waste: float = 0.005  # of the bill: a waste that a finding names
    seen_least: float = 0.95  # share of the time on record; below it the verdict says so


LIMITS = Thresholds()
UNUSED = "RK701"


def untouched(util: float | None, memory: float | None, processes: float | None) -> bool:
    """True if one sample of a GPU is that of one which nobody uses.

    A GPU whose use (`util`, %) is not known is none of those. Memory (bytes) and processes that are
    not known count as none: a start that takes long, as data are prepared, has its GPUs taken.
    """
    if util is None or util > LIMITS.unused_util:
        return False
    return not processes and (memory is None or memory < LIMITS.unused_memory)


def advice(unused: int, billed: int, ranks: int | None, per_node: int, used_nodes: int = 0) -> str:
    """Return what uses the GPUs that were not, or gives them back.

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
