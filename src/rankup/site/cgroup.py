"""The control groups that bound this process's memory, of version 2 and 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import mounts

_ROOT = Path("/")
# Version 1 says "no limit" as the largest number of pages.
_NO_LIMIT = 1 << 60
# Version 2 or not -> the files of the limit and of what is used.
_FILES = {
    True: ("memory.max", "memory.current"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


@dataclass(frozen=True)
class Group:
    """A control group of a memory controller.

    Attributes:
        folder, top: of the group, and of its hierarchy.
        new: whether it is of version 2.
    """

    folder: Path
    top: Path
    new: bool

    @property
    def name(self) -> str:
        """Its path in the hierarchy, beginning with a slash."""
        return f"/{self.folder.relative_to(self.top)}" if self.folder != self.top else "/"

    def memory(self) -> tuple[int, int] | None:
        """(limit, used) in bytes, the latter without what the kernel gives back when it is needed.

        None without a limit.
        """
        limit_name, used_name = _FILES[self.new]
        limit, used = _read(self.folder / limit_name), _read(self.folder / used_name)
        if limit is None or used is None or limit >= _NO_LIMIT:
            return None
        stat, prefix = _stat(self.folder / "memory.stat"), "" if self.new else "total_"
        cache = (stat.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
        return limit, max(0, used - sum(cache))


def own(root: Path = _ROOT, controller: str = "memory") -> list[Group]:
    """The groups of this process that have a controller: of version 1, of version 2, or of both.

    Args:
        root: where `proc` and `sys` are, for tests.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        table = mounts.parse((root / "proc/self/mounts").read_text(errors="replace"))
    except OSError:
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        new = number == "0" and not controllers
        if not new and controller not in controllers.split(","):
            continue
        kind = "cgroup2" if new else "cgroup"
        for mount in table:
            # Of version 1 each controller has a mount, whose last word names it.
            if mount.kind == kind and (new or controller in Path(mount.point).name.split(",")):
                top = root / mount.point.lstrip("/")
                folder = top / path.lstrip("/")
                # In a container the hierarchy may begin at its own group.
                found.append(Group(folder if folder.is_dir() else top, top, new))
    return found


def upwards(group: Group) -> Iterator[Group]:
    """A group and all above it, up to the top of its hierarchy."""
    here = group.folder
    while True:
        yield Group(here, group.top, group.new)
        if here == group.top or group.top not in here.parents:
            return
        here = here.parent


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max": none
        return None


def _stat(path: Path) -> dict[str, int]:
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except (OSError, ValueError):
        return {}
