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
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.text import clean
from ..port.batch import script
from ..port.batch.allocation import Allocation, allocation
from ..port.batch.job import Job
from ..port.batch.options import Option
from ..port.batch.programs import Program
from ..port.batch.script import BatchScript
from ..port.batch.table import UNKNOWN, Step, executed
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
_EXPORTS = frozenset(("export", "declare", "typeset", "readonly"))
# Variables by which ranks find each other, which the job script and torchrun set.
_MEETING = re.compile(
    r"(?:MASTER_(?:ADDR|PORT)|RANK|LOCAL_RANK|NODE_RANK|WORLD_SIZE|SRUN_CPUS_PER_TASK"
    r"|CUDA_VISIBLE_DEVICES|PYTHONUNBUFFERED)\+?(?:=|$)"
)
_LAUNCHER = re.compile(r"torchrun|torch\.distributed|\bsrun\b")
_SILENT = frozenset(
    ("echo", "printf", "set", "cd", "date", "hostname", "exit", "sleep", "wait", "[", "[[", "test",
     ":", "true")
)  # fmt: skip
_NODE = re.compile(r"(?<![\w.-])n[1-9]\d*(?![\w-])")  # a name of the made-up allocation
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=")
_FUNCTION = re.compile(r"\s*(?:function\s+([\w-]+)|([\w-]+)\s*\(\))")
# What a shell puts in the place of a part of a word: it holds no command of the statement.
_HELD = r"""\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|"(?:[^"\\]|\\.)*"|'[^']*'"""
_WORD = re.compile(rf"""(?:{_HELD}|\\.|=\([^()]*\)|[^\s"'\\`])+""", re.DOTALL)
_KEYWORDS = frozenset(
    ("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "case", "esac", "time",
     "!", "{", "}")
)  # fmt: skip
_COMMAND = re.compile(
    rf"(?:^|[;&|(]|\b(?:then|else|do)\s)\s*(?:(?:{'|'.join(map(re.escape, _KEYWORDS))})\s+)*"
    r"((?:[A-Za-z_]\w*\+?=\S*\s+)*)(\[\[?|[A-Za-z_.:][\w./:-]*)(?=[\s;&|)]|$)",
    re.MULTILINE,
)


def filled(path: Path, spec: JobSpec) -> JobSpec:
    """The options of a run, and where nothing was said those of a batch file.

    Raises:
        UserError: something in the file cannot be taken; the message says what.
    """
    if spec.resume is not None:
        raise UserError("--resume goes on with what the run was given; leave --like away")
    job = _tried(path, spec.nodes)
    given = job.table.allocation
    if (nodes := spec.nodes or given.nodes) is None:
        raise UserError(f"{path}: how many nodes it asks for is left to Slurm; give --nodes")
    taken: dict[str, Any] = {_NAMED[name]: value for name, value in given.asked.items()
                             if value and name in _NAMED}  # fmt: skip
    step = next(iter(job.table.steps), None)
    lines: list[str] = []
    if spec.target is None:
        step, words = _program(job)
        target, *args = words
        target = target if step.program.module else _ported(job.script, target)
        taken |= {"target": target, "args": tuple(args), "module": step.program.module}
        taken["like"] = str(path)
        lines = [*_prefixes(step), *_path_of(step)]
    setup, left = _setup(job.script, step.line if step else len(job.script.lines) + 1)
    taken |= {
        "nodes": nodes,
        "nproc": given.gpus or (step.on_node if step else None),
        "sbatch": _passed(given, spec.nproc),
        "setup": (*_with_hook(setup), *lines),
    }
    if (wrong := script.rejected("\n".join(taken["setup"]))) is not None:
        raise UserError(f"{path}: bash cannot read its set-up by itself: {wrong[1]}")
    if left:
        what = clean("; ".join(left))
        print(f"note: not taken out of {clean(str(path))}: {what}", file=sys.stderr)
    kept = {name: value for name, value in taken.items()
            if value is not None and not getattr(spec, name)}  # fmt: skip
    kept["sbatch"] = (*taken["sbatch"], *spec.sbatch)  # of two the later one holds
    run = replace(spec, **kept)
    ranks = f" --nproc {run.nproc}" if run.nproc else ""
    what = f"--nodes {run.nodes}{ranks} {shlex.join((run.target or '', *run.args))}"
    print(f"note: like {clean(str(path))}: {clean(what)}", file=sys.stderr)
    return run


def fits(path: Path) -> bool:
    """Return True where a run like a batch file can be started without another word."""
    try:
        job = _tried(path, None)
        _program(job)
    except UserError:
        return False
    return job.table.allocation.nodes is not None


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


def _tried(path: Path, nodes: int | None) -> Job:
    """A batch file with what it would start on its own or another number of nodes.

    Raises:
        UserError: it is of a kind of which nothing is taken.
    """
    read = script.load(path)
    if "written by rankup" in read.text:
        raise UserError(f"{path}: rankup has written it; start it with sbatch as it is")
    if read.rejected is not None or read.conflicts:
        at, why = read.rejected or (read.conflicts[0], "git's conflict markers")
        raise UserError(f"{path}:{at}: bash cannot read it: {why}")
    if read.hetero:
        raise UserError(f"{path}: it is a heterogeneous job, whose parts are not read")
    if read.option("array") is not None:
        raise UserError(
            f"{path}: it is an array, each task a run of its own: take --array out, and start one "
            "run per task with a loop in the shell"
        )
    if chdir := read.option("chdir", "workdir"):
        raise UserError(f"{path}:{chdir.line}: go to {chdir.value} and take --chdir out")
    more = () if nodes is None else (Option("nodes", str(nodes)),)
    table = executed(read, allocation((*read.options, *more)))
    if table.why or not table.whole:
        why = table.why or "it goes round or waits"
        raise UserError(f"{path}: nothing can be taken out of it, since {why}")
    return Job(read, table)


def _program(job: Job) -> tuple[Step, tuple[str, ...]]:
    """The step that starts Python, and the script or module with its arguments.

    Raises:
        UserError: it is none, not a single one, or its words are not known.
    """
    path, steps = job.script.path, job.table.steps
    if not steps:
        raise UserError(f"{path}: it starts no Python that can be seen; name a TARGET")
    first = steps[0]
    place, program, words = f"{path}:{first.line}", first.program, _words(first.program)
    for step in steps:
        if step.doubt:
            raise UserError(
                f"{path}:{step.line}: whether it comes to this is known in the job alone"
            )
        if _words(step.program) != words:
            raise UserError(
                f"{path}: it starts several programs, {clean(program.name)} (line "
                f"{first.line}) and {clean(step.program.name)} (line {step.line}); name a TARGET"
            )
    # Started at the same time, or each as another node of one launch, it is one run.
    numbers = {step.program.option("node-rank") for step in steps} - {None}
    together = all(step.background for step in steps) or len(numbers) == len(steps)
    if len(steps) > 1 and not together:
        raise UserError(f"{place}: it is started {len(steps)} times; start a run for each")
    if program.kind != "python" and not program.elastic:
        raise UserError(
            f"{place}: {program.kind} has settings of its own, which are not taken; name a TARGET"
        )
    if inside := [name for name in program.inside if name != "file"]:
        raise UserError(f"{place}: {inside[0]} starts it, which is not taken; name a TARGET")
    if any(name.startswith("container-") for name in first.srun or {}):
        raise UserError(f"{place}: srun starts a container, which is not taken; see --container")
    for line, (_, *to) in job.table.named("cd"):
        if line < first.line and Path(*to) != path.resolve().parent:
            folder = clean(UNKNOWN.sub("?", " ".join(to)))
            raise UserError(f"{path}:{line}: go to {folder}, and take `cd` out")
    again = executed(job.script, job.table.allocation, 1)
    others = {_words(step.program) for step in again.steps}
    others |= {_words(task.program) for step in steps for task in step.tasks}
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


def _words(program: Program) -> tuple[str, ...]:
    """The script and its arguments; unknown words in front are a launcher's."""
    words = program.rest
    if program.elastic and not program.module:
        while len(words) > 1 and UNKNOWN.fullmatch(words[0]):
            words = words[1:]
    return words


def _passed(given: Allocation, nproc: int | None) -> tuple[str, ...]:
    """Options of sbatch that a run has no name for, in order; of each the last one."""
    options = {name: value for name, value in given.asked.items() if name not in _OURS}
    text = given.asked.get("gres") or f"gpu:{given.asked.get('gpus-per-node', '')}"
    others = [part for part in given.asked.get("gres", "").split(",") if part and "gpu" not in part]
    kind = _TYPED_GPU.fullmatch(next((part for part in text.split(",") if part not in others), ""))
    count = nproc or given.gpus
    if kind or others:
        gpu = [f"gpu:{kind[1]}:{count}" if kind else f"gpu:{count}"] if given.gpus else []
        options["gres"] = ",".join((*others, *gpu))
    return tuple(f"--{name}={value}" if value else f"--{name}" for name, value in options.items())


def _statements(read: BatchScript) -> Iterator[tuple[int, int, str]]:
    """The statements that stand in no other: first line, last line, and text.

    bash says where one ends: it accepts the lines up to there, and not those before.
    """
    first, held = 1, ""
    for at, line in enumerate(read.lines, 1):
        if not held and (not line.strip() or line.lstrip()[0] == "#"):
            continue
        first = first if held else at
        held += f"{line.rstrip(chr(13))}\n"
        if line.endswith("\\") or script.rejected(held, strictly=True) is not None:
            continue
        text, held = held.rstrip(), ""
        parts = [part.strip() for part in text.split(";")] if first == at else []
        apart = len(parts) > 1 and all(part and script.rejected(part) is None for part in parts)
        yield from ((first, at, part) for part in (parts if apart else [text]))


def _setup(read: BatchScript, until: int) -> tuple[list[str], list[str]]:
    """The lines that prepare the environment in front of a line; lines that are left out."""
    taken: list[str] = []
    left: list[str] = []
    statements = list(takewhile(lambda statement: statement[1] < until, _statements(read)))
    functions = {
        match[1] or match[2] for *_, text in statements
        if (match := _FUNCTION.match(text)) and _SETUP & _called(text)
    }  # fmt: skip
    for first, _, text in reversed(statements):
        if kept := _kept(text, "\n".join(taken), functions):
            taken.insert(0, kept)
        elif not _FUNCTION.match(text) and _called(text) - _SILENT - _EXPORTS:
            left.insert(0, f"line {first} ({text.splitlines()[0][:60]})")
    return taken, left


def _called(text: str) -> set[str]:
    """The names of the commands in a statement."""
    return {match[2] for match in _COMMAND.finditer(re.sub(_HELD, "_", text))} - _KEYWORDS


def _kept(text: str, later: str, functions: set[str]) -> str:
    """What of a statement belongs to the set-up, in front of later lines; empty for nothing."""
    called = _called(text)
    if function := _FUNCTION.match(text):
        name = re.escape(function[1] or function[2])
        return text if re.search(rf"(?<![\w-]){name}(?![\w-])", later) else ""
    if called & (_SETUP | functions):
        return text
    words = _WORD.findall(text)
    if words[0] in _EXPORTS and len(called) == 1:
        kept = [word for word in words[1:] if not (_MEETING.match(word) or _LAUNCHER.search(word))]
        if all(word.startswith("-") for word in kept):
            return ""
        return text if len(kept) == len(words) - 1 else " ".join((words[0], *kept))
    if called & _EXPORTS and called <= _EXPORTS | {"test", "[", "[[", ":"}:
        return text
    names = [match[1] for word in words if (match := _ASSIGNMENT.match(word))]
    if len(names) == len(words):
        either = "|".join(names)
        used = rf"\$\{{?(?:{either})\b|export [^\n]*\b(?:{either})\b"
        return text if re.search(used, later) else ""
    return ""


def _with_hook(setup: list[str]) -> list[str]:
    """The same with conda's hook in front of its `activate`, where nothing before brings it."""
    for at, line in enumerate(setup):
        if line.startswith("conda activate"):
            return [*setup[:at], 'eval "$(conda shell.bash hook)"', *setup[at:]]
        if re.match(r"(?:module|ml|conda|source|\.|eval|spack)\s", line) or "conda" in line:
            break
    return setup


def _prefixes(step: Step) -> Iterator[str]:
    """Variables that are set for the command alone, also behind `env`."""
    for word in _WORD.findall(step.raw):
        assigns = _ASSIGNMENT.match(word)
        if re.search(r"python|torchrun|\.py\b", word) and not assigns:
            return
        if assigns and not _MEETING.match(word):
            yield f"export {word}"


def _path_of(step: Step) -> Iterator[str]:
    """The interpreter's folder in front of PATH, where it is called by a path."""
    folder, slash, _ = step.program.words[0].rpartition("/")
    if slash and not UNKNOWN.search(folder):
        yield f"export PATH={shlex.quote(str(Path(folder).absolute()))}:$PATH"
