"""Rules about the job: its environment, its CPUs, its files, its signals, its exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..rules.rule import Hit, rule
from .job import Job
from .rules_form import judged
from .table import UNKNOWN, Step

_HANDLED = re.compile(
    rb"signal\.signal\(|add_signal_handler|sigtimedwait|sigwait|\brankup\b|lightning|submitit"
    rb"|signal_handler|SignalHandler|from signal import"
)
_NOT_OURS = re.compile(  # of sites and their modules, set where the job runs
    r"\w*(?:SCRATCH|TMP|TEMP|DATA|WORK|PROJECT|HOME|STORE|DIR|PATH|ROOT|VERSION|PREFIX|PROXY)\w*$"
    r"|(?:EB|CONDA|VIRTUAL_ENV|LMOD|CUDA|NCCL|NODE_LOCAL|LOCAL|HF_|WANDB|SYSTEM|CLUSTER|SITE)\w*$"
    r"|(?:HOSTNAME|USER|LOGNAME|GROUP|UID|EUID|PPID|RANDOM|SECONDS|EPOCHSECONDS|LINENO|OLDPWD)$"
)
_SIGNALS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP", "14": "ALRM"}
_ENDING = frozenset((*_SIGNALS.values(), "QUIT", "KILL"))
_SIGNAL = re.compile(r"(?:(R?B?)R?:)?(?:SIG)?(\w+)(?:@(\d+))?")
# Programs that see the files of the node; what else starts a program is a container.
_OUTSIDE = frozenset(
    ("uv", "conda", "mamba", "micromamba", "poetry", "pipenv", "pixi", "hatch", "rye", "nsys",
     "ncu", "rocprof", "rocprofv3", "vtune")
)  # fmt: skip
_IMAGES = frozenset(("container-image", "container", "image", "uenv"))
_FETCHING = ("cd", "git", "wget", "cp", "curl", "tar", "unzip", "rsync")
_CONDA = ("conda", "mamba", "micromamba")


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
    read = [line for line in job.script.directives if line.read]
    if read and job.steps and "time" not in job.table.allocation.asked:
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
    for step in job.single:
        given = {"cpus-per-task", "cpus-per-gpu", "exclusive"} & {*(step.srun or {})}
        if step.srun is not None and not given and "SRUN_CPUS_PER_TASK" not in step.environment:
            yield Hit(
                step.line,
                "srun does not take --cpus-per-task over: all ranks of a node may share one core",
                'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" above it',
            )
            return


@rule("RK160", "warning", "a failed job that ends as COMPLETED", whole=True)
def lost_status(job: Job) -> Iterator[Hit]:
    """Commands behind the run, or a pipe, with which the job ends well although the run failed: the
    file is executed once more, and its last program fails. What asks itself whether the run failed
    (`||`, `if`, a loop that tries again) is left alone.

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
    if not job.steps or job.last.background or job.again.status != 0:
        return
    line, again = job.last.line, job.again
    if [step.line for step in job.steps].count(line) > 1:  # one of several that are alike
        return
    if job.last.piped and not again.untested:
        yield Hit(
            line,
            "the job's exit code is that of the pipe's end: a failed run ends as COMPLETED",
            "set -o pipefail above it",
        )
    later = [at for at in again.later if not _goes_on(job, line, at)]
    if again.untested or (later and job.last.piped):
        yield Hit(
            line,
            f"commands follow (line {later[0] if later else line}), and the job's exit code is "
            "theirs: a failed run ends as COMPLETED",
            "rc=$? behind it, and exit $rc as the last line",
        )


def _goes_on(job: Job, line: int, until: int) -> bool:
    """True where a line belongs to the command that begins in another one."""
    between = job.script.lines[line - 1 : until - 1]
    return all(text.rstrip().endswith(("\\", "|", "&&", "||")) for text in between)


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
    script, table = job.script, job.table
    names = [
        (step.line, step.program.script) for step in job.single
        if step.program.script and not step.moved and not step.unset and not _contained(step)
    ] + [
        (line, words[1]) for line, words in table.named("source")
        if words[2:] == ("missing",) and "/" in words[1]
        and not re.search(r"[$`~]", script.lines[line - 1])
    ]  # fmt: skip
    venvs = [line for line, words in table.commands if {"venv", "virtualenv"} & {*words}]
    fetched = min((line for line, _ in table.named(*_FETCHING)), default=len(script.lines))
    for line, name in names:
        if re.search(r"[$`*?{}~\0]", name) or UNKNOWN.search(name) or script.find(name):
            continue
        if re.search(rf"(?:>|\btee)\s*[\"']?{re.escape(name)}", script.text):  # the job writes it
            continue
        made_here = name.endswith("bin/activate") and any(at <= line for at in venvs)
        still = Path(name).is_absolute() or fetched >= line
        if still and not made_here and judged(Path(name)):
            yield Hit(
                line,
                f"{name} is not there",
                "name the file; a path counts from the folder in which sbatch is called",
            )


def _contained(step: Step) -> bool:
    """True of what runs in a container, where other files may be, or in a file of its own."""
    return bool({*step.program.inside} - _OUTSIDE or _IMAGES & {*(step.srun or {})})


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
    match = _SIGNAL.fullmatch(option.value or "") if option else None
    if option is None or match is None:
        return
    shell, name, before = "B" in (match[1] or ""), _signal(match[2]), int(match[3] or 60)
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
    traps = [line for line, words in job.table.named("trap") if name in map(_signal, words[2:])]
    # A line may trap it that was not come to: in a task, or in a function.
    guarded = bool(traps) or any(re.search(rf"\btrap\b.*{name}", line) for line in job.script.lines)
    if shell and traps and not job.last.background:
        yield Hit(
            job.last.line,
            f"bash runs the trap of line {traps[0]} only when this has ended: behind the kill",
            "put & behind it, and wait in a line of its own",
        )
    elif shell and not guarded:
        yield Hit(
            option.line,
            f"{name} goes to the batch shell, which has no trap for it: it ends the job "
            f"{before} s before its time",
            f"trap '…' {name} above the run, and srun … & wait; or --signal={name}@{before}",
        )
    elif not shell and all(step.srun is None for step in job.steps) and not job.spread:
        yield Hit(
            option.line,
            f"{name} goes to what srun starts, and nothing is started by srun",
            f"srun in front of the run; or --signal=B:{name}@{before} and a trap",
            level="warning",
        )
    elif not shell and any(step.srun is not None for step in job.steps) and not guarded:
        text, script = job.content(job.last), job.last.program.script
        if text and not _HANDLED.search(text):
            yield Hit(
                option.line,
                f"{name} goes to every process of the run, and {script} has no "
                f"handler for it: it ends {before} s before its time",
                "signal.signal(…) in the script, which saves and ends; rankup.Deadline does that",
                level="warning",
            )


def _signal(word: str) -> str:
    word = word.upper().removeprefix("SIG")
    return _SIGNALS.get(word, word)


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
    waits = [line for line, _ in job.table.named("wait", "tail", "sleep")]
    for step in job.single:
        if step.background and not any(at > step.line for at in waits):
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
    if re.search(r"\s-\w*[li]|--login", job.script.lines[0]):
        return
    # A module may bring it, and so may a file.
    prepared = [(line, words) for line, words in job.table.setup] + job.table.named("source")
    for line, words in sorted(prepared)[:1]:
        if words[0].rpartition("/")[2] in _CONDA and words[1:2] == ("activate",):
            yield Hit(
                line,
                f"`{words[0]} activate` before {words[0]}'s hook: a batch shell reads no "
                "~/.bashrc, so that it ends with CommandNotFoundError",
                'eval "$(conda shell.bash hook)" above it, or source …/etc/profile.d/conda.sh',
            )


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
    for step in job.single:
        names = [
            f"${name}" for name in dict.fromkeys(step.unset)
            if not (_NOT_OURS.match(name) or _left_empty(step.raw, name))
        ]  # fmt: skip
        if names:
            yield Hit(
                step.line,
                f"nothing sets {', '.join(names)}: it is empty",
                "set it above, or write the value",
            )


def _left_empty(raw: str, name: str) -> bool:
    """True of a word of its own, behind no option: `python train.py $EXTRA` may mean nothing."""
    used = re.findall(rf"(\S+)\s+(\S*\$\{{?{name}\b\S*)", f" . {raw}")
    alone = rf"[\"']*\$(?:{name}|\{{{name}\}})[\"']*"
    return all(
        re.fullmatch(alone, word) and not re.fullmatch(r"--?\w[^=]*", before)
        for before, word in used
    )
