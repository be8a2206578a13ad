"""Rules about how the nodes of a job come together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...base.findings import Finding
from . import codes
from .launches import Launch
from .seen import Seen

_IDS = re.compile(r"\bSLURM_(?:NODEID|PROCID|LOCALID)\b")
_RANK = re.compile(r"(?:\w*_)?RANK=")
_DRAWN = re.compile(r"\$\{?RANDOM\b|\$\$|\$\((?:date|uuidgen|hostname|openssl|mktemp)\b")
_LOOPBACK = re.compile(r"^(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0)(?::|$)")


def wrong_node(seen: Seen) -> Iterator[Finding]:
    """RK157."""
    single = seen.script.nodes() == 1
    for command in seen.script.commands:
        under_srun = any(word.value.rpartition("/")[2] == "srun" for word in command.words)
        for word in command.words:
            early = _IDS.search(word.live)
            if early is None or (single and early[0] == "SLURM_NODEID"):
                continue
            if under_srun:
                line = word.line + word.text.count("\n", 0, max(0, word.text.find(early[0])))
                yield seen.find(
                    codes.WRONG_NODE,
                    "error",
                    line,
                    f"${early[0]} is expanded by the batch shell on the first node, so every node "
                    "gets that node's number",
                    "put it in single quotes within `bash -c`, or write a \\ before its $",
                )
                break
            if _RANK.match(word.value) and not command.function and _spread(seen):
                yield seen.find(
                    codes.WRONG_NODE,
                    "error",
                    word.line,
                    f"{word.text} is set once, by the batch shell on the first node: every task "
                    "gets the same",
                    "let the script read the variable itself, or set it within `srun bash -c '…'`",
                )


def _spread(seen: Seen) -> bool:
    return any(one.srun is not None and not one.torchrun for one in seen.launches)


def many_ids(seen: Seen) -> Iterator[Finding]:
    """RK158."""
    if seen.script.nodes() == 1:
        return
    for launch in _under_srun(seen):
        drawn = _DRAWN.search(launch.option("rdzv-id") or "")
        name = drawn[0].strip("${()") if drawn else ""
        if drawn and launch.shell and not any(name in one.live for one in launch.command.words):
            yield seen.find(
                codes.MANY_IDS,
                "error",
                launch.line,
                f"--rdzv-id={launch.option('rdzv-id')} is drawn on each node by itself, so that no "
                "two nodes find one another",
                "--rdzv-id=$SLURM_JOB_ID, which is the same everywhere",
            )


def fixed_port(seen: Seen) -> Iterator[Finding]:
    """RK156."""
    if not any(one.srun is not None for one in seen.launches):
        return
    setting = seen.sets("MASTER_PORT")
    port = seen.script.values.get("MASTER_PORT", "")
    line = setting.line if setting and port.isdigit() else 0
    for launch in _under_srun(seen):
        if line or "standalone" in launch.options:
            continue
        endpoint = seen.script.resolve(launch.option("rdzv-endpoint") or "")
        port = endpoint.rpartition(":")[2] or launch.option("master-port") or ""
        port = seen.script.resolve(port)
        line = launch.line if port.isdigit() else 0
    if line and port.isdigit():
        yield seen.find(
            codes.FIXED_PORT,
            "warning",
            line,
            f"port {port} is fixed: a second job on the same node, or its leftovers, keep it",
            "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
        )


def never_meet(seen: Seen) -> Iterator[Finding]:
    """RK164."""
    if (seen.script.nodes() or 1) == 1:
        return
    for launch in _under_srun(seen):
        if seen.nodes(launch) == 1:
            continue
        why = _alone(seen, launch)
        if why:
            yield seen.find(
                codes.NEVER_MEET,
                "error",
                launch.line,
                why,
                "--nnodes=$SLURM_NNODES --rdzv-backend=c10d "
                "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT, with the first node's name",
            )


def _alone(seen: Seen, launch: Launch) -> str:
    """Why each node trains by itself, or waits for ever; empty where nothing says so."""
    if "standalone" in launch.options:
        return "--standalone: each node trains by itself, on all of the data"
    if launch.option("nnodes") is None:
        return "no --nnodes: each node trains by itself, on all of the data"
    endpoint = launch.option("rdzv-endpoint", "master-addr")
    if endpoint is None:
        return "no --rdzv-endpoint: each node waits for the others at its own address"
    address = seen.script.resolve(endpoint)
    if _LOOPBACK.match(address):
        return f"the nodes are to meet at {address}, which is another place on each of them"
    hostname = "$(hostname" in address or "`hostname" in address
    early = any("$(hostname" in word.live for word in launch.command.words)
    if hostname and launch.shell and not early:
        return "$(hostname) is expanded on each node, so each waits at its own address"
    return ""


def idle_nodes(seen: Seen) -> Iterator[Finding]:
    """RK163."""
    nodes = seen.script.nodes()
    if not nodes or nodes == 1:
        return
    # Other launchers, and functions that call srun, reach the other nodes by themselves.
    here = [one for one in seen.launches if one.srun is None and (one.torchrun or one.script)]
    if here and len(here) == len(seen.launches) and not any(seen.wrapped(one) for one in here):
        for launch in here[:1]:
            yield seen.find(
                codes.IDLE_NODES,
                "error",
                launch.line,
                f"{nodes} nodes are asked for, and without srun this runs on the first one alone",
                "put srun in front of it, as `rankup port` does",
            )
    for launch in _under_srun(seen):
        given = seen.script.resolve(launch.option("nnodes") or "")
        if given.isdigit() and int(given[:9]) != nodes and seen.nodes(launch) == nodes:
            few = int(given[:9]) < nodes
            yield seen.find(
                codes.IDLE_NODES,
                "error",
                launch.line,
                f"--nnodes={given}, but {nodes} nodes are asked for"
                + ("" if few else ": torchrun waits for nodes that do not come"),
                "--nnodes=$SLURM_NNODES",
            )


def too_many_agents(seen: Seen) -> Iterator[Finding]:
    """RK162."""
    for launch in _under_srun(seen):
        tasks = seen.tasks(launch)
        if tasks is not None and tasks > 1:
            yield seen.find(
                codes.TOO_MANY_AGENTS,
                "error",
                launch.line,
                f"srun starts {tasks} tasks on each node, and each would be a torchrun that starts "
                "all ranks of the node",
                "#SBATCH --ntasks-per-node=1: torchrun starts the ranks",
            )


def _under_srun(seen: Seen) -> Iterator[Launch]:
    return (one for one in seen.launches if one.torchrun and one.srun is not None)
