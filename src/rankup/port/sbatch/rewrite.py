"""`rankup port` of a batch script: the lines that start Python go through `on_all_gpus`."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...base.files import open_regular
from . import block, options, rules_form, rules_use
from .choose import chosen
from .directives import Lines, widen
from .launches import TORCHRUN, Launch, is_python
from .parsed import load, parse
from .seen import Seen
from .site import site_of
from .tokens import Word, is_assignment

SUFFIX = "_dist"
_DISTRIBUTED = re.compile(rb"init_process_group|\brankup\b|DistributedDataParallel|accelerat")
# Options of srun that say how many tasks go where, which `on_all_gpus` does.
_PLACING = {
    *("nodes", "ntasks", "ntasks-per-node", "gres", "gpus", "gpus-per-node", "gpus-per-task"),
    *("cpus-per-task", "cpu-bind", "exclusive", "unbuffered", "kill-on-bad-exit", "mem"),
}


@dataclass(frozen=True)
class Edit:
    """Other text from one offset to another."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Ported:
    """A batch script for many nodes.

    Attributes:
        path: where it belongs, beside the original.
        notes: what a person should know or do, a line each.
        changed: it is another text than the original.
    """

    path: Path
    text: str
    notes: tuple[str, ...]
    changed: bool


def port(path: Path, nodes: int | None = None, gpus: int | None = None) -> Ported:
    """The batch script for many nodes; nothing is written.

    Args:
        nodes: by default those that it asks for, two where that is one.
        gpus: of a node; by default what is known of the machine, else what it asks for.

    Raises:
        UserError: it is no batch script that could be ported; the message says why.
    """
    script = load(path)
    if block.BEGIN in script.text:  # its own work: a second time changes nothing
        return Ported(path, script.text, (), False)
    seen = Seen(script)
    _refuse_form(seen)
    found = chosen(seen)
    site, note = site_of(script)
    notes = [note] if note else []
    before = script.gpus()
    count = gpus or site.gpus or before or 0
    if before and not (gpus or site.gpus):
        notes.append(
            f"asks for {count} GPU{'s' if count > 1 else ''} of each node, as before: how many a "
            "node has is not known here; write the number into the directive"
        )
    if not before and not gpus:
        count = 0
        notes.append("asks for no GPU, so each node has one rank, on CPU")
    lines = Lines(script)
    wide = nodes or (script.nodes() or 1)
    wide = wide if nodes or wide > 1 else 2
    notes += widen(lines, wide, count, site.cores if count == site.gpus else None)
    notes += _hidden_gpus(seen, lines)
    edits = [edit for one in found for edit in _edits(seen, one, notes)]
    text = _put_together(lines, edits, block.block(site, "gpu" if count else "1"))
    text, more = _with_status(path, text)
    notes += more
    form = [*rules_form.not_read(seen), *rules_form.too_late(seen)]
    notes += [f"{one.place}: {one.message} ({one.code})" for one in form]
    return Ported(path.with_name(f"{path.stem}{SUFFIX}{path.suffix}"), text, tuple(notes), True)


def _refuse_form(seen: Seen) -> None:
    script = seen.script
    first = [*rules_form.conflicts(seen), *rules_form.bash(seen), *rules_form.script(seen)]
    if first:
        worst = first[0]
        raise UserError(f"{worst.place}: {worst.message}; {worst.todo}")
    if not re.match(r"#!.*\b(?:ba|z|k|da)?sh\b", script.lines[0]) or "csh" in script.lines[0]:
        raise UserError(f"{script.path}: {script.lines[0][:60]} is no bash; port writes bash only")
    if script.asked("array") is not None:
        raise UserError(
            f"{script.path} is a job array: each task is a run of its own on one GPU, which is "
            "parallel already. Take --array out first to make one run of many GPUs"
        )
    if re.search(r"^#SBATCH\s+(?:hetjob|packjob)\b", script.text, re.MULTILINE):
        raise UserError(f"{script.path} is a heterogeneous job, which port does not understand")
    if not any(one.read for one in script.directives):
        raise UserError(
            f"{script.path} has no #SBATCH line that sbatch reads; is it a batch script? "
            "`rankup check` says what is wrong with it"
        )
    if "written by rankup" in script.text:
        raise UserError(f"{script.path} was written by `rankup run` and is for many nodes already")


def _hidden_gpus(seen: Seen, lines: Lines) -> list[str]:
    """Take `CUDA_VISIBLE_DEVICES=0` away: each rank has a GPU of its own."""
    command = seen.sets("CUDA_VISIBLE_DEVICES")
    alone = command is not None and (
        command.name() in ("", "export")
        and len(command.words) <= 2
        and command.line == command.end_line
    )
    if command is None or not alone:
        return []
    line = lines.lines[command.line - 1] or ""
    lines.lines[command.line - 1] = f"# rankup port: {line.strip()}"
    return [f"line {command.line}: CUDA_VISIBLE_DEVICES is not set any more"]


def _edits(seen: Seen, launch: Launch, notes: list[str]) -> list[Edit]:
    """What sends a launch to all GPUs, as changes of the script's text."""
    words = list(launch.command.words)
    program = _program(launch, words)
    assigned = list(itertools.takewhile(is_assignment, words[:program]))
    lead = words[len(assigned) : program]
    timed = [word.text for word in lead[:1] if word.text == "time"]
    kept = _wrappers(launch, lead[len(timed) :], notes)
    python = ["python", "-u"] if launch.torchrun else []
    before = [*(word.text for word in assigned), *timed, block.NAME, *kept, *python]
    free = [word for word in before if not word.startswith("CUDA_VISIBLE_DEVICES=")]
    if len(free) < len(before):
        notes.append(f"line {launch.line}: CUDA_VISIBLE_DEVICES is not set any more")
    begin, end = words[0].start, words[program].start
    # As many lines as before, so that the lines below keep their numbers.
    breaks = "\\\n" * seen.script.text.count("\n", begin, end)
    edits = [Edit(begin, end, " ".join(free) + " " + breaks)]
    old = (launch.script or "").rpartition("/")[2]
    new = _renamed(seen, launch, notes)
    place = next((word for word in words[program:] if old and old in word.text), None)
    if new and place is not None:
        start = place.start + place.text.rindex(old)
        edits.append(Edit(start, start + len(old), new))
    return edits


def _program(launch: Launch, words: list[Word]) -> int:
    """Where the words begin that every rank is to run."""
    if launch.shell:
        shells = ("bash", "sh", "zsh", "dash")
        return next(i for i, one in enumerate(words) if one.value.rpartition("/")[2] in shells)
    tail = len(launch.words)
    if launch.torchrun and launch.script is not None:
        tail -= launch.words.index(launch.script)
    return len(words) - tail


def _wrappers(launch: Launch, lead: list[Word], notes: list[str]) -> list[str]:
    """What stands in front of the program, without srun, torchrun, and an exec of a function."""
    texts, values = [word.text for word in lead], [word.value for word in lead]
    if launch.torchrun:
        at = next(
            i
            for i, one in enumerate(values)
            if one.rpartition("/")[2] in TORCHRUN or is_python(one)
        )
        texts, values = texts[:at], values[:at]
    names = [one.rpartition("/")[2] for one in values]
    if "srun" in names:
        at = names.index("srun")
        found, left = options.read(values[at + 1 :])
        texts = texts[:at] + texts[len(texts) - len(left) :]
        dropped = [f"--{one.name}" for one in found if one.name not in _PLACING]
        if dropped:
            notes.append(f"line {launch.line}: left out of srun: {', '.join(dropped)}")
    return [text for text in texts if text != "exec"]


def _renamed(seen: Seen, launch: Launch, notes: list[str]) -> str:
    """The name of the ported script; empty where the script stays."""
    if launch.script is None:
        notes.append(f"line {launch.line}: a module is started; port its file by itself")
        return ""
    name = launch.script.rpartition("/")[2]
    path = rules_use.find(seen, seen.script.resolve(launch.script))
    if not name.endswith(".py"):
        return ""
    new = f"{name.removesuffix('.py')}{SUFFIX}.py"
    if path is None:
        notes.append(f"{launch.script} is not here; the line names {new}, which is to be its port")
        return new
    if path.with_name(new).is_file():
        return new
    try:
        with open_regular(path) as file:
            done = bool(_DISTRIBUTED.search(file.read(1 << 20)))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if done:
        return ""
    notes.append(f"{new} is not there yet: rankup port {path.name} makes it")
    return new


def _put_together(lines: Lines, edits: list[Edit], definition: str) -> str:
    """The text with all changes; offsets of `edits` are those of the original."""
    script = lines.script
    text = script.text
    for edit in sorted(edits, key=lambda one: -one.start):
        text = text[: edit.start] + edit.text + text[edit.end :]
    # Edits stay within lines that `lines` leaves alone, but may join some of them.
    changed = {
        number: line
        for number, (line, old) in enumerate(zip(lines.lines, script.lines, strict=True), 1)
        if line != old
    }
    last = max(one.line for one in script.directives if one.read)
    out: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        kept = changed.get(number, line)
        if kept is not None:
            out.append(kept)
        if number == last:
            out += lines.added
            out += ["", *definition.rstrip("\n").split("\n")]
            if number < len(script.lines) and script.lines[number].strip():
                out.append("")
    return "\n".join(out)


def _with_status(path: Path, text: str) -> tuple[str, list[str]]:
    """The text with the run's exit code as the job's, where later commands would hide it."""
    seen = Seen(parse(path, text))
    if not list(rules_use.lost_status(seen)):
        return text, []
    command = seen.launches[-1].command
    lines = text.split("\n")
    if command.after == "|":
        lines.insert(command.line - 1, "set -o pipefail # a failed run is a failed job")
        text = "\n".join(lines)
        return text, ["set -o pipefail, so that a failed run is a failed job"]
    last = seen.script.commands[-1]
    row = lines[command.end_line - 1]
    if last.name() == "exit" or command.after != "\n" or row.rstrip().endswith("\\"):
        return text, [f"line {command.line}: the job's exit code is not the run's (RK160)"]
    while lines and not lines[-1].strip():
        lines.pop()
    lines.append("exit $rankup_status")
    lines.insert(command.end_line, "rankup_status=$? # a failed run is a failed job")
    return "\n".join(lines) + "\n", []
