"""Joining the group: by torchrun's variables, by those of a Slurm step, or alone."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from rankup.runtime.hang.state import fingerprint
from rankup.runtime.world import (
    Launched,
    World,
    after_first_step,
    destroy_process_group,
    device_of,
    fabric_name,
    first_host,
    is_root_process,
    launched,
    same_code,
    setup,
    tasks_per_node,
)
from tests.pool import RankPool, free_port

LAUNCH_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
ALONE = Launched("alone", 0, 0, 1, 1)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without a word of torchrun or Slurm."""
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in (*LAUNCH_VARIABLES, "MASTER_PORT"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_a_helper_of_a_rank_does_not_join(
    no_launcher: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A started worker that imports the script would join as the rank that has started it."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    process = multiprocessing.current_process()
    with monkeypatch.context() as patch:
        patch.setattr(process, "_inheriting", True, raising=False)
        with pytest.raises(RuntimeError, match=r"is no rank itself.*__main__"):
            setup()
    monkeypatch.setattr(process, "name", "rankup-data-0")
    with pytest.raises(RuntimeError, match=r"rankup-data-0.*is no rank itself"):
        setup()
    assert not dist.is_initialized()
    with monkeypatch.context() as patch:
        patch.setattr(process, "name", "MainProcess")
        world = setup()
    try:
        assert setup() == world  # a forked one has inherited the group
    finally:
        destroy_process_group()


# --- whose variables count


def test_torchruns_variables(no_launcher: pytest.MonkeyPatch) -> None:
    values = ("5", "1", "8", "4", "node0")
    for name, value in zip((*LAUNCH_VARIABLES, "MASTER_PORT"), (*values, "29500"), strict=True):
        no_launcher.setenv(name, value)
    assert launched() == Launched("torchrun", 5, 1, 8, 4)
    no_launcher.delenv("LOCAL_WORLD_SIZE")
    assert launched().local_world_size == 8


def test_incomplete_launch_variables_are_named(no_launcher: pytest.MonkeyPatch) -> None:
    no_launcher.setenv("RANK", "0")
    no_launcher.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"):
        launched()


def _as_slurm_task(environment: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "3,2",
        "SLURM_PROCID": "4",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
    }.items():
        environment.setenv(name, value)


def test_a_slurm_steps_variables(no_launcher: pytest.MonkeyPatch) -> None:
    _as_slurm_task(no_launcher)
    assert launched() == Launched("srun", 4, 1, 5, 2)


def test_torchrun_goes_before_slurm(no_launcher: pytest.MonkeyPatch) -> None:
    _as_slurm_task(no_launcher)
    values = ("1", "1", "2", "2", "127.0.0.1")
    for name, value in zip((*LAUNCH_VARIABLES, "MASTER_PORT"), (*values, "29500"), strict=True):
        no_launcher.setenv(name, value)
    assert launched() == Launched("torchrun", 1, 1, 2, 2)


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"}])
def test_the_batch_shells_procid_is_ignored(
    no_launcher: pytest.MonkeyPatch, step: dict[str, str]
) -> None:
    batch = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    for name, value in {**batch, "SLURM_NPROCS": "8", **step}.items():
        no_launcher.setenv(name, value)
    assert launched() == ALONE


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2])]
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


def test_tasks_per_node_of_another_form() -> None:
    with pytest.raises(RuntimeError, match="'four'"):
        tasks_per_node("four")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("jwb0007", "jwb0007"),
        ("jwb0007,jwb0012", "jwb0007"),
        ("jwb[0007-0009,0012]", "jwb0007"),
        ("jwb[0007,0009]", "jwb0007"),
        ("n[1-2]-ib,m3", "n1-ib"),
        ("login1,n[1-2]", "login1"),
        ("", ""),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_at_jsc_ranks_of_a_plain_srun_meet_in_infiniband(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, port: None) -> None:
        if name != "jwb0007i":
            raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.delenv("SYSTEMNAME", raising=False)
    assert fabric_name("jwb0007") == "jwb0007"
    monkeypatch.setenv("SYSTEMNAME", "juwelsbooster")
    assert fabric_name("jwb0007") == "jwb0007i"
    assert fabric_name("jpbo-001-01") == "jpbo-001-01", "JUPITER has no such names"


# --- the device


def _with_gpus(environment: pytest.MonkeyPatch, count: int) -> None:
    environment.setattr(torch.cuda, "is_available", lambda: count > 0)
    environment.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("gpus", "local_rank", "device"),
    [(0, 3, "cpu"), (1, 0, "cuda:0"), (1, 3, "cuda:0"), (4, 0, "cuda:0"), (4, 3, "cuda:3")],
)
def test_device(monkeypatch: pytest.MonkeyPatch, gpus: int, local_rank: int, device: str) -> None:
    _with_gpus(monkeypatch, gpus)
    assert device_of(Launched("torchrun", local_rank, local_rank, 4, 4)) == torch.device(device)


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_gpus(monkeypatch, 2)
    with pytest.raises(RuntimeError, match=r"local rank 3 .* 4 ranks .* 2 GPUs .* at most 2 ranks"):
        device_of(Launched("torchrun", 3, 3, 4, 4))


@pytest.mark.gpu
def test_group_of_one_on_a_gpu() -> None:
    program = (
        "import torch, torch.distributed as dist\n"
        "from rankup.runtime.world import setup\n"
        "world = setup()\n"
        "gpu, cpu = torch.ones(2, device=world.device), torch.ones(2)\n"
        "dist.all_reduce(gpu); dist.all_reduce(cpu); dist.barrier()\n"
        "assert world.device.type == 'cuda' and gpu.tolist() == cpu.tolist() == [1, 1]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- the group


def _describe(world: World) -> dict[str, object]:
    local_rank, rank, device, world_size = world
    again = setup()
    after_first_step()
    return {
        "names": (local_rank, rank, str(device), world_size),
        "three": world[:3] == (world.local_rank, world.rank, world.device),
        "again": again == world,
        "root": (world.is_root, is_root_process()),
        "local_world_size": world.local_world_size,
        "node": world.node,
        "backend": dist.get_backend(),
        "alone": "RANK" not in os.environ,
    }


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_world(ranks: RankPool, world_size: int) -> None:
    for rank, found in enumerate(ranks.run(world_size, _describe)):
        assert found.pop("node")
        assert found == {
            "names": (rank, rank, "cpu", world_size),
            "three": True,
            "again": True,
            "root": (rank == 0, rank == 0),
            "local_world_size": world_size,
            "backend": "gloo",
            "alone": world_size == 1,
        }


def _raw_calls(world: World) -> list[object]:
    tensor = torch.tensor([float(world.rank + 1)])
    dist.all_reduce(tensor)
    parts = [torch.zeros(1) for _ in range(world.world_size)]
    dist.all_gather(parts, torch.tensor([float(world.rank)]))
    objects: list[object] = [None] * world.world_size
    dist.all_gather_object(objects, world.rank)
    dist.barrier()
    box = [f"from {world.rank}"]
    dist.broadcast_object_list(box, src=0)
    destroy_process_group()
    destroy_process_group()
    return [tensor.item(), [part.item() for part in parts], objects, box[0], is_root_process()]


@pytest.mark.parametrize("world_size", [1, 2])
def test_raw_torch_distributed_calls(ranks: RankPool, world_size: int) -> None:
    everyone = list(range(world_size))
    for found in ranks.run(world_size, _raw_calls):
        total = world_size * (world_size + 1) / 2
        assert found == [total, everyone, everyone, "from 0", True]


def _connections(world: World) -> int:
    """Sockets that a further group of all ranks takes, before anybody talks in it."""
    process = psutil.Process()
    before = len(process.net_connections("tcp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_GLOO_LAZY_INIT", "1")  # as `setup` does beside NCCL
        group = dist.new_group(backend="gloo")
    found = len(process.net_connections("tcp")) - before
    dist.barrier(group)
    return found


def test_a_group_connects_no_rank_to_all_others(ranks: RankPool) -> None:
    """At a thousand ranks that would be a thousand sockets of each, for every group."""
    # The least of them: on a busy machine a rank still has sockets to come of the group before.
    assert min(ranks.run(4, _connections)) < 4


def test_groups_one_after_another_under_torchrun(tmp_path: Path) -> None:
    """The store is torchrun's, and keeps what earlier groups have written."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist, rankup\n"
        "for _ in range(3):\n"
        "    rankup.setup()\n"
        "    total = torch.ones(())\n"
        "    dist.all_reduce(total)\n"
        "    assert total == 2\n"
        "    rankup.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    subprocess.run(
        [*command, "--nproc-per-node=2", str(script)], check=True, timeout=120, env=environment
    )


def _join_as_slurm_step(world: World, job: int) -> tuple[object, ...]:
    dist.barrier()  # a peer may still be connecting to the group that is destroyed here
    destroy_process_group()
    for name in (*LAUNCH_VARIABLES, "MASTER_PORT"):
        del os.environ[name]
    os.environ.update(
        SLURM_JOB_ID=str(job),
        SLURM_STEP_ID="3",
        SLURM_STEP_NUM_TASKS=str(world.world_size),
        SLURM_STEP_NUM_NODES="1",
        SLURM_STEP_NODELIST="somewhere",
        SLURM_STEP_TASKS_PER_NODE=str(world.world_size),
        SLURM_PROCID=str(world.rank),
        SLURM_LOCALID=str(world.rank),
        SLURM_NODEID="0",
    )
    joined = setup()
    total = torch.tensor([joined.rank])
    dist.all_reduce(total)
    return tuple(joined[:2]), joined.world_size, joined.local_world_size, total.item()


def test_setup_in_a_slurm_step(ranks: RankPool) -> None:
    job = (free_port() - 10000 - 3 * 7919) % 20000
    answers = ranks.run(3, _join_as_slurm_step, job)
    assert answers == [((rank, rank), 3, 3, 3) for rank in range(3)]


def test_nothing_to_shorten_or_destroy_without_a_group() -> None:
    after_first_step()
    destroy_process_group()
    assert is_root_process()


ONE_RANK_FAILS = """
import sys, time
import torch.distributed as dist
from rankup.runtime.world import setup
world = setup()
dist.barrier()
if world.rank == 1:
    raise LookupError("the cause")
dist.barrier()
"""


@pytest.mark.slow
def test_an_exception_ends_the_process_and_frees_its_peers(
    tmp_path: Path, no_launcher: pytest.MonkeyPatch
) -> None:
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RANK_FAILS],
            env={
                **os.environ,
                "GLOO_SOCKET_IFNAME": "lo",
                "CUDA_VISIBLE_DEVICES": "",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=150)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert "LookupError: the cause" in errors[1]
    assert [process.returncode for process in processes] == [1, 1]


# --- gloo's threads, whose names the kernel knows

LEAVES = """
from pathlib import Path
import torch, torch.distributed as dist
from rankup.runtime.world import let_gloo_finish, setup
setup()
group = dist.new_group()  # kept, as a sharded model keeps it: its threads outlive the group
dist.all_reduce(torch.ones(10), group=group)
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print(sum("gloo" in name for name in names), let_gloo_finish())
"""


@pytest.mark.slow
def test_gloos_threads_have_the_name_that_is_looked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    threads, at_rest = done.stdout.split()
    assert int(threads) > 0
    assert at_rest == "True"


# --- the same code everywhere


def _runs_other_code(world: World) -> str:
    from rankup.runtime import world as module

    if world.rank == 2:
        other = {**fingerprint(), "torch": "2.7.0"}
        module.fingerprint = lambda: other  # type: ignore[assignment]
    try:
        same_code(world)
    except RuntimeError as error:
        return str(error)
    finally:
        module.fingerprint = fingerprint
    return ""


def test_a_node_with_other_code_is_named(ranks: RankPool) -> None:
    for text in ranks.run(3, _runs_other_code):
        assert f"torch is {torch.__version__} on most ranks, but not on rank 2 on " in text
        assert "(2.7.0)" in text


def _same_code(world: World) -> None:
    same_code(world)


def test_the_same_code_everywhere(ranks: RankPool) -> None:
    ranks.run(2, _same_code)
