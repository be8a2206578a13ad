"""Rules about how nodes meet: address, port, their own numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..rules.rule import Hit, rule
from .answers import hosts
from .job import Job
from .table import Step

_LOOPBACK = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0)$")
_HOST = re.compile(r"\[?[A-Za-z0-9][A-Za-z0-9._:-]*\]?$")
_EARLY = re.compile(r"(?<!\\)\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\b")
_LETTERS = re.compile(r"\$\{?SLURM_\w+ID\b\}?")
_PORT = "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))"
_MEET = (
    "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
    "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT, with the first node's name"
)


@rule("RK156", "warning", "a fixed port")
def fixed_port(job: Job) -> Iterator[Hit]:
    """A port that is the same in every job, in `MASTER_PORT` or in the launcher's options.

    A second job on the node, or what is left of the last one, keeps the port.

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    -export MASTER_PORT=7010
    +export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
     srun torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-backend=c10d \\
         --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py
    ```
    """
    ports = {step.line: step.places[0].port or "" for step in job.single
             if step.srun is not None and "standalone" not in step.program.options}  # fmt: skip
    if not any(map(str.isdigit, ports.values())):
        return
    others = {step.line: step.places[0].port for step in job.again.steps}
    lines = {
        job.script.line_of(rf"^\s*(?:export\s+)?.*\b\w*(?i:port)=[\"']?{port}\b", line): port
        for line, port in ports.items() if port.isdigit() and port == others.get(line)
    }  # fmt: skip
    for line, port in lines.items():
        yield Hit(
            line,
            f"port {port} is fixed: a second job on the same node, or its leftovers, keep it",
            _PORT,
        )


@rule("RK157", "error", "a node's or rank's number, expanded too early")
def wrong_node(job: Job) -> Iterator[Hit]:
    """A node's number that is the same on all nodes, or no number: `$SLURM_NODEID`,
    `$SLURM_PROCID` or `$SLURM_LOCALID` in double quotes behind `srun`, a `RANK` that the batch
    shell sets, a `\\$SLURM_NODEID` that no shell expands.

    The batch shell on the first node expands them once, so that all nodes believe to be the first,
    and none ever finds the others. Without `bash -c` nothing expands what a backslash protects.

    Single quotes leave them to the shell of each task:

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    -srun bash -c "python train.py --rank $SLURM_PROCID"
    +srun bash -c 'python train.py --rank $SLURM_PROCID'
    ```
    """
    serial = {step.line for step in job.serial}
    for step in job.single:
        if step.srun is None or (step.count or 1) < 2 or step.line in serial:
            continue
        words = " ".join(word for task in step.tasks for word in task.program.words)
        written = re.split(r"<<-?\s*['\"\\]", step.raw)[0]  # a quoted here-document stays as it is
        early = _EARLY.findall(re.sub(r"'[^']*'", "", written))
        early = [name for name in early if (step.nodes or 1) > 1 or name != "SLURM_NODEID"]
        if letters := _LETTERS.search(words):
            yield Hit(
                step.line,
                f"the letters {letters[0]} arrive: no shell expands them behind srun",
                f"srun bash -c '…' with all of the command in single quotes, and {letters[0]} in "
                "it",
            )
        elif early and step.raw.lstrip().startswith(("srun", "exec srun", "time srun")):
            yield Hit(
                job.script.line_of(_EARLY.pattern, step.line, step.line),
                f"${early[0]} is expanded on the first node: all nodes get that node's number",
                "put it in single quotes within `bash -c`, or write a \\ before its $ there",
            )
        else:
            yield from _same_number(job, step)


def _same_number(job: Job, step: Step) -> Iterator[Hit]:
    """The same number on all nodes, or of all tasks."""
    ranks = [place.rank for place in step.places]
    holders = [place.hosts for place in step.places]
    given = [task.environment.get("RANK") for task in step.tasks]
    several = len(ranks) > 1 and step.sure
    if several and ranks[0] and len(set(ranks)) == 1 and (step.agents or 1) > 1:
        yield Hit(
            step.line,
            f"every node is told that it is node {ranks[0]}",
            "$SLURM_NODEID within srun bash -c '…'",
        )
    elif several and set(holders) == {"1"}:
        yield Hit(
            job.script.line_of("is_host", step.line, step.line),
            "every node is told to hold the meeting (is_host=1)",
            "is_host=$(((SLURM_NODEID) ? 0 : 1)) within srun bash -c '…'",
        )
    elif step.program.kind == "python" and len(given) > 1 and given[0] and len(set(given)) == 1:
        yield Hit(
            job.script.line_of(r"^\s*(?:export\s+)?(?:.*\s)?RANK=", step.line),
            f"RANK={given[0]} is set once, by the batch shell: every task gets the same",
            "let the script read the variable itself, or set it within `srun bash -c '…'`",
        )


@rule("RK164", "error", "nodes that do not meet")
def never_meet(job: Job) -> Iterator[Hit]:
    """A launcher on several nodes that are not told of one another: `--standalone`, no `--nnodes`,
    no address or `localhost`, an address that each node computes by itself (`$(hostname)` in the
    task), a list of nodes in place of a name, a `--rdzv-id` or port that each node draws; two sruns
    of one run, of which the second waits for the first.

    Each node trains by itself on all of the data, as slow as one, and writes over the others'
    files; or it waits for nodes that look elsewhere.

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    -srun torchrun --standalone --nproc-per-node=gpu train.py
    +MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    +MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
    +srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=gpu --rdzv-backend=c10d \\
    +    --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" train.py
    ```
    """
    for number, step in enumerate(job.serial):
        nodes = "both nodes" if step.nodes == 2 else f"{step.nodes or ''} nodes".strip()
        where = nodes if (step.nodes or 1) > 1 else "one node"
        waits = "waits for the one before to end" if number else "waits for the other"
        yield Hit(
            step.line,
            f"this srun starts on {where}, and {waits}: the run never begins",
            "one srun for all nodes, with --node-rank=$SLURM_NODEID within bash -c '…'",
        )
    serial = {step.line for step in job.serial}
    for step in job.single:
        of_many = step.sure and step.srun is not None and (step.nodes or 1) > 1
        why = _alone(job, step) if of_many and step.line not in serial else ""
        if why:
            yield Hit(step.line, why, _MEET)


def _alone(job: Job, step: Step) -> str:
    """The reason why nodes do not find one another; empty where they may."""
    started = step.program
    if started.kind == "python":
        ranked = job.distributed(step) and step.environment.get("RANK")
        return _looking(step) if ranked else ""
    if not started.launches:
        return ""
    if "standalone" in started.options:
        return "--standalone: each node trains by itself, on all of the data"
    elastic = started.elastic
    nodes, address = ("nnodes", "rdzv-endpoint") if elastic else ("num-machines", "main-process-ip")
    shown = "--nnodes" if elastic else "--num_machines"
    if step.agents == 1:
        what = f"no {shown}" if started.option(nodes) is None else f"{shown}=1"
        return f"{what}: each node trains by itself, on all of the data"
    if step.places[0].address == "":
        named = f"--{address}" if elastic else "--main_process_ip"
        return f"no {named}: each node waits for the others at its own address"
    return _looking(step)


def _looking(step: Step) -> str:
    """What differs between the nodes, or is no place to meet."""
    first, addresses = step.places[0], {place.address for place in step.places}
    for address in addresses if None not in addresses else ():
        if address and _LOOPBACK.match(address):
            return f"the nodes are to meet at {address}, which is another place on each of them"
        if address and not _HOST.match(address):
            return f"the nodes are to meet at {address!r}, which is no host's name"
    if None not in addresses and len(addresses) > 1:
        shown = ", ".join(f"{place.address} on node {place.node}" for place in step.places[:3])
        return f"each node looks for the others at its own address ({shown})"
    listed = hosts(step.allocation.nodelist)
    ranked = step.program.kind == "python" or first.rank
    if first.address in listed[1:] and ranked and first.rank in ("", "0"):
        return f"the nodes are to meet at {first.address}, and the first one runs on {listed[0]}"
    for what, values in (
        ("the rendezvous id", {place.identity for place in step.places}),
        ("the port", {place.port for place in step.places}),
    ):
        if None not in values and len(values) > 1:
            return f"{what} is drawn on each node by itself ({', '.join(sorted(map(str, values)))})"
    return ""
