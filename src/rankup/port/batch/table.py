"""What a batch file would start: bash executes it behind a wall, and each command is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources

from . import options, wall
from .allocation import Allocation, allocation, number
from .answers import answer
from .options import gpus_of
from .programs import Program, program
from .script import BatchScript

# Two jobs: what differs between them comes from the job's number, or is drawn.
JOBS = ((5471, "77000001"), (8123, "77000029"))
UNKNOWN = re.compile(r"770000(?:01|29)")
_ENTER = """
builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
builtin source "$0" "$@"
"""
_GPU_OPTIONS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")


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
    """One task of a step: which it is, the variables it sees, the program in it."""

    node: int
    local: int
    environment: dict[str, str]
    program: Program


@dataclass(frozen=True)
class Step:
    """A program that is started, on its own or by srun, with the tasks that were followed.

    Attributes:
        line: of the command in the file.
        raw: the command, as it is written there.
        srun: the options of the srun that starts it; None without one.
        nodes, count: nodes and tasks; None where they are not known.
        unset: variables in its command that nothing sets.
        moved: the folder has been changed before.
        doubt: something unknown has decided whether it comes to this, or may have.
        allocation: of the job.
    """

    line: int
    raw: str
    srun: dict[str, str] | None
    nodes: int | None
    count: int | None
    tasks: tuple[Task, ...]
    unset: tuple[str, ...]
    moved: bool
    doubt: bool
    allocation: Allocation

    @property
    def program(self) -> Program:
        return self.tasks[0].program

    @property
    def sure(self) -> bool:
        """True where all that the launcher is told is known."""
        return not self.unset and all(one.program.sure for one in self.tasks)

    @property
    def each(self) -> int | None:
        """The tasks on a node, of the node with most."""
        return None if self.count is None or not self.nodes else -(-self.count // self.nodes)

    @cached_property
    def node_gpus(self) -> int | None:
        """The GPUs that the step has on a node: 0 where none are asked for."""
        said = self.srun or {}
        if "gpu" in said.get("gres", ""):
            return gpus_of(said["gres"])
        if said.get("gres") == "none":
            return None
        if "gpus-per-node" in said:
            return gpus_of(f"gpu:{said['gpus-per-node']}")
        if "gpus" in said:
            count = gpus_of(f"gpu:{said['gpus']}")
            return count // self.nodes if count and self.nodes and not count % self.nodes else None
        return self.allocation.gpus

    @cached_property
    def gpus(self) -> int | None:
        """The GPUs that one task sees: 0 where none are asked for."""
        said = self.srun
        if said is None:
            found = self.allocation.gpus
        elif "gpus-per-task" in said:
            found = gpus_of(f"gpu:{said['gpus-per-task']}")
        elif "gpus-per-task" in self.allocation.asked and not {*_GPU_OPTIONS} & {*said}:
            found = gpus_of(f"gpu:{self.allocation.asked['gpus-per-task']}")
        elif bind := said.get("gpu-bind") or self.allocation.asked.get("gpu-bind"):
            single = re.fullmatch(r"(?:verbose,)?(?:single:1|per_task:(\d+))", bind)
            none = bind in ("none", "verbose,none")
            found = int(single[1] or 1) if single else self.node_gpus if none else None
        else:
            found = self.node_gpus
        visible = self.tasks[0].environment.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and found:
            if UNKNOWN.search(visible):
                return None
            if re.fullmatch(r"\d+(?:,\d+)*", visible):
                return min(found, visible.count(",") + 1)
        return found

    @cached_property
    def ranks(self) -> int | None:
        """The ranks that one task starts; None where that is not known."""
        one = self.program
        if one.elastic:
            text = one.option("nproc-per-node")
            if text is None:
                return 1 if self.sure else None
            if text in ("gpu", "auto"):
                return self.gpus or None
            return _whole(text)
        if one.kind == "accelerate":
            whole, machines = _whole(one.option("num-processes")), one.option("num-machines") or "1"
            parts = _whole(machines)
            return whole // parts if whole and parts and not whole % parts else None
        return 1 if one.kind == "python" else None

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where each node that was followed looks for the others; one of each."""
        found: dict[int, Place] = {}
        for task in self.tasks:
            one = task.program
            if one.kind == "accelerate":
                address, port = one.option("main-process-ip"), one.option("main-process-port")
                rank, identity = one.option("machine-rank"), ""
            elif one.option("rdzv-endpoint"):
                address, _, port = (one.option("rdzv-endpoint") or "").rpartition(":")
                if not address:
                    address, port = port, ""
                rank, identity = "", one.option("rdzv-id") or ""
                if one.option("rdzv-backend") in (None, "static"):
                    rank = one.option("node-rank") or ""
            elif one.elastic:
                address, port = one.option("master-addr"), one.option("master-port")
                rank, identity = one.option("node-rank") or "", ""
            else:
                seen = task.environment
                address, port = seen.get("MASTER_ADDR"), seen.get("MASTER_PORT")
                rank, identity = seen.get("NODE_RANK", ""), ""
            conf = re.search(r"\bis_host=(\w+)", one.option("rdzv-conf") or "")
            found.setdefault(
                task.node,
                Place(
                    task.node, _known(address), _known(port), _known(identity), _known(rank),
                    conf[1] if conf else "",
                ),
            )  # fmt: skip
        return tuple(found.values())

    @property
    def agents(self) -> int | None:
        """The nodes that a launcher is told of; None where that is not known, or a range."""
        one = self.program
        names = ("num-machines",) if one.kind == "accelerate" else ("nnodes",)
        if "standalone" in one.options:
            return 1
        text = one.option(*names)
        return _whole(text) if text is not None else (1 if self.sure else None)


def _whole(text: str | None) -> int | None:
    found = number(text)
    return None if found is None or found >= 1_000_000 else found


def _known(text: str | None) -> str | None:
    """A text; None where something unknown is in it."""
    return None if text is not None and UNKNOWN.search(text) else text or ""


@dataclass
class Table:
    """What a batch file starts.

    Attributes:
        why: the reason why it was read only, and nothing is known of what it starts.
        whole: bash came to its end; else it went round until its time was over.
        steps: in the order in which they start.
        others: programs that are started by something that is not followed, with their lines.
        setup: modules, conda and the like, with their lines.
        sourced: files that are sourced: line, name, whether it was read, or is not to be judged.
        traps: lines and words of `trap`.
        waits: lines of `wait`.
        fixed: steps whose port is the same in two jobs.
    """

    allocation: Allocation
    why: str = ""
    whole: bool = True
    steps: list[Step] = field(default_factory=list)
    others: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    setup: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    sourced: list[tuple[int, str, str]] = field(default_factory=list)
    traps: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    fixed: list[Step] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The table, a few lines."""
        if self.why:
            yield f"read only, since {self.why}: what it starts is not known"
            return
        if not self.whole:
            yield "given up, since it goes round or waits: what would follow is not known"
        elif not self.steps:
            yield "starts no Python that can be seen"
        for step in _alike(self.steps):
            name = UNKNOWN.sub("?", step.program.name)
            yield f"line {step.line}: {name}: {_size(step)}{_meeting(step)}"
        told = self.allocation.asked.get("signal")
        if told:
            traps = ", ".join(f"line {line}" for line, _ in self.traps)
            yield f"signal {told}" + (f", trapped at {traps}" if traps else ", no trap")
        if self.setup or self.sourced:
            parts = [(line, " ".join(words)) for line, words in self.setup]
            parts += [(line, f"source {name}") for line, name, _ in self.sourced]
            texts = dict.fromkeys(text for _, text in sorted(parts))  # each task does the same
            yield UNKNOWN.sub("?", "set-up: " + "; ".join(texts))


def _alike(steps: Sequence[Step]) -> list[Step]:
    """One step of each line."""
    return list({one.line: one for one in reversed(steps)}.values())[::-1]


def _size(step: Step) -> str:
    def text(count: int | None, name: str) -> str:
        return f"? {name}s" if count is None else f"{count} {name}{'s' if count != 1 else ''}"

    parts = [text(step.nodes, "node"), text(step.each, "task")]
    if step.gpus != 0:
        parts.append(text(step.gpus, "GPU"))
    ranks = None
    if step.ranks is not None and step.count is not None:
        ranks = step.ranks * step.count
    return f"{' x '.join(parts)} -> {text(ranks, 'rank')}"


def _meeting(step: Step) -> str:
    if (step.nodes or 1) == 1 and step.program.kind != "python" and step.agents == 1:
        return ""
    places = {(one.address, one.port) for one in step.places}
    if len(places) != 1:
        return ", meet at " + " / ".join(
            f"{a or '?'}:{p or '?'}" for a, p in sorted(places, key=str)
        )
    [(address, port)] = places
    return f", meet at {address}:{port or '?'}" if address else ""


def table(script: BatchScript) -> Table:
    """What a batch file would start; nothing of it is started."""
    given = allocation(script.options)
    if script.hetero:
        return Table(given, "it is a heterogeneous job, whose parts are not read")
    if script.rejected or script.conflicts or any(one.endswith("\r") for one in script.lines):
        return Table(given, "bash cannot read it")
    found = executed(script, given, *JOBS[0])
    ports = [step.places[0].port for step in found.steps]
    if any((port or "").isdigit() for port in ports):
        again = executed(script, given, *JOBS[1])
        for step, other in zip(found.steps, again.steps, strict=False):
            port = step.places[0].port
            if port and port.isdigit() and port == other.places[0].port:
                found.fixed.append(step)
    return found


def executed(script: BatchScript, given: Allocation, job: int, unknown: str) -> Table:
    """One execution of the file, as a job of that number."""
    made = Table(given)
    sruns: dict[str, tuple[int, dict[str, str], int | None, int | None]] = {}
    tasks: dict[tuple[str, int], list[tuple[Task, int, str, tuple[str, ...], bool, bool]]] = {}
    counts: dict[tuple[str, str], int] = {}
    last = 1

    def starts(fields: list[str]) -> None:
        line, raw, unset, step, inside, moved, doubt, seen, *rest = fields
        environment = dict(one.split("=", 1) for one in rest[: int(seen)])
        words = rest[int(seen) :]
        one = program(words, unknown, inside.split())
        if one is None:
            made.others.append((int(line), tuple(words)))
            return
        node, local = (int(environment.get(f"SLURM_{name}", 0)) for name in ("NODEID", "LOCALID"))
        step = step or f"alone {line} {len(made.steps)} {len(tasks)}"
        proc = environment.get("SLURM_PROCID", "0")
        counts[step, proc] = counts.get((step, proc), -1) + 1
        task = Task(node, local, environment, one)
        entry = (task, int(line), raw, tuple(unset.split()), moved == "1", doubt == "1")
        tasks.setdefault((step, counts[step, proc]), []).append(entry)

    def record(fields: list[str]) -> str | None:
        nonlocal last
        kind, line, *rest = fields
        if not line.isdigit():
            return unknown if kind == "ask" else None
        last = int(line)
        if kind == "ask":
            node, host, text, *words = rest
            return answer(given, int(node), host, text, words, unknown)
        if kind == "srun":
            step, nodes, count, _, *said = rest
            pairs = (one.partition("=") for one in said)
            named = {
                options.SHORT.get(name[1:], name.lstrip("-")): value for name, _, value in pairs
            }
            sruns[step] = (int(line), named, _whole(nodes), _whole(count))
        elif kind == "start":
            starts([line, *rest])
        elif kind == "source":
            made.sourced.append((int(line), rest[0], rest[1]))
        elif kind == "setup":
            made.setup.append((int(line), tuple(rest)))
        elif kind == "trap":
            made.traps.append((int(line), tuple(rest)))
        elif kind == "wait":
            made.waits.append(int(line))
        return None

    def careful(fields: list[str]) -> str | None:
        try:
            return record(fields)
        except (ValueError, IndexError):  # the file has written into our descriptor
            return unknown if fields[:1] == ["ask"] else None

    def called(one: wall.Started) -> None:
        kept = [f"{k}={v}" for k, v in one.environment.items() if k in _SEEN]
        careful(["start", str(last), "", "", "", "", "0", "0", str(len(kept)), *kept, *one.words])

    text = resources.files(__package__).joinpath("recorder.bash").read_text("utf-8") + _ENTER
    flags, letters = options.flags()
    environment = given.environment(script.path, job)
    environment |= {
        "__beside": str(script.path.resolve().parent),
        "__unknown": unknown,
        "__flags": " ".join(flags),
        "__letters": "".join(letters),
    }
    try:
        made.whole = wall.run(
            text, [str(script.path.resolve()), unknown], environment, wall.Watcher(careful, called)
        )
    except OSError as error:
        return Table(given, error.strerror or str(error))
    for (step, _), entries in tasks.items():
        _, line, raw, unset, moved, doubt = entries[0]
        place = sruns.get(step)
        srun, nodes, count = (place[1], place[2], place[3]) if place else (None, 1, 1)
        if srun is not None and given.nodes is None and "nodes" not in srun:
            nodes = None  # Slurm chooses
        followed = tuple(one for one, *_ in entries)
        made.steps.append(Step(line, raw, srun, nodes, count, followed, unset, moved, doubt, given))
    return made


_SEEN = frozenset(
    ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "SLURM_PROCID",
     "SLURM_NODEID", "SLURM_LOCALID", "SRUN_CPUS_PER_TASK", "CUDA_VISIBLE_DEVICES")
)  # fmt: skip
