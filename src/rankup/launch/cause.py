"""The last words of a failed run: which rank, on which node, and what happened there.

No Slurm command is started here: the job script asks for this at its end, inside the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.text import clean
from ..site import rundir
from . import failure, logfile, meant
from .logfile import OUTPUT

# What the job script says by the way, rather than at its end.
_BY_THE_WAY = re.compile(
    r"^rankup: (stopped with a checkpoint|this site does not requeue; job"
    r"|\S+ does not resolve; trying|warning)"
)
# Lines of slurmstepd, srun, and of psslurm, which JSC runs in slurmd's place: it says
# "error: *** job 1 CANCELLED DUE TO TIME LIMIT ***". A step's own ("*** 1.0 …") is no cause.
_BY_SLURM = re.compile(r"slurmstepd|srun: |error: \*\*\* (job \d|PREEMPTION for job )")
# Slurm's own lines: (pattern, the state that they end a job in, what it means).
_SLURM: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), state, words)
    for pattern, state, words in (
        (
            r"oom-kill|oom_kill|out of memory handler|exceeded .{0,100}memory limit",
            "OUT_OF_MEMORY",
            "the node's main memory ran out; fewer data workers or more --mem",
        ),
        (
            r"CANCELLED (AT .{1,40} )?DUE TO TIME LIMIT",
            "TIMEOUT",
            "the job ran into its time limit; give more --time, or go on with --resume",
        ),
        (
            r"CANCELLED AT .{1,40} DUE TO NODE FAILURE|Node failure on",
            "NODE_FAIL",
            "a node died; go on with --resume",
        ),
        (
            r"CANCELLED AT .{1,40} DUE TO PREEMPTION",
            "PREEMPTED",
            "a job that comes first took the nodes",
        ),
        (
            r"CANCELLED AT .{1,40} DUE TO JOB REQUEUE",
            "",
            "the job was put back into the queue",
        ),
        (r"^slurmstepd.*\*\*\* JOB .* CANCELLED AT", "CANCELLED", "the job was cancelled"),
        # psslurm's word for every end but the time limit.
        (
            r"\*\*\* PREEMPTION for job \d",
            "CANCELLED",
            "the job was cancelled, preempted or put back into the queue",
        ),
        (
            r"^srun: error: .*(Unable to create step|Job step creation)",
            "FAILED",
            "srun could not start",
        ),
        (
            r"^srun: error: .*(Node failure|node failure)",
            "NODE_FAIL",
            "a node died; go on with --resume",
        ),
    )
)
_RULE = re.compile(r"^(=|-){10,}\s*$")
_ROOT = "Root Cause (first observed failure):"
_FIELD = re.compile(r"^  (\w+) +: ?(.*)$")
_CODE = re.compile(r"(-?\d+)")
_TRACEBACK = "Traceback (most recent call last):"
_AGENT = (
    "torch/distributed/run.py",
    "torch/distributed/launcher",
    "torch/distributed/elastic/agent",
)
# Sent by launchers to whoever is left, or raised by libraries whose peer is gone.
_FOLLOWS = (-15, -2, -1)
_ABORT = -6
_TASK = re.compile(r"^srun: error: (\S+): tasks? [\d,\-\[\]]+: .+")
# As `runtime/hang/watch.py` begins what it writes down there.
_AT_THE_LIMIT = "at the job's time limit"
_PREFLIGHT = re.compile(r"^preflight: ")


@dataclass(frozen=True)
class Root:
    """An agent's "Root Cause" block.

    Attributes:
        exit_code: negative for a signal.
        traceback: the rank's own, where the block or the log has it.
        weight: 0 for a cause, more the more likely it only followed from another one.
    """

    rank: int
    host: str
    time: str
    exit_code: int
    traceback: str
    weight: int

    @property
    def message(self) -> str:
        """The exception in a line, or how the process ended."""
        lines = [line for line in self.traceback.splitlines() if line.strip()]
        return lines[-1].strip() if lines else failure.said(self.exit_code)


@dataclass(frozen=True)
class Cause:
    """What made a run fail.

    Attributes:
        text: for people; the last line says the most.
        source: `rank`, `torchrun`, `preflight`, `script`, `slurm` or `traceback`.
    """

    text: str
    source: str


def of_run(path: Path, task: str | None = None, job_id: str | None = None) -> Cause | None:
    """The cause that stands in a run's newest attempt, as far as its files tell.

    Args:
        task: of an array, whose own run directory is `array/<task>`.
        job_id: of the newest attempt; where that has written no log, what an earlier one has left
            is not its cause.
    """
    if job_id and not logfile.log_of(path, job_id.partition("_")[0], task).is_file():
        return None
    folder = meant.folder(path, task)
    records = [r for r in rundir.records(path) if task is None or str(r.get("task")) == task]
    file, start = newest_log(path, records, task)
    if file is not None and file.name == OUTPUT.name:  # its agent has written down what happened
        return find(folder / "log", ())
    if task is None and (named := task_of(file)) is not None:
        return of_run(path, named, job_id)
    lines = logfile.read_lines(file, start) if file else []
    return find(folder / "log", lines, _nodes(records))


def newest_log(
    path: Path, records: Sequence[Mapping[str, Any]], task: str | None = None
) -> tuple[Path | None, int]:
    """The log of the newest start that has one, and where its newest attempt begins in it."""
    jobs = list(dict.fromkeys(str(record["job"]) for record in records))
    asked: list[str] = []
    try:
        job = rundir.read(path)
        asked = rundir.slurm_jobs(path, job)
        if job.attempts and "job" not in job.attempts[-1] and (path / OUTPUT).is_file():
            return path / OUTPUT, int(job.attempts[-1].get("offset") or 0)
    except Exception:  # a damaged job.json: the records are enough
        asked = jobs
    for number in reversed(list(dict.fromkeys([*asked, *jobs]))):
        file = logfile.log_of(path, number, task)
        if not file.is_file() and task is None:
            tasks = (path / "log").glob(f"{number}_*.out")
            file = max(tasks, key=lambda log: log.stat().st_mtime, default=file)
        if file.is_file():
            named = task_of(file)
            mine = [
                record
                for record in records
                if record["job"] == number and (named is None or str(record.get("task")) == named)
            ]
            restarts = [r["restart"] for r in mine if isinstance(r.get("restart"), int)]
            return file, logfile.attempt_start(file, mine, max(restarts, default=0))
    return None, 0


def task_of(file: Path | None) -> str | None:
    """The array's task that a log is of, by its name."""
    return file.stem.partition("_")[2] or None if file else None


def find(log: Path, lines: Sequence[str], nodes: Sequence[str] = ()) -> Cause | None:
    """The cause by the ranks' notes in `log`, else by the lines of the newest attempt."""
    written = failure.read_all(log)
    own = [f for f in written if not f.consequence and not failure.timed_out(f.message)]
    if own:
        first = min(own, key=lambda f: f.time)
        limit = _slurm(lines) if first.message.startswith(_AT_THE_LIMIT) else None
        before = f"{limit.text}\n" if limit else ""
        return Cause(before + failure.report(first), "rank")
    lines = [line.rstrip("\r") for line in lines]
    preflight = list(dict.fromkeys(line for line in lines if _PREFLIGHT.match(line)))
    if preflight:
        return Cause("\n".join(preflight[:20]), "preflight")
    roots = root_causes(lines)
    slurm = _slurm(lines)
    if roots and roots[0].weight == 0:
        return _of_root(roots[0], written, nodes, slurm)
    if slurm:
        return slurm
    script = [line for line in lines if line.startswith("rankup: ") and not _BY_THE_WAY.match(line)]
    if script and not written:
        return Cause(script[-1], "script")
    if silent := failure.no_answer(written, nodes):
        return Cause(failure.report(silent), "rank")
    if roots and roots[0].weight < 3 and not written:
        return _of_root(roots[0], written, nodes, None, plain_tracebacks(lines))
    if written:
        first = min(written, key=lambda f: (f.consequence, f.time))
        after = " (another rank had ended before, without a word)" if first.consequence else ""
        return Cause(failure.report(first) + after, "rank")
    if roots:
        return _of_root(roots[0], written, nodes, None)
    return _leftovers(lines)


def _of_root(
    root: Root,
    written: Sequence[failure.Failure],
    nodes: Sequence[str],
    slurm: Cause | None,
    plain: Sequence[str] = (),
) -> Cause:
    node = failure.node_of(root.rank, written, nodes) or root.host
    trace = root.traceback
    message = root.message
    if not trace and root.exit_code > 0 and plain:
        # Nobody marked it with a rank; the first one printed is the first to fail.
        trace = plain[0]
        message = trace.splitlines()[-1]
    text = f"{trace}\n\n" if trace else ""
    text += f"rank {root.rank} on {node} failed: {message}"
    if slurm:
        text += f"\n{slurm.text}"
    return Cause(text, "torchrun")


def _slurm(lines: Sequence[str]) -> Cause | None:
    found = _by_slurm(lines)
    return Cause(f"{found[0].strip()}\nSlurm: {found[2]}", "slurm") if found else None


def end_state(lines: Sequence[str]) -> str | None:
    """The state in which a job ended by what Slurm wrote into its log; None where it says none."""
    found = _by_slurm(lines)
    return found[1] or None if found else None


def _by_slurm(lines: Sequence[str]) -> tuple[str, str, str] | None:
    for pattern, state, words in _SLURM:
        for line in lines:
            # A step is cancelled when another has failed; only the job's own end is a cause.
            if _BY_SLURM.match(line) and pattern.search(line):
                return line, state, words
    return None


def _leftovers(lines: Sequence[str]) -> Cause | None:
    plain = plain_tracebacks(lines)
    if plain:
        return Cause(plain[0], "traceback")
    tasks = [line for line in lines if _TASK.match(line)]
    return Cause(tasks[0], "slurm") if tasks else None


def _nodes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    from ..slurm.hostlist import expand

    for record in reversed(records):
        if isinstance(hosts := record.get("nodes"), str):
            try:
                return expand(hosts)
            except ValueError:
                return []
    return []


def shown(cause: Cause) -> str:
    """The text, safe for a terminal."""
    return "\n".join(clean(line) for line in cause.text.split("\n"))


def root_causes(lines: Sequence[str]) -> list[Root]:
    """Every agent's root cause, the likeliest first."""
    found = []
    for block in _blocks(lines):
        matches = [match for line in block if (match := _FIELD.match(line))]
        fields: dict[str, str] = {match[1]: match[2] for match in matches}
        rank = _CODE.search(fields.get("rank", ""))
        code = _CODE.search(fields.get("exitcode", ""))
        if rank is None or code is None:
            continue
        number, exit_code = int(rank[1]), int(code[1])
        trace = rank_traceback(lines, number)
        weight = _weight(exit_code, trace)
        host, when = fields.get("host", "?"), fields.get("time", "")
        found.append(Root(number, host, when, exit_code, trace, weight))
    return sorted(found, key=lambda root: (root.weight, root.time))


def rank_traceback(lines: Sequence[str], rank: int) -> str:
    """Return this rank's last traceback as printed; torch marks a rank's lines by its number."""
    prefix = f"[rank{rank}]:"
    own = [line[len(prefix) :].removeprefix(" ") for line in lines if line.startswith(prefix)]
    starts = [number for number, line in enumerate(own) if line.startswith(_TRACEBACK)]
    return "\n".join(own[starts[-1] :]).rstrip() if starts else ""


def plain_tracebacks(lines: Sequence[str]) -> list[str]:
    """Tracebacks that no rank's number marks and that are not an agent's own."""
    found: list[list[str]] = []
    inside = False
    for line in lines:
        if line.startswith(_TRACEBACK):
            found.append([line])
            inside = True
        elif inside:
            found[-1].append(line)
            inside = line.startswith((" ", "\t"))
    texts = ["\n".join(block) for block in found]
    return [text for text in texts if not any(sign in text for sign in _AGENT)]


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    for start, line in enumerate(lines):
        if line.strip() != _ROOT:
            continue
        block: list[str] = []
        for following in lines[start + 1 : start + 500]:
            if _RULE.match(following):
                break
            block.append(following)
        yield block


def _weight(exit_code: int, trace: str) -> int:
    last = trace.splitlines()[-1] if trace else ""
    if failure.broken_by_peer(last):
        return 3
    if exit_code in _FOLLOWS:
        return 4
    if failure.timed_out(last):
        return 2
    if exit_code == _ABORT or (exit_code > 0 and not trace):
        return 1
    return 0
