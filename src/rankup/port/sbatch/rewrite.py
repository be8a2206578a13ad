"""`rankup port` of a batch script: the lines that start Python go through `on_all_gpus`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...script.source import File
from ..batch import options, rules_form
from ..batch.options import Option
from ..batch.shell import Word, is_assignment, is_prefix
from ..rewrite import ported
from ..rewrite.edits import Edits
from . import block, status
from .launches import PROFILERS, SHELLS, TORCHRUN, Launch, base_name, is_python
from .script import BASH, BatchScript, load

SUFFIX = "_dist"
# Options of srun that say how many tasks go where, which `on_all_gpus` does.
_PLACING = {
    "nodes", "ntasks", "ntasks-per-node", "gres", "gpus", "gpus-per-node", "gpus-per-task",
    "cpus-per-task", "cpu-bind", "exclusive", "unbuffered", "kill-on-bad-exit", "mem",
}  # fmt: skip

_MEMORY = re.compile(r"([0-9]{1,9})([KMGT]?B?)", re.IGNORECASE)
_TASKS = ("ntasks", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core")
_GPUS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")


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
    """Return the batch script for many nodes; nothing is written.

    Args:
        nodes: by default those that it asks for, two where that is one.
        gpus: of a node; by default what is known of the machine, else what it asks for.

    Raises:
        UserError: it is no batch script that could be ported; the message says why.
    """
    script = load(path)
    if block.BEGIN in script.text:  # its own work: a second time changes nothing
        return Ported(path, script.text, (), False)
    _refuse(script)
    site, note = block.site_of(script)
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
    data = script.text.encode()
    edits = Edits(File(path, data, script.text, "utf-8"))
    directives = _Directives(script)
    wide = nodes or max(2, script.nodes() or 1)
    notes += _widen(directives, wide, count, site.cores if count == site.gpus else None)
    notes += _hidden_gpus(script, edits)
    for one in script.training:
        notes += _reroute(script, one, edits)
    notes += status.keep_status(script, edits)
    directives.apply(edits, block.block(site.profile, "gpu" if count else "1"))
    for rule in (rules_form.not_read, rules_form.too_late, rules_form.bad_option):
        notes += [f"{path}:{hit.at}: {hit.message} ({rule.code})" for hit in rule.look(script)]
    target = path.with_name(f"{path.stem}{SUFFIX}{path.suffix}")
    return Ported(target, edits.apply(), tuple(notes), True)


def _refuse(script: BatchScript) -> None:
    """Raise UserError for what is no batch script of one job in bash that starts one training."""
    for rule in (rules_form.conflicts, rules_form.no_bash, rules_form.no_script):
        for hit in rule.look(script):
            raise UserError(f"{script.path}:{hit.at}: {hit.message}; {hit.todo}")
    reason = _not_portable(script)
    if reason:
        raise UserError(f"{script.path}: {reason}")
    for launch in script.training:
        reason = _not_rerouted(script, launch)
        if reason:
            raise UserError(f"{script.path}:{launch.line}: {reason}")


def _not_portable(script: BatchScript) -> str:
    """Return the reason why a batch script cannot be ported; empty where it can."""
    other = next((one for one in script.launches if one.kind not in ("python", *TORCHRUN)), None)
    if not BASH.match(script.lines[0]):
        return f"{script.lines[0][:60]} is no bash; port writes bash only"
    if script.unread:
        return (
            f"bash can read line {script.unread[0]}, but port cannot; write it in a plainer form, "
            "a here-document in a line of its own"
        )
    if script.asked("array") is not None:
        return (
            "in a job array each task is a run of its own on one GPU, which is parallel already. "
            "Take --array out first to make one run of many GPUs"
        )
    if re.search(r"^#SBATCH\s+(?:hetjob|packjob)\b", script.text, re.MULTILINE):
        return "port does not understand a heterogeneous job"
    if not any(one.read for one in script.directives):
        return "no #SBATCH line that sbatch reads; `rankup check` says what is wrong with them"
    if "written by rankup" in script.text:
        return "`rankup run` has written it, and it is for many nodes already"
    if other is not None:
        return (
            f"line {other.line}: {other.kind} is a launcher of its own; port rewrites lines that "
            "start python or torchrun. Its manual says how it starts on several nodes"
        )
    if not script.seen:
        return (
            "it starts no Python script (python train.py), which port would rewrite. Code in the "
            "line itself (python -c, python - <<EOF) has to go into a file"
        )
    if not script.training:
        return (
            f"it starts {', '.join(sorted({one.name for one in script.seen}))}, and which of them "
            "trains cannot be told from here; put the batch script beside them"
        )
    return ""


def _not_rerouted(script: BatchScript, launch: Launch) -> str:
    """Return the reason why a launch would not be the same run, or not run at all; or nothing."""
    command, tasks, nodes = launch.command, script.tasks_per_node(launch), script.nodes(launch)
    # One that the script waits for is a run like any other, unless it gets signals of its own.
    several = sum(one.command.background for one in script.launches) > 1 or command.depth
    if launch.container:
        return (
            "it runs in a container, inside which torchrun would have to start; "
            "`rankup run --container IMAGE` makes such jobs"
        )
    if launch.runner in PROFILERS:
        return f"{launch.runner} profiles it, and all ranks would write one report; leave it out"
    if launch.runner:
        return (
            f"{launch.runner} starts it in an environment of its own, which torchrun is not in; "
            "activate that environment above (source …/bin/activate) and write python"
        )
    if launch.array:
        return "its words stand in a variable; write the command out there"
    if command.name() in script.functions:
        return f"the function {command.name()} starts it; write the command out there"
    if command.background and (several or re.search(r"\bkill\b", script.text)):
        return (
            "it is started in the background, where several runs share the GPUs of a node, or one "
            "gets signals of its own. Start one in the foreground, or a job for each"
        )
    if not launch.torchrun:
        if launch.srun is None or (tasks == 1 and nodes == 1):
            return ""
        return (
            "srun starts it several times already, and it has to find out its rank by itself; "
            "ask for one task (--ntasks=1), or let it be as it is"
        )
    if nodes is None or nodes > 1 or launch.option("nnodes", "rdzv-endpoint") is not None:
        return f"{launch.kind} starts on several nodes already; `rankup check` says what is wrong"
    if launch.in_shell:
        return f"{launch.kind} is started by a shell; write it without that"
    if launch.script is None or "no-python" in launch.options:
        return f"which script {launch.kind} starts is not to be seen"
    return ""


class _Directives:
    """The directives of a script while they are changed."""

    def __init__(self, script: BatchScript) -> None:
        self.script = script
        self._changed: dict[Option, str | None] = {}  # None: it goes
        self._added: list[str] = []

    def put(self, name: str, value: str, becomes: str = "") -> None:
        """Give an option a value, where it stands or in a line of its own."""
        option = self.script.option(name)
        if option is None:
            self._added.append(f"#SBATCH --{name}={value}")
            return
        written = self.script.text[option.start : option.end]
        if becomes or not option.value or not written.endswith(option.value):
            self._changed[option] = f"--{becomes or name}={value}"
        else:
            self._changed[option] = written.removesuffix(option.value) + value

    def drop(self, *names: str) -> None:
        """Take options away, each with its line where nothing else stands in it."""
        self._changed |= {one: None for one in self.script.options if one.name in names}

    def apply(self, edits: Edits, behind: str) -> None:
        """Make the changes, with a text behind the last directive."""
        script = self.script
        read = [one for one in script.directives if one.read]
        for one in read:
            start = script.starts[one.line - 1]
            if (
                one.options
                and not one.rest
                and all(self._changed.get(option, "") is None for option in one.options)
            ):
                edits.replace((start, start + len(script.lines[one.line - 1]) + 1), "")
                continue
            for option in one.options:
                text = self._changed.get(option, "")
                if text is None:
                    before = script.text[: option.start].rstrip()
                    edits.replace((len(before), option.end), "")
                elif text:
                    edits.replace((option.start, option.end), text)
        last = read[-1].line
        lines = [*self._added, "", *behind.rstrip("\n").split("\n")]
        if last < len(script.lines) and script.lines[last].strip():
            lines.append("")
        edits.lines_after(script.starts[last - 1] + len(script.lines[last - 1]), "", *lines)


def _widen(directives: _Directives, nodes: int, gpus: int, cores: int | None) -> Iterator[str]:
    """Ask for `nodes` nodes of `gpus` GPUs, with one task on each; yield what there is to say.

    Args:
        cores: of a node; None where that is not known.
    """
    script = directives.script
    before = script.gpus() or 0
    factor = gpus // before if before and gpus % before == 0 else 1
    directives.put("nodes", str(nodes))
    directives.drop(*_TASKS)
    directives.put("ntasks-per-node", "1")
    if gpus:
        _put_gpus(directives, gpus)
    cpus, tasks = script.number("cpus-per-task"), script.tasks_per_node() or 1
    wide = (cpus or 1) * tasks * factor  # a Python without srun has the cores of all tasks
    if cores is not None and gpus:
        directives.put("cpus-per-task", str(cores))
    elif wide != cpus and (cpus or tasks > 1):
        directives.put("cpus-per-task", str(wide))
        yield f"--cpus-per-task={wide}: as many for each GPU as before"
    elif cpus is None and script.asked("cpus-per-gpu") is None and gpus:
        yield "no --cpus-per-task: write how many cores a node has, or torchrun gets one"
    memory = _MEMORY.fullmatch(script.asked("mem") or "")
    if memory and int(memory[1]) and factor > 1:
        size = f"{int(memory[1]) * factor}{memory[2]}"
        directives.put("mem", size)
        yield f"--mem={size} of a node: as much for each GPU as before"


def _put_gpus(directives: _Directives, gpus: int) -> None:
    script = directives.script
    gres = script.asked("gres")
    asked = [name for name in _GPUS if script.option(name) is not None]
    holds = [name for name in asked if name != "gres" or "gpu" in (gres or "")]
    if not holds:  # the gres are of something else
        directives.put("gres", f"{gres},gpu:{gpus}" if gres else f"gpu:{gpus}")
        return
    name, *others = holds
    directives.drop(*others)
    value = script.asked(name) or ""
    if name == "gres":
        gpu = r"(?<![\w-])(gpu(?::[A-Za-z][\w.-]*)?)(?::\d+)?(?=,|$)"
        directives.put(name, re.sub(gpu, rf"\1:{gpus}", value))
    else:
        kind = value.rpartition(":")[0]
        directives.put(name, f"{kind}:{gpus}" if kind else str(gpus), "gpus-per-node")


def _hidden_gpus(script: BatchScript, edits: Edits) -> Iterator[str]:
    """Take `CUDA_VISIBLE_DEVICES=0` away: each rank has a GPU of its own."""
    for command in script.commands:
        if not command.sets("CUDA_VISIBLE_DEVICES"):
            continue
        if any(one.command is command for one in script.launches):  # it is taken away there
            continue
        line = command.line
        beside = [one for one in script.commands if one.first <= line <= one.last]
        alone = command.name() in ("", "export") and len(command.words) <= 2 and len(beside) == 1
        if alone and not command.depth and line == command.end_line:
            start, text = script.starts[line - 1], script.lines[line - 1]
            edits.replace((start, start + len(text)), f"# rankup port: {text.strip()}")
            yield f"line {line}: CUDA_VISIBLE_DEVICES is not set any more"
        else:
            yield f"line {line}: CUDA_VISIBLE_DEVICES hides GPUs from the ranks; remove it"


def _reroute(script: BatchScript, launch: Launch, edits: Edits) -> Iterator[str]:
    """Send a launch to all GPUs."""
    place = f"{script.path}:{launch.line}"
    words = launch.command.words
    program = _program(launch, words)
    prefix = list(itertools.takewhile(is_prefix, words[:program]))
    # `time` is a word of bash, and can start a function, only where it is the first one.
    first = [word.text for word in sorted(prefix, key=is_assignment)]
    kept, dropped = _wrappers(launch, words[len(prefix) : program])
    if dropped:
        yield f"line {launch.line}: left out of srun: {', '.join(dropped)}"
    python = ["python", "-u"] if launch.torchrun else []
    before = [*first, block.NAME, *kept, *python]
    free = [word for word in before if not word.startswith("CUDA_VISIBLE_DEVICES=")]
    if len(free) < len(before):
        yield f"line {launch.line}: CUDA_VISIBLE_DEVICES is not set any more"
    begin, end = script.offset(words[0].start), script.offset(words[program].start)
    between = script.text[begin:end]
    # As many lines as before, so that the lines below keep their numbers.
    edits.replace((begin, end), " ".join(free) + " " + "\\\n" * between.count("\n"))
    for word in words[:program]:
        between = between.replace(word.text, "", 1)
    if re.search(r"[^\s\\]", between):
        raise UserError(
            f"{place}: a redirection in front of the program; put it at the end of the command"
        )
    folder, slash, _ = words[program].value.rpartition("/")
    if slash and is_python(words[program].value):
        yield f"line {launch.line}: torchrun has to be on PATH as well, from {folder}"
    new, note = _renamed(script, launch)
    if note:
        yield note
    if not new:
        return
    old = base_name(launch.script or "")
    named = re.compile(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])")
    holding = next((one for one in words[program:] if named.search(one.text)), None)
    found = list(named.finditer(holding.text)) if holding else []
    if holding is None or len(found) != 1:
        raise UserError(
            f"{place}: {old} is not named once in this command, so that port cannot put {new} "
            "there; start it in a line of its own"
        )
    start = script.offset(holding.start)
    edits.replace((start + found[0].start(), start + found[0].end()), new)


def _program(launch: Launch, words: Sequence[Word]) -> int:
    """Return the place of the first word that every rank is to run."""
    if launch.in_shell:
        return next(i for i, one in enumerate(words) if base_name(one.value) in SHELLS)
    tail = len(launch.words)
    if launch.torchrun and launch.script is not None:
        tail -= launch.words.index(launch.script)
    return len(words) - tail


def _wrappers(launch: Launch, lead: Sequence[Word]) -> tuple[list[str], list[str]]:
    """Return the words in front of the program that stay, and options of srun that do not."""
    texts, values = [word.text for word in lead], [word.value for word in lead]
    if launch.torchrun:
        at = next(i for i, one in enumerate(values) if base_name(one) in TORCHRUN or is_python(one))
        texts, values = texts[:at], values[:at]
    names = [base_name(one) for one in values]
    dropped: list[str] = []
    if "srun" in names:
        at = names.index("srun")
        found, left = options.read(values[at + 1 :])
        texts = texts[:at] + texts[len(texts) - len(left) :]
        dropped = [f"--{one.name}" for one in found if one.name not in _PLACING]
    return [text for text in texts if text != "exec"], dropped


def _renamed(script: BatchScript, launch: Launch) -> tuple[str, str]:
    """Return the name of the ported script, empty where it stays, and a note."""
    if launch.script is None:
        return "", f"line {launch.line}: a module is started; port its file by itself"
    name = base_name(launch.script)
    path = script.find(script.resolve(launch.script))
    if not name.endswith(".py"):
        known = base_name(script.resolve(launch.script))
        role = script.understood(launch.script)
        if "$" not in launch.script or known.endswith(f"{SUFFIX}.py"):
            return "", ""
        if role is not None and role.distributed:
            return "", ""
        what = f"{name} ({known})" if known != name else name
        return "", f"line {launch.line}: {what} stays as it is: let it name the port, *{SUFFIX}.py"
    new = f"{name.removesuffix('.py')}{SUFFIX}.py"
    if path is None:
        note = f"{launch.script} is not here; the line names {new}, which is to be its port"
        return new, note
    if path.with_name(new).is_file():
        return new, ""
    role = script.understood(launch.script)
    if role is not None and role.distributed:
        return "", ""
    try:
        why = ported.port(path).why
    except UserError as error:
        return new, f"{new} is to be written by hand: {error}"
    if why:
        return "", f"{name} stays: {why}"
    return new, f"{new} is not there yet: rankup port {path.name} makes it"
