"""Readers of Slurm's text, and times as it writes them. Pure functions: text in, records out."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..base.errors import UserError
from .hostlist import expand

# squeue: what may hold anything comes last, the reason and the working directory.
QUEUE_FORMAT = "%i|%T|%S|%N|%r|%U|%Z"
ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "Start", "End", "NodeList", "Reason", "WorkDir")

# In `scontrol show job` free text stands in JobName, and in all that follows Network.
_HEAD = re.compile(r"^(.*?)(?:^| )JobName=(.*?) (?=UserId=[^=]*\(\d+\) GroupId=)(.*)$", re.DOTALL)
_TAIL = re.compile(
    r" (?=(?:"
    r"AdminComment|BurstBuffer|ClusterFeatures|Command|Comment|Container|ContainerID|CpusPerTres|Extra"
    r"|FailedNode|KillOInInvalidDependent|LicensesAlloc|MailType|MailUser|MemPerTres|NtasksPerTRES"
    r"|OriginCluster|Power|ResvName|SiblingsActive|SiblingsViable|StdErr|StdIn|StdOut|SubmitLine|Switches"
    r"|SystemComment|TresBind|TresFreq|TresPerJob|TresPerNode|TresPerSocket|TresPerTask|WCKey|WorkDir"
    r"|wait-for-switch"
    r")=)"
)
_WORD = re.compile(r" (?=[A-Za-z][A-Za-z0-9_/:]*=)")
_WHOSE = re.compile(r"(.*?)\|(\d{1,10})\|(.*)", re.DOTALL)
# sinfo groups equal nodes, so that a machine of thousands answers in a few lines.
NODE_FORMAT = "%R|%D|%c|%m|%T|%G"

_GPU = re.compile(r"gpu(?::[^:(),]+)?:(\d{1,6})(?:\(|$)")
# Slurm prints one of these where there is no limit or no value.
_NONE = frozenset(
    ("UNLIMITED", "INFINITE", "NONE", "N/A", "(NULL)", "", "NOT_SET", "PARTITION_LIMIT", "INVALID")
)
_DAYS = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_CLOCK = re.compile(r"([0-9]{1,8})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_UNITS = re.compile(
    r"(?:([0-9]{1,4})\s*d)?\s*(?:([0-9]{1,6})\s*h)?\s*(?:([0-9]{1,8})\s*m(?:in)?)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Queued:
    """A job as squeue shows it. `start`, in unix seconds, is expected
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
    """One attempt of a job in Slurm's accounting; unix seconds.

    Attributes:
        work_dir: the folder that it was submitted from; empty where that was not kept.
    """

    job_id: str
    state: str
    exit_code: int
    signal: int
    nodes: tuple[str, ...]
    start: float | None
    end: float | None
    reason: str
    work_dir: str = ""


def queue_rows(text: str) -> list[Queued]:
    """The rows of `squeue -h -o QUEUE_FORMAT`; lines of another form are passed over."""
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
            job_id, state, code, start, end, nodes, reason, folder = fields
            # "CANCELLED by 1000"
            state = state.split(" ", 1)[0].rstrip("+")
            when = moment(start), moment(end)
            how = exit_code(code)
            rows.append(Accounted(job_id, state, *how, node_names(nodes), *when, reason, folder))
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


@dataclass(frozen=True)
class Partition:
    """A partition. Times are in minutes; None is: no limit, no default, everybody.

    `gpus`, `cores` and `memory_mb` are per node: the smallest figure over those nodes that have a
    GPU, or over all where none has one. `up`: takes jobs and starts them; `takes_jobs`: takes
    them, though it may start them later. `idle_nodes` are those a job could start on now, nodes
    that sleep included.
    """

    name: str
    default: bool
    up: bool
    max_minutes: int | None
    default_minutes: int | None
    max_nodes: int | None
    min_nodes: int
    total_nodes: int
    exclusive: bool
    allow_accounts: frozenset[str] | None
    deny_accounts: frozenset[str]
    allow_qos: frozenset[str] | None
    gpus: int
    cores: int
    memory_mb: int
    idle_nodes: int
    takes_jobs: bool = True


@dataclass(frozen=True)
class _Nodes:
    count: int
    cores: int
    memory_mb: int
    gpus: int
    idle: bool


def partitions(shown: str, nodes: str) -> dict[str, Partition]:
    """Partitions by name, of `scontrol show partition -o` and `sinfo -h -e -o NODE_FORMAT`."""
    groups = _nodes(nodes)
    fields = [key_values(line) for line in shown.splitlines() if "PartitionName=" in line]
    return {one["PartitionName"]: _partition(one, groups[one["PartitionName"]]) for one in fields}


def gpus_of(gres: str) -> int:
    """GPUs in sinfo's generic resources: "gpu:a100:4(S:0-1)", "gpu:2,shard:8", "(null)"."""
    # The commas inside parentheses list sockets.
    resources = re.split(r",(?![^(]*\))", gres)
    return sum(int(match[1]) for one in resources if (match := _GPU.match(one.strip())))


def _partition(fields: Mapping[str, str], nodes: Sequence[_Nodes]) -> Partition:
    usual = [group for group in nodes if group.gpus] or nodes
    return Partition(
        name=fields["PartitionName"],
        default=fields.get("Default") == "YES",
        up=fields.get("State", "UP") == "UP",
        max_minutes=_minutes(fields.get("MaxTime", "")),
        default_minutes=_minutes(fields.get("DefaultTime", "")),
        max_nodes=_number(fields.get("MaxNodes", "")),
        min_nodes=_number(fields.get("MinNodes", "")) or 0,
        total_nodes=_number(fields.get("TotalNodes", "")) or sum(group.count for group in nodes),
        exclusive=fields.get("OverSubscribe", fields.get("Shared", "")) == "EXCLUSIVE",
        allow_accounts=_names(fields.get("AllowAccounts", "ALL")),
        deny_accounts=_names(fields.get("DenyAccounts", "")) or frozenset(),
        allow_qos=_names(fields.get("AllowQos", "ALL")),
        gpus=min((group.gpus for group in usual), default=0),
        cores=min((group.cores for group in usual), default=0),
        memory_mb=min((group.memory_mb for group in usual), default=0),
        idle_nodes=sum(group.count for group in nodes if group.idle),
        takes_jobs=fields.get("State", "UP") in ("UP", "DOWN"),
    )


def _nodes(text: str) -> dict[str, list[_Nodes]]:
    found: dict[str, list[_Nodes]] = defaultdict(list)
    for line in text.splitlines():
        fields = line.strip().split("|", 5)
        if len(fields) != 6:
            continue
        name, count, cores, memory, state, gres = fields
        found[name].append(
            _Nodes(
                count=_number(count) or 0,
                cores=_number(cores) or 0,
                memory_mb=_number(memory) or 0,
                gpus=gpus_of(gres),
                # "~" sleeps, "#" wakes up; "*" does not answer, "$" is kept for maintenance.
                idle=state.rstrip("~#") == "idle",
            )
        )
    return found


def _number(text: str) -> int | None:
    """The number at the front of "8", "8+"; None for UNLIMITED and the like."""
    match = re.match(r"\d{1,12}", text)
    return int(match[0]) if match else None


def _minutes(text: str) -> int | None:
    try:
        return minutes(text)
    except ValueError:
        return None


def _names(text: str) -> frozenset[str] | None:
    """Names between commas; None for ALL."""
    if text in ("ALL", "(null)", "N/A"):
        return None
    return frozenset(name for name in text.split(",") if name)


def minutes(text: str) -> int | None:
    """A duration as Slurm prints it, in minutes, begun ones counted; None where there is no limit.

    "30" is minutes, "30:00" minutes and seconds, "2:00:00" hours, "1-02" days and hours.
    Raises ValueError for anything else.
    """
    text = text.strip()
    if text.upper() in _NONE:
        return None
    if match := _DAYS.fullmatch(text):
        days, hours, mins, seconds = (int(part or 0) for part in match.groups())
    elif match := _CLOCK.fullmatch(text):
        numbers = [int(part) for part in match.groups() if part is not None]
        days = 0
        hours, mins, seconds = numbers if len(numbers) == 3 else (0, *numbers, 0)[:3]
    else:
        raise ValueError(f"{text!r} is not a duration as Slurm writes it")
    return ((days * 24 + hours) * 60) + mins + -(-seconds // 60)


def parse_time(text: str) -> int:
    """A time limit given by a user, in minutes: Slurm's forms, and 2h, 90m, 1h30m, 1d12h.

    Raises UserError for anything else, for less than a minute and for "unlimited": no job without
    a deadline.
    """
    advice = "write it as 2h, 90m, 1h30m, 1d12h, or as Slurm does: 02:00:00, 1-12:00:00"
    stripped = text.strip()
    match = _UNITS.fullmatch(stripped)
    if stripped and match:
        days, hours, mins = (int(part or 0) for part in match.groups())
        found: int | None = (days * 24 + hours) * 60 + mins
    else:
        try:
            found = minutes(stripped) if stripped else 0
        except ValueError:
            raise UserError(f"--time {text!r} is not a time limit; {advice}") from None
    if found is None:
        raise UserError(f"--time {text!r}: a job needs a limit, by which it saves; {advice}")
    if found < 1:
        raise UserError(f"--time {text!r} is less than a minute; {advice}")
    return found


def parse_seconds(text: str, option: str) -> int:
    """A duration given by a user for `option`, in seconds: as `parse_time`, and 90s.

    Raises UserError for anything else.
    """
    if match := re.fullmatch(r"([1-9][0-9]{0,7})\s*s(?:ec)?", text.strip(), re.IGNORECASE):
        return int(match[1])
    try:
        return parse_time(text) * 60
    except UserError as error:
        raise UserError(str(error).replace("--time", option)) from None


def time_text(minutes: int) -> str:
    """Minutes in the form that every Slurm command reads: "02:00:00", "1-02:00:00"."""
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def moment(text: str) -> float | None:
    """A local time as Slurm prints it ("2026-11-20T20:36:50"), in unix seconds; None for none."""
    try:
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
