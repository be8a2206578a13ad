"""Quotas: which command knows them for a file system, and how its answer is read.

A parser takes what it understands and passes over the rest: the same command prints `1234*` (over),
`[1234]` (not accurate), wraps long names, or adds lines, from site to site.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...base.amounts import number, size
from ...site import mounts
from ...site.mounts import Mount
from .deadline import Deadline, output, start

# <linux/fs.h>: FS_IOC_FSGETXATTR, and struct fsxattr, whose fourth number is the project.
_FSGETXATTR = 0x801C581F
_FSXATTR = struct.Struct("5I8x")
_GPFS_COLUMNS = ("Usage", "Quota", "Limit")
_JUTIL_COLUMNS = ("usage", "soft-limit", "hard-limit")


@dataclass(frozen=True)
class Quota:
    """The usage and the limits of a user or a project; bytes and files.

    Attributes:
        name: the file system or folder, as the command calls it.
        whose: `user`, `group`, `project`.
        limit, limit_files: the soft one, over which writing fails after some days, or the hard one
            where there is no other; 0: none.
        said_by: the command.
    """

    name: str
    whose: str
    used: int
    limit: int
    files: int
    limit_files: int
    said_by: str

    @property
    def part(self) -> float:
        """The part of the limit that is used, of bytes or of files, which is more."""
        pairs = ((self.used, self.limit), (self.files, self.limit_files))
        return max(used / limit if limit else 0.0 for used, limit in pairs)

    def __str__(self) -> str:
        """Used and allowed, bytes and files, as far as there are limits; whose, and by whom."""
        parts = []
        if self.limit:
            parts.append(f"{size(self.used)} of {size(self.limit)}")
        if self.limit_files:
            parts.append(f"{number(self.files)} of {number(self.limit_files)} files")
        return f"{self.name}: {', '.join(parts)} ({self.whose}, says {self.said_by})"


def known(
    folders: Sequence[Path],
    project: str | None,
    environment: Mapping[str, str],
    deadline: Deadline,
) -> tuple[list[Quota], list[str]]:
    """Return all limits that a command on PATH knows, and the commands that were late."""
    commands: list[list[str]] = []
    table = mounts.table()
    for folder in folders:
        # Behind links: home is often a link into a file system.
        path = str(folder.resolve())
        mount = mounts.mount_of(path, table)
        if mount is not None:
            number_of = project_number(path) if mount.kind == "lustre" else 0
            commands += command(mount, path, getpass.getuser(), project, number_of)
    if project:  # JSC's command; its figures are some hours old
        commands.append(["jutil", "project", "dataquota", "-p", project, "-o", "json", "-U", "KB"])
    asked = [
        (words, start(partial(output, words, environment, deadline)))
        for words in map(list, dict.fromkeys(map(tuple, commands)))
        if shutil.which(words[0], path=environment.get("PATH")) is not None
    ]
    said = [(words, deadline.wait(future, None)) for words, future in asked]
    found = [one for words, text in said if text is not None for one in parse(words[0], text)]
    limited = [one for one in dict.fromkeys(found) if one.limit or one.limit_files]
    return limited, [" ".join(words) for words, text in said if text is None]


def lines(
    folder: Path,
    project: str | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 2.0,
) -> list[str]:
    """Return the quotas that count for a folder, a line each, for those who are about to fill it.

    Args:
        project: of the user, for commands that ask by its name.
        seconds: after which a command is no longer waited for, and named as late.
    """
    environment = os.environ if environment is None else environment
    found, late = known([folder], project, environment, Deadline(seconds))
    return [*map(str, found)] + [f"`{words}` did not answer in time" for words in late]


def command(
    mount: Mount, path: str, user: str, project: str | None, number: int = 0
) -> list[list[str]]:
    """Return the commands that know the quotas on a mount, by its kind.

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


def project_number(folder: str) -> int:
    """Return the project that a folder's files count to (Lustre, XFS, ext4); 0: none, unknown."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return int(
                _FSXATTR.unpack(fcntl.ioctl(descriptor, _FSGETXATTR, bytes(_FSXATTR.size)))[3]
            )
        finally:
            os.close(descriptor)
    return 0


def parse(program: str, text: str) -> list[Quota]:
    """Return the quotas in what one of the commands has printed."""
    if program == "mmlsquota":
        return list(_gpfs(text))
    if program == "jutil":
        return list(_jutil(text))
    return list(_table(text, program))


def _quota(name: str, whose: str, words: Sequence[str], unit: int, said_by: str) -> Iterator[Quota]:
    """A quota of six figures; none where one of them is no number."""
    figures = [_figure(word) for word in words]
    used, soft, hard, files, soft_files, hard_files = (one or 0 for one in figures)
    if None not in figures:
        limit, limit_files = (soft or hard) * unit, soft_files or hard_files
        yield Quota(name, whose, used * unit, limit, files, limit_files, said_by)


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
                yield from _quota(words[0], whose, words[1:4] + words[5:8], 1024, said_by)
                words = []
            elif len(words) > 1 and _figure(words[1]) is None:
                words = []  # no row of the table


def _gpfs(text: str) -> Iterator[Quota]:
    """`mmlsquota -Y`: colons, the names of the columns in a line of their own."""
    names: list[str] = []
    columns = [f"{what}{which}" for what in ("block", "files") for which in _GPFS_COLUMNS]
    for line in text.splitlines():
        fields = line.split(":")
        if "HEADER" in fields[:3]:
            names = fields
            continue
        row = dict(zip(names, fields, strict=False))
        kind = row.get("quotaType", "")
        whose = {"USR": "user", "GRP": "group", "FILESET": "project"}.get(kind, kind.lower())
        name = row.get("filesystemName", "")
        if kind == "FILESET" and (fileset := row.get("filesetname") or row.get("name")):
            name = f"{name} {fileset}"
        yield from _quota(name, whose, [row.get(one, "") for one in columns], 1024, "mmlsquota")


def _jutil(text: str) -> Iterator[Quota]:
    """`jutil project dataquota -o json -U KB`: any object that has the figures."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return
    columns = [f"{what}-{which}" for what in ("data", "inode") for which in _JUTIL_COLUMNS]
    for row in _objects(values):
        keys = {re.sub(r"[^a-z]+", "-", str(key).lower()): value for key, value in row.items()}
        words = [str(keys.get(name, "")).split(" ")[0] for name in columns]
        named = [keys[name] for name in ("path", "filesystem", "fs", "target") if keys.get(name)]
        name = str(named[0]) if named else "project"
        yield from _quota(name, "project", words, 1000, "jutil")


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
