"""Who am I among the ranks: `setup()` joins the process group and says so in a `World`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from .hang import recorder
from .hang.leaving import TRAINING
from .hang.state import differing, fingerprint
from .hang.watch import Watch, stop_watching
from .random_state import STREAMS
from .written import WRITTEN

# Before the first step ranks compile, read data and build models at different speeds; afterwards a
# rank that is minutes late is stuck.
FIRST_TIMEOUT = timedelta(minutes=30)
TIMEOUT = timedelta(minutes=10)
EXIT_GRACE_SECONDS = 10.0
NOTICES = "RANKUP_NOTICES"  # 0: what rankup notices in a run stays unsaid
_BEFORE_LEAVING: list[Callable[[], None]] = []


class World(NamedTuple):
    """This process among all processes of the run.

    Unpacks into four names, `local_rank, rank, device, world_size = setup()`. Code written for
    JSC's course, whose `setup` returns three, takes `local_rank, rank, device = setup()[:3]`.
    """

    local_rank: int
    rank: int
    device: torch.device
    world_size: int

    @property
    def is_root(self) -> bool:
        """True on global rank 0 alone: the one that prints and saves."""
        return self.rank == 0

    @property
    def local_world_size(self) -> int:
        """Ranks on this node."""
        return launched().local_world_size

    @property
    def node(self) -> str:
        """Name of the node this rank runs on, Slurm's where there is one."""
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


class Launched(NamedTuple):
    """Where the launcher put this process."""

    launcher: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def setup(timeout: timedelta = FIRST_TIMEOUT) -> World:
    """Join the process group and pick this rank's device. Calling it twice is harmless.

    Ranks come from torchrun's variables, else from Slurm's per-task ones inside an srun step of
    several tasks, else this process is a group of one, so that raw `torch.distributed` calls work
    under a plain `python train.py` too. GPUs talk over NCCL, with gloo beside it for CPU tensors;
    without GPUs all is gloo. A rank that sees exactly one GPU uses it, whatever its local rank.

    All ranks get rank 0's random states (Python's, NumPy's where it is loaded, torch's), so that
    what the script draws before its first training batch is the same on all of them; not where the
    script has made the process group itself.

    Args:
        timeout: how long a collective may take until `after_first_step` shortens it.

    Raises:
        RuntimeError: more ranks on this node than GPUs, incomplete launch variables, or this is no
            rank but a helper of one that imports the script.
    """
    if not dist.is_initialized():
        _refuse_helpers()
    place = launched()
    device = device_of(place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        recorder.prepare()
        _freeze_in_children()
        _join(place, device, timeout)
        if place.world_size > 1:
            Watch(dist.distributed_c10d._get_default_store(), timeout).start()
        STREAMS.reset()
        if place.world_size > 1:
            STREAMS.synchronize()
            WRITTEN.begin()
        _abort_after_exception()
        atexit.register(destroy_process_group)
    elif place.world_size != dist.get_world_size():
        raise RuntimeError(
            f"the script has made a process group of {dist.get_world_size()} itself, but the "
            f"launch variables speak of {place.world_size}; leave init_process_group to setup()"
        )
    return World(place.local_rank, dist.get_rank(), device, dist.get_world_size())


def same_code(world: World) -> None:
    """Compare what the ranks run. Call it on every rank, once; costs two small collectives.

    Raises:
        RuntimeError: on every rank, where Python, torch, rankup or the script differ; names what
            differs and on which ranks.
    """
    if world.world_size == 1:
        return
    everyone: list[Any] = [None] * world.world_size
    dist.all_gather_object(everyone, (world.node, fingerprint()))
    if text := differing(everyone):
        raise RuntimeError(
            f"the ranks run different code: {text}; give every node the same environment and "
            "the same checkout"
        )


def before_leaving(call: Callable[[], None]) -> None:
    """Have `destroy_process_group` begin with a call."""
    _BEFORE_LEAVING.append(call)


def destroy_process_group() -> None:
    """Leave the process group; harmless when there is none."""
    for call in _BEFORE_LEAVING:
        call()
    stop_watching()
    if dist.is_initialized():
        _say_left()
        let_gloo_finish()
        dist.destroy_process_group()
        let_gloo_finish()


def _say_left() -> None:
    """Tell the others that this rank ends, which they may wait for, and what it has written."""
    rank, size = rank_and_size()
    if size > 1:
        with contextlib.suppress(RuntimeError, OSError):  # the store has ended before
            store = dist.distributed_c10d._get_default_store()
            TRAINING.leave(store, rank)
            if (text := WRITTEN.shared(store, rank, size)) and os.environ.get(NOTICES) != "0":
                print(f"rankup: note: {text}", file=sys.stderr, flush=True)
    TRAINING.reset()


def after_first_step(timeout: timedelta = TIMEOUT) -> None:
    """Shorten the time a collective may take, now that every rank has shown that it can step."""
    # A group of one waits for nobody, and its store-less backend has no time-out to set.
    if not several():
        return
    for group in list(dist.distributed_c10d._world.pg_map):
        # The groups of a mesh would keep torch's own half an hour; those that a script made for
        # something slow stay as they are, and so does a time that is shorter already.
        ours = group.group_desc == "default_pg" or group.group_desc.startswith("mesh_")
        given = recorder.timeout(group)
        if ours and group.size() > 1 and not 0 < given <= timeout.total_seconds():
            dist.distributed_c10d._set_pg_timeout(timeout, group)


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; `(0, 1)` where it is in no group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def several() -> bool:
    """True where there are other ranks to talk to."""
    return rank_and_size()[1] > 1


def is_root_process() -> bool:
    """True on global rank 0, and in a process that belongs to no group."""
    return rank_and_size()[0] == 0


def leave(code: int) -> None:
    """End this process now, without waiting for peers.

    A normal interpreter exit joins the backend's threads, which wait for collectives that a failed
    run will never complete. Exit functions still run, for at most `EXIT_GRACE_SECONDS`.
    """
    watchdog = threading.Timer(EXIT_GRACE_SECONDS, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    atexit.unregister(destroy_process_group)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _refuse_helpers() -> None:
    """A data worker has its rank's variables, and would join as that rank a second time: a hang."""
    process = multiprocessing.current_process()
    # Python's own mark of a started process that imports the script of its parent.
    imports = getattr(process, "_inheriting", False)
    if imports or process.name.startswith("rankup-data-") or get_worker_info() is not None:
        raise RuntimeError(
            f"setup() was called, by the script or by a Loader, in a process that a rank has "
            f"started ({process.name}) and that is no rank itself, most likely as it imports the "
            "script: put all that the script does below `if __name__ == '__main__':`"
        )


def launched() -> Launched:
    """Read the place of this process from torchrun's variables, else from Slurm's, else alone."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
        if missing:
            raise RuntimeError(
                f"RANK and WORLD_SIZE are set but {', '.join(missing)} is not; "
                "start the script with torchrun or `rankup run`, or unset RANK and WORLD_SIZE"
            )
        world_size = int(env["WORLD_SIZE"])
        return Launched(
            "torchrun",
            int(env["RANK"]),
            int(env["LOCAL_RANK"]),
            world_size,
            int(env.get("LOCAL_WORLD_SIZE", world_size)),
        )
    # The batch shell and everything it starts without srun carry SLURM_PROCID=0 too; only a step of
    # several tasks gives each process a rank of its own.
    tasks = int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and "SLURM_PROCID" in env:
        node = int(env.get("SLURM_NODEID", "0"))
        per_node = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(tasks)))
        local = per_node[node] if node < len(per_node) else tasks
        local_rank = int(env.get("SLURM_LOCALID", "0"))
        return Launched("srun", int(env["SLURM_PROCID"]), local_rank, tasks, local)
    return Launched("alone", 0, 0, 1, 1)


def device_of(place: Launched) -> torch.device:
    """Return the device that a rank computes on, without touching it."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        return torch.device("cpu")
    if gpus == 1:  # srun --gpus-per-task=1 and the like show each task its own GPU as number 0
        return torch.device("cuda", 0)
    if place.local_rank >= gpus:
        raise RuntimeError(
            f"local rank {place.local_rank} of node {socket.gethostname()} has no GPU: "
            f"{place.local_world_size} ranks were started here and {gpus} GPUs are visible; "
            f"start at most {gpus} ranks per node"
        )
    return torch.device("cuda", place.local_rank)


def _join(place: Launched, device: torch.device, timeout: timedelta) -> None:
    if device.type == "cuda":
        # Beside NCCL a rank connects to those it talks with over gloo, not to each of a thousand
        # others in every group. Where all is gloo, its connections are how ranks learn at once that
        # one has ended: one that was not yet connected would be waited for, five minutes.
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if place.launcher == "alone":
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    if place.launcher == "srun":
        os.environ.setdefault("MASTER_ADDR", _head_address())
        job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ.get("SLURM_STEP_ID", "0"))
        # A port of its own for each step, so that two jobs on one node do not meet.
        os.environ.setdefault("MASTER_PORT", str(10000 + (job + 7919 * step) % 20000))
    rendezvous = dist.rendezvous("env://", place.rank, place.world_size, timeout=timeout)
    shared, _, _ = next(iter(rendezvous))
    # torchrun's store outlives a process group, and a second one would find the first one's keys.
    number = shared.add(f"rankup/joined/{place.rank}", 1)
    store = dist.PrefixStore(f"rankup/{number}", shared)
    if device.type == "cuda":
        _claim_gpu(store, device)
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def _claim_gpu(store: dist.Store, device: torch.device) -> None:
    """Two ranks on one GPU would fail deep inside NCCL; say it here, before it is touched."""
    node, gpu = socket.gethostname(), torch.cuda.get_device_properties(device).uuid
    if store.add(f"rankup/{node}/{gpu}", 1) > 1:
        raise RuntimeError(
            f"two ranks on node {node} see the same single GPU ({gpu}); start one rank per GPU"
        )


def _head_address() -> str:
    if os.environ.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    name = first_host(nodes)
    if not name:
        raise RuntimeError(
            "an srun step over several nodes without SLURM_STEP_NODELIST: "
            "set MASTER_ADDR to the address of the first node"
        )
    return fabric_name(name)


def fabric_name(node: str) -> str:
    """Return a node's name in InfiniBand: at JSC, where $SYSTEMNAME is set, `jwb0007i` if it is.

    The name without the suffix is that in Ethernet, which does not reach every other node.
    """
    if os.environ.get("SYSTEMNAME"):
        with contextlib.suppress(OSError):
            socket.getaddrinfo(f"{node}i", None)
            return f"{node}i"
    return node


def first_host(nodelist: str) -> str:
    """`jwb[0007-0009,0012]` -> `jwb0007`: the first name of a Slurm host list."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodelist)
    if match is None:
        return ""
    return "".join(part or "" for part in match.groups())


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` -> `[2, 2, 2, 1]`: Slurm's run-length form of the tasks on each node."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise RuntimeError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not of the form 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


@functools.cache
def _freeze_in_children() -> None:
    """Let a forked child, such as a data worker, never collect this process's garbage.

    A process group that nobody has any more ends by joining its threads, which a child has not: it
    would wait for ever, and the loop with it for the worker's batch.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def _abort_after_exception() -> None:
    previous = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        previous(kind, value, trace)
        if several():
            leave(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = hook


# gloo's threads have to be at rest before a group, or a process, ends.
#
# A gloo thread drops the tensors of a collective after it has told the waiting rank that all is
# done. A tensor that Python once held takes the interpreter's lock to go; a thread that asks for it
# while Python shuts down is ended from outside, in the middle of C++ that allows no such thing, and
# the process dies of SIGABRT ("terminate called without an active exception") with all its work
# done. `destroy_process_group` ends the threads only where nothing refers to a group any more, and
# models cut by FSDP or a device mesh do. And where such a thread has the last reference to a group,
# since all others went meanwhile, it ends the group, and so would wait for itself: SIGABRT again
# ("Resource deadlock avoided"). Both seen with torch 2.13 on a loaded node.


def let_gloo_finish(at_most: float = 5.0) -> bool:
    """Wait until this process's gloo threads are idle; False if one still ran after `at_most` s.

    Where there is no /proc nothing is known of threads and nothing is waited for.
    """
    end, quiet = time.monotonic() + at_most, 0
    while quiet < 2:
        quiet = 0 if _running() else quiet + 1
        if time.monotonic() > end:
            return False
        if quiet < 2:
            time.sleep(0.005)  # lets go of the interpreter's lock, for which a thread may wait
    return True


def _running() -> bool:
    """True while a gloo thread runs or is next to run."""
    try:
        tasks = list(Path("/proc/self/task").iterdir())
    except OSError:
        return False
    for task in tasks:
        try:
            # "ID (name) STATE ...", the name cut to 15 characters.
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        if name == "pt_gloo_runloop"[:15] and rest.split()[0] in "RD":
            return True
    return False
