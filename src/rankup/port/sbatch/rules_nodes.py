"""Rules about how the nodes of a job come together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..rules.rule import Hit, rule
from .launches import Launch, base_name
from .script import BatchScript

_IDS = re.compile(r"\bSLURM_(?:NODEID|PROCID|LOCALID)\b")
_RANK = re.compile(r"(?:\w*_)?RANK=")
_DRAWN = re.compile(r"\$\{?RANDOM\b|\$\$|\$\((?:date|uuidgen|hostname|openssl|mktemp)\b")
_LOOPBACK = re.compile(r"^(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0)(?::|$)")


@rule("RK156", "warning", "a fixed port")
def fixed_port(script: BatchScript) -> Iterator[Hit]:
    """A port that is a plain number, in `MASTER_PORT` or in torchrun's rendezvous endpoint.

    A second job on the node, or what is left of the last one, keeps the port.

    ```diff
    -export MASTER_PORT=7010
    +export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
     srun torchrun --nnodes=2 --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py
    ```
    """
    if not any(one.srun is not None for one in script.launches):
        return
    setting = script.sets("MASTER_PORT")
    port = script.values.get("MASTER_PORT", "")
    line = setting.line if setting and port.isdigit() else 0
    for launch in script.launches:
        if not line and launch.under_srun and "standalone" not in launch.options:
            endpoint = script.resolve(launch.option("rdzv-endpoint") or "")
            port = endpoint.rpartition(":")[2] or launch.option("master-port") or ""
            port = script.resolve(port)
            line = launch.line if port.isdigit() else 0
    if line:
        yield Hit(
            line,
            f"port {port} is fixed: a second job on the same node, or its leftovers, keep it",
            "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
        )


@rule("RK157", "error", "a node's or rank's number, expanded too early")
def wrong_node(script: BatchScript) -> Iterator[Hit]:
    """`$SLURM_NODEID`, `$SLURM_PROCID` or `$SLURM_LOCALID` in double quotes behind `srun`, and a
    `RANK` that the batch shell sets.

    The batch shell on the first node expands them once, so that all nodes believe to be the first,
    and none ever finds the others.

    Single quotes leave them to the shell of each task:

    ```diff
    -srun bash -c "python train.py --rank $SLURM_PROCID"
    +srun bash -c 'python train.py --rank $SLURM_PROCID'
    ```
    """
    single = script.nodes() == 1
    spread = any(one.srun is not None and not one.torchrun for one in script.launches)
    for command in script.commands:
        under_srun = any(base_name(word.value) == "srun" for word in command.words)
        for word in command.words:
            early = _IDS.search(word.live)
            if early is None or (single and early[0] == "SLURM_NODEID"):
                continue
            if under_srun:
                before = word.text[: max(0, word.text.find(early[0]))]
                yield Hit(
                    word.line + before.count("\n"),
                    f"${early[0]} is expanded by the batch shell on the first node, so every "
                    "node gets that node's number",
                    "put it in single quotes within `bash -c`, or write a \\ before its $",
                )
                break
            if _RANK.match(word.value) and not command.function and spread:
                yield Hit(
                    word.line,
                    f"{word.text} is set once, by the batch shell on the first node: every "
                    "task gets the same",
                    "let the script read the variable itself, or set it within `srun bash -c '…'`",
                )


@rule("RK162", "error", "several torchruns on a node")
def too_many_agents(script: BatchScript) -> Iterator[Hit]:
    """torchrun under an srun that starts several tasks on each node.

    torchrun starts the ranks of a node itself: four tasks start four ranks each on the same GPUs.

    ```diff
    -#SBATCH --ntasks-per-node=4
    +#SBATCH --ntasks-per-node=1
     srun torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-endpoint=$MASTER_ADDR:$PORT train.py
    ```
    """
    for launch in script.launches:
        tasks = script.tasks_per_node(launch) if launch.under_srun else None
        if tasks is not None and tasks > 1:
            yield Hit(
                launch.line,
                f"srun starts {tasks} tasks on each node, and each would be a torchrun that "
                "starts all ranks of the node",
                "#SBATCH --ntasks-per-node=1: torchrun starts the ranks",
            )


@rule("RK163", "error", "nodes asked for and not used", whole=True)
def idle_nodes(script: BatchScript) -> Iterator[Hit]:
    """Several nodes in the directives, and Python or torchrun without srun; or another number in
    torchrun's `--nnodes`.

    Without srun a command runs on the first node alone. The others are billed and idle, or
    torchrun waits for them until it gives up.

    ```diff
    -torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-endpoint=$MASTER_ADDR:$PORT train.py
    +srun torchrun --nnodes=$SLURM_NNODES --rdzv-endpoint=$MASTER_ADDR:$PORT train.py
    ```
    """
    nodes = script.nodes()
    if not nodes or nodes == 1:
        return
    # Other launchers, and functions that call srun, reach the other nodes by themselves.
    here = [one for one in script.launches if one.srun is None and (one.torchrun or one.script)]
    if len(here) == len(script.launches) and not any(map(script.spread, here)):
        for launch in here[:1]:
            yield Hit(
                launch.line,
                f"{nodes} nodes are asked for, and without srun this runs on the first one alone",
                "put srun in front of it, as `rankup port` does",
            )
    for launch in script.launches:
        given = script.resolve(launch.option("nnodes") or "")
        if not launch.under_srun or not given.isdigit() or script.nodes(launch) != nodes:
            continue
        if int(given[:9]) != nodes:
            more = int(given[:9]) > nodes
            yield Hit(
                launch.line,
                f"--nnodes={given}, but {nodes} nodes are asked for"
                + (": torchrun waits for nodes that do not come" if more else ""),
                "--nnodes=$SLURM_NNODES",
            )


@rule("RK164", "error", "nodes that do not meet")
def never_meet(script: BatchScript) -> Iterator[Hit]:
    """torchrun on several nodes that are not told of one another: `--standalone`, no `--nnodes`,
    no `--rdzv-endpoint` or one at `localhost`, or a `--rdzv-id` that each node draws by itself.

    Each node trains by itself on all of the data, as slow as one, and writes over the others'
    files; or it waits for nodes that look elsewhere.

    ```diff
    -srun torchrun --standalone --nproc-per-node=gpu train.py
    +MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    +srun torchrun --nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID \\
    +    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" train.py
    ```
    """
    if script.nodes() == 1:
        return
    for launch in script.launches:
        if launch.under_srun and script.nodes(launch) != 1 and (why := _alone(script, launch)):
            yield Hit(
                launch.line,
                why,
                "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
                "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT, with the first node's name",
            )


def _alone(script: BatchScript, launch: Launch) -> str:
    """Return the reason why nodes do not find one another; empty where they may."""
    if "standalone" in launch.options:
        return "--standalone: each node trains by itself, on all of the data"
    if launch.option("nnodes") is None:
        return "no --nnodes: each node trains by itself, on all of the data"
    endpoint = launch.option("rdzv-endpoint", "master-addr")
    if endpoint is None:
        return "no --rdzv-endpoint: each node waits for the others at its own address"
    address = script.resolve(endpoint)
    if _LOOPBACK.match(address):
        return f"the nodes are to meet at {address}, which is another place on each of them"
    drawn = _DRAWN.search(launch.option("rdzv-id") or "")
    # What the batch shell expands is the same on all nodes.
    early = drawn and any(drawn[0] in word.live for word in launch.command.words)
    if drawn and launch.in_shell and not early:
        return f"--rdzv-id={launch.option('rdzv-id')} is drawn on each node by itself"
    return ""
