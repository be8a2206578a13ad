"""The log of a Slurm job as lines that may be shown: which part belongs to the newest attempt."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.text import LINE_LENGTH, shorten

OUTPUT = Path("log") / "run.out"  # what a start prints that is no job of its own
# Of a log of gigabytes: its beginning (the preflight) and its end.
HEAD_BYTES = 64 * 1024
TAIL_BYTES = 2 * 1024 * 1024

# What the last lines of an attempt say when the next one of the same job appends to the same file.
_ATTEMPT_OVER = re.compile(
    r"^rankup: stopped with a checkpoint before the time limit; going on"
    r"|^slurmstepd[^ \n]{0,80}: error: \*\*\* JOB \S{1,80} ON \S{1,200} CANCELLED AT "
    r"\S{1,40} DUE TO "
    r"(JOB REQUEUE|NODE FAILURE|PREEMPTION)"
    r"|^error: \*\*\* PREEMPTION for job \d{1,20}",  # psslurm's, for a requeue as well
    re.MULTILINE,
)

# Lines that mean nothing: a pattern, and what they are.
_HARMLESS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"torch/distributed/run\.py:\d+\] *(\**|Setting OMP_NUM_THREADS .*)$",
            "torchrun's remark on OMP_NUM_THREADS",
        ),
        (r"^\[W.*socket\.cpp:\d+\].*(IPv6|errno: ?97|Address family)", "IPv6 is not in use here"),
        (
            r"^(srun|slurmstepd).*lacks support for cpu binding",
            "this Slurm does not bind ranks to cores",
        ),
        (r"^(srun|slurmstepd|slurmd|\S+): .*pmix", "Slurm's plugin for MPI, which nobody uses"),
        (
            r"dynamic_rendezvous\.py:\d+\].*RendezvousConnectionError"
            r"|^\[W.*TCPStore\.cpp:\d+\].*(recvVector|recvValue|sendBytes|recvBytes)\w* failed",
            "torchrun of a node lost the first node's, which had ended before",
        ),
        (
            r"elastic/agent/server/api\.py:\d+\] Received (\d+ death signal|Signals\.SIG)"
            r"|multiprocessing/api\.py:\d+\] Sending process \d+ closing signal",
            "torchrun stops the other ranks of a node",
        ),
        (r"^\[W.*destroy_process_group\(\) was not called", "the process group was left open"),
        (r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks", "ranks found each other"),
    )
)
_LOOK = 1000  # characters of a line that patterns look at


def harmless(line: str) -> str:
    """Return what a line of torch or Slurm is that means nothing; empty for any other."""
    looked = line[:_LOOK]
    return next((words for pattern, words in _HARMLESS if pattern.search(looked)), "")


def say(line: str) -> None:
    """Print a line at once; what the terminal's encoding lacks is written out."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def log_of(path: Path, job_id: str) -> Path:
    """Return the file that Slurm writes the output of a job to."""
    return path / "log" / f"{job_id}.out"


def attempt_start(file: Path, records: Sequence[Mapping[str, Any]], restart: int) -> int:
    """Return the place in the file at which the newest attempt begins, in bytes.

    The job script says so (`offset` of its start); else the end of the attempt before shows in the
    text. An attempt that has not printed anything yet leaves the one before to be read.
    """
    if restart <= 0:
        return 0
    size = size_of(file)
    for record in reversed(records):
        offset = record.get("offset")
        if record.get("restart") == restart and isinstance(offset, int) and 0 <= offset < size:
            return offset
    base = max(0, size - TAIL_BYTES)
    data = _bytes(file, base, TAIL_BYTES)
    ends = [match.end() for match in _ATTEMPT_OVER.finditer(data.decode("latin-1"))]
    for end in reversed(ends):
        line_end = data.find(b"\n", end)
        if line_end >= 0 and data[line_end:].strip():
            return base + line_end + 1
    return 0


def read_lines(file: Path, start: int = 0, limit: int = TAIL_BYTES) -> list[str]:
    """The lines from byte `start` on; of very many the first few and the last; none without file.

    They are as they stand in the file, but for the rest of very long ones: not `clean`.
    """
    size = size_of(file)
    if size - start <= limit + HEAD_BYTES:
        return _lines(_bytes(file, start, limit + HEAD_BYTES))
    head = _lines(_bytes(file, start, HEAD_BYTES))[:-1]
    tail = _lines(_bytes(file, size - limit, limit))[1:]
    return [*head, f"… {size - start - limit - HEAD_BYTES} bytes left out …", *tail]


def tail_lines(file: Path, start: int = 0, end: int | None = None) -> list[str]:
    """The last lines from byte `start` on, up to `end`, at most `TAIL_BYTES` of them."""
    return [_decoded(line) for line in tail_bytes(file, start, end)]


def tail_bytes(file: Path, start: int = 0, end: int | None = None) -> list[bytes]:
    """`tail_lines` as they stand in the file, whatever they hold."""
    end = size_of(file) if end is None else end
    begin = max(start, end - TAIL_BYTES)
    lines = _split(_bytes(file, begin, max(0, end - begin)))
    if begin > start and len(lines) > 1:
        return lines[1:]
    # The end of a line that began long before is better than nothing.
    return [line[-LINE_LENGTH:] for line in lines] if begin > start else lines


def _lines(data: bytes) -> list[str]:
    return [_decoded(line) for line in _split(data)]


def _decoded(line: bytes) -> str:
    """A line as text, short enough for every pattern it is held against."""
    if len(line) > LINE_LENGTH and b"\r" in line:  # of a progress bar the last states
        line = line[-LINE_LENGTH:]
    return shorten(line.decode("utf-8", "replace"))


def _split(data: bytes) -> list[bytes]:
    # Not splitlines: a carriage return redraws a line, and does not end it.
    lines = data.split(b"\n")
    return lines[:-1] if not lines[-1] else lines


def _bytes(file: Path, start: int, limit: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return stream.read(limit)
    except OSError:
        return b""


def size_of(file: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
