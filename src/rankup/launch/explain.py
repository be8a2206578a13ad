"""What a plain log of Slurm or torchrun says of a run that failed: the cause, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
_NOT_REACHED = re.compile(
    r"client socket has (?:timed out after (\d+) ?(m?s)|failed to connect).{0,80}?"
    r"\(?\[?([\w.:-]+?)\]?[,:] ?(\d+)\)"
)
_TAKEN = re.compile(
    r"(?:bind to|listen on).{0,60}?[\]:](\d{2,5}).{0,80}(?:errno: 98|EADDRINUSE|[Aa]ddress already)"
    r"|port: (\d{2,5}),.{0,80}EADDRINUSE|EADDRINUSE|errno: 98|\bAddress already in use"
)
_SAME_GPU = re.compile(
    r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on (?:CUDA )?device (\w+)"
)
_SHM = re.compile(
    r"insufficient shared memory|Bus error|/dev/shm.{0,60}No space|No space left.{0,60}/dev/shm"
    r"|unable to (?:mmap|open shared memory|write to file </torch_)"
)
_WAITING = re.compile(
    r"DistBackendError|NCCL|TimeoutError|Rendezvous\w*Error|DistStoreError|TCPStore"
)
_CONDA = re.compile(r"CommandNotFoundError: Your shell has not been properly configured")


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
    for known in (_conda, _same_gpu, _taken, _shared_memory):
        if words := known(lines):
            return words
    found = cause.find(Path("/nonexistent"), lines)
    # What another rank raised, and what Slurm ended, comes before the waiting of the rest.
    ended = found is not None and cause.end_state(lines) is not None
    raised = found is not None and found.source == "traceback"
    if found and (ended or (raised and not _WAITING.search(found.text))):
        return found.text.split("\n")
    return _watchdog(lines) or _not_reached(lines) or (found.text.split("\n") if found else [])


def _first(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((match for line in lines if (match := pattern.search(line[:2000]))), None)


def _conda(lines: Sequence[str]) -> list[str]:
    if _first(_CONDA, lines) is None:
        return []
    return [
        "conda activate: a batch shell reads no ~/.bashrc, so that conda's hook is not loaded, and "
        "what follows ran with another Python",
        '-> eval "$(conda shell.bash hook)" above it, or source …/etc/profile.d/conda.sh',
    ]


def _same_gpu(lines: Sequence[str]) -> list[str]:
    match = _first(_SAME_GPU, lines)
    if match is None:
        return []
    ranks = " and ".join(sorted(match.groups()[:2], key=int))
    return [
        f"ranks {ranks} took one GPU (bus {match[3]}): NCCL wants one for each rank",
        '-> torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the process group is made; '
        "no more ranks on a node than it has GPUs; no CUDA_VISIBLE_DEVICES or --gpus-per-task that "
        "hides the others",
    ]


def _taken(lines: Sequence[str]) -> list[str]:
    matches = [match for line in lines if (match := _TAKEN.search(line[:2000]))]
    if not matches:
        return []
    port = next((one[1] or one[2] for one in matches if one[1] or one[2]), "")
    named = f"port {port}" if port else "the port of the meeting"
    return [
        f"{named} is taken on that node: by what is left of an earlier run, by another job, or "
        "since this run was started twice there",
        "-> a port of the job's own, MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)); one torchrun "
        "on each node (--ntasks-per-node=1)",
    ]


def _shared_memory(lines: Sequence[str]) -> list[str]:
    if _first(_SHM, lines) is None:
        return []
    return [
        "the node's shared memory (/dev/shm) is full: DataLoader workers hand batches on by it",
        "-> fewer num_workers or a smaller prefetch_factor; more --mem, of which it is a part on "
        'most clusters; torch.multiprocessing.set_sharing_strategy("file_system"); in a container '
        "bind the node's /dev/shm (docker: --ipc=host or --shm-size)",
    ]


def _watchdog(lines: Sequence[str]) -> list[str]:
    waited: dict[int, tuple[int, str, str, int]] = {}
    spoke: set[int] = set()
    for line in lines:
        spoke |= {int(one) for one in _RANK.findall(line[:200])}
        if match := _WATCHDOG.search(line[:2000]):
            rank, number, kind, size, limit = match.groups()
            waited.setdefault(int(rank), (int(number), kind, size or "", int(limit) // 1000))
    if not waited:
        return []
    first = min(waited)
    number, kind, size, limit = waited[first]
    of = f" of {size} number{'s' if size != '1' else ''}" if size else ""
    found = [f"{_ranks(waited)} waited {limit} s in {kind}{of}, operation {number}"]
    others = {rank: one for rank, one in waited.items() if one[:3] != waited[first][:3]}
    world = _first(_WORLD, lines)
    known = max([*waited, *spoke, *([int(world[1]) - 1] if world else [])])
    missing = [rank for rank in range(min(known + 1, 4096)) if rank not in waited]
    if others:
        found += [
            f"rank {rank} in {one[1]}, operation {one[0]}: ranks are not in the same operation"
            for rank, one in sorted(others.items())[:8]
        ]
    if missing:
        more = "" if world else f" (of those up to {known} that this log tells of)"
        found.append(
            f"{_ranks(missing)} did not print that{more}: what it did then is the cause, another "
            "branch, a longer part, an end without an error"
            if len(missing) == 1
            else f"{_ranks(missing)} did not print that{more}: what they did then is the cause, "
            "another branch, a longer part, an end without an error"
        )
    found.append(
        "-> do all ranks come to it equally often: a branch by rank, uneven batches, an evaluation "
        "or a save on one rank; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 names the line"
    )
    return found


def _ranks(ranks: Sequence[int] | dict[int, tuple[int, str, str, int]]) -> str:
    listed = [str(one) for one in sorted(ranks)]
    if len(listed) > 16:
        listed = [*listed[:15], f"{len(listed) - 15} more"]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}"


def _not_reached(lines: Sequence[str]) -> list[str]:
    match = _first(_NOT_REACHED, lines)
    if match is None:
        return []
    host, port = match[3], match[4]
    within = f" within {match[1]} {match[2]}" if match[1] else ""
    by = sorted(set(_failed_on(lines)) - {host})
    seen = f" by {', '.join(by[:4])}" if by else ""
    return [
        f"{host}:{port} was not reached{within}{seen}: nobody held the meeting there",
        f"-> was torchrun started on all nodes (srun, one task on each), on {host} too; is {host} "
        "the first node and its name known on the others; are address and port the same on all",
    ]


def _failed_on(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if match := re.match(r"srun: error: ([\w.-]+): task", line):
            yield match[1]
