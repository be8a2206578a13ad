"""The last words of a failed run: which rank, on which node, and what happened there.

No Slurm command is started here: the job script asks for this at its end, inside the job.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.text import clean
from ..site import rundir
from ..slurm import reasons
from . import failure, logfile
from .logfile import OUTPUT

# What the job script says by the way, rather than at its end.
_BY_THE_WAY = re.compile(r"^rankup: (note: |warning: |stopped with a checkpoint)")
# Lines of slurmstepd, srun, and of psslurm, which JSC runs in slurmd's place: it says
# "error: *** job 1 CANCELLED DUE TO TIME LIMIT ***". A step's own ("*** 1.0 …") is no cause.
_BY_SLURM = re.compile(r"slurmstepd|srun: |error: \*\*\* (job \d|PREEMPTION for job )")
# Slurm's own lines: (pattern, the state that they end a job in, what it means where no state does).
_SLURM: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), state, words)
    for pattern, state, words in (
        (
            r"oom-kill|oom_kill|out of memory handler|exceeded .{0,100}memory limit",
            "OUT_OF_MEMORY",
            "",
        ),
        (r"CANCELLED (AT .{1,40} )?DUE TO TIME LIMIT", "TIMEOUT", ""),
        (r"CANCELLED AT .{1,40} DUE TO NODE FAILURE|Node failure on", "NODE_FAIL", ""),
        (r"CANCELLED AT .{1,40} DUE TO PREEMPTION", "PREEMPTED", ""),
        (r"CANCELLED AT .{1,40} DUE TO JOB REQUEUE", "", "It was put back into the queue."),
        (r"^slurmstepd.*\*\*\* JOB .* CANCELLED AT", "CANCELLED", ""),
        # psslurm's word for every end but the time limit.
        (
            r"\*\*\* PREEMPTION for job \d",
            "CANCELLED",
            "It was cancelled, preempted or put back into the queue.",
        ),
        (
            r"^srun: error: .*(Unable to create step|Job step creation)",
            "FAILED",
            "srun could not start.",
        ),
        (r"^srun: error: .*node failure", "NODE_FAIL", ""),
    )
)
_ANEW = re.compile(
    r"Traceback|During handling|The above exception|\[|\w+: error:|[IWE]\d{4} |terminate called"
    r"|[=-]{8}|rankup: |slurmstepd|\d+[%/]|Epoch|epoch"
)
_TRACEBACK = "Traceback (most recent call last):"
_BY_RANK = re.compile(r"\[rank(\d+)\]: ?")  # so torch marks the lines of one
_AGENT = (
    "torch/distributed/run.py",
    "torch/distributed/launcher",
    "torch/distributed/elastic/agent",
)
# What torchrun prints of the rank that failed first, where rankup did not start it.
_ROOT = re.compile(
    r"^Root Cause \(first observed failure\):\n(?:.*\n){1,3}?  host +: (.*)\n"
    r"  rank +: (\d+) .*\n  exitcode +: (-?\d+) ",
    re.MULTILINE,
)
# Sent to whoever is left, or raised by libraries whose peer is gone.
_FOLLOWS = (-signal.SIGTERM, -signal.SIGABRT)
_TASK = re.compile(r"^srun: error: (\S+): tasks? [\d,\-\[\]]+: .+")
# As `runtime/hang/watch.py` begins what it writes down there.
_AT_THE_LIMIT = "at the job's time limit"
_PREFLIGHT = re.compile(r"^preflight: ")


@dataclass(frozen=True)
class Cause:
    """The reason for a run's failure.

    Attributes:
        text: for people; the last line says the most.
        source: `rank`, `preflight`, `script`, `slurm` or `traceback`.
    """

    text: str
    source: str


def of_run(path: Path, job_id: str | None = None) -> Cause | None:
    """The cause that stands in a run's newest attempt, as far as its files tell.

    Args:
        job_id: of the newest attempt; where that has written no log, what an earlier one has left
            is not its cause.
    """
    if job_id and not logfile.log_of(path, job_id).is_file():
        return None
    records = rundir.records(path)
    file, start = newest_log(path, records)
    if file is not None and file.name == OUTPUT.name:
        # Of a run on this machine alone, its agent has written down what happened.
        allocated = "allocation" in rundir.read(path).attempts[-1]
        return find(path / "log", logfile.read_lines(file, start) if allocated else ())
    lines = logfile.read_lines(file, start) if file else []
    return find(path / "log", lines, _nodes(records))


def newest_log(path: Path, records: Sequence[Mapping[str, Any]]) -> tuple[Path | None, int]:
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
        file = logfile.log_of(path, number)
        if file.is_file():
            mine = [record for record in records if record["job"] == number]
            restarts = [r["restart"] for r in mine if isinstance(r.get("restart"), int)]
            return file, logfile.attempt_start(file, mine, max(restarts, default=0))
    return None, 0


def find(log: Path, lines: Sequence[str], nodes: Sequence[str] = ()) -> Cause | None:
    """The cause by the ranks' notes in `log`, else by the lines of the newest attempt."""
    notes = failure.read_all(log)
    lines = [line.rstrip("\r") for line in lines]
    written = failure.of_ranks(notes)
    first = failure.first_cause(notes, _roots(lines, written, nodes), nodes)
    slurm = _slurm(lines)
    if first and failure.is_cause(first):
        words = [failure.report(first)]
        if slurm and first.message.startswith(_AT_THE_LIMIT):
            words.insert(0, slurm.text)
        elif slurm and failure.was_killed(first):  # as one whose memory ran out
            words.append(slurm.text)
        return Cause("\n".join(words), "rank")
    preflight = list(dict.fromkeys(line for line in lines if _PREFLIGHT.match(line)))
    if preflight:
        return Cause("\n".join(preflight[:20]), "preflight")
    if slurm:
        return slurm
    script = [line for line in lines if line.startswith("rankup: ") and not _BY_THE_WAY.match(line)]
    if script and not written:
        return Cause(script[-1], "script")
    # That its process has ended is all that is known of a rank without a note: any traceback of a
    # job without rankup on its nodes says more.
    silent = first is None or first.rank not in {note.rank for note in written}
    if silent and (raised := _first_traceback(lines)):
        return raised
    if first:
        return Cause(failure.report(first), "rank")
    tasks = [line for line in lines if _TASK.match(line)]
    return Cause(tasks[0], "slurm") if tasks else None


def _roots(
    lines: Sequence[str], written: Sequence[failure.Failure], nodes: Sequence[str]
) -> list[failure.Failure]:
    """The ranks that torchrun saw fail first, one per node, but for those that wrote a note."""
    found = []
    for host, number, exit_code in _ROOT.findall("\n".join(lines)):
        rank, code = int(number), int(exit_code)
        node = failure.node_of(rank, written, nodes) or host
        message = f"its process exited with code {code}" if code >= 0 else ""
        root = failure.of_code(rank, node, code, message)
        found.append(replace(root, consequence=code >= 0 or code in _FOLLOWS))
    return [root for root in found if root.rank not in {f.rank for f in written}]


def _slurm(lines: Sequence[str]) -> Cause | None:
    found = _by_slurm(lines)
    if found is None:
        return None
    line, state, words = found
    return Cause(f"{line.strip()}\nSlurm: {words or reasons.ended(state, 0, 0, '')}", "slurm")


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


def _first_traceback(lines: Sequence[str]) -> Cause | None:
    for text, rank, last in _tracebacks(lines):
        if not failure.broken_by_peer(last) and not failure.timed_out(last):
            return Cause(
                text if rank is None else f"{text}\n\nrank {rank} failed: {last}", "traceback"
            )
    return None


def _tracebacks(lines: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """Tracebacks but torchrun's own, with the rank that torch has marked them by, and the line of
    the exception, whose message may go on in further lines."""
    marks = [_BY_RANK.match(line) for line in lines]
    for rank in dict.fromkeys(mark and mark[1] for mark in marks):
        own = [
            line[mark.end() :] if mark else line
            for line, mark in zip(lines, marks, strict=True)
            if (mark and mark[1]) == rank
        ]
        for start in (number for number, line in enumerate(own) if line.startswith(_TRACEBACK)):
            inside = itertools.takewhile(
                lambda line: line.startswith((" ", "\t")), own[start + 1 :]
            )
            size = 1 + sum(1 for _ in inside)
            behind = itertools.takewhile(_goes_on, own[start + size + 1 : start + size + 21])
            text = "\n".join([*own[start : start + size + 1], *behind])
            last = "".join(own[start + size : start + size + 1])
            if not any(sign in text for sign in _AGENT):
                yield text, rank, last


def _goes_on(line: str) -> bool:
    """True of a further line of an exception's message: no blank one, and of no other writer."""
    return bool(line.strip()) and not _ANEW.match(line)


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
