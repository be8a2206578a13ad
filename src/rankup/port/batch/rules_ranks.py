"""Rules about ranks and GPUs: what is started on a node, what a task sees, who tells the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..rules.rule import Hit, rule
from .job import Job
from .table import Step

_LOCAL_RANK = re.compile(rb"""add_argument\(\s*["']--local[_-]rank["']""")
_DASH = re.compile(rb"""["']--local-rank["']""")
_LIGHTNING = re.compile(rb"^\s*(?:from|import)\s+(?:pytorch_)?lightning\b", re.MULTILINE)
_VISIBLE = re.compile(r"\s*(?:export\s+)?CUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)*)[\"']?\s*(?:#|$)")


def _plural(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count != 1 else ''}"


@rule("RK158", "error", "nobody tells the ranks who they are")
def nobody_tells(job: Job) -> Iterator[Hit]:
    """A script that reads `RANK`, `LOCAL_RANK` or `WORLD_SIZE`, or joins a process group by them,
    started by `python` or `srun python`; one that takes `--local_rank`, under torchrun; a script of
    Lightning for several tasks without srun.

    srun sets `SLURM_PROCID`, not `RANK`; torchrun sets variables and passes no `--local_rank`: the
    script ends with a `KeyError`, or all ranks take the same GPU.

    ```diff
     #!/bin/bash
     #SBATCH --ntasks-per-node=1 --gres=gpu:4 --cpus-per-task=48 --time=01:00:00
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    -srun --ntasks-per-node=4 python ddp.py
    +srun torchrun --standalone --nproc-per-node=4 ddp.py
    ```
    """
    for step in job.single:
        text, started = job.content(step), step.program
        if started.kind == "python" and step.sure:
            yield from _untold(job, step, text)
        elif started.elastic and _LOCAL_RANK.search(text) and b"LOCAL_RANK" not in text:
            if started.kind != "launch" or "use-env" in started.options:
                yield Hit(
                    step.line,
                    f"{started.script} takes --local_rank, which {started.kind} does not pass: all "
                    "ranks of a node take the same GPU",
                    'int(os.environ["LOCAL_RANK"]) in the script',
                )
            elif not _DASH.search(text):
                yield Hit(
                    step.line,
                    f"since torch 2.0 it passes --local-rank, which {started.script} does not know "
                    "(it takes --local_rank)",
                    'start it by torchrun, and int(os.environ["LOCAL_RANK"]) in the script',
                )


def _untold(job: Job, step: Step, text: bytes) -> Iterator[Hit]:
    """A plain python whose script waits for what nobody sets, or for ranks that do not come."""
    if job.distributed(step) and not {"RANK", "PMI_RANK"} & {*step.environment}:
        by = "srun sets SLURM_PROCID and" if step.srun is not None else "python sets"
        yield Hit(
            step.line,
            f"{step.program.script} reads RANK and LOCAL_RANK; {by} neither of them",
            "start it by torchrun, or set them within srun bash -c "
            "'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS …'",
        )
    tasks = step.allocation.tasks or 1
    if step.srun is None and tasks > 1 and _LIGHTNING.search(text):
        yield Hit(
            step.line,
            f"without srun one process starts, and Lightning waits for all {tasks} tasks of the "
            "job",
            "put srun in front of it",
        )


@rule("RK161", "warning", "GPUs asked for and not used", whole=True)
def idle_gpus(job: Job) -> Iterator[Hit]:
    """Fewer ranks on a node than GPUs are asked for, or a `CUDA_VISIBLE_DEVICES` with fewer. A
    script that uses several GPUs from one process, or starts more by itself, is not reported, nor
    are several runs side by side.

    GPUs that no process uses are paid for like the others.

    Let torchrun start a rank for each GPU, or ask for what is used, where the machine shares its
    nodes:

    ```diff
     MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
     MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     srun torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT \\
    -    --nproc-per-node=2 train.py
    +    --nproc-per-node=gpu train.py
    ```
    """
    gpus = job.table.allocation.gpus
    if not gpus or not job.steps or job.spread or any(nobody_tells.look(job)):
        return
    for line, text in enumerate(job.script.lines, 1):
        match = _VISIBLE.match(text)
        if match and (hidden := gpus - match[1].count(",") - 1) > 0:
            yield Hit(
                line,
                f"CUDA_VISIBLE_DEVICES={match[1]} hides {hidden} of the {gpus} GPUs of a node",
                "remove the line; torchrun gives each rank its GPU",
            )
            break
    for step in job.steps:
        alone = step.program.kind == "python" and job.many(step)
        if step.on_node is None or alone or not step.sure or step.background:
            return
    step = max(job.steps, key=lambda step: step.on_node or 0)
    most = step.on_node or 0
    if most < gpus:
        what = "one process" if most == 1 else f"{most} processes"
        todo = "torchrun --nproc-per-node=gpu" if step.program.elastic else "a task for each GPU"
        idle = f"{gpus - most} {'is' if gpus - most == 1 else 'are'} paid for and idle"
        yield Hit(
            step.line,
            f"{_plural(gpus, 'GPU')} for {what} on each node: {idle}",
            f"{todo}; or ask for {most}",
        )


@rule("RK162", "error", "more ranks than GPUs")
def too_many_ranks(job: Job) -> Iterator[Hit]:
    """More ranks than the GPUs that their task sees: by `--nproc-per-node`, by `--gpus` of the
    whole job, by `--gpus-per-task` or `srun --gres`, or since several tasks of a node each start a
    torchrun; tasks that see one GPU each, and a script that chooses by its local rank.

    A rank without a GPU of its own ends with "invalid device ordinal" or "Duplicate GPU", and the
    others wait for it.

    ```diff
    -#SBATCH --ntasks-per-node=4
    +#SBATCH --ntasks-per-node=1
     MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
     MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     srun torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT \\
         --nproc-per-node=gpu train.py
    ```
    """
    for step in job.single:
        ranks, each, gpus, started = step.ranks, step.each, step.gpus, step.program
        whole = step.node_gpus
        if not step.sure or each is None:
            continue
        if started.elastic and each > 1:
            if gpus and whole and gpus * each <= whole and step.agents == step.count:
                continue  # each torchrun of a node has GPUs of its own, and is counted
            what = f", each with {_plural(ranks, 'rank')}" if ranks else ""
            many = f": {each * ranks} ranks on {_plural(whole, 'GPU')}" if ranks and whole else ""
            yield Hit(
                step.line,
                f"srun starts {each} torchruns on each node{what}{many}",
                "--ntasks-per-node=1, of sbatch or srun: torchrun starts the ranks",
            )
        elif started.kind != "python" and gpus and ranks and ranks > gpus:
            sees = f"its task sees {_plural(gpus, 'GPU')}"
            if "gpus" in step.allocation.asked and step.srun is not None:
                sees = f"--gpus is of the whole job, and a node has {gpus} of them"
            yield Hit(
                step.line,
                f"{_plural(ranks, 'rank')} on a node, and {sees}",
                f"{ranks} GPUs for each node (--gpus-per-node={ranks}), or --nproc-per-node=gpu",
            )
        elif started.kind == "python" and gpus and each > gpus and job.by_local_rank(step):
            local = {task.environment.get("LOCAL_RANK") for task in step.tasks}
            if local - {"0"} or (whole and each > whole):
                yield Hit(
                    step.line,
                    f"{_plural(each, 'task')} on a node, each sees {_plural(gpus, 'GPU')}, and "
                    f"{started.script} chooses one by its local rank",
                    "ask for the GPUs of the node (--gpus-per-node) in place of --gpus-per-task",
                )


@rule("RK163", "error", "nodes asked for and not used", whole=True)
def idle_nodes(job: Job) -> Iterator[Hit]:
    """Several nodes in the directives, and Python or torchrun without srun; or another number of
    nodes in the launcher's `--nnodes` than srun starts it on.

    Without srun a command runs on the first node alone. The others are billed and idle, or
    torchrun waits for them until it gives up.

    ```diff
     MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
     MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    -torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py
    +srun torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-backend=c10d \\
    +    --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py
    ```
    """
    nodes = job.table.allocation.nodes or 1
    if not job.steps or any(nobody_tells.look(job)):
        return
    if nodes > 1 and all(step.srun is None for step in job.steps):
        if not job.spread:
            yield Hit(
                job.steps[0].line,
                f"{nodes} nodes are asked for, and without srun this runs on the first one alone",
                "put srun in front of it",
            )
        return
    seen = {step.line for step in job.serial}
    for step in job.single:
        together = [step]  # with what runs at the same time in the background, of the same launch
        if step.background:
            together = [other for other in job.steps if other.background
                        and other.program.script == step.program.script]  # fmt: skip
        reached, agents = sum(other.nodes or 0 for other in together), step.agents
        known = step.sure and all(other.nodes is not None for other in together)
        if not known or step.line in seen or not step.program.launches or agents in (None, 1):
            continue
        seen |= {other.line for other in together}
        if agents in (reached, step.count) or step.each not in (1, agents):
            continue
        names = "--nnodes" if step.program.elastic else "--num_machines"
        place = "it runs on one" if reached == 1 else f"it runs on {reached}"
        waits = ": it waits for nodes that do not come" if (agents or 0) > reached else ""
        yield Hit(
            step.line,
            f"{names}={agents}, and {place}{waits}",
            f"{names}=$SLURM_NNODES, and srun on all nodes, one task on each",
        )
