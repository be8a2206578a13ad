"""What a plain log of Slurm or torchrun says of a run that failed: the cause, and what to do."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ..base.errors import UserError
from ..base.text import clean
from . import cause
from .logfile import harmless, read_lines, say, tail_lines

_RANK = re.compile(r"\[(?:default\d+\]:\[)?rank ?(\d+)\]", re.IGNORECASE)
_WATCHDOG = re.compile(
    r"\[Rank (\d+)\].{0,80}Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+),"
    r" OpType=(\w+)(?:, NumelIn=(\d+))?.{0,80}?Timeout\(ms\)=(\d+)\)"
)
_WORLD = re.compile(r"\bworld[_ ]size\D{1,4}(\d{1,6})\b", re.IGNORECASE)
_FAILED_ON = re.compile(r"srun: error: ([\w.-]+): task")
_WAITING = re.compile(
    r"DistBackendError|NCCL|TimeoutError|Rendezvous\w*Error|DistStoreError|TCPStore"
)
_NOT_REACHED = re.compile(
    r"client socket has (?:timed out after (\d+) ?(m?s)|failed to connect).{0,80}?"
    r"\(?\[?([\w.:-]+?)\]?[,:] ?(\d+)\)"
)
_IN_USE = (
    "is taken on that node: by what is left of an earlier run, by another job, or since this run "
    "was started twice there",
    "a port of the job's own, MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)); one torchrun "
    "on each node (--ntasks-per-node=1)",
)
# What failures print that say themselves what they are: a pattern, the cause, what to do.
_KNOWN = (
    (
        r"CommandNotFoundError: Your shell has not been properly configured",
        "conda activate: a batch shell reads no ~/.bashrc, so that conda's hook is not loaded, and "
        "what follows ran with another Python",
        'eval "$(conda shell.bash hook)" above it, or source …/etc/profile.d/conda.sh',
    ),
    (
        r"Duplicate GPU detected ?: rank (?P<rank1>\d+) and rank (?P<rank2>\d+) both on "
        r"(?:CUDA )?device (?P<bus>\w+)",
        "{ranks} took one GPU (bus {bus}): NCCL wants one for each rank",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the process group is made; '
        "no more ranks on a node than it has GPUs; no CUDA_VISIBLE_DEVICES or --gpus-per-task that "
        "hides the others",
    ),
    (
        r"(?:bind to|listen on).{0,60}?[\]:](?P<port>\d{2,5}).{0,80}"
        r"(?:errno: 98|EADDRINUSE|[Aa]ddress already)",
        f"port {{port}} {_IN_USE[0]}",
        _IN_USE[1],
    ),
    (r"port: (?P<port>\d{2,5}),.{0,80}EADDRINUSE", f"port {{port}} {_IN_USE[0]}", _IN_USE[1]),
    (
        r"EADDRINUSE|errno: 98|\bAddress already in use",
        f"the port of the meeting {_IN_USE[0]}",
        _IN_USE[1],
    ),
    (
        r"insufficient shared memory|Bus error|/dev/shm.{0,60}No space"
        r"|No space left.{0,60}/dev/shm|unable to (?:mmap|open shared memory|write to file </t)",
        "the node's shared memory (/dev/shm) is full: DataLoader workers hand batches on by it",
        "fewer num_workers or a smaller prefetch_factor; more --mem, of which it is a part on most "
        'clusters; torch.multiprocessing.set_sharing_strategy("file_system"); in a container '
        "bind the node's /dev/shm (docker: --ipc=host or --shm-size)",
    ),
)


def show(file: Path, *, lines: int, raw: bool, only_cause: bool) -> int:
    """Print the end of a log that belongs to no run of ours, and what it says of a failure.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    if not only_cause:
        shown = [clean(line) for line in tail_lines(file)]
        if not raw:
            shown = [line for line in shown if not harmless(line)]
        for line in shown[-lines:] if lines else ():
            say(line)
        say("")
    words = explained(read_lines(file))
    for line in words or [f"nothing in {clean(str(file))} tells of a failure that is known here"]:
        say(clean(line))
    return 0


def explained(lines: Sequence[str]) -> list[str]:
    """The cause of a failure by the lines of a log, and what to do; nothing where none is known."""
    for pattern, says, todo in _KNOWN:
        if match := _first(pattern, lines):
            fields = match.groupdict()
            ranks = _ranks([int(rank) for name, rank in fields.items() if name[:4] == "rank"])
            return [says.format(ranks=ranks, **fields), f"-> {todo}"]
    error = cause.find(Path("/nonexistent"), lines)
    words = error.text.split("\n") if error is not None else []
    # What another rank raised, and what Slurm ended, comes before the waiting of the rest.
    raised = error is not None and error.source == "traceback" and not _WAITING.search(error.text)
    if raised or (words and cause.end_state(lines) is not None):
        return words
    return _watchdog(lines) or _not_reached(lines) or words


def _first(pattern: str | re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((match for line in lines if (match := re.search(pattern, line[:2000]))), None)


def _watchdog(lines: Sequence[str]) -> list[str]:
    """Who waited in which operation, and who did not come to it."""
    waited: dict[int, tuple[str, str, str, int]] = {}
    spoke: set[int] = set()
    for line in lines:
        spoke |= {int(rank) for rank in _RANK.findall(line[:200])}
        if match := _WATCHDOG.search(line[:2000]):
            rank, number, kind, size, limit = match.groups()
            waited.setdefault(int(rank), (number, kind, size or "", int(limit) // 1000))
    if not waited:
        return []
    number, kind, size, limit = waited[min(waited)]
    of = f" of {size} number{'s' if size != '1' else ''}" if size else ""
    words = [f"{_ranks(waited)} waited {limit} s in {kind}{of}, operation {number}"]
    others = [rank for rank in sorted(waited) if waited[rank][:3] != (number, kind, size)]
    words += [
        f"rank {rank} in {waited[rank][1]}, operation {waited[rank][0]}: ranks are not in the same "
        "operation"
        for rank in others[:8]
    ]
    world = _first(_WORLD, lines)
    known = max(*waited, *spoke, int(world[1]) - 1 if world else 0)
    missing = [rank for rank in range(min(known + 1, 4096)) if rank not in waited]
    if missing:
        more = "" if world else f" (of those up to {known} that this log tells of)"
        who = "it" if len(missing) == 1 else "they"
        words.append(
            f"{_ranks(missing)} did not print that{more}: what {who} did then is the cause, "
            "another branch, a longer part, an end without an error"
        )
    return [
        *words,
        "-> do all ranks come to it equally often: a branch by rank, uneven batches, an evaluation "
        "or a save on one rank; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 names the line",
    ]


def _not_reached(lines: Sequence[str]) -> list[str]:
    """The head node that others looked for."""
    match = _first(_NOT_REACHED, lines)
    if match is None:
        return []
    within, unit, host, port = match.groups()
    failed = {by[1] for line in lines if (by := _FAILED_ON.match(line))} - {host}
    seen = f" within {within} {unit}" if within else ""
    seen += f" by {', '.join(sorted(failed)[:4])}" if failed else ""
    return [
        f"{host}:{port} was not reached{seen}: nobody held the meeting there",
        f"-> was torchrun started on all nodes (srun, one task on each), on {host} too; is {host} "
        "the first node and its name known on the others; are address and port the same on all",
    ]


def _ranks(ranks: Collection[int]) -> str:
    listed = [str(rank) for rank in sorted(ranks)]
    if len(listed) > 16:
        listed = [*listed[:15], f"{len(listed) - 15} more"]
    if len(listed) < 2:
        return f"rank {''.join(listed)}"
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}"
