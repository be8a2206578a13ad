"""What is mounted where, from what the kernel says."""

from __future__ import annotations

from pathlib import Path

from rankup.site import mounts
from rankup.site.mounts import Mount


def test_the_mount_of_a_path() -> None:
    table = mounts.parse(
        "rootfs / rootfs rw 0 0\n/dev/sda / ext4 rw 0 0\nfs /my\\040p lustre rw 0 0\nbroken\n"
    )
    assert mounts.mount_of("/my p/x", table) == Mount("fs", "/my p", "lustre")
    assert mounts.mount_of("/home", table) == Mount("/dev/sda", "/", "ext4")
    assert mounts.mount_of("/my p2", table) == Mount("/dev/sda", "/", "ext4")
    assert mounts.mount_of("/x", []) is None


def test_the_kind_of_a_real_one() -> None:
    assert mounts.kind_of(Path("/proc/self/mounts")) == "proc"


def test_only_a_newline_ends_a_line() -> None:
    names = ["li\u2028ne", "ff\x0cx", "cr\rx", "bad\udcff"]
    table = mounts.parse("".join(f"fs /{name} fuse ro 0 0\n" for name in names))
    assert [one.point for one in table] == [f"/{name}" for name in names]
