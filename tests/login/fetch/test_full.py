"""A full disk during `rankup fetch` is named, and leaves nothing half there and no traceback.

The disks are small file systems in memory, in a mount namespace of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..web import Web

_MOUNT = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
_TRIED = [*_MOUNT, "mount -t tmpfs tmpfs /mnt"]
_RUN = """
mount -t tmpfs -o size=2m tmpfs "$1"
if [ -d "$1/../project" ]; then cd "$1/../project"; else cp train.py "$1"; cd "$1"; fi
code=0
"$2" -m rankup fetch train.py || code=$?
cd "$1"
find . -path ./.rankup -prune -o ! -name . -print
grep -h '"proof"' .rankup/fetched/* || true
exit $code
"""

pytestmark = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(_TRIED, check=False).returncode != 0,
    reason="no mount namespace: not allowed here",
)


def _fetch(folder: Path, web: Web | None = None) -> subprocess.CompletedProcess[str]:
    """Run `train.py` beside `small`, the disk of 2 MiB; its files are in the output."""
    (folder / "small").mkdir()
    server = {} if web is None else {"SERVER": web.url()}
    return subprocess.run(
        [*_MOUNT, _RUN, "sh", str(folder / "small"), sys.executable],
        cwd=folder,
        env={**os.environ, "HOME": str(folder / "home"), **server},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("what", ["the script", "another program"])
def test_a_disk_that_a_script_fills_is_named(tmp_path: Path, what: str) -> None:
    fill = "file = open('log.bin', 'wb')\nfile.write(bytes(4 << 20))\n"
    if what == "another program":  # of whose error nobody hears
        fill = "import subprocess\nsubprocess.run('cat /dev/zero > log.bin 2>&-', shell=True)\n"
    (tmp_path / "train.py").write_text(fill)
    done = _fetch(tmp_path)
    assert done.returncode == 1, done.stderr
    folder = tmp_path / "small" / ".rankup"
    words = f"no room left on the disk of {folder}: make room there, and run it again"
    assert words in done.stderr
    assert "rankup/sandbox" not in done.stderr
    assert done.stdout.splitlines()[0] == "./train.py"
    assert '"proof": "none"' in done.stdout


def test_a_full_disk_at_the_start_is_named(tmp_path: Path) -> None:
    """There is room for the folder of the copy, and for nothing in it."""
    (tmp_path / "train.py").write_text(f"print('it ' + 'runs')\n{'#' * (1 << 20)}\n")
    done = _fetch(tmp_path)
    assert done.returncode == 1, done.stderr
    folder = tmp_path / "small" / ".rankup"
    assert f"rankup: no room left on the disk of {folder}: make room there" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "./train.py\n"


@pytest.mark.slow
def test_a_disk_that_only_the_proof_fills_is_no_proof_that_failed(tmp_path: Path) -> None:
    """The copy of the first start is there until the end."""
    (tmp_path / "train.py").write_text(
        "import torch\nfile = open('log.bin', 'wb', 0)\nfile.write(bytes(1 << 20))\n"
        "assert file.write(bytes(1 << 18)) == 1 << 18\n"
        "torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()\n"
    )
    done = _fetch(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "rankup: it does not start without a network:" in done.stderr
    folder = tmp_path / "small" / ".rankup"
    assert f"no room left on the disk of {folder}: make room there" in done.stderr
    assert "once more" not in done.stderr
    assert '"proof": "none"' in done.stdout


def test_a_folder_that_does_not_fit_on_its_disk_is_not_half_there(web: Web, tmp_path: Path) -> None:
    """The script would take it for the whole one at its next start."""
    for name in "abc":
        web.put(f"/{name}.bin", bytes(1 << 20))
    project = tmp_path / "project"
    project.mkdir()
    (project / "data").symlink_to(tmp_path / "small")
    (project / "train.py").write_text(
        "import os, urllib.request\n"
        "os.makedirs('data/set')\n"
        "for name in 'abc':\n"
        "    url = f'{os.environ[\"SERVER\"]}/{name}.bin'\n"
        "    urllib.request.urlretrieve(url, f'data/set/{name}.bin')\n"
    )
    done = _fetch(tmp_path, web)
    assert done.returncode == 1, done.stderr
    assert f"{project}/data/set has no room for what came (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_full_disk_is_named_wherever_its_last_block_goes(tmp_path: Path) -> None:
    """Such as into the copy, the request to the child or its first event."""
    (tmp_path / "train.py").write_text("print('it ' + 'runs')")
    (tmp_path / "small").mkdir()
    disk = (
        'mount -t tmpfs -o size=256k tmpfs "$1"; mkdir -p "$1/project/.rankup"\n'
        'cp train.py "$1/project"; cd "$1/project"\n'
        "for left in 62 61 60 59 58 57 56 55 54 53; do\n"
        "  head -c $((left * 4096)) /dev/zero > ../rest\n"
        '  "$2" -m rankup fetch train.py >&2 && exit 9; echo ended >&2\n'
        "done"
    )
    done = subprocess.run(
        [*_MOUNT, disk, "sh", str(tmp_path / "small"), sys.executable],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    *starts, _ = done.stderr.split("ended\n")
    named = [f"no room left on the disk of {tmp_path}" in one for one in starts]
    runs = ["it runs" in one for one in starts]
    assert [a or b for a, b in zip(named, runs, strict=True)] == [True] * 10, done.stderr
    assert not runs[0]
    assert runs[-1]
