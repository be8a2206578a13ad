"""`rankup run --like FILE`: a batch file's directives, set-up and Python command as a run."""

from __future__ import annotations

import difflib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.text import clean
from ..port.batch import script, shell
from ..port.batch.allocation import Allocation, allocation
from ..port.batch.job import Job
from ..port.batch.options import Option
from ..port.batch.script import BatchScript
from ..port.batch.shell import Command, is_assignment
from ..port.batch.table import JOBS, UNKNOWN, Step, executed
from ..site.jobspec import JobSpec
from ..slurm.client import Client
from . import submit

# Options of sbatch that `rankup run` has under a name of its own.
_NAMED = {
    "time": "time", "partition": "partition", "account": "account", "qos": "qos",
    "reservation": "reservation", "dependency": "dependency", "mail-user": "mail",
    "job-name": "name",
}  # fmt: skip
# What the job script sets by itself, out of the nodes and ranks of the run.
_OURS = frozenset(
    ("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket",
     "ntasks-per-core", "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket",
     "gpu-bind", "cpus-per-task", "cpus-per-gpu", "output", "error", "input", "chdir", "signal",
     "requeue", "no-requeue", "open-mode", *_NAMED)
)  # fmt: skip
_TYPED_GPU = re.compile(r"(?:gres/)?gpu:([A-Za-z][\w.-]*):\d+")
_SETUP = frozenset(
    ("module", "ml", "conda", "mamba", "micromamba", "spack", "source", ".", "eval", "ulimit",
     "umask", "unset", "shopt", "alias")
)  # fmt: skip
_EXPORTS = ("export", "declare", "typeset", "readonly")
# Variables by which ranks find each other, which the job script and torchrun set.
_MEETING = re.compile(
    r"(?:MASTER_(?:ADDR|PORT)|RANK|LOCAL_RANK|NODE_RANK|WORLD_SIZE|SRUN_CPUS_PER_TASK"
    r"|CUDA_VISIBLE_DEVICES|PYTHONUNBUFFERED)\+?(?:=|$)"
)
_LAUNCHER = re.compile(r"torchrun|torch\.distributed|\bsrun\b")
_SILENT = frozenset(
    ("", "echo", "printf", "set", "cd", "date", "hostname", "exit", "sleep", "wait")
)  # fmt: skip
_NODE = re.compile(r"(?<![\w.-])n[1-9]\d*(?![\w-])")  # a name of the made-up allocation
_SUBMITTED = re.compile(r"\"?\$\{?SLURM_SUBMIT_DIR\}?\"?/?")


def filled(path: Path, spec: JobSpec) -> JobSpec:
    """The options of a run, and where nothing was said those of a batch file.

    Raises:
        UserError: something in the file cannot be taken; the message says what.
    """
    if spec.resume is not None:
        raise UserError("--resume goes on with what the run was given; leave --like away")
    read = script.load(path)
    _refuse(read, path)
    options = read.options
    if spec.nodes is not None:  # words that hold the number of nodes get the new one
        options = (*options, Option("nodes", str(spec.nodes)))
    given = allocation(options)
    made = executed(read, given, *JOBS[0])
    if made.why or not made.whole:
        why = made.why or "it goes round or waits"
        raise UserError(f"{path}: nothing can be taken out of it, since {why}")
    asked = {k: v for k, v in given.asked.items() if v or k not in _NAMED}
    found: dict[str, Any] = {_NAMED[k]: v for k, v in asked.items() if k in _NAMED}
    if (nodes := spec.nodes or given.nodes) is None:
        raise UserError(f"{path}: how many nodes it asks for is left to Slurm; give --nodes")
    job = Job(read, made)
    at = len(read.text.encode())
    lines: list[str] = []
    step = next(iter(made.steps), None)
    if spec.target is None:
        step, words = _program(job, given)
        target, *args = words
        target = target if step.program.module else _ported(read, target)
        found |= {"target": target, "args": tuple(args), "module": step.program.module}
        found["like"] = str(path)
        lines = [*_prefixes(job.command(step.line)), *_path_of(step)]
    if step is not None and (command := job.command(step.line)):
        at = command.start
    found |= {
        "nodes": nodes,
        "nproc": given.gpus or _ranks(step),
        "sbatch": _passed(given, spec.nproc),
    }
    setup, left = _setup(read, at)
    found["setup"] = (*_with_hook(setup), *lines)
    if (wrong := shell.rejected("\n".join(found["setup"]).encode())) is not None:
        raise UserError(f"{path}: bash cannot read its set-up by itself: {wrong[1]}")
    if left:
        what = clean("; ".join(left))
        print(f"note: not taken out of {clean(str(path))}: {what}", file=sys.stderr)
    mine = {k: getattr(spec, k) for k in found}
    kept = {k: v for k, v in found.items() if v is not None and not mine[k]}
    kept["sbatch"] = (*found["sbatch"], *spec.sbatch)  # of two the later one holds
    filled_in = replace(spec, **kept)
    ranks = f" --nproc {filled_in.nproc}" if filled_in.nproc else ""
    what = (
        f"--nodes {filled_in.nodes}{ranks} {shlex.join((filled_in.target or '', *filled_in.args))}"
    )
    print(f"note: like {clean(str(path))}: {clean(what)}", file=sys.stderr)
    return filled_in


def write(path: Path, *, diff: bool, in_place: bool, force: bool) -> None:
    """Write the job script of such a run beside a batch file, which stays as it is.

    Raises:
        UserError: there is no Slurm whose partitions it could be for, or something else is there.
    """
    if in_place:
        raise UserError(f"{path} stays as it is; leave --in-place away")
    client = Client()
    if client.presence() != "answers":
        raise UserError(
            f"no Slurm answers here, and {path} is made into a job script for the partitions that "
            "it has; run this on a login node of the machine"
        )
    target = path.with_name(f"{path.stem}_dist{path.suffix}")
    if target.exists() and not (force or diff):
        raise UserError(f"{target} is there; --force overwrites it, --diff shows what would be new")
    text = io.StringIO()
    with redirect_stdout(text):
        submit.run(replace(filled(path, JobSpec()), dry_run=True), client)
    if diff:
        before = path.read_text().splitlines(keepends=True)
        after = text.getvalue().splitlines(keepends=True)
        print("".join(difflib.unified_diff(before, after, str(path), str(target))), end="")
        return
    try:
        write_atomic(target, text.getvalue().encode())
    except OSError as error:
        raise UserError(f"{target} could not be written: {error.strerror}") from None
    print(f"wrote {clean(str(target))}")


def _refuse(read: BatchScript, path: Path) -> None:
    if "written by rankup" in read.text:
        raise UserError(f"{path}: rankup has written it; start it with sbatch as it is")
    if read.rejected is not None or read.conflicts:
        at, why = read.rejected or (read.conflicts[0], "git's conflict markers")
        raise UserError(f"{path}:{at}: bash cannot read it: {why}")
    if read.unread:
        raise UserError(f"{path}:{read.unread[0]}: write it in a plainer form; it cannot be parsed")
    if read.hetero:
        raise UserError(f"{path}: it is a heterogeneous job, whose parts are not read")
    if read.asked("array") is not None:
        raise UserError(
            f"{path}: it is an array, each task a run of its own: take --array out, and start one "
            "run per task with a loop in the shell"
        )
    if chdir := read.option("chdir", "workdir"):
        raise UserError(f"{path}:{chdir.line}: go to {chdir.value} and take --chdir out")


def _program(job: Job, given: Allocation) -> tuple[Step, tuple[str, ...]]:
    """The step that starts Python, and the script or module with its arguments."""
    path, made = job.script.path, job.table
    if not made.steps:
        raise UserError(f"{path}: it starts no Python that can be seen; name a TARGET")
    first = made.steps[0]
    place = f"{path}:{first.line}"
    for one in made.steps:
        if one.doubt:
            raise UserError(
                f"{path}:{one.line}: whether it comes to this is known in the job alone"
            )
        if _words(one) != _words(first):
            raise UserError(
                f"{path}: it starts several programs, {clean(first.program.name)} (line "
                f"{first.line}) and {clean(one.program.name)} (line {one.line}); name a TARGET"
            )
    program = first.program
    # Started at the same time, or each as another node of one launch, it is one run.
    numbers = {one.program.option("node-rank") for one in made.steps} - {None}
    together = all(map(job.background, made.steps)) or len(numbers) == len(made.steps)
    if len(made.steps) > 1 and not together:
        raise UserError(f"{place}: it is started {len(made.steps)} times; start a run for each")
    if program.kind != "python" and not program.elastic:
        raise UserError(
            f"{place}: {program.kind} has settings of its own, which are not taken; name a TARGET"
        )
    if inside := [one for one in program.inside if one != "file"]:
        raise UserError(f"{place}: {inside[0]} starts it, which is not taken; name a TARGET")
    if any(name.startswith("container-") for name in first.srun or {}):
        raise UserError(f"{place}: srun starts a container, which is not taken; see --container")
    for command in job.script.commands:
        moves = command.name() in ("cd", "pushd") and command.line < first.line
        to = " ".join(word.text for word in command.words[1:])
        if moves and not _SUBMITTED.fullmatch(to):
            raise UserError(f"{path}:{command.line}: go to {to}, and take `cd` out")
    words = _words(first)
    again = executed(job.script, given, *JOBS[1])
    others = {_words(one) for one in again.steps}
    others |= {_rest(task.program) for one in made.steps for task in one.tasks}
    unsure = others != {words} or any(UNKNOWN.search(word) for word in words)
    if unsure or any(_NODE.search(word) and word not in job.script.text for word in words):
        raise UserError(
            f"{place}: the words of {clean(program.name)} hold something that is known in the job "
            "alone, or is not the same in each task; name TARGET and its arguments"
        )
    return first, words


def _ported(read: BatchScript, name: str) -> str:
    """The port of a script for one GPU, where it lies beside it; else the script."""
    path, role = Path(name), read.understood(name)
    port = path.with_name(f"{path.stem}_dist{path.suffix}")
    if role is None or role.distributed or not port.is_file():
        return name
    print(f"note: {clean(str(port))} is taken, the port of {clean(path.name)}", file=sys.stderr)
    return str(port)


def _words(step: Step) -> tuple[str, ...]:
    return _rest(step.program)


def _rest(program: Any) -> tuple[str, ...]:
    """The script and its arguments; unknown words in front are a launcher's."""
    words: tuple[str, ...] = program.rest
    if program.elastic and not program.module:
        while len(words) > 1 and UNKNOWN.fullmatch(words[0]):
            words = words[1:]
    return words


def _ranks(step: Step | None) -> int | None:
    """The ranks on a node, where no GPUs are asked for."""
    if step is None or step.ranks is None or step.each is None:
        return None
    return step.ranks * step.each


def _passed(given: Allocation, nproc: int | None) -> tuple[str, ...]:
    """Options of sbatch that a run has no name for, in order; of each the last one."""
    found = {name: value for name, value in given.asked.items() if name not in _OURS}
    text = given.asked.get("gres") or f"gpu:{given.asked.get('gpus-per-node', '')}"
    others = [one for one in given.asked.get("gres", "").split(",") if one and "gpu" not in one]
    kind = _TYPED_GPU.fullmatch(next((one for one in text.split(",") if one not in others), ""))
    count = nproc or given.gpus
    if kind or others:
        gpu = [f"gpu:{kind[1]}:{count}" if kind else f"gpu:{count}"] if given.gpus else []
        found["gres"] = ",".join((*others, *gpu))
    return tuple(f"--{name}={value}" if value else f"--{name}" for name, value in found.items())


def _setup(read: BatchScript, until: int) -> tuple[list[str], list[str]]:
    """The lines that prepare the environment in front of a place; lines that are left out."""
    taken: list[str] = []
    left: list[str] = []
    functions = {one.function for one in read.commands if one.function and one.name() in _SETUP}
    data = read.text.replace("\r\n", "\n").encode()
    for start, end, text in reversed(shell.statements(data)):
        inside = [one for one in read.commands if start <= one.start < end]
        if start >= until or start <= until < end:
            continue
        if kept := _kept(inside, text, "\n".join(taken), functions):
            taken.insert(0, kept)
        elif any(one.name() not in _SILENT and one.name() not in _EXPORTS for one in inside):
            left.insert(0, f"line {inside[0].line} ({text.splitlines()[0][:60]})")
    return taken, left


def _with_hook(setup: list[str]) -> list[str]:
    """The same with conda's hook in front of its `activate`, where nothing before brings it."""
    for at, line in enumerate(setup):
        if line.startswith("conda activate"):
            return [*setup[:at], 'eval "$(conda shell.bash hook)"', *setup[at:]]
        if re.match(r"(?:module|ml|conda|source|\.|eval|spack)\s", line) or "conda" in line:
            break
    return setup


def _kept(inside: list[Command], text: str, later: str, functions: set[str]) -> str:
    """What of a statement belongs to the set-up; empty for nothing."""
    function = next((one.function for one in inside if one.function), None)
    if function is not None:
        return text if re.search(rf"(?<![\w-]){re.escape(function)}(?![\w-])", later) else ""
    if any(one.name() in _SETUP | functions for one in inside):
        return text
    if len(inside) != 1:
        called = {one.name() for one in inside}
        called = {name for name in called if name[:1] not in ("[", "(")}  # tests
        exports = bool(called & {*_EXPORTS}) and called <= {*_EXPORTS, "test", "", ":"}
        return text if exports else ""
    [one] = inside
    assigned = [word for word in one.words if is_assignment(word)]
    if one.name() in _EXPORTS:
        words = [word for word in one.words[1:] if not _MEETING.match(word.text)]
        words = [word for word in words if not _LAUNCHER.search(word.text)]
        if all(word.text.startswith("-") for word in words):
            return ""
        rest = " ".join(word.text for word in words)
        return text if len(words) == len(one.words) - 1 else f"{one.name()} {rest}"
    if assigned and len(assigned) == len(one.words):
        names = [re.escape(re.split(r"\+?=", word.text)[0]) for word in assigned]
        used = rf"\$\{{?(?:{'|'.join(names)})\b|export [^\n]*\b(?:{'|'.join(names)})\b"
        return text if re.search(used, later) else ""
    return ""


def _prefixes(command: Command | None) -> Iterator[str]:
    """Variables that are set for the command alone, also behind `env`."""
    for word in command.words if command else ():
        if re.search(r"python|torchrun|\.py\b", word.value) and not is_assignment(word):
            return
        if re.match(r"[A-Za-z_]\w*=", word.text) and not _MEETING.match(word.text):
            yield f"export {word.text}"


def _path_of(step: Step) -> Iterator[str]:
    """The interpreter's folder in front of PATH, where it is called by a path."""
    folder, slash, _ = step.program.words[0].rpartition("/")
    if slash and not UNKNOWN.search(folder):
        yield f"export PATH={shlex.quote(str(Path(folder).absolute()))}:$PATH"
