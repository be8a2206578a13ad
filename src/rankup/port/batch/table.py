"""What a batch file would start: bash executes it behind a wall, and each command is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources

from . import wall
from .allocation import Allocation, allocation, gpus_of_node, number
from .answers import answer
from .options import FLAGS, SHORT, gpus_of
from .programs import Program, program
from .script import BatchScript

# Two jobs: what differs between them comes from the job's number, or is drawn.
JOBS = ((5471, "77000001"), (8123, "77000029"))
UNKNOWN = re.compile(r"770000(?:01|29)")
_ENTER = """
((__fail)) && set -E$__flags_of_bash && builtin trap __failed ERR
builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
builtin source "$0" "$@"
__status=$?
[[ ${!-} == "$__behind" ]] || __say background 0 "$!"
builtin exit $__status
"""
_GPU_OPTIONS = frozenset(("gres", "gpus-per-node", "gpus", "gpus-per-task"))
_SEEN = frozenset(
    ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "SLURM_PROCID",
     "SLURM_NODEID", "SLURM_LOCALID", "SRUN_CPUS_PER_TASK", "CUDA_VISIBLE_DEVICES")
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where the nodes of a launch are to meet, as one of them computes it; None is not known.

    Attributes:
        node: the node's number in the step.
        address, port, identity: empty where none is given.
        rank: the number of the node that it is given; empty where none is.
        hosts: whether it holds the meeting (`is_host`); empty where that is not said.
    """

    node: int
    address: str | None
    port: str | None
    identity: str | None
    rank: str | None
    hosts: str


@dataclass(frozen=True)
class Task:
    """One task of a step: its node, the variables it sees, the program in it."""

    node: int
    environment: dict[str, str]
    program: Program


@dataclass
class Step:
    """A program that is started, on its own or by srun, with the tasks that were followed.

    Attributes:
        allocation: of the job.
        line: of the command in the file.
        raw: the command, as it is written there.
        srun: the options of the srun that starts it; None without one.
        nodes, count: nodes and tasks; None where they are not known.
        unset: variables in its command that nothing sets.
        moved: the folder has been changed before.
        doubt: something unknown has decided whether it comes to this, or may have.
        piped: its output goes into another command.
        processes: its own and those that it was started in.
        background: it, or a block around it, is started with `&`.
    """

    allocation: Allocation
    line: int
    raw: str
    srun: dict[str, str] | None
    nodes: int | None
    count: int | None
    unset: tuple[str, ...]
    moved: bool
    doubt: bool
    piped: bool
    processes: tuple[str, ...]
    tasks: list[Task] = field(default_factory=list)
    background: bool = False

    @property
    def program(self) -> Program:
        return self.tasks[0].program

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its first task sees."""
        return self.tasks[0].environment

    @property
    def sure(self) -> bool:
        """True where all that the launcher is told is known."""
        return not self.unset and all(task.program.sure for task in self.tasks)

    @property
    def each(self) -> int | None:
        """The tasks on a node, of the node with most."""
        return None if self.count is None or not self.nodes else -(-self.count // self.nodes)

    @cached_property
    def node_gpus(self) -> int | None:
        """The GPUs that the step has on a node: 0 where none are asked for."""
        asked = self.srun or {}
        if asked.get("gres") == "none":
            return None
        if "gpu" in asked.get("gres", "") or {"gpus-per-node", "gpus"} & {*asked}:
            return gpus_of_node(asked, self.nodes, self.count)
        return self.allocation.gpus

    @cached_property
    def gpus(self) -> int | None:
        """The GPUs that one task sees: 0 where none are asked for."""
        asked, of_job = self.srun, self.allocation.asked
        bind = "" if asked is None else asked.get("gpu-bind") or of_job.get("gpu-bind", "")
        if asked is None:
            seen = self.allocation.gpus
        elif "gpus-per-task" in asked:
            seen = gpus_of(f"gpu:{asked['gpus-per-task']}")
        elif "gpus-per-task" in of_job and not _GPU_OPTIONS & {*asked}:
            seen = gpus_of(f"gpu:{of_job['gpus-per-task']}")
        elif single := re.fullmatch(r"(?:verbose,)?(?:single:1|per_task:(\d+))", bind):
            seen = int(single[1] or 1)
        else:
            seen = self.node_gpus if bind in ("", "none", "verbose,none") else None
        visible = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        if seen and UNKNOWN.search(visible):
            return None
        if seen and re.fullmatch(r"\d+(?:,\d+)*", visible):
            return min(seen, visible.count(",") + 1)
        return seen

    @cached_property
    def ranks(self) -> int | None:
        """The ranks that one task starts; None where that is not known."""
        started = self.program
        if started.elastic:
            text = started.option("nproc-per-node")
            if text is None:
                return 1 if self.sure else None
            return self.gpus or None if text in ("gpu", "auto") else _whole(text)
        if started.kind == "accelerate":
            whole = _whole(started.option("num-processes"))
            parts = _whole(started.option("num-machines") or "1")
            return whole // parts if whole and parts and not whole % parts else None
        return 1 if started.kind == "python" else None

    @cached_property
    def on_node(self) -> int | None:
        """The ranks on a node; None where that is not known."""
        return None if self.ranks is None or self.each is None else self.ranks * self.each

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where each node that was followed looks for the others; one of each."""
        return tuple({task.node: _place(task) for task in reversed(self.tasks)}.values())[::-1]

    @property
    def agents(self) -> int | None:
        """The nodes that a launcher is told of; None where that is not known, or a range."""
        if "standalone" in self.program.options:
            return 1
        accelerate = self.program.kind == "accelerate"
        text = self.program.option("num-machines" if accelerate else "nnodes")
        return _whole(text) if text is not None else (1 if self.sure else None)

    def __str__(self) -> str:
        name = UNKNOWN.sub("?", self.program.name)
        size = [_counted(self.nodes, "node"), _counted(self.each, "task")]
        size += [_counted(self.gpus, "GPU")] if self.gpus != 0 else []
        ranks = None if None in (self.ranks, self.count) else (self.ranks or 0) * (self.count or 0)
        text = f"line {self.line}: {name}: {' x '.join(size)} -> {_counted(ranks, 'rank')}"
        if (self.nodes or 1) == 1 and self.program.kind != "python" and self.agents == 1:
            return text
        places = sorted({(place.address, place.port) for place in self.places}, key=str)
        if len(places) == 1 and not places[0][0]:
            return text
        meet = " / ".join(f"{address or '?'}:{port or '?'}" for address, port in places)
        return f"{text}, meet at {meet}"


def _counted(count: int | None, name: str) -> str:
    return f"{'?' if count is None else count} {name}{'s' if count != 1 else ''}"


def _place(task: Task) -> Place:
    """Where a task looks for the others."""
    started, seen = task.program, task.environment
    option = started.option
    identity: str | None = ""
    if started.kind == "accelerate":
        address, port = option("main-process-ip"), option("main-process-port")
        rank = option("machine-rank")
    elif endpoint := option("rdzv-endpoint"):
        address, colon, port = endpoint.rpartition(":")
        if not colon:
            address, port = port, ""
        identity = option("rdzv-id")
        rank = option("node-rank") if option("rdzv-backend") in (None, "static") else ""
    elif started.elastic:
        address, port = option("master-addr"), option("master-port")
        rank = option("node-rank")
    else:
        address, port = seen.get("MASTER_ADDR"), seen.get("MASTER_PORT")
        rank = seen.get("NODE_RANK")
    held = re.search(r"\bis_host=(\w+)", option("rdzv-conf") or "")
    return Place(
        task.node, _known(address), _known(port), _known(identity), _known(rank),
        held[1] if held else "",
    )  # fmt: skip


def _known(text: str | None) -> str | None:
    """A text; None where something unknown is in it."""
    return None if text is not None and UNKNOWN.search(text) else text or ""


def _whole(text: str | None) -> int | None:
    count = number(text)
    return None if count is None or count >= 1_000_000 else count


@dataclass
class Table:
    """What a batch file starts.

    Attributes:
        why: the reason why it was read only, and nothing is known of what it starts.
        status: its exit code; None where bash did not come to its end.
        steps: in the order in which they start.
        commands: everything else that it would do, with its line: modules, conda, `cd`, `trap`,
            `wait`, programs that are not followed; `source` has a third word, how that went.
        later: lines of the commands behind the program that was to fail.
        untested: nothing in the file asked whether that would fail.
    """

    allocation: Allocation
    why: str = ""
    status: int | None = 0
    steps: list[Step] = field(default_factory=list)
    commands: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    untested: bool = False

    @property
    def whole(self) -> bool:
        """bash came to its end; else it went round until its time was over."""
        return self.status is not None

    def named(self, *names: str) -> list[tuple[int, tuple[str, ...]]]:
        """The commands of these names."""
        return [(line, words) for line, words in self.commands
                if words and words[0].rpartition("/")[2] in names]  # fmt: skip

    @property
    def setup(self) -> list[tuple[int, tuple[str, ...]]]:
        """What prepares the environment."""
        return self.named("module", "ml", "conda", "mamba", "micromamba", "spack")

    def lines(self) -> Iterator[str]:
        """The table, a few lines."""
        if self.why:
            yield f"read only, since {self.why}: what it starts is not known"
            return
        if not self.whole:
            yield "given up, since it goes round or waits: what would follow is not known"
        elif not self.steps:
            yield "starts no Python that can be seen"
        yield from map(str, first_of_each_line(self.steps))
        if signal := self.allocation.asked.get("signal"):
            traps = ", ".join(f"line {line}" for line, _ in self.named("trap"))
            yield f"signal {signal}" + (f", trapped at {traps}" if traps else ", no trap")
        parts = [(line, " ".join(words)) for line, words in self.setup]
        parts += [(line, " ".join(words[:2])) for line, words in self.named("source")]
        if parts:
            texts = dict.fromkeys(text for _, text in sorted(parts))  # each task does the same
            yield UNKNOWN.sub("?", "set-up: " + "; ".join(texts))


def first_of_each_line(steps: Iterable[Step]) -> list[Step]:
    """One step of each line, in order; loops start the same several times."""
    firsts: dict[int, Step] = {}
    for step in steps:
        firsts.setdefault(step.line, step)
    return list(firsts.values())


def table(script: BatchScript) -> Table:
    """What a batch file would start; nothing of it is started."""
    given = allocation(script.options)
    if script.hetero:
        return Table(given, "it is a heterogeneous job, whose parts are not read")
    if script.rejected or script.conflicts or any(line.endswith("\r") for line in script.lines):
        return Table(given, "bash cannot read it")
    return executed(script, given)


def executed(script: BatchScript, given: Allocation, job: int = 0, fail: int = 0) -> Table:
    """One execution of the file, as the first or the second of the two jobs.

    Args:
        fail: the line whose program is to fail; 0 for none.
    """
    recording = _Recording(given, JOBS[job][1], fail)
    recorder = resources.files(__package__).joinpath("recorder.bash").read_text("utf-8")
    errexit = re.match(r"#!.*\s-\w*e", script.lines[0])
    environment = given.environment(script.path, JOBS[job][0]) | {
        "__beside": str(script.path.resolve().parent),
        "__unknown": recording.unknown,
        "__flags": " ".join(FLAGS),
        "__letters": "".join(letter for letter, name in SHORT.items() if name in FLAGS),
        "__fail": str(fail),
        "__flags_of_bash": "e" if errexit else "",
    }
    words = [str(script.path.resolve()), recording.unknown]
    try:
        recording.table.status = wall.run(recorder + _ENTER, words, environment, recording)
    except OSError as error:
        return Table(given, error.strerror or str(error))
    for step in recording.table.steps:
        step.background = bool({*step.processes} & recording.behind)
    return recording.table


class _Recording:
    """What bash tells on its way through a file, put into a table."""

    def __init__(self, given: Allocation, unknown: str, fail: int) -> None:
        self.table = Table(given)
        self.unknown = unknown
        self.behind: set[str] = set()  # processes that were started with `&`
        self._fail, self._failing = fail, ""
        self._last = 1
        # By the name of a step: options, nodes, tasks; its programs, by how many each task had.
        self._sruns: dict[str, tuple[dict[str, str], int | None, int | None]] = {}
        self._steps: dict[tuple[str, int], Step] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def record(self, fields: list[str]) -> str:
        """Take the fields of a record; return what bash is answered."""
        try:
            kind, line, *rest = fields
            return self._record(kind, int(line), rest)
        except (ValueError, IndexError):  # the file has written into our descriptor
            return self.unknown

    def starts(self, words: list[str], environment: dict[str, str]) -> None:
        """Take a program that is started by its path, behind the recorder's back."""
        seen = [f"{name}={value}" for name, value in environment.items() if name in _SEEN]
        told = [*[""] * 4, "0", "0", "", "0", str(len(seen)), *seen, *words]
        self.record(["start", str(self._last), *told])

    def _record(self, kind: str, line: int, rest: list[str]) -> str:
        if kind == "background":
            self.behind.add(rest[0])
        elif kind == "later":
            self.table.later += [line] if self._failing else []
        elif kind == "failed":
            self.table.untested |= bool(self._failing)
        elif kind == "start":
            self._last = line
            return self._start(line, rest)
        elif kind == "srun":
            name, nodes, count, *given = rest
            pairs = (text.partition("=") for text in given)
            options = {SHORT.get(key[1:], key.lstrip("-")): value for key, _, value in pairs}
            self._sruns[name] = (options, _whole(nodes), _whole(count))
        elif kind == "did":
            self._last = line
            self.table.commands.append((line, tuple(rest)))
        elif kind == "ask":
            self._last = line
            node, host, text, *words = rest
            self.table.commands.append((line, tuple(words)))
            return answer(self.table.allocation, int(node), host, text, words, self.unknown)
        return ""

    def _start(self, line: int, rest: list[str]) -> str:
        """A program in a task, or on its own; "1" where it is to fail."""
        raw, unset, name, inside, moved, doubt, processes, piped, count, *words = rest
        environment = dict(text.split("=", 1) for text in words[: int(count)])
        words = words[int(count) :]
        started = program(words, self.unknown, tuple(inside.split()))
        if started is None:
            self.table.commands.append((line, tuple(words)))
            return "0"
        given = self.table.allocation
        name = name or f"alone {len(self.table.steps)}"
        task = (name, environment.get("SLURM_PROCID", "0"))
        self._counts[task] = self._counts.get(task, -1) + 1
        step = self._steps.get((name, self._counts[task]))
        if step is None:
            srun, nodes, tasks = self._sruns.get(name, (None, 1, 1))
            if srun is not None and given.nodes is None and "nodes" not in srun:
                nodes = None  # Slurm chooses
            step = Step(
                given, line, raw, srun, nodes, tasks, tuple(unset.split()), moved == "1",
                doubt == "1", piped == "1", tuple(processes.split()),
            )  # fmt: skip
            self._steps[name, self._counts[task]] = step
            self.table.steps.append(step)
        step.tasks.append(Task(int(environment.get("SLURM_NODEID", 0)), environment, started))
        if line == self._fail:
            self._failing = self._failing or name
            return str(int(name == self._failing))
        return "0"
