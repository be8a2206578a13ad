"""How Slurm's text answers are read. Pure functions: text in, records out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .hostlist import expand
from .times import moment

# squeue: what may hold anything comes last, the reason and the working directory.
QUEUE_FORMAT = "%i|%T|%S|%N|%r|%U|%Z"
ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "Start", "End", "NodeList", "Reason")

# In `scontrol show job` free text stands in JobName, and in all that follows Network.
_HEAD = re.compile(r"^(.*?)(?:^| )JobName=(.*?) (?=UserId=[^=]*\(\d+\) GroupId=)(.*)$", re.DOTALL)
_TAIL_KEYS = (
    *("AdminComment", "BurstBuffer", "ClusterFeatures", "Command", "Comment"),
    *("Container", "ContainerID", "CpusPerTres", "Extra", "FailedNode", "KillOInInvalidDependent"),
    *("LicensesAlloc", "MailType", "MailUser", "MemPerTres", "NtasksPerTRES", "OriginCluster"),
    *("Power", "ResvName", "SiblingsActive", "SiblingsViable", "StdErr", "StdIn", "StdOut"),
    *("SubmitLine", "Switches", "SystemComment", "TresBind", "TresFreq", "TresPerJob"),
    *("TresPerNode", "TresPerSocket", "TresPerTask", "WCKey", "WorkDir", "wait-for-switch"),
)
_TAIL = re.compile(rf" (?=(?:{'|'.join(map(re.escape, _TAIL_KEYS))})=)")
_WORD = re.compile(r" (?=[A-Za-z][A-Za-z0-9_/:]*=)")
_WHOSE = re.compile(r"(.*?)\|(\d{1,10})\|(.*)", re.DOTALL)


@dataclass(frozen=True)
class Queued:
    """A job, or one task of an array, as squeue shows it. `start`, in unix seconds, is expected
    while the job is pending, and may be unknown. `uid`: the user's number."""

    job_id: str
    state: str
    reason: str
    nodes: tuple[str, ...]
    start: float | None
    uid: int | None = None
    work_dir: str = ""


@dataclass(frozen=True)
class Accounted:
    """One attempt of a job, or of one task of an array, in Slurm's accounting; unix seconds."""

    job_id: str
    state: str
    exit_code: int
    signal: int
    nodes: tuple[str, ...]
    start: float | None
    end: float | None
    reason: str


def queue_rows(text: str) -> list[Queued]:
    """The rows of `squeue -h -r -o QUEUE_FORMAT`; lines of another form are passed over."""
    rows = []
    for line in text.splitlines():
        fields = line.strip().split("|", 4)
        if len(fields) == 5 and fields[0][:1].isdigit():
            job_id, state, start, nodes, rest = fields
            match = _WHOSE.fullmatch(rest)
            reason, uid, folder = match.groups() if match else (rest, None, "")
            whose = None if uid is None else int(uid)
            rows.append(
                Queued(job_id, state, reason, node_names(nodes), moment(start), whose, folder)
            )
    return rows


def account_rows(text: str) -> list[Accounted]:
    """The rows of `sacct -n -P -o ACCOUNT_FIELDS`; lines of another form are passed over."""
    rows = []
    for line in text.splitlines():
        fields = line.strip().split("|", len(ACCOUNT_FIELDS) - 1)
        if len(fields) == len(ACCOUNT_FIELDS) and fields[0][:1].isdigit():
            job_id, state, code, start, end, nodes, reason = fields
            # "CANCELLED by 1000"
            state = state.split(" ", 1)[0].rstrip("+")
            times = moment(start), moment(end)
            rows.append(
                Accounted(job_id, state, *exit_code(code), node_names(nodes), *times, reason)
            )
    return rows


def job_records(text: str) -> list[dict[str, str]]:
    """The records of `scontrol show job -o`.

    Names, comments and paths may hold spaces and things that look like fields: none of them
    replaces a field that Slurm wrote. A comment may hold a line break.
    """
    starts = re.split(r"^(?=JobId=\d)", text, flags=re.MULTILINE)
    return [dict(_job_fields(record.strip("\n"))) for record in starts if "JobId=" in record[:6]]


def _job_fields(record: str) -> Iterator[tuple[str, str]]:
    if match := _HEAD.match(record):
        before, name, rest = match.groups()
        yield "JobName", name
        words, free = _cut(rest, " Command=")
        pieces = [*_WORD.split(before), *_WORD.split(words), *_TAIL.split(free)]
    else:
        pieces = _WORD.split(record)
    seen = {"JobName"} if match else set()
    for piece in pieces:
        key, sign, value = piece.strip().partition("=")
        if sign and key not in seen:
            seen.add(key)
            yield key, value


def _cut(text: str, mark: str) -> tuple[str, str]:
    place = text.find(mark)
    return (text, "") if place < 0 else (text[:place], text[place:])


def key_values(line: str) -> dict[str, str]:
    """A line of `Key=value` words without spaces in values, as of `scontrol show partition -o`."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def config_values(text: str) -> dict[str, str]:
    """The settings of `scontrol show config`."""
    found = {}
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign:
            found[key.strip()] = value.strip()
    return found


def user_number(text: str) -> int | None:
    """The number in "ada(1000)", as `scontrol show job` names a user."""
    match = re.search(r"\((\d{1,10})\)$", text.strip())
    return int(match[1]) if match else None


def exit_code(text: str) -> tuple[int, int]:
    """Exit code and signal of Slurm's "3:0"; zeros where there is none."""
    match = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text.strip())
    return (int(match[1]), int(match[2])) if match else (0, 0)


def node_names(hostlist: str) -> tuple[str, ...]:
    """The nodes of a host list; empty where Slurm has none to name."""
    if hostlist.strip() in ("", "(null)", "None assigned", "None"):
        return ()
    try:
        return tuple(expand(hostlist))
    except ValueError:
        return (hostlist.strip(),)


def array_tasks(text: str, limit: int = 100_000) -> list[str]:
    """The task numbers of "0-2%2", "1,3,5-9:2"; the text itself where it is another form."""
    found: list[str] = []
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        if match is None:
            return [text]
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        numbers = range(first, last + 1, max(step, 1))
        if len(found) + len(numbers) > limit:
            return [text]
        found += map(str, numbers)
    return found
