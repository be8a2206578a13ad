"""What a node has room for: every bound that there is, and what is kept for the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from rankup.data.stage import memory, staging
from rankup.data.stage.copying import Plan
from rankup.data.stage.memory import Limit, Reserve, Room

G = 1 << 30


def _write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _version2(root: Path) -> None:
    top = "sys/fs/cgroup/system.slice"
    _write(
        root,
        {
            "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "proc/self/cgroup": "0::/system.slice/job_7/step_0\n",
            "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:  {300 * G >> 10} kB\n",
            f"{top}/memory.max": "max\n",
            f"{top}/memory.current": "5\n",
            f"{top}/job_7/memory.max": f"{100 * G}\n",
            f"{top}/job_7/memory.current": f"{70 * G}\n",
            f"{top}/job_7/memory.stat": f"inactive_file {20 * G}\nactive_file {G}\nshmem 9\n",
            f"{top}/job_7/step_0/memory.max": f"{90 * G}\n",
            f"{top}/job_7/step_0/memory.current": f"{10 * G}\n",
        },
    )


def test_the_limits_of_version_2_up_the_tree(tmp_path: Path) -> None:
    _version2(tmp_path)
    found = memory.limits({}, 0, tmp_path)
    assert [(one.what.split()[-1], one.left // G) for one in found] == [
        ("/system.slice/job_7/step_0", 80),
        ("/system.slice/job_7", 51),  # the page cache is given back when it is needed
        ("node", 300),
    ]


def test_the_limits_of_version_1(tmp_path: Path) -> None:
    own = "sys/fs/cgroup/memory/slurm/uid_1/job_7"
    _write(
        tmp_path,
        {
            "proc/self/mounts": (
                "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
                "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
            ),
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/slurm/uid_1/job_7\n0::/\n",
            f"{own}/memory.limit_in_bytes": f"{64 * G}\n",
            f"{own}/memory.usage_in_bytes": f"{30 * G}\n",
            f"{own}/memory.stat": f"cache 1\ntotal_inactive_file {6 * G}\ntotal_active_file 0\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
        },
    )
    (one,) = memory.limits({}, 0, tmp_path)
    assert (one.what, one.limit, one.used) == (
        "memory limit of the cgroup /slurm/uid_1/job_7",
        64 * G,
        24 * G,
    )
    # In a container the group's own folder is not there under its name: its top is.
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/elsewhere/docker/abc\n")
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(f"{8 * G}\n")
    (one,) = memory.limits({}, 0, tmp_path)
    assert one.limit == 8 * G


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({"SLURM_MEM_PER_NODE": "65536"}, 60),
        ({"SLURM_MEM_PER_CPU": "2048", "SLURM_CPUS_ON_NODE": "16"}, 28),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # all of it
        ({"SLURM_MEM_PER_NODE": "many"}, None),
    ],
)
def test_what_the_job_has_asked_for_bounds_its_copies(
    environment: dict[str, str], left: int | None, tmp_path: Path
) -> None:
    found = memory.limits(environment, 4 * G, tmp_path)  # 4 GiB of copies are there
    assert [one.left // G for one in found] == ([] if left is None else [left])


def test_the_reserve_is_for_ranks_and_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "usable_cores", lambda: 48)
    monkeypatch.setattr(memory, "visible_gpus", lambda environment: 4)
    found = memory.reserve({"SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_ON_NODE": "48"})
    assert found.size == 4 * G + 4 * 2 * G + 44 * G // 2
    assert found.why == "4 ranks of 1 GiB, 4 GPUs of 2 GiB, 44 workers of 0.5 GiB"
    monkeypatch.setattr(memory, "visible_gpus", lambda environment: 0)
    assert memory.reserve({"LOCAL_WORLD_SIZE": "2"}).size == 2 * G + 46 * G // 2


def test_the_smallest_bound_counts_less_the_reserve(tmp_path: Path) -> None:
    limits = (Limit("a", 100 * G, 30 * G), Limit("b", 200 * G, 0))
    found = Room(tmp_path, True, 500 * G, limits, Reserve(20 * G, "w"))
    assert found.fits == 50 * G
    assert replace(found, free=40 * G).fits == 40 * G
    assert replace(found, in_memory=False).fits == 500 * G  # of a disk no memory is taken
    assert replace(found, reserve=Reserve(90 * G, "w")).fits == 0


@dataclass(frozen=True)
class _Plan:
    """As much of a plan as a refusal needs."""

    needed: int
    source: Path = Path("x.h5")


def test_a_refusal_says_all_numbers_and_what_else_there_is_to_do(tmp_path: Path) -> None:
    limits = (Limit("a", 100 * G, 30 * G), Limit("b", 200 * G, 0))
    found = Room(tmp_path, True, 500 * G, limits, Reserve(20 * G, "w"))
    large = cast(Plan, _Plan(100 * G))
    text = staging.refusal(large, [found], "--")
    for part in (
        "x.h5 needs 107 GB on node",
        "has room for 53.7 GB",
        f"free in {tmp_path}: 537 GB",
        "a: 75.2 GB left of 107 GB, 32.2 GB in use",
        "b: 215 GB left\n",
        "kept for the job's processes: 21.5 GB (w)",
        "--to DIR",
        "--reserve SIZE",
        "do not stage it: it is then read from where it lies",
    ):
        assert part in text, text
    of_run = staging.refusal(large, [found], "--stage-")
    for option in ("(--stage-to DIR)", "(--stage-reserve SIZE)"):
        assert option in of_run
