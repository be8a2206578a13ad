"""Quotas: which command knows them for a file system, and how its answer is read.

Pure functions. A parser takes what it understands and passes over the rest: the same command prints
`1234*` (over), `[1234]` (not accurate), wraps long names, or adds lines, from site to site.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.amounts import number, size
from ...base.findings import Finding, Level
from ...site.mounts import Mount
from . import codes

_NEAR = 0.9


@dataclass(frozen=True)
class Quota:
    """What a user or a project has and may have; bytes and files.

    Attributes:
        name: the file system or folder, as the command calls it.
        whose: `user`, `group`, `project`.
        soft, hard: limits; over the soft one for some days, writing fails, over the hard one at
            once; 0: none.
        said_by: the command.
    """

    name: str
    whose: str
    used: int
    soft: int
    hard: int
    files: int
    soft_files: int
    hard_files: int
    said_by: str


def command(
    mount: Mount, path: str, user: str, project: str | None, number: int = 0
) -> list[list[str]]:
    """The commands that know the quotas on a mount, by its kind; none where there are no quotas.

    Args:
        project: its name, for GPFS.
        number: of the project that the file system counts the folder to; 0: none.
    """
    if mount.kind == "lustre":
        commands = [["lfs", "quota", "-u", user, path]]
        if number:
            commands.append(["lfs", "quota", "-p", str(number), path])
        return commands
    if mount.kind in ("gpfs", "mmfs"):
        device = os.path.basename(mount.source)
        commands = [["mmlsquota", "-Y", "-u", user, device]]
        if project:
            commands.append(["mmlsquota", "-Y", "-j", project, device])
        return commands
    if mount.kind in ("nfs", "nfs4", "ext4", "xfs"):
        return [["quota", "-u", "-w", "-p"]]
    return []


def jutil(project: str) -> list[str]:
    """JSC's command for a project's quotas; its figures are some hours old."""
    return ["jutil", "project", "dataquota", "-p", project, "-o", "json", "-U", "KB"]


def parse(words: Sequence[str], text: str) -> list[Quota]:
    """The quotas in what a command of `command` or `jutil` has printed."""
    said_by = words[0]
    if said_by == "mmlsquota":
        return list(_gpfs(text))
    if said_by == "jutil":
        return list(_jutil(text))
    return list(_table(text, said_by))


def check_quota(quotas: Sequence[Quota], late: Sequence[str]) -> list[Finding]:
    """Each quota with a limit, in bytes and files; over the hard one is an error.

    Args:
        late: commands that did not answer in time.
    """
    found = [_judge(one) for one in dict.fromkeys(quotas) if limited(one)]
    for command_line in late:
        message = f"`{command_line}` did not answer in time"
        todo = "ask it yourself; what is said above of space left does not know quotas"
        found.append(Finding(codes.QUOTA, "warning", "quota", message, todo))
    return found


def in_words(one: Quota) -> str:
    """Used and allowed, bytes and files, as far as there are limits; whose, and who says so."""
    parts = []
    if one.soft or one.hard:
        parts.append(f"{size(one.used)} of {size(one.soft or one.hard)}")
    if one.soft_files or one.hard_files:
        parts.append(f"{number(one.files)} of {number(one.soft_files or one.hard_files)} files")
    return f"{one.name}: {', '.join(parts)} ({one.whose}, says {one.said_by})"


def limited(one: Quota) -> bool:
    """Whether it limits anything."""
    return any((one.soft, one.hard, one.soft_files, one.hard_files))


def _judge(one: Quota) -> Finding:
    message = in_words(one)
    level: Level = "ok"
    todo = ""
    pairs = ((one.used, one.soft, one.hard), (one.files, one.soft_files, one.hard_files))
    if any(hard and used >= hard for used, _, hard in pairs):
        level, message = "error", f"at its limit: {message}"
    elif any(soft and used > soft for used, soft, _ in pairs):
        level, message = "warning", f"over its quota: {message}"
        todo = "some days after that nothing more can be written; "
    elif any(used > _NEAR * (soft or hard) > 0 for used, soft, hard in pairs):
        level, message = "warning", f"nearly reached: {message}"
    if level != "ok":
        todo += "delete or move what is not needed; many small files count more than large ones"
    return Finding(codes.QUOTA, level, "quota", message, todo)


def _table(text: str, said_by: str) -> Iterator[Quota]:
    """`lfs quota` and `quota -w -p`: a name, then usage, soft, hard and grace; for bytes, files."""
    whose = "user"
    words: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"\s*Disk quotas for (usr|user|grp|group|prj|project)\b", line):
            kinds = {"u": "user", "g": "group", "p": "project"}
            whose, words = kinds[match[1][0]], []
        elif line.split()[:1] == ["Filesystem"]:
            words = []
        else:
            # A long name has a line of its own.
            words += line.split()
            if len(words) >= 9:
                row, words = words[:9], []
                figures = [_figure(word) for word in (*row[1:4], *row[5:8])]
                if None not in figures:
                    used, soft, hard, files, soft_files, hard_files = (one or 0 for one in figures)
                    kilo = (used * 1024, soft * 1024, hard * 1024)
                    yield Quota(row[0], whose, *kilo, files, soft_files, hard_files, said_by)
            elif len(words) > 1 and _figure(words[1]) is None:
                words = []  # no row of the table


def _gpfs(text: str) -> Iterator[Quota]:
    """`mmlsquota -Y`: colons, the names of the columns in a line of their own."""
    names: list[str] = []
    for line in text.splitlines():
        fields = line.split(":")
        if "HEADER" in fields[:3]:
            names = fields
            continue
        row = dict(zip(names, fields, strict=False))
        figures = [
            _figure(row.get(name, ""))
            for name in (
                *("blockUsage", "blockQuota", "blockLimit"),
                *("filesUsage", "filesQuota", "filesLimit"),
            )
        ]
        if None in figures:
            continue
        used, soft, hard, files, soft_files, hard_files = (one or 0 for one in figures)
        kind = row.get("quotaType", "")
        whose = {"USR": "user", "GRP": "group", "FILESET": "project"}.get(kind, kind.lower())
        name = row.get("filesystemName", "")
        if kind == "FILESET" and (fileset := row.get("filesetname") or row.get("name")):
            name = f"{name} {fileset}"
        kilo = (used * 1024, soft * 1024, hard * 1024)
        yield Quota(name, whose, *kilo, files, soft_files, hard_files, "mmlsquota")


def _jutil(text: str) -> Iterator[Quota]:
    """`jutil project dataquota -o json -U KB`: any object that has the figures."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return
    for row in _objects(values):
        keys = {re.sub(r"[^a-z]+", "-", str(key).lower()): value for key, value in row.items()}
        figures = [
            _figure(str(keys.get(name, "")).split(" ")[0])
            for name in (
                *("data-usage", "data-soft-limit", "data-hard-limit"),
                *("inode-usage", "inode-soft-limit", "inode-hard-limit"),
            )
        ]
        if None not in figures:
            used, soft, hard, files, soft_files, hard_files = (one or 0 for one in figures)
            named = [
                keys[name] for name in ("path", "filesystem", "fs", "target") if keys.get(name)
            ]
            kilo = (used * 1000, soft * 1000, hard * 1000)
            name = str(named[0]) if named else "project"
            yield Quota(name, "project", *kilo, files, soft_files, hard_files, "jutil")


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _figure(word: str) -> int | None:
    """The number in `1234`, `1234*`, `[1234]`, `1234.5`; 0 in `-` and `unlimited`."""
    if word in ("-", "none", "unlimited"):
        return 0
    match = re.fullmatch(r"\[?(\d{1,18})(?:\.\d+)?\]?\*?\]?", word)
    return int(match[1]) if match else None
