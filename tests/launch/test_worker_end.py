"""The processes of a node: what ends with what, and what is written down of a killed rank."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rankup.launch import failure


class _Asked(BaseException):
    pass


def _agent(run_dir: Path, script: Path) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks as a job's node does."""
    command = Path(sys.executable).with_name("rankup-rank")
    options = ("--standalone", "--nproc-per-node=2", "--no-python", "--", command, script)
    return subprocess.run(
        [command, "--agent", *options],
        env={**os.environ, "RANKUP_RUN_DIR": str(run_dir), "SLURMD_NODENAME": "n7"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(("number", "follows"), [(signal.SIGKILL, False), (signal.SIGTERM, True)])
def test_a_job_that_lost_a_rank_has_a_note_of_its_signal(
    tmp_path: Path, number: signal.Signals, follows: bool
) -> None:
    """That of SIGTERM is a consequence: so ends a rank whose job ends."""
    (tmp_path / "log").mkdir()
    script = tmp_path / "train.py"
    # Rank 0 has ended before: torchrun would end it by SIGTERM, and has no word on who was first.
    script.write_text(
        f"import os, time\nfrom pathlib import Path\nother = Path({str(tmp_path / 'rank0')!r})\n"
        "if os.environ['RANK'] == '0':\n"
        "    other.with_suffix('.new').write_text(str(os.getpid()))\n"
        "    other.with_suffix('.new').rename(other)\n"
        "else:\n"
        "    while not other.exists() or Path('/proc', other.read_text()).exists():\n"
        "        time.sleep(0.01)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
    )
    done = _agent(tmp_path, script)
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert "failed" not in done.stderr  # the job script says it, once for all nodes
    (note,) = failure.read_all(tmp_path / "log")
    assert (note.rank, note.node, note.consequence) == (1, "n7", follows)
    assert number.name in note.message


def _full(log: Path) -> None:
    (log / "torchrun.log").symlink_to("/dev/full")


def _no_room(log: Path) -> None:
    (log / "torchrun.log").mkdir()  # opening it fails, as where no inodes are left


@pytest.mark.parametrize("disk", [_full, _no_room])
def test_a_full_disk_ends_no_run_and_prints_no_tracebacks_of_logging(
    tmp_path: Path, disk: Callable[[Path], None]
) -> None:
    (tmp_path / "log").mkdir()
    disk(tmp_path / "log")
    script = tmp_path / "train.py"
    script.write_text("import os\nos._exit(3 * (os.environ['RANK'] == '1'))\n")
    done = _agent(tmp_path, script)
    assert done.returncode == 3, done.stderr
    assert "Logging error" not in done.stderr


def test_where_the_note_has_no_room_the_users_own_error_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import os, resource\n"
        "if os.environ['RANK'] == '1':\n"
        "    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # as on a full disk\n"
        "    raise ValueError('the user has done it')\n"
    )
    done = _agent(tmp_path, script)
    assert done.returncode == 1
    assert "ValueError: the user has done it" in done.stderr
    assert "failure.py" not in done.stderr
    assert "During handling of the above exception" not in done.stderr


_LOADING = """
import os, signal
from pathlib import Path
from torch.utils.data import DataLoader
import rankup

def keep(batch):
    (Path(os.environ["RANKUP_RUN_DIR"]) / "workers" / str(os.getpid())).touch()
    return batch  # bytes, and more of them than go into a pipe

world = rankup.setup()
data = [bytes(300_000)] * 400
loaders = [DataLoader(data, 8, num_workers=2, collate_fn=keep) for _ in range(2)]
iterators = [iter(loaders[0]), iter(rankup.shard(loaders[1], train=False))]
for iterator in iterators:
    next(iterator)
    next(iterator)
rankup.barrier()
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
rankup.barrier()
"""


@pytest.mark.timeout(300)
def test_data_workers_of_a_killed_rank_end_with_the_run(tmp_path: Path) -> None:
    for name in ("log", "workers"):
        (tmp_path / name).mkdir()
    script = tmp_path / "train.py"
    script.write_text(_LOADING)
    done = _agent(tmp_path, script)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    workers = [int(path.name) for path in (tmp_path / "workers").iterdir()]
    assert len(workers) == 8
    _, alive = psutil.wait_procs([*_processes(workers)], timeout=60)
    assert alive == []


def _processes(pids: list[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


# A block of 64 MiB of new pages is 16,384 page faults; of pages that the process has, none.
_ALLOCATING = """
import resource, sys
from rankup.launch.worker import keep_memory
keep_memory()
size = 2**26 if sys.argv else 0  # known at run time alone: no constant is kept
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = b"x" * size
del block
before = faults()
block = b"x" * size
print(faults() - before > 8192)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
@pytest.mark.parametrize(
    ("given", "new_pages"),
    [
        ({}, False),
        ({"MALLOC_MMAP_THRESHOLD_": "131072"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, True),
    ],
)
def test_a_recipe_on_the_cpu_reuses_memory_unless_the_user_has_set_malloc(
    given: dict[str, str], new_pages: bool
) -> None:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", _ALLOCATING],
        env={**clean, "CUDA_VISIBLE_DEVICES": "", **given},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == f"{new_pages}\n"
