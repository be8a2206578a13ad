"""SquashFS images by `mksquashfs`, which reads a tar from a pipe: nothing is unpacked.

Photos do not compress, so nothing is: every file then lies in one piece and can be read by offset.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ...base.errors import UserError
from ...base.processes import die_with, end_group
from ..keys import shown
from . import tar_headers

# The same bytes for the same samples: no times, no owners. Duplicates are not looked for, since
# mksquashfs compares each file with all others of its size (18 of 19 s for 100 000 small ones);
# nor are zeros, which would leave holes in what should lie in one piece.
_OPTIONS = (
    *("-tar", "-noappend", "-no-recovery", "-exit-on-error", "-quiet", "-no-progress"),
    *("-comp", "gzip", "-noI", "-noD", "-noF", "-no-fragments", "-no-duplicates", "-no-sparse"),
    *("-no-xattrs", "-all-root", "-root-mode", "0755", "-all-time", "0", "-mkfs-time", "0"),
)
_OLDEST = (4, 5)  # the first that reads a tar
_MEMORY = "512M"  # its default is a quarter of the machine's, which may be a login node's
_LONGEST_NAME = 256  # of a component; longer ones would be cut
_PIPE = 1 << 20
_TOGETHER = 1000  # headers that are made at once
_SAID = 2000
# F_SETPIPE_SZ of linux/fcntl.h, which the module fcntl has on Linux only.
_SET_PIPE_SIZE = 1031

Buffer = bytes | bytearray | memoryview


class Member(NamedTuple):
    """A file of the image to be.

    Attributes:
        path: relative to the root.
        size: of all chunks together.
    """

    path: bytes
    size: int
    chunks: Iterable[Buffer]


def write(
    files: Iterable[Member],
    out: Path,
    *,
    block: int = 1 << 20,
    processors: int = 1,
) -> None:
    """Write an image of these files. The same files give the same bytes.

    Args:
        files: no path twice; nothing is asked for before the one before has been handed on.
        out: what is there is replaced; there is nothing after an error.
        block: bytes of a block, a power of 2 from 4 KiB to 1 MiB.
        processors: threads of mksquashfs.

    Raises:
        UserError: mksquashfs is missing, too old, or failed; a path that SquashFS cannot have.
        OSError: no space (ENOSPC, EDQUOT); or what the chunks raise.
    """
    command = [_program(), "-", str(out.absolute()), *_OPTIONS]
    command += ["-b", str(block), "-processors", str(processors), "-mem", _MEMORY]
    # Not written over: a mksquashfs that outlived a pack which was killed may still have it open.
    out.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                bufsize=_PIPE,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
            try:
                _feed(process, files)
            except BaseException:
                end_group(process)
                raise
            finally:
                _drop(process.stdin)
            if process.returncode or not out.exists():
                raise _failure(process.returncode, said, out)
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def _program() -> str:
    program = shutil.which("mksquashfs")
    help_with = (
        "Debian and Ubuntu have it as squashfs-tools, clusters often as a module (`module spider "
        "squashfs`), and so does conda-forge (squashfs-tools); the other containers need no program"
    )
    if program is None:
        raise UserError(f"no mksquashfs on PATH, which writes SquashFS images: {help_with}")
    asked = subprocess.run(
        [program, "-version"], capture_output=True, text=True, timeout=30, check=False
    )
    match = re.search(r"version (\d+)\.(\d+)", asked.stdout + asked.stderr)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        raise UserError(
            f"{program} is version {match[1]}.{match[2]}, and only 4.5 and later read from a pipe: "
            f"{help_with}"
        )
    return program


def _feed(process: subprocess.Popen[bytes], files: Iterable[Member]) -> None:
    """Hand all files to mksquashfs as a tar, and wait for it."""
    pipe = process.stdin
    assert pipe is not None
    with suppress(OSError):  # not more than the system allows
        fcntl.fcntl(pipe.fileno(), _SET_PIPE_SIZE, _PIPE)
    last: bytes | None = None
    left_over = iter(files)
    try:
        while some := list(itertools.islice(left_over, _TOGETHER)):
            sizes = np.array([one.size for one in some], np.int64)
            headers = tar_headers.headers([_checked(one.path) for one in some], sizes, {})
            for one, header in zip(some, headers, strict=True):
                if one.path == last:
                    raise UserError(
                        f"two samples would become the file {shown(one.path)}; rename one"
                    )
                last = one.path
                pipe.write(header)
                _hand_on(one, pipe)
        pipe.write(bytes(1024))
        pipe.close()
    except BrokenPipeError:
        pass  # it ended, and has said why
    process.wait()


def _checked(path: bytes) -> bytes:
    if len(path) > _LONGEST_NAME and max(map(len, path.split(b"/"))) > _LONGEST_NAME:
        raise UserError(
            f"{shown(path)} has a name of more than {_LONGEST_NAME} bytes, which SquashFS cannot "
            "have; rename it, or use another container"
        )
    return path


def _hand_on(one: Member, pipe: IO[bytes]) -> None:
    """The bytes of a file, and what fills its last block."""
    left = one.size
    for chunk in one.chunks:
        left -= len(chunk)
        if left < 0:
            break
        pipe.write(chunk)
    if left:
        raise UserError(
            f"{shown(one.path)} has {'more' if left < 0 else 'less'} than the {one.size} bytes it "
            f"had at first: it changed meanwhile; pack again"
        )
    pipe.write(bytes(-one.size % tar_headers.BLOCK))


def _drop(pipe: IO[bytes] | None) -> None:
    """Close a pipe whose reader may be gone, with what is still to be written to it."""
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.close()


def _failure(code: int, said: IO[bytes], out: Path) -> Exception:
    said.seek(0)
    text = said.read().decode("utf-8", "replace").strip()[-_SAID:]
    for number in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(number) in text:
            return OSError(number, os.strerror(number), str(out))
    ended = f"was ended by signal {-code}" if code < 0 else f"failed (exit {code})"
    return UserError(f"mksquashfs {ended} while it wrote {out}: {text or 'it said nothing'}")
