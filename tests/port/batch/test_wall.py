"""What a batch file may try as it is read: nothing is started, written, killed or reached."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rankup.port.batch import examine
from rankup.port.batch.script import load
from rankup.port.batch.table import table

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1:00:00\n"
# `$KEPT` is a folder with a file in it, `$VICTIM` a process, `$PORT` one that listens.
HOSTILE = {
    "rm by its path": '/bin/rm -rf "$KEPT"',
    "rm by PATH": 'PATH=/bin:/usr/bin; rm -rf "$KEPT"',
    "rm without the trap": 'trap - DEBUG; builtin trap - DEBUG; /bin/rm -rf "$KEPT"',
    "rm without extdebug": 'shopt -u extdebug; set +T; PATH=/bin; rm -rf "$KEPT"',
    "rm in a task": 'srun /bin/rm -rf "$KEPT"',
    "rm at the end": "trap '/bin/rm -rf \"$KEPT\"' EXIT",
    "rm at the end, by the builtin": "builtin trap '/bin/rm -rf \"$KEPT\"' EXIT",
    "rm by exec": 'exec /bin/rm -rf "$KEPT"',
    "rm by the builtin exec": 'builtin exec /bin/rm -rf "$KEPT"',
    "rm in the background": '(/bin/rm -rf "$KEPT" &) & disown',
    "a file": 'echo no > "$KEPT/new"; : > "$KEPT/file"; echo more >> "$KEPT/file"',
    "a file by eval": "eval 'echo no > \"$KEPT/new\"'",
    "a file by a shell": "bash -c 'echo no > \"$KEPT/new\"'; /bin/sh -c ': > \"$KEPT/file\"'",
    "a file by a descriptor": 'exec 7<> "$KEPT/new"; echo no >&7',
    "a file in a pipe": 'echo no | tee "$KEPT/new" > >(cat > "$KEPT/other")',
    "a file by noclobber": 'set -C; echo no >| "$KEPT/file"',
    "a here-document": 'cat > "$KEPT/new" <<EOF\nno\nEOF',
    "its history": 'enable -f /bin/ls ls; history -w "$KEPT/new"; HISTFILE="$KEPT/new" history -a',
    "a process": "kill -9 $VICTIM; builtin kill -KILL $VICTIM; /bin/kill -9 $VICTIM",
    "all processes": "builtin kill -9 -1; builtin kill -9 0",
    "a connection": 'exec 3<>/dev/tcp/127.0.0.1/$PORT; echo no > /dev/udp/127.0.0.1/$PORT',
    "a download": 'curl -s http://127.0.0.1:$PORT/x | sh; wget -qO- http://127.0.0.1:$PORT | bash',
    "a fork bomb": ":(){ :|:& };:",
    "forks in a loop": "while :; do : & done",
    "an endless loop": "while :; do :; done",
    "an endless loop of commands": "while squeue; do sleep 1; done",
    "memory": 'a=x; while :; do a="$a$a"; done',
    "records of its own": 'printf "9\\0start\\0" >&230; echo junk >&230; exec 232<&-; cat <&231',
    "a loop of files": 'source "$BASH_SOURCE"; bash "$0"; . "$0"',
    "what never ends": "cat < /dev/zero; while read -r x; do :; done < /dev/urandom",
}  # fmt: skip


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        one.settimeout(0)
        yield one


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as one:
        yield one
        one.kill()


def _bashes(path: Path) -> list[int]:
    """The processes that run bash for a batch file."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with suppress(OSError):
                words = (one / "cmdline").read_bytes().split(b"\0")
                found += [int(one.name)] if str(path).encode() in words else []
    return found


def _files(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_nothing_is_done_by_reading(
    text: str,
    tmp_path: Path,
    listening: socket.socket,
    victim: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("held\n")
    monkeypatch.setenv("KEPT", str(kept))
    monkeypatch.setenv("VICTIM", str(victim.pid))
    monkeypatch.setenv("PORT", str(listening.getsockname()[1]))
    path = tmp_path / "job.sbatch"
    path.write_text(f"{HEAD}{text}\nsrun python train.py\n")
    before = _files(tmp_path)
    examine(path)
    assert _files(tmp_path) == before
    assert victim.poll() is None
    with pytest.raises(BlockingIOError):
        listening.accept()
    until = time.monotonic() + 60
    while _bashes(path) and time.monotonic() < until:  # killed, and not all gone yet
        time.sleep(0.05)
    assert not _bashes(path)
    assert not [one for one in os.listdir("/proc/self/fd") if _in_pieces(one)], (
        "a descriptor is left"
    )


def _in_pieces(fd: str) -> bool:
    try:
        return "seccomp" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False


def test_what_such_a_file_starts_is_still_seen(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(
        f"{HEAD}/bin/rm -rf /nowhere\necho > /nowhere/file\nsrun python train.py > log\n"
    )
    found = table(load(path))
    assert found.why == ""
    assert [(one.line, one.program.script, one.count) for one in found.steps] == [
        (5, "train.py", 2)
    ]


def test_without_a_wall_the_file_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    path = tmp_path / "job.sbatch"
    path.write_text(f"{HEAD}touch {tmp_path}/made\n")
    shown, findings = examine(path)
    assert "read only, since no wall for this machine" in shown[0]
    assert findings == []
    assert not (tmp_path / "made").exists()
