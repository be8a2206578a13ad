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
_TOLD = (
    "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
    "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT, with the first node's name"
)


def _of_many(step: Step) -> bool:
    """True of a launch on several nodes, all of whose words are known."""
    return step.sure and step.srun is not None and (step.nodes or 1) > 1


def one_after_another(job: Job) -> list[Step]:
    """Launches of single nodes of one run, each of which waits for the one before to end."""
    steps = [
        one
        for one in job.steps
        if one.program.kind != "python" and (one.agents or 1) > 1 and one.sure
        if one.srun is not None and not job.background(one)
    ]
    for first in steps:
        alike = [one for one in steps if one.program.script == first.program.script]
        ranks = [{place.rank for place in one.places} for one in alike]
        told = all(len(one) == 1 and None not in one for one in ranks)
        if len(alike) > 1 and told and len(set.union(*ranks)) == len(alike):
            return alike
    return []


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
    seen = set()
    for step in job.table.fixed:
        port = step.places[0].port
        if step.srun is None or "standalone" in step.program.options:
            continue
        line = job.line_of(rf"^\s*(?:export\s+)?.*\b\w*(?i:port)=[\"']?{port}\b", step.line)
        if line not in seen:
            seen.add(line)
            yield Hit(
                line,
                f"port {port} is fixed: a second job on the same node, or its leftovers, keep it",
                "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
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
    serial = {one.line for one in one_after_another(job)}
    for step in job.single():
        if step.srun is None or (step.count or 1) < 2 or step.line in serial:
            continue
        words = [word for task in step.tasks for word in task.program.words]
        letters = next((one for one in words if re.search(r"\$\{?SLURM_\w+ID\b", one)), None)
        if letters:
            name = re.sub(r".*(\$\{?SLURM_\w+\}?).*", r"\1", letters, flags=re.DOTALL)
            yield Hit(
                step.line,
                f"the letters {name} arrive: no shell expands them behind srun",
                f"srun bash -c '…' with all of the command in single quotes, and {name} in it",
            )
            continue
        written = re.split(r"<<-?\s*['\"\\]", step.raw)[0]  # a quoted here-document stays as it is
        early = [match[1] for match in _EARLY.finditer(re.sub(r"'[^']*'", "", written))]
        early = [one for one in early if (step.nodes or 1) > 1 or one != "SLURM_NODEID"]
        if early and step.raw.lstrip().startswith(("srun", "exec srun", "time srun")):
            yield Hit(
                job.line_of(_EARLY.pattern.replace("(SLURM", "(?:SLURM"), step.line, step.line),
                f"${early[0]} is expanded on the first node: all nodes get that node's number",
                "put it in single quotes within `bash -c`, or write a \\ before its $ there",
            )
            continue
        yield from _same_number(job, step)


def _same_number(job: Job, step: Step) -> Iterator[Hit]:
    """The same number on all nodes, or of all tasks."""
    ranks = [place.rank for place in step.places]
    number = ranks[0]
    several = len(ranks) > 1 and step.sure
    if several and number and len(set(ranks)) == 1 and (step.agents or 1) > 1:
        yield Hit(
            step.line,
            f"every node is told that it is node {number}",
            "$SLURM_NODEID within srun bash -c '…'",
        )
        return
    if several and [place.hosts for place in step.places].count("1") == len(ranks):
        yield Hit(
            job.line_of("is_host", step.line, step.line),
            "every node is told to hold the meeting (is_host=1)",
            "is_host=$(((SLURM_NODEID) ? 0 : 1)) within srun bash -c '…'",
        )
        return
    given = [task.environment.get("RANK") for task in step.tasks]
    if step.program.kind == "python" and len(given) > 1 and given[0] and len(set(given)) == 1:
        line = job.line_of(r"^\s*(?:export\s+)?(?:.*\s)?RANK=", step.line)
        yield Hit(
            line,
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
    serial = one_after_another(job)
    for number, step in enumerate(serial):
        on = "both nodes" if step.nodes == 2 else f"{step.nodes} nodes" if step.nodes else "nodes"
        where = f"starts on {on}" if (step.nodes or 1) > 1 else "starts on one node"
        waits = "waits for the one before to end" if number else "waits for the other"
        yield Hit(
            step.line,
            f"this srun {where}, and {waits}: the run never begins",
            "one srun for all nodes, with --node-rank=$SLURM_NODEID within bash -c '…'",
        )
    lines = {one.line for one in serial}
    for step in job.single():
        why = _alone(job, step) if _of_many(step) and step.line not in lines else ""
        if why:
            yield Hit(step.line, why, _TOLD)


def _alone(job: Job, step: Step) -> str:
    """The reason why nodes do not find one another; empty where they may."""
    one, places = step.program, step.places
    if one.kind == "python":
        return (
            _looking(step)
            if job.distributed(step) and step.tasks[0].environment.get("RANK")
            else ""
        )
    if not (one.elastic or one.kind == "accelerate"):
        return ""
    if "standalone" in one.options:
        return "--standalone: each node trains by itself, on all of the data"
    name = "--num_machines" if one.kind == "accelerate" else "--nnodes"
    if step.agents == 1:
        if one.kind == "accelerate" and one.option("num-machines") is None:
            return "no --num_machines: each node trains by itself, on all of the data"
        if one.option("nnodes", "num-machines") is None:
            return f"no {name}: each node trains by itself, on all of the data"
        return f"{name}=1: each node trains by itself, on all of the data"
    if places[0].address == "":
        named = "--main_process_ip" if one.kind == "accelerate" else "--rdzv-endpoint"
        return f"no {named}: each node waits for the others at its own address"
    return _looking(step)


def _looking(step: Step) -> str:
    """What differs between the nodes, or is no place to meet."""
    places = step.places
    addresses = {place.address for place in places}
    if None not in addresses:
        for address in addresses:
            if address and _LOOPBACK.match(address):
                return f"the nodes are to meet at {address}, which is another place on each of them"
            if address and not _HOST.match(address):
                return f"the nodes are to meet at {address!r}, which is no host's name"
        if len(addresses) > 1:
            shown = ", ".join(f"{one.address} on node {one.node}" for one in places[:3])
            return f"each node looks for the others at its own address ({shown})"
        [address] = addresses
        listed = hosts(step.allocation.nodelist)
        ranked = step.program.kind == "python" or places[0].rank
        if address in listed[1:] and ranked and (places[0].rank in ("", "0")):
            return f"the nodes are to meet at {address}, and the first one runs on {listed[0]}"
    for what, found in (
        ("the rendezvous id", {place.identity for place in places}),
        ("the port", {place.port for place in places}),
    ):
        if None not in found and len(found) > 1:
            return f"{what} is drawn on each node by itself ({', '.join(sorted(map(str, found)))})"
    return ""
