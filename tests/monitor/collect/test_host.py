"""What is read of a node beside its GPUs, from trees of /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup.monitor.collect import host
from rankup.monitor.collect.host import Cores, Devices, Limit, Rates

from .trees import G, write


def _stat(*busy: int, idle: int = 100) -> str:
    lines = [f"cpu{core} {b} 0 0 {idle} 50 0 0 7 0 0" for core, b in enumerate(busy)]
    return "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 5 0 0", "ctxt 7", ""])


def test_use_of_the_usable_cores_in_tenths(tmp_path: Path) -> None:
    write(tmp_path, {"proc/stat": _stat(0, 0, 0, 0)})
    found = Cores((0, 2, 3), str(tmp_path))
    assert found.read() == (None, None, "")
    write(tmp_path, {"proc/stat": _stat(100, 777, 0, 45, idle=155)})
    # 100 of 155, 0 of 55, 45 of 100: busy ticks over all ticks of the three
    assert found.read() == (pytest.approx(100 * 145 / 310, abs=0.1), 64.5, "604")


def test_a_core_that_is_switched_off_counts_as_unused(tmp_path: Path) -> None:
    write(tmp_path, {"proc/stat": _stat(0, 0)})
    found = Cores((0, 1), str(tmp_path))
    found.read()
    write(tmp_path, {"proc/stat": _stat(100)})
    assert found.read() == (100.0, 100.0, "a0")


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_of_one_core_still_knows_the_cores_of_its_job(tmp_path: Path, version: int) -> None:
    controller = "/cpuset" if version == 1 else ""
    group = "/slurm/uid_1/job_7"
    file = "cpuset.cpus" if version == 1 else "cpuset.cpus.effective"
    top = f"sys/fs/cgroup{controller}{group}"
    write(
        tmp_path,
        {
            "proc/self/mounts": (
                "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
                if version == 1
                else "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
            ),
            "proc/self/cgroup": (
                f"3:cpuset:{group}/step_1/task_0\n"
                if version == 1
                else f"0::{group}/step_1/task_0\n"
            ),
            "proc/stat": _stat(*[0] * 8),
            f"{top}/{file}": "2-5\n",
            f"{top}/step_1/task_0/{file}": "2\n",
        },
    )
    assert host.usable({"SLURM_JOB_ID": "7"}, tmp_path) == (2, 3, 4, 5)


def test_a_whole_node_without_cgroups_is_the_jobs(tmp_path: Path) -> None:
    write(tmp_path, {"proc/stat": _stat(0, 0, 0)})
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "3"}
    assert host.usable(job, tmp_path) == (0, 1, 2)
    assert host.usable({}, tmp_path) == tuple(sorted(os.sched_getaffinity(0)))


def test_memory_without_caches_and_swap() -> None:
    text = (
        "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 60 kB\nSwapTotal: 9 kB\nSwapFree: 4 kB\n"
    )
    found = host.meminfo(text)
    assert found == host.Memory(used=40 << 10, total=100 << 10, swap_used=5 << 10, swap=9 << 10)
    assert host.meminfo("MemTotal: 100 kB\n") is None


def _groups(root: Path, job: int, step: int) -> None:
    top = "sys/fs/cgroup/slurm/job_7"
    write(
        root,
        {
            "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "proc/self/cgroup": "0::/slurm/job_7/step_1/task_0\n",
            f"{top}/memory.max": f"{job * G}\n",
            f"{top}/memory.current": f"{70 * G}\n",
            f"{top}/memory.stat": f"inactive_file {20 * G}\nactive_file {5 * G}\n",
            f"{top}/step_1/memory.max": f"{step * G}\n",
            f"{top}/step_1/memory.current": f"{1 * G}\n",
            f"{top}/step_1/task_0/memory.max": "max\n",
        },
    )


def test_of_equal_limits_that_of_the_whole_job_counts(tmp_path: Path) -> None:
    _groups(tmp_path, job=90, step=90)
    found = Limit({}, tmp_path)
    assert (found.size, found.used()) == (90 * G, 45 * G)


def test_the_samplers_own_step_is_not_the_ranks(tmp_path: Path) -> None:
    _groups(tmp_path, job=90, step=2)
    found = Limit({"SLURM_JOB_ID": "7"}, tmp_path)
    assert (found.size, found.used()) == (90 * G, 45 * G)
    # Elsewhere the tightest one up the tree holds.
    assert Limit({}, tmp_path).size == 2 * G


def test_memory_of_version_1_and_what_slurm_was_asked_for(tmp_path: Path) -> None:
    own = "sys/fs/cgroup/memory/job"
    write(
        tmp_path,
        {
            "proc/self/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
            "proc/self/cgroup": "4:memory:/job\n",
            f"{own}/memory.limit_in_bytes": f"{8 * G}\n",
            f"{own}/memory.usage_in_bytes": f"{6 * G}\n",
            f"{own}/memory.stat": f"cache 1\ntotal_inactive_file {2 * G}\ntotal_active_file 0\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
        },
    )
    assert (Limit({}, tmp_path).size, Limit({}, tmp_path).used()) == (8 * G, 4 * G)
    assert Limit({"SLURM_MEM_PER_NODE": "4096"}, tmp_path).size == 4 * G
    assert Limit({"SLURM_MEM_PER_NODE": "0"}, tmp_path).size == 8 * G


def test_without_any_limit_there_is_none(tmp_path: Path) -> None:
    assert (Limit({}, tmp_path).size, Limit({}, tmp_path).used()) == (None, None)


DISKSTATS = """\
   7       0 loop0 1 0 999 4 1 0 999 0 0 0 0
 259       0 nvme0n1 10 0 100 4 20 0 50 0 0 0 0 0 0 0 0
 259       1 nvme0n1p1 10 0 100 4 20 0 50 0 0 0 0 0 0 0 0
 253       0 dm-0 10 0 100 4 20 0 50 0 0 0 0
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
   ib0: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
 bond0: 1000 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0
"""


def test_disks_and_cards_are_counted_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/diskstats": DISKSTATS,
            "proc/net/dev": NET,
            "sys/block/nvme0n1/device/model": "x",
            "sys/block/dm-0/size": "1",
            "sys/block/loop0/size": "1",
            "sys/class/net/lo/type": "772\n",
            "sys/class/net/eth0/type": "1\n",
            "sys/class/net/eth0/device/vendor": "x",
            "sys/class/net/bond0/type": "1\n",
            "sys/class/net/ib0/type": "32\n",
            "sys/class/net/ib0/device/vendor": "x",
            "sys/class/net/mlx/type": "32\n",
        },
    )
    found = Devices(str(tmp_path))
    assert found.disk() == (100 * 512, 50 * 512)
    assert found.net() == (1000, 200)


def test_in_a_container_whatever_is_no_loopback_counts(tmp_path: Path) -> None:
    types = {"sys/class/net/lo/type": "772", "sys/class/net/eth0/type": "1"}
    write(tmp_path, {"proc/net/dev": NET, "proc/diskstats": DISKSTATS, **types})
    assert Devices(str(tmp_path)).net() == (1000, 200)
    assert Devices(str(tmp_path)).disk() is None


def test_infiniband_counts_in_words_over_all_ports(tmp_path: Path) -> None:
    for adapter, port in (("mlx5_0", 1), ("mlx5_1", 1)):
        folder = f"sys/class/infiniband/{adapter}/ports/{port}/counters"
        counters = {f"{folder}/port_rcv_data": "25\n", f"{folder}/port_xmit_data": "10\n"}
        write(tmp_path, counters)
    found = Devices(str(tmp_path))
    assert found.infiniband() == (200, 80)
    (tmp_path / "sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_data").unlink()
    assert found.infiniband() is None  # half of it would look like a drop


def test_a_counter_that_went_back_says_nothing() -> None:
    rates = Rates()
    assert rates.of("a", 5, None) is None
    assert rates.of("a", 25, 2.0) == 10
    assert rates.of("a", 3, 2.0) is None
    assert rates.of("a", 5, 2.0) == 1
    assert rates.of("a", None, 2.0) is None
    assert rates.of("a", 9, 2.0) is None
