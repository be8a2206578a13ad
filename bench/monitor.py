"""CPU that the sampler takes from the training: CPU seconds per second of the clock.

Claim `monitor.cpu`: at most 0.005, that is 0.5 % of one core. Four GPUs that play a script whose
answers cost CPU time (`CALL_SECONDS`), a sample every 2 s without the budget that would stretch the
pace, 4 ranks with 3 workers each. Start-up is told apart: it is paid once.

Claim `report.day`: CPU seconds, of all processes, to load and judge a day of 1000 GPUs (250 nodes,
a sample every 10 s) are at most 30; `--quick` takes 400 GPUs, and 12 s.

Beside it, at the same time and on the same machine, all asked for a sample every 2 s: ours with its
budget, ours without GPUs, and the collectors of nvitop and of W&B (offline; what its processes take
without the monitor is taken off). The two ask NVML themselves, and cannot be played a script.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import common

VENV = common.BENCH / ".venv-monitor"
PEERS = ("nvitop==1.7.2", "wandb==0.31.0")
# CPU seconds of one question to NVML: assumed, none measured yet. `bench/gpu.py` measures them on a
# real GPU ("CPU, in a row"): replace this by its numbers, by question.
CALL_SECONDS = 1e-4
GPUS, RANKS, WORKERS = 4, 4, 3
EVERY = 2.0
DAY, MOST_SECONDS = 86400.0, 30.0

VALUES = {
    "util": 97,
    "memory": 3e10,
    "power": 310,
    "energy": 1e6,
    "temperature": 61,
    "clock": 1410,
    "throttle": 0,
    "processes": 1,
}
COUNTERS = {"pcie_rx": 1e9, "pcie_tx": 1e9, "nvlink": 5e10}

OURS = """
import sys
from rankup.monitor.collect import sampler
from rankup.monitor.collect.main import main
sampler.BUDGET = float(sys.argv.pop(1))
sys.exit(main(sys.argv[1:]))
"""
NVITOP = f"""
import sys, time
from nvitop import Device, ResourceMetricCollector
devices = Device.all()
if not devices:
    print("it sees no GPU", flush=True)
pids = set(map(int, sys.argv[1:]))
collector = ResourceMetricCollector(devices, root_pids=pids, interval={EVERY})
collector.daemonize(lambda metrics: True, interval={EVERY})
print("ready", flush=True)
time.sleep(3600)
"""
WANDB = f"""
import sys, time
import wandb
off = sys.argv[1] == "off"
settings = wandb.Settings(
    mode="offline", silent=True, x_disable_stats=off, x_stats_sampling_interval={EVERY}
)
run = wandb.init(dir=sys.argv[2], settings=settings)
print("ready", flush=True)
time.sleep(3600)
"""
RANK = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        break
time.sleep(3600)
"""


@dataclass(frozen=True)
class Contestant:
    """A collector at work."""

    name: str
    process: subprocess.Popen[str]
    began: float  # CPU seconds when the measuring begins: its start-up

    def cpu(self) -> float:
        """Return the CPU seconds so far, of all its processes."""
        return tree_seconds(self.process.pid)


def tree_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and all below it, to the microsecond."""
    import psutil

    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(OSError):
            # Of all threads; /proc/PID/schedstat has those of the first one alone.
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                path = Path(f"/proc/{process.pid}/task/{thread}/schedstat")
                total += int(path.read_text().split()[0]) / 1e9
    return total


def script(path: Path) -> dict[str, str]:
    """Return the environment with four GPUs that are busy."""
    gpu = {"name": "A100", "values": VALUES, "counters": COUNTERS}
    path.write_text(json.dumps({"gpus": [gpu] * GPUS, "call_seconds": CALL_SECONDS}))
    nvml = common.ROOT / "tests" / "monitor" / "gpus"
    return {"PYTHONPATH": str(nvml), "NVML_SCRIPT": str(path)}


@contextlib.contextmanager
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list; processes in it end with the block, with all below them."""
    import psutil

    processes: list[subprocess.Popen[str]] = []
    try:
        yield processes
    finally:
        for process in processes:
            for below in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    below.kill()
            process.kill()
            process.wait()


def ranks(run: Path) -> list[subprocess.Popen[str]]:
    """Start ranks of a run with their workers, which do nothing."""
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(WORKERS)],
            env={**os.environ, "RANKUP_RUN_DIR": str(run), "RANK": str(rank)},
            text=True,
        )
        for rank in range(RANKS)
    ]


def collectors(
    folder: Path, run: Path, pids: list[int]
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return command and environment of each contestant."""
    gpus = script(folder / "gpus.json")
    sampler = [sys.executable, "-c", OURS]
    found = {
        "rankup": ([*sampler, "1.0", str(run)], {**gpus, "SLURMD_NODENAME": "unbound"}),
        "rankup, with its budget": (
            [*sampler, "0.004", str(run)],
            {**gpus, "SLURMD_NODENAME": "n"},
        ),
        "rankup, no GPU": ([*sampler, "1.0", str(run)], {"SLURMD_NODENAME": "cpu"}),
        "nvitop's collector": ([sys.executable, "-c", NVITOP, *map(str, pids)], {}),
    }
    for word in ("on", "off"):
        name = "W&B's monitor" if word == "on" else "W&B without it"
        where = folder / word
        where.mkdir()
        found[name] = ([sys.executable, "-c", WANDB, word, str(where)], {"WANDB_SILENT": "true"})
    return found


def ready(name: str, process: subprocess.Popen[str], run: Path, node: str | None) -> str:
    """Wait until a contestant collects; return what it has printed."""
    if node is not None:
        path = run / "monitor" / f"{node}.host.csv"
        end = time.monotonic() + 60
        while not (path.exists() and path.read_text().count("\n") >= 2):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"bench: {name} did not start")
            time.sleep(0.05)
        return ""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            return said
        said += line
    raise SystemExit(f"bench: {name} did not start: {said}")


def main() -> None:
    quick = common.parse_effort(__doc__ or "").quick
    common.enter_environment(VENV, PEERS, torch=False)
    slices, seconds = (3, 12.0) if quick else (9, 30.0)
    about = common.machine("nvitop", "wandb")
    print(f"{about}; {slices} slices of {seconds:.0f} s\n", flush=True)
    print(day(100 if quick else 250), flush=True)
    with tempfile.TemporaryDirectory(prefix="rankup-bench-") as temporary:
        folder = Path(temporary)
        run = folder / "run"
        run.mkdir()
        with started() as processes:
            processes += ranks(run)
            time.sleep(1)
            contestants = []
            commands = collectors(folder, run, [process.pid for process in processes])
            for name, (command, environment) in commands.items():
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **environment},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                processes.append(process)
                said = ready(name, process, run, environment.get("SLURMD_NODENAME"))
                if said:
                    print(f"{name}: {said.strip()}; it collects CPU and memory of the node alone\n")
                contestants.append(Contestant(name, process, tree_seconds(process.pid)))
            time.sleep(3 * EVERY)  # what is done once is over
            measured = measure(contestants, slices, seconds)
        print(report(contestants, measured, run, seconds))


def day(nodes: int) -> str:
    """Return the claim line of the report about a day; the nodes' files are copies of one's."""
    sys.path.insert(0, str(common.ROOT))
    from tests.monitor import traces

    from rankup.launch.report import judge

    trace = traces.healthy(seconds=DAY, limit=DAY, checkpoints=5000, validations=5000)
    with tempfile.TemporaryDirectory(prefix="rankup-bench-") as temporary:
        run = Path(temporary)
        trace.write(run)
        first = trace.node_name(0)
        own = {path: path.read_bytes() for path in (run / "monitor").glob(f"{first}.*")}
        for node in range(1, nodes):
            name = trace.node_name(node)
            for path, content in own.items():
                if path.suffix == ".jsonl":
                    content = content.replace(b"GPU-00000000", b"GPU-%08x" % node)
                path.with_name(path.name.replace(first, name)).write_bytes(content)
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        began, before = time.monotonic(), cpu_seconds()
        judged = judge(run, trace.but(nodes=nodes).facts())
        seconds, took = cpu_seconds() - before, time.monotonic() - began
    assert len(judged.recording.gpus) == 4 * nodes
    note = f"{4 * nodes} GPUs, {size / 1e9:.2f} GB, {took:.0f} s of the clock"
    most = MOST_SECONDS * nodes / 250
    return common.claim("report.day", seconds, most, "CPU s", note, better="lower")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def measure(contestants: list[Contestant], slices: int, seconds: float) -> dict[str, list[float]]:
    """Return the CPU seconds of each contestant per slice; all run at the same time."""
    found: dict[str, list[float]] = {one.name: [] for one in contestants}
    before = {one.name: one.cpu() for one in contestants}
    for _ in range(slices):
        time.sleep(seconds)
        for one in contestants:
            now = one.cpu()
            found[one.name].append(now - before[one.name])
            before[one.name] = now
    return found


def report(
    contestants: list[Contestant], measured: dict[str, list[float]], run: Path, seconds: float
) -> str:
    """Print the table; return the claim line."""
    idle = common.median(measured["W&B without it"])
    rows = []
    for one in contestants:
        values = [100 * value / seconds for value in measured[one.name]]
        less = 100 * idle / seconds if one.name == "W&B's monitor" else 0.0
        middle, began = f"{common.median(values) - less:.3f}", f"{one.began:.2f}"
        rows.append([one.name, middle, common.spread(values), began])
    common.table(["", "% of one core", "quartiles", "start, CPU s"], rows)
    lines = (run / "monitor" / "unbound.host.csv").read_text().splitlines()
    times = [float(line.partition(",")[0]) for line in lines[1:]]
    apart = common.median([b - a for a, b in itertools.pairwise(times)])
    ours = common.median(measured["rankup"])
    start = contestants[0].began
    note = (
        f"ours / peer <= 0.005; {GPUS} simulated GPUs of {CALL_SECONDS * 1e6:.0f} us per question "
        f"(assumed: no GPU was measured), a sample every {apart:.2f} s, {RANKS * (1 + WORKERS)} "
        f"processes; start-up {start:.2f} s once, not counted"
    )
    unit = "s of CPU in s of the clock"
    return common.claim("monitor.cpu", ours, seconds, unit, note, better="lower")


if __name__ == "__main__":
    main()
