"""Rules about the job: its environment, its CPUs, its files, its signals, its exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..rules.rule import Hit, rule
from .job import Job
from .rules_form import judged
from .shell import Command
from .table import Step

_STATUS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS")
_CPUS = ("cpus-per-task", "cpus-per-gpu", "exclusive")
_HANDLED = re.compile(
    rb"signal\.signal\(|add_signal_handler|sigtimedwait|sigwait|\brankup\b|lightning|submitit"
    rb"|signal_handler|SignalHandler|from signal import"
)
_NOT_OURS = re.compile(  # of sites and their modules, set where the job runs
    r"\w*(?:SCRATCH|TMP|TEMP|DATA|WORK|PROJECT|HOME|STORE|DIR|PATH|ROOT|VERSION|PREFIX|PROXY)\w*$"
    r"|(?:EB|CONDA|VIRTUAL_ENV|LMOD|CUDA|NCCL|NODE_LOCAL|LOCAL|HF_|WANDB|SYSTEM|CLUSTER|SITE)\w*$"
    r"|(?:HOSTNAME|USER|LOGNAME|GROUP|UID|EUID|PPID|RANDOM|SECONDS|EPOCHSECONDS|LINENO|OLDPWD)$"
)
_ENDING = {"USR1", "USR2", "TERM", "INT", "HUP", "ALRM", "QUIT", "KILL"}
_NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP", "14": "ALRM"}
_TOLD = re.compile(r"(?:(R?B?)R?:)?(?:SIG)?(\w+)(?:@(\d+))?")


@rule("RK155", "warning", "no time limit")
def no_limit(job: Job) -> Iterator[Hit]:
    """No `--time` in a job that starts Python.

    The partition's default holds: minutes, in which the run is killed, or the longest there is,
    with which the job waits long for its turn.

    ```diff
     #!/bin/bash
    -#SBATCH --nodes=1
    +#SBATCH --nodes=1 --time=02:00:00
     python train.py
    ```
    """
    read = [one for one in job.script.directives if one.read]
    if read and job.steps and job.script.asked("time") is None:
        yield Hit(
            read[-1].line,
            "no time limit: the partition's default holds, minutes or the longest there is",
            "#SBATCH --time=02:00:00, a little more than the run needs",
        )


@rule("RK159", "warning", "srun does not get the CPUs", whole=True)
def one_core(job: Job) -> Iterator[Hit]:
    """`--cpus-per-task` in the directives, and an srun that does not get it.

    Since Slurm 22.05 srun does not take it over: all ranks and workers of a node may share one
    core.

    ```diff
    +export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     srun python train.py
    ```
    """
    if "cpus-per-task" not in job.table.allocation.asked:
        return
    for step in job.single():
        told = "SRUN_CPUS_PER_TASK" in step.tasks[0].environment
        if step.srun is not None and not told and not {*_CPUS} & {*step.srun}:
            yield Hit(
                step.line,
                "srun does not take --cpus-per-task over: all ranks of a node may share one core",
                'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" above it',
            )
            return


@rule("RK160", "warning", "a failed job that ends as COMPLETED", whole=True)
def lost_status(job: Job) -> Iterator[Hit]:
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
    script = job.script
    if not job.steps or _switched_on(job, "e", "errexit"):
        return
    line = _last(job).line
    command = job.command(line)
    if command is None or command.depth or command.function or command.background:
        return
    later = [one for one in script.commands if one.start >= command.until and not one.function]
    if _kept(later):
        return
    if command.piped and not _switched_on(job, "", "pipefail"):
        yield Hit(
            line,
            "the job's exit code is that of the pipe's end: a failed run ends as COMPLETED",
            "set -o pipefail above it",
        )
    if later and not command.tested:
        yield Hit(
            line,
            f"commands follow (line {later[0].line}), and the job's exit code is theirs: a "
            "failed run ends as COMPLETED",
            "rc=$? behind it, and exit $rc as the last line",
        )


def _last(job: Job) -> Step:
    """The last step; where several scripts are started, the last that trains."""
    names = {one.program.name for one in job.steps}
    if len(names) > 1:
        for step in reversed(job.steps):
            role = job.script.understood(step.program.script or "")
            if role is not None and role.trains:
                return step
    return job.steps[-1]


def _kept(later: Sequence[Command]) -> bool:
    """True where a status is read, and the script ends with one."""
    text = " ".join(word.text for one in later for word in one.words)
    ends = [one for one in later if one.name() in ("exit", "end_attempt")]
    return bool(_STATUS.search(text)) and bool(ends) and len(ends[-1].words) > 1


def _switched_on(job: Job, letter: str, name: str) -> bool:
    """True where `set`, or the first line, switches an option on."""
    script = job.script
    called = [one.values for one in script.commands if one.name() == "set" and not one.function]
    given = [word for words in (script.lines[0].split(), *called) for word in words[1:]]
    short = re.compile(rf"-[a-zA-Z]*{letter}[a-zA-Z]*")
    return name in given or bool(letter and any(map(short.fullmatch, given)))


@rule("RK165", "error", "a file that is not there")
def no_file(job: Job) -> Iterator[Hit]:
    """The Python script that is started, and files that are sourced, which are neither beside the
    batch script nor in the current folder. Names with variables, names that bash looks up in PATH,
    paths behind a `cd`, and paths of another machine's file systems are left alone.

    The job waits in the queue to end after a second.

    Name the file as it is called; a relative path counts from the folder in which `sbatch` is
    called:

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    -srun python tain.py
    +srun python train.py
    ```
    """
    script = job.script
    names = [
        (one.line, one.program.script)
        for one in job.single()
        if one.program.script and not one.moved and not one.unset and not _contained(one)
    ]
    names += [
        (line, name)
        for line, name, where in job.table.sourced
        if where == "0" and "/" in name and not re.search(r"[$`~]", script.lines[line - 1])
    ]
    made = [one.line for one in script.commands if {"venv", "virtualenv"} & {*one.values}]
    moves = ("cd", "pushd", "git", "wget", "cp", "curl", "tar", "unzip", "rsync")
    moved = next((one.line for one in script.commands if one.name() in moves), None)
    for line, name in names:
        if re.search(r"[$`*?{}~\0]|770000", name) or script.find(name) is not None:
            continue
        if re.search(rf"(?:>|\btee)\s*[\"']?{re.escape(name)}", script.text):  # the job writes it
            continue
        if name.endswith("bin/activate") and any(at <= line for at in made):
            continue
        still = Path(name).is_absolute() or moved is None or moved >= line
        if still and judged(Path(name)):
            yield Hit(
                line,
                f"{name} is not there",
                "name the file; a path counts from the folder in which sbatch is called",
            )


def _contained(step: Step) -> bool:
    """True of what runs in a container, where other files may be, or in a file of its own."""
    outside = {"uv", "conda", "mamba", "micromamba", "poetry", "pipenv", "pixi", "hatch", "rye"}
    outside |= {"nsys", "ncu", "rocprof", "rocprofv3", "vtune"}
    image = {"container-image", "container", "image", "uenv"} & {*(step.srun or {})}
    return bool(set(step.program.inside) - outside or image)


@rule("RK168", "error", "a signal that ends the run")
def signals(job: Job) -> Iterator[Hit]:
    """`--signal=B:USR1@300` without a `trap` in the batch script, or with one that bash comes to
    only when srun has ended; `--signal=USR1@300` for a script that handles no signal; seconds
    beyond the time limit.

    A signal that nobody handles ends the process: the job is over minutes early, and nothing is
    saved. While srun runs in the foreground bash runs no trap.

    ```diff
     #!/bin/bash
     #SBATCH --nodes=1 --gres=gpu:1 --cpus-per-task=8 --time=01:00:00 --signal=B:USR1@120
     trap 'scontrol requeue $SLURM_JOB_ID' USR1
    -srun --cpus-per-task=8 torchrun --standalone --nproc-per-node=1 train.py
    +srun --cpus-per-task=8 torchrun --standalone --nproc-per-node=1 train.py &
    +wait
    ```
    """
    option = job.script.option("signal")
    match = _TOLD.fullmatch(option.value or "") if option else None
    if option is None or match is None:
        return
    shell, name, before = "B" in (match[1] or ""), match[2].upper(), int(match[3] or 60)
    name = _NUMBERS.get(name, name)
    limit = job.table.allocation.seconds
    if limit and before >= limit:
        yield Hit(
            option.line,
            f"the signal comes {before} s before the end, and the job has {limit} s: at once",
            "fewer seconds than --time has",
        )
        return
    if not job.steps or name not in _ENDING:
        return
    traps = [line for line, words in job.table.traps if name in map(_signal, words[1:])]
    if shell and not traps:
        if not _guarded(job, name):
            yield Hit(
                option.line,
                f"{name} goes to the batch shell, which has no trap for it: it ends the job "
                f"{before} s before its time",
                f"trap '…' {name} above the run, and srun … & wait; or --signal={name}@{before}",
            )
    elif shell:
        step = _last(job)
        command = job.command(step.line)
        if command is not None and not command.background and not command.function:
            yield Hit(
                step.line,
                f"bash runs the trap of line {traps[0]} only when this has ended: behind the kill",
                "put & behind it, and wait in a line of its own",
            )
    elif not any(one.srun is not None for one in job.steps):
        if not job.spread:
            yield Hit(
                option.line,
                f"{name} goes to what srun starts, and nothing is started by srun",
                f"srun in front of the run; or --signal=B:{name}@{before} and a trap",
                level="warning",
            )
    else:
        step = _last(job)
        text = job.content(step)
        if text and not traps and not _HANDLED.search(text) and not _guarded(job, name):
            yield Hit(
                option.line,
                f"{name} goes to every process of the run, and {step.program.script} has no "
                f"handler for it: it ends {before} s before its time",
                "signal.signal(…) in the script, which saves and ends; rankup.Deadline does that",
                level="warning",
            )


def _signal(word: str) -> str:
    word = word.upper().removeprefix("SIG")
    return _NUMBERS.get(word, word)


def _guarded(job: Job, name: str) -> bool:
    """True where a line may trap a signal that was not come to: in a task, or a function."""
    return any(re.search(rf"\btrap\b.*{name}", line) for line in job.script.lines)


@rule("RK170", "error", "a job that does not wait for its processes", whole=True)
def not_waited(job: Job) -> Iterator[Hit]:
    """A run that is started with `&`, in a script that waits for nothing.

    The script comes to its end at once; Slurm then ends the job and kills what still runs.

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
     srun python train.py &
    +wait
    ```
    """
    waits = [one.line for one in job.script.commands if one.name() in ("wait", "tail", "while")]
    waits += job.table.waits
    for step in job.single():
        command = job.command(step.line)
        if command is None or not command.background or command.function:
            continue
        if not any(at > step.line for at in waits):
            yield Hit(
                step.line,
                "nothing waits for what is started in the background: Slurm kills it",
                "wait, as the last command",
            )
            return


@rule("RK180", "error", "conda before its hook")
def no_hook(job: Job) -> Iterator[Hit]:
    """`conda activate` in a script that has loaded nothing which would know how to do it.

    A batch shell does not read `~/.bashrc`: conda ends with CommandNotFoundError, and the job runs
    on with another Python.

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    +source "$HOME/miniconda3/etc/profile.d/conda.sh"
     conda activate torch
     srun python train.py
    ```
    """
    first = job.script.lines[0]
    if re.search(r"\s-\w*[li]|--login", first):
        return
    for line, words in sorted(job.table.setup):
        if words[0].rpartition("/")[2] in ("conda", "mamba", "micromamba"):
            if words[1:2] != ("activate",):
                return  # its hook
            if not any(at < line for at, _, _ in job.table.sourced):
                yield Hit(
                    line,
                    f"`{words[0]} activate` before {words[0]}'s hook: a batch shell reads no "
                    "~/.bashrc, so that it ends with CommandNotFoundError",
                    'eval "$(conda shell.bash hook)" above it, or source …/etc/profile.d/conda.sh',
                )
            return
        return  # a module may bring it


@rule("RK190", "warning", "a variable that nothing sets")
def nothing_sets(job: Job) -> Iterator[Hit]:
    """A variable in the words of what is started that neither the file sets nor Slurm, by what is
    asked for: `$SLURM_GPUS_PER_NODE` is set by `--gpus-per-node` alone, and not by `--gres`.

    It is empty: the option in front of it takes the next word for its value.

    ```diff
     export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    +gpus=4
     srun torchrun --standalone --nnodes=1 --nproc-per-node=$gpus train.py
    ```
    """
    for step in job.single():
        named = [one for one in step.unset if not _NOT_OURS.match(one)]
        if named:
            names = ", ".join(f"${one}" for one in dict.fromkeys(named))
            yield Hit(
                step.line,
                f"nothing sets {names}: it is empty",
                "set it above, or write the value",
            )
