"""Rules about ranks and GPUs: what is started on a node, what a task sees, who tells the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..rules.rule import Hit, rule
from .job import Job
from .table import Step

_LOCAL_RANK = re.compile(rb"""add_argument\(\s*["']--local[_-]rank["']""")
_UNDERSCORE = re.compile(rb"""["']--local_rank["']""")
_DASH = re.compile(rb"""["']--local-rank["']""")
_LIGHTNING = re.compile(rb"^\s*(?:from|import)\s+(?:pytorch_)?lightning\b", re.MULTILINE)


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
    for step in job.single():
        text, one = job.content(step), step.program
        seen = step.tasks[0].environment
        if one.kind == "python" and step.sure:
            if job.distributed(step) and not {"RANK", "PMI_RANK"} & {*seen}:
                by = "srun sets SLURM_PROCID and" if step.srun is not None else "python sets"
                yield Hit(
                    step.line,
                    f"{one.script} reads RANK and LOCAL_RANK; {by} neither of them",
                    "start it by torchrun, or set them within srun bash -c "
                    "'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS …'",
                )
            several = (step.allocation.tasks or 1) > 1
            if step.srun is None and several and _LIGHTNING.search(text):
                yield Hit(
                    step.line,
                    f"without srun one process starts, and Lightning waits for all "
                    f"{step.allocation.tasks} tasks of the job",
                    "put srun in front of it",
                )
        elif one.elastic and (match := _LOCAL_RANK.search(text)) and b"LOCAL_RANK" not in text:
            old = one.kind == "launch" and "use-env" not in one.options
            if not old:
                yield Hit(
                    step.line,
                    f"{one.script} takes --local_rank, which {one.kind} does not pass: all ranks "
                    "of a node take the same GPU",
                    'int(os.environ["LOCAL_RANK"]) in the script',
                )
            elif _UNDERSCORE.search(match[0]) and not _DASH.search(text):
                yield Hit(
                    step.line,
                    f"since torch 2.0 it passes --local-rank, which {one.script} does not know "
                    "(it takes --local_rank)",
                    'start it by torchrun, and int(os.environ["LOCAL_RANK"]) in the script',
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
    yield from _hidden(job, gpus)
    used: list[tuple[int, Step]] = []
    for step in job.steps:
        count = None if step.ranks is None or step.each is None else step.ranks * step.each
        alone = step.program.kind == "python" and job.many(step)
        if count is None or alone or not step.sure or job.background(step):
            return
        used.append((count, step))
    most, step = max(used, key=lambda pair: pair[0])
    if most < gpus:
        what = "one process" if most == 1 else f"{most} processes"
        todo = "torchrun --nproc-per-node=gpu" if step.program.elastic else "a task for each GPU"
        idle = f"{gpus - most} {'is' if gpus - most == 1 else 'are'} paid for and idle"
        yield Hit(
            step.line,
            f"{_plural(gpus, 'GPU')} for {what} on each node: {idle}",
            f"{todo}; or ask for {most}",
        )


def _hidden(job: Job, gpus: int) -> Iterator[Hit]:
    """A list of visible GPUs in the file that leaves some out."""
    line = job.line_of(r"^\s*(?:export\s+)?CUDA_VISIBLE_DEVICES=", 0)
    text = job.script.lines[line - 1].partition("CUDA_VISIBLE_DEVICES=")[2] if line else ""
    match = re.match(r"[\"']?(\d+(?:,\d+)*)[\"']?\s*(?:#|$)", text)
    if match and match[1].count(",") + 1 < gpus:
        yield Hit(
            line,
            f"CUDA_VISIBLE_DEVICES={match[1]} hides {gpus - match[1].count(',') - 1} of the {gpus} "
            "GPUs of a node",
            "remove the line; torchrun gives each rank its GPU",
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
    for step in job.single():
        ranks, each, gpus, one = step.ranks, step.each, step.gpus, step.program
        whole = step.node_gpus
        if not step.sure or each is None:
            continue
        if one.elastic and each > 1 and not _apart(step):
            what = f", each with {_plural(ranks, 'rank')}" if ranks else ""
            many = f": {each * ranks} ranks on {_plural(whole, 'GPU')}" if ranks and whole else ""
            yield Hit(
                step.line,
                f"srun starts {each} torchruns on each node{what}{many}",
                "--ntasks-per-node=1, of sbatch or srun: torchrun starts the ranks",
            )
        elif not gpus or ranks is None:
            continue
        elif one.kind != "python" and ranks > gpus:
            sees = f"its task sees {_plural(gpus, 'GPU')}"
            if step.allocation.asked.get("gpus") and step.srun is not None:
                sees = f"--gpus is of the whole job, and a node has {gpus} of them"
            yield Hit(
                step.line,
                f"{_plural(ranks, 'rank')} on a node, and {sees}",
                f"{ranks} GPUs for each node (--gpus-per-node={ranks}), or --nproc-per-node=gpu",
            )
        elif one.kind == "python" and job.by_local_rank(step) and each > gpus:
            local = {task.environment.get("LOCAL_RANK") for task in step.tasks}
            if local - {"0"} or (whole and each > whole):
                yield Hit(
                    step.line,
                    f"{_plural(each, 'task')} on a node, each sees {_plural(gpus, 'GPU')}, and "
                    f"{one.script} chooses one by its local rank",
                    "ask for the GPUs of the node (--gpus-per-node) in place of --gpus-per-task",
                )


def _apart(step: Step) -> bool:
    """True where each torchrun of a node has GPUs of its own and is counted."""
    return bool(
        step.gpus
        and step.node_gpus
        and step.each
        and step.gpus * step.each <= step.node_gpus
        and step.agents == step.count
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
    nodes = job.table.allocation.nodes
    alone = all(one.srun is None for one in job.steps)
    if any(nobody_tells.look(job)):
        return
    if nodes and nodes > 1 and job.steps and alone and not job.spread:
        yield Hit(
            job.steps[0].line,
            f"{nodes} nodes are asked for, and without srun this runs on the first one alone",
            "put srun in front of it",
        )
        return
    seen: set[int] = set()
    for step in job.single():
        agents, group = step.agents, job.group(step)
        counts = [one.nodes for one in group]
        if not step.sure or agents is None or agents == 1 or None in counts or step.line in seen:
            continue
        if step.program.kind == "python" or _one_after_another(job, step):
            continue
        seen |= {one.line for one in group}
        names = "--num_machines" if step.program.kind == "accelerate" else "--nnodes"
        reached = sum(one or 0 for one in counts)
        if step.each not in (1, agents) or agents == reached or agents == step.count:
            continue
        place = "it runs on one" if reached == 1 else f"it runs on {reached}"
        yield Hit(
            step.line,
            f"{names}={agents}, and {place}"
            + (": it waits for nodes that do not come" if agents > reached else ""),
            f"{names}=$SLURM_NNODES, and srun on all nodes, one task on each",
        )


def _one_after_another(job: Job, step: Step) -> bool:
    from .rules_meet import one_after_another

    return step.line in {one.line for one in one_after_another(job)}
