"""The programs that mount SquashFS images and unmount them again: the kernel's, and FUSE's."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

from ...base.errors import RunFailed, UserError
from ...site import mounts

_SECONDS = 60.0  # for a tool that mounts or unmounts: a disk that does not answer
_PACKAGES = (
    "install squashfuse and fuse3 (Debian, Ubuntu: `apt install squashfuse fuse3`; Fedora, EPEL: "
    "`dnf install squashfuse fuse3`; without root: `conda install -c conda-forge squashfuse`)"
)
_FUSE = ("squashfuse_ll", "squashfuse")


def mount(image: Path, point: Path) -> str:
    """Mount it by the first tool that can; which that was.

    Raises:
        UserError: nothing here can.
        RunFailed: what can did not.
    """
    why = []
    if os.geteuid() == 0 and shutil.which("mount"):
        options = "ro,loop,nosuid,nodev"
        said = _run("mount", "-t", "squashfs", "-o", options, str(image), str(point))
        if not said:
            return "kernel"
        why.append(f"mount: {said}")  # in a container root may not, or has no loop devices
    found = [name for name in _FUSE if shutil.which(name)]
    if not found:
        raise UserError(
            f"{image} cannot be mounted: squashfuse is not installed here, and the kernel mounts "
            f"for root alone{_because(why)}; {_PACKAGES}, or leave --mount away: rankup reads an "
            f"image without mounting it"
        )
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise UserError(
            f"{image} cannot be mounted: /dev/fuse is not there, or not for you{_because(why)}; "
            f"ask the site for FUSE on compute nodes, or leave --mount away: rankup reads an image "
            f"without mounting it"
        )
    for name in found:
        said = _run(name, "-o", "ro,nosuid,nodev", str(image), str(point))
        if not said and answers(point):
            return name
        why.append(f"{name}: {said or 'nothing was mounted'}")
        unmount(point)
    raise RunFailed(
        f"{image} could not be mounted at {point}{_because(why)}. Where fusermount3 is missing, "
        f"{_PACKAGES}"
    )


def _because(why: list[str]) -> str:
    return f" ({'; '.join(why)})" if why else ""


def _run(*command: str) -> str:
    """Run a tool; what it said where it failed, else nothing."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            # The process of FUSE lives on, and must not keep the caller's pipes open.
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_SECONDS:g} s"
    except OSError as error:
        return str(error.strerror)
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else f"exit code {done.returncode}"


def answers(point: Path) -> bool:
    """Whether something is mounted there that can be read."""
    try:
        return str(point) in points() and os.statvfs(point).f_files >= 0
    except OSError:  # the process of FUSE is gone
        return False


def cut_off(point: Path) -> bool:
    """Whether the process of FUSE that served a mount is gone."""
    try:
        os.statvfs(point)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def points() -> set[str]:
    """Where something is mounted now."""
    return {one.point for one in mounts.table()}


def below(folder: Path) -> list[str]:
    """Where in a folder something is mounted."""
    return sorted(point for point in points() if point.startswith(f"{folder}/"))


def unmount(point: Path) -> str:
    """Unmount it, at the latest when the last process has left it; a line about it."""
    if str(point) not in points():
        return f"{point} is not mounted any more"
    fuse = [name for name in ("fusermount3", "fusermount") if shutil.which(name)]
    ways: list[tuple[str, ...]] = [(name, "-u") for name in fuse]
    lazily: list[tuple[str, ...]] = [(name, "-u", "-z") for name in fuse]
    if os.geteuid() == 0:
        ways, lazily = [("umount",), *ways], [("umount", "-l"), *lazily]
    why = ""
    for words in (*ways, *lazily):
        why = _run(*words, str(point)) or why
        if str(point) not in points():
            return f"{point} is unmounted"
    return f"{point} could not be unmounted: {why or 'fusermount3 is missing'}"
