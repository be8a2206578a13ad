"""Rules about what is asked for and used, how nodes meet, and the job's exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..rules.rule import Hit, rule
from .launches import Launch, base_name
from .rules_form import judged
from .script import BatchScript
from .shell import Command

if TYPE_CHECKING:
    from ..rewrite.edits import Edits

# Of scripts that start a process per GPU, or use several from one process.
_MANY = re.compile(
    rb"DataParallel|device_map|mp\.spawn|multiprocessing\.spawn|\bTrainer\b|lightning|accelerate"
    rb"|deepspeed|tensor_parallel_size|cuda:1\b|start_processes|submitit"
)
_STATUS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS")
_CPUS = ("cpus-per-task", "cpus-per-gpu", "exclusive")
_IDS = re.compile(r"\bSLURM_(?:NODEID|PROCID|LOCALID)\b")
_RANK = re.compile(r"(?:\w*_)?RANK=")
_DRAWN = re.compile(r"\$\{?RANDOM\b|\$\$|\$\((?:date|uuidgen|hostname|openssl|mktemp)\b")
_LOOPBACK = re.compile(r"^(?:localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0)(?::|$)")


@rule("RK159", "warning", "srun does not get the CPUs", whole=True)
def one_core(script: BatchScript) -> Iterator[Hit]:
    """`--cpus-per-task` in the directives, and an srun that does not get it.

    Since Slurm 22.05 srun does not take it over: all ranks and workers of a node may share one
    core.

    ```diff
    +export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     srun python train.py
    ```
    """
    if script.asked("cpus-per-task") is None or script.sets("SRUN_CPUS_PER_TASK"):
        return
    for launch in script.launches:
        if launch.srun is not None and not any(one.name in _CPUS for one in launch.srun):
            yield Hit(
                launch.line,
                "srun does not take --cpus-per-task over: all ranks of a node may share one core",
                'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" above it',
            )
            return


@rule("RK160", "warning", "a failed job that ends as COMPLETED", whole=True)
def lost_status(script: BatchScript) -> Iterator[Hit]:
    """Commands behind the run, or a pipe, in a script without `set -e`, `set -o pipefail` or an
    `exit` with the run's status.

    The job's exit code is that of its last command: a run that failed ends as COMPLETED, and jobs
    that depend on it start.

    ```diff
     srun python train.py
    -echo "ended"
    +rc=$?
    +echo "ended with $rc"
    +exit $rc
    ```
    """
    if not script.launches or _switched_on(script, "e", "errexit"):
        return
    launch = (script.training or script.launches)[-1]
    command = launch.command
    if command.depth or command.function or command.background:
        return
    later = [one for one in script.commands if one.start >= command.until and not one.function]
    if _kept(later):
        return
    if command.piped and not _switched_on(script, "", "pipefail"):
        yield Hit(
            launch.line,
            "the job's exit code is that of the pipe's end: a failed run ends as COMPLETED",
            "set -o pipefail above it",
            fix=partial(_pipefail, script, command),
        )
    if later and not command.tested:
        yield Hit(
            launch.line,
            f"commands follow (line {later[0].line}), and the job's exit code is theirs: a "
            "failed run ends as COMPLETED",
            "rc=$? behind it, and exit $rc as the last line",
            fix=partial(_keep_status, script, command),
        )


def _pipefail(script: BatchScript, command: Command, edits: Edits) -> str:
    text = "set -o pipefail"
    edits.lines_before(script.starts[command.first - 1], f"{text} # a failed run is a failed job")
    return f"{text}, so that a failed run is a failed job"


def _keep_status(script: BatchScript, command: Command, edits: Edits) -> str:
    """Let the run's exit code be the job's, where that can be done by two lines."""
    shares = [
        one for one in script.commands if one.first == command.last and one.until != command.until
    ]
    if script.commands[-1].name() == "exit" or shares:
        return f"line {command.line}: the job's exit code is not the run's (RK160)"
    end = script.starts[command.last - 1] + len(script.lines[command.last - 1])
    edits.lines_after(end, "", "rankup_status=$? # a failed run is a failed job")
    status = "$rankup_status"
    if script.launches[-1].command.start > command.start:  # which may fail as well
        status = "$((rankup_status ? rankup_status : $?))"
    edits.lines_after(len(script.text.rstrip()), "", f"exit {status}")
    return ""


@rule("RK161", "warning", "GPUs asked for and not used", whole=True)
def idle_gpus(script: BatchScript) -> Iterator[Hit]:
    """Fewer processes on a node than GPUs are asked for, or a `CUDA_VISIBLE_DEVICES` with fewer. A
    script that uses several GPUs from one process, or starts more by itself, is not reported, nor
    are several runs side by side.

    GPUs that no process uses are paid for like the others.

    Let torchrun start a rank for each GPU (`rankup port` writes that for a job on one GPU), or ask
    for what is used, where the machine shares its nodes:

    ```diff
    -srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=$MASTER_ADDR:$PORT train.py
    +srun torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-endpoint=$MASTER_ADDR:$PORT train.py
    ```
    """
    gpus = script.gpus()
    if not gpus:
        return
    yield from _hidden(script, gpus)
    used: list[tuple[int, Launch]] = []
    for launch in script.launches:
        count = _used(script, launch)
        if count is None or launch.command.background:  # several at once
            return
        used.append((count, launch))
    if not used:
        return
    most, launch = max(used, key=lambda pair: pair[0])
    if most < gpus:
        what = "one process" if most == 1 else f"{most} processes"
        todo = "torchrun --nproc-per-node=gpu"
        todo = todo if launch.torchrun else "rankup port makes it torchrun"
        yield Hit(
            launch.line,
            f"{gpus} GPUs for {what} on each node: {gpus - most} are paid for and idle",
            f"{todo}; or ask for {most}",
        )


def _hidden(script: BatchScript, gpus: int) -> Iterator[Hit]:
    visible = script.values.get("CUDA_VISIBLE_DEVICES", "")
    setting = script.sets("CUDA_VISIBLE_DEVICES")
    count = len(visible.split(","))
    if setting is not None and re.fullmatch(r"[0-9, ]+", visible) and count < gpus:
        yield Hit(
            setting.line,
            f"CUDA_VISIBLE_DEVICES={visible} hides {gpus - count} of the {gpus} GPUs of a node",
            "remove the line; torchrun gives each rank its GPU",
        )


@rule("RK165", "error", "a file that is not there")
def no_file(script: BatchScript) -> Iterator[Hit]:
    """The Python script that is started, and files that are sourced, which are neither beside the
    batch script nor in the current folder. Names with variables whose value is not in the script,
    paths behind a `cd`, and paths of another machine's file systems are left alone.

    The job waits in the queue to end after a second.

    Name the file as it is called; a relative path counts from the folder in which `sbatch` is
    called:

    ```diff
    -srun python tain.py
    +srun python train.py
    ```
    """
    names = [(one.line, one.script) for one in script.launches if not one.container]
    names += [
        (one.line, one.words[1].value)
        for one in script.commands
        if one.name() in ("source", ".") and len(one.words) > 1 and not one.depth
    ]
    moves = ("cd", "pushd", "git", "wget", "cp")
    moved = next((one.line for one in script.commands if one.name() in moves), None)
    made = [one.line for one in script.commands if {"venv", "virtualenv"} & {*one.values}]
    for line, name in names:
        path = script.resolve(name or "")
        if not name or re.search(r"[$`*?{}~\0]", path) or script.find(path) is not None:
            continue
        if re.search(rf"(?:>|\btee)\s*[\"']?{re.escape(name)}", script.text):  # the job writes it
            continue
        if path.endswith("bin/activate") and any(at <= line for at in made):
            continue
        still = Path(path).is_absolute() or moved is None or moved >= line
        if still and judged(Path(path)):
            yield Hit(
                line,
                f"{name} is not there",
                "name the file; a path counts from the folder in which sbatch is called",
            )


@rule("RK170", "error", "a job that does not wait for its processes", whole=True)
def not_waited(script: BatchScript) -> Iterator[Hit]:
    """A run that is started with `&`, in a script that waits for nothing.

    The script comes to its end at once; Slurm then ends the job and kills what still runs.

    ```diff
     srun python train.py &
    +wait
    ```
    """
    waits = [one.start for one in script.commands if one.name() == "wait"]
    for launch in script.launches:
        command = launch.command
        alone = command.background and not command.function
        if alone and not any(at > command.start for at in waits[-1:]):
            yield Hit(
                launch.line,
                "nothing waits for what is started in the background: Slurm kills it",
                "wait, as the last command",
            )
            return


@rule("RK171", "warning", "CPUs are not asked for")
def no_cpus(script: BatchScript) -> Iterator[Hit]:
    """torchrun through srun in a job with GPUs that asks for no CPUs.

    A task gets one core by default, and all ranks and data loading of the node share it.

    Ask for the cores of a node, and hand them on to srun (RK159):

    ```diff
     #!/bin/bash
     #SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4 --time=01:00:00
    +#SBATCH --cpus-per-task=48
    +export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     srun torchrun --nnodes=2 --nproc-per-node=gpu --rdzv-endpoint=$MASTER_ADDR:$PORT train.py
    ```
    """
    if not script.gpus() or script.asked(*_CPUS, "mincpus", "tres-per-task") is not None:
        return
    for launch in script.launches:
        if launch.under_srun and not any(one.name in _CPUS for one in launch.srun or ()):
            yield Hit(
                launch.line,
                "no --cpus-per-task: a task gets one core, for all ranks of a node",
                "#SBATCH --cpus-per-task=N, the cores of a node",
            )
            return


def _used(script: BatchScript, launch: Launch) -> int | None:
    """Return the GPUs of a node that a launch can use; None where it cannot be told."""
    tasks = script.tasks_per_node(launch)
    if tasks is None or script.spread(launch):
        return None
    if launch.torchrun:
        ranks = script.ranks(launch)
        return None if ranks is None else tasks * ranks
    if launch.script is None or any("$" in word for word in launch.words[:2]):
        return None
    return None if _MANY.search(script.content(launch.script)) else tasks


def _kept(later: Sequence[Command]) -> bool:
    """Return True where a status is read, and the script ends with one."""
    text = " ".join(word.text for one in later for word in one.words)
    ends = [one for one in later if one.name() in ("exit", "end_attempt")]
    return bool(_STATUS.search(text)) and bool(ends) and len(ends[-1].words) > 1


def _switched_on(script: BatchScript, letter: str, name: str) -> bool:
    """Return True where `set`, or the first line, switches an option on."""
    called = [one.values for one in script.commands if one.name() == "set" and not one.function]
    given = [word for words in (script.lines[0].split(), *called) for word in words[1:]]
    short = re.compile(rf"-[a-zA-Z]*{letter}[a-zA-Z]*")
    return name in given or bool(letter and any(map(short.fullmatch, given)))


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
                    f"${early[0]} is expanded on the first node: all nodes get that node's number",
                    "put it in single quotes within `bash -c`, or write a \\ before its $",
                )
                break
            if _RANK.match(word.value) and not command.function and spread:
                yield Hit(
                    word.line,
                    f"{word.text} is set once, by the batch shell: every task gets the same",
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
                f"srun starts {tasks} torchruns on each node, each with all ranks of the node",
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
