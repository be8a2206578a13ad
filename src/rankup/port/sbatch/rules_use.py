"""Rules about what is asked for and what is used of it: GPUs, CPUs, files, the job's exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...base.files import open_regular
from ...base.findings import Finding
from . import codes
from .launches import Launch
from .rules_form import judged
from .seen import Seen
from .shell import Command

# Of scripts that start a process per GPU, or use several from one process.
_MANY = re.compile(
    rb"DataParallel|device_map|mp\.spawn|multiprocessing\.spawn|\bTrainer\b|lightning|accelerate"
    rb"|deepspeed|tensor_parallel_size|cuda:1\b|start_processes|submitit"
)
_READ = 1 << 20
_STATUS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS")


def idle_gpus(seen: Seen) -> Iterator[Finding]:
    """RK161."""
    gpus = seen.script.gpus()
    if not gpus:
        return
    used = [(_used(seen, one), one) for one in seen.launches]
    if not used or any(count is None for count, _ in used):
        return
    if any(one.command.after == "&" for _, one in used):  # several at once
        return
    most, launch = max(used, key=lambda pair: pair[0] or 0)
    if most is not None and most < gpus:
        what = "one process" if most == 1 else f"{most} processes"
        todo = (
            "torchrun --nproc-per-node=gpu" if launch.torchrun else "rankup port makes it torchrun"
        )
        yield seen.find(
            codes.IDLE_GPUS,
            "warning",
            launch.line,
            f"{gpus} GPUs of each node are asked for, and {what} started: "
            f"{gpus - most} are paid for and idle",
            f"{todo}; or ask for {most}",
        )


def hidden_gpus(seen: Seen) -> Iterator[Finding]:
    """RK161, too."""
    gpus = seen.script.gpus()
    visible = seen.script.values.get("CUDA_VISIBLE_DEVICES")
    if gpus and visible is not None and re.fullmatch(r"[0-9, ]+", visible):
        count = len(visible.split(","))
        setting = seen.sets("CUDA_VISIBLE_DEVICES")
        if count < gpus and setting is not None:
            yield seen.find(
                codes.IDLE_GPUS,
                "warning",
                setting.line,
                f"CUDA_VISIBLE_DEVICES={visible} hides {gpus - count} of the {gpus} GPUs that are "
                "asked for",
                "remove the line; torchrun gives each rank its GPU",
            )


def _used(seen: Seen, launch: Launch) -> int | None:
    """GPUs of a node that a launch can use; None where it cannot be told."""
    tasks = seen.tasks(launch)
    if tasks is None or seen.wrapped(launch):
        return None
    if launch.torchrun:
        ranks = seen.ranks(launch)
        return None if ranks is None else tasks * ranks
    if launch.script is None or any("$" in word for word in launch.words[:2]):
        return None
    path = find(seen, seen.script.resolve(launch.script))
    if path is not None:
        try:
            with open_regular(path) as file:
                if _MANY.search(file.read(_READ)):
                    return None
        except OSError:
            return None
    return tasks


def too_many_ranks(seen: Seen) -> Iterator[Finding]:
    """RK168."""
    gpus = seen.script.gpus()
    for launch in seen.launches:
        ranks = seen.ranks(launch) if launch.torchrun else None
        if gpus and ranks is not None and ranks > gpus and "gpu" not in _words(launch):
            yield seen.find(
                codes.TOO_MANY_RANKS,
                "error",
                launch.line,
                f"{ranks} ranks on a node of which {gpus} GPU(s) are asked for: CUDA finds no "
                "device for the last ones",
                f"--nproc-per-node=gpu; or #SBATCH --gres=gpu:{ranks}",
            )


def _words(launch: Launch) -> str:
    return launch.option("nproc-per-node") or ""


def one_core(seen: Seen) -> Iterator[Finding]:
    """RK159."""
    if seen.script.asked("cpus-per-task") is None or seen.sets("SRUN_CPUS_PER_TASK"):
        return
    for launch in seen.launches:
        if launch.srun is None or any(
            one.name in ("cpus-per-task", "cpus-per-gpu", "exclusive") for one in launch.srun
        ):
            continue
        yield seen.find(
            codes.ONE_CORE,
            "warning",
            launch.line,
            "since Slurm 22.05 srun does not take --cpus-per-task over from the directives: all "
            "ranks of a node may share one core",
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" above it',
        )
        return


def no_cpus(seen: Seen) -> Iterator[Finding]:
    """RK171."""
    asked = ("cpus-per-task", "cpus-per-gpu", "mincpus", "exclusive", "tres-per-task")
    if not seen.script.gpus() or seen.script.asked(*asked) is not None:
        return
    for launch in seen.launches:
        if launch.torchrun and launch.srun is not None:
            names = {one.name for one in launch.srun}
            if not names & {"cpus-per-task", "cpus-per-gpu", "exclusive"}:
                yield seen.find(
                    codes.NO_CPUS,
                    "warning",
                    launch.line,
                    "no --cpus-per-task: a task gets one core by default, for all ranks and "
                    "workers of a node",
                    "#SBATCH --cpus-per-task=N, the cores of a node",
                )
                return


def lost_status(seen: Seen) -> Iterator[Finding]:
    """RK160."""
    script = seen.script
    if not seen.launches or _careful(script.commands, "-e", "errexit"):
        return
    launch = seen.launches[-1]
    command = launch.command
    if command.depth or command.function or command.before in ("&&", "||", "if", "!", "while"):
        return
    later = [one for one in script.commands if one.start > command.end and not one.function]
    if command.after == "|":
        if not _careful(script.commands, "", "pipefail") and not _kept(later):
            yield seen.find(
                codes.LOST_STATUS,
                "warning",
                launch.line,
                "the job's exit code is that of the last command of the pipe: a failed run ends "
                "as COMPLETED",
                "set -o pipefail above it",
            )
            return
        while later and later[0].before == "|":
            later.pop(0)
    if command.after in ("&", "||", "&&") or not later or _kept(later):
        return
    yield seen.find(
        codes.LOST_STATUS,
        "warning",
        launch.line,
        f"commands follow (line {later[0].line}), and the job's exit code is theirs: a failed run "
        "ends as COMPLETED",
        "rc=$? behind it, and exit $rc as the last line",
    )


def _kept(later: list[Command]) -> bool:
    """Whether a status is read, and is what the script ends with."""
    text = " ".join(word.text for one in later for word in one.words)
    ends = [one for one in later if one.name() in ("exit", "end_life")]
    return bool(_STATUS.search(text)) and bool(ends) and len(ends[-1].words) > 1


def _careful(commands: tuple[Command, ...], flag: str, name: str) -> bool:
    """Whether `set` switches an option on."""
    for command in commands:
        if command.name() != "set" or command.function:
            continue
        for word in command.values[1:]:
            short = re.fullmatch(r"-[a-zA-Z]+", word) and flag and flag[1] in word[1:]
            if short or word == name:
                return True
    return False


def not_waited(seen: Seen) -> Iterator[Finding]:
    """RK170."""
    for launch in seen.launches:
        command = launch.command
        if command.after != "&" or command.function:
            continue
        if not any(one.name() == "wait" for one in seen.script.commands if one.start > command.end):
            yield seen.find(
                codes.NOT_WAITED,
                "error",
                launch.line,
                "it is started in the background and nothing waits for it: the job ends, and "
                "Slurm kills it",
                "wait, as the last command",
            )
            return


def no_file(seen: Seen) -> Iterator[Finding]:
    """RK165."""
    missing = [(one.line, one.script) for one in seen.launches if one.script and not one.container]
    missing += [
        (one.line, one.words[1].value)
        for one in seen.script.commands
        if one.name() in ("source", ".") and len(one.words) > 1 and not one.depth
    ]
    for line, name in missing:
        if find(seen, seen.script.resolve(name)) is None and _told(seen, name, line):
            yield seen.find(
                codes.NO_FILE,
                "error",
                line,
                f"{name} is not there",
                "name the file; a path counts from the folder in which sbatch is called",
            )


def _told(seen: Seen, name: str, line: int) -> bool:
    """Whether it can be told that a file is not there."""
    text = seen.script.resolve(name)
    if re.search(r"[$`*?{}~\0]", text) or not judged(Path(text)):
        return False
    moved = any(one.name() in ("cd", "pushd", "git", "wget", "cp") and one.line < line
                for one in seen.script.commands)  # fmt: skip
    return Path(text).is_absolute() or not moved


def find(seen: Seen, name: str) -> Path | None:
    """A file that the job would find."""
    chdir = seen.script.asked("chdir", "workdir") or ""
    starts = (seen.script.path.resolve().parent, Path.cwd())
    for path in (folder / name for start in starts for folder in (start / chdir, start)):
        with suppress(OSError, ValueError):
            if path.is_file():
                return path
    return None
