"""The quotas of the file systems that the user's folders lie on, as the site's commands say."""

from __future__ import annotations

import fcntl
import getpass
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ...site import mounts
from . import commands, quota
from .asking import Clock, Late, Question
from .quota import Quota
from .space import Folder

# <linux/fs.h>: FS_IOC_FSGETXATTR, and struct fsxattr, whose fourth number is the project.
_FSGETXATTR = 0x801C581F
_FSXATTR = struct.Struct("5I8x")


def known(
    folders: Sequence[Folder], project: str | None, environment: Mapping[str, str], clock: Clock
) -> tuple[list[Quota], list[str]]:
    """All quotas that a command on PATH knows, and the commands that did not answer in time."""
    asked = [
        (words, Question(words[0], clock, partial(commands.run, words, environment, clock)))
        for words in _commands(folders, project, mounts.table())
        if shutil.which(words[0], path=environment.get("PATH")) is not None
    ]
    said = [(words, _said(question)) for words, question in asked]
    found = [one for words, text in said if text is not None for one in quota.parse(words, text)]
    return found, [" ".join(words) for words, text in said if text is None]


def lines(
    folder: Path,
    project: str | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 2.0,
) -> list[str]:
    """The quotas that count for a folder, a line each, for those who are about to fill it.

    Args:
        project: of the user, for commands that ask by its name.
        seconds: after which a command is no longer waited for, and named as late.
    """
    environment = os.environ if environment is None else environment
    found, late = known([Folder("here", folder)], project, environment, Clock(seconds))
    said = [quota.in_words(one) for one in dict.fromkeys(found) if quota.limited(one)]
    return said + [f"`{words}` did not answer in time" for words in late]


def _said(question: Question[str]) -> str | None:
    """What a command printed, None where it is late; nothing where it cannot be started."""
    try:
        return question.answer()
    except Late:
        return None
    except OSError:
        return ""


def _commands(
    folders: Sequence[Folder], project: str | None, table: Sequence[mounts.Mount]
) -> list[list[str]]:
    found: dict[tuple[str, ...], None] = {}
    for folder in folders:
        # As the user wrote it and behind links: home is often a link into a file system.
        path = str(folder.path.resolve())
        mount = mounts.mount_of(path, table)
        if mount is not None:
            number = project_number(path) if mount.kind == "lustre" else 0
            for words in quota.command(mount, path, getpass.getuser(), project, number):
                found[tuple(words)] = None
    if project:
        found[tuple(quota.jutil(project))] = None
    return [list(words) for words in found]


def project_number(folder: str) -> int:
    """The project that a folder's files count to (Lustre, XFS, ext4); 0: none, or not known."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return 0
    try:
        said = fcntl.ioctl(descriptor, _FSGETXATTR, bytes(_FSXATTR.size))
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return int(_FSXATTR.unpack(said)[3])
