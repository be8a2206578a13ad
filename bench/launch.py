"""Seconds from the command to a script's first step: `rankup run` against bare torchrun.

Claim `launch.extra`: ours / peer on this machine, 2 ranks, 1.12 at most. The script is one file
that both start: it joins a gloo group and takes one step of DDP. Where a Slurm can be started
(root, slurm-wlm, munge), the same under Slurm, from the batch script's first line: our job script
against six lines by hand that srun torchrun on two nodes; and the seconds of the quick commands.

Warm: torch and rankup have been imported once before. The two take turns in a random order.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from common import (
    ROOT,
    Effort,
    claim,
    machine,
    median,
    paired,
    parse_effort,
    run,
    seconds,
    spread,
    table,
    take_turns,
)

sys.path.insert(0, str(ROOT))
BIN = Path(sys.executable).parent
RANKUP = BIN / "rankup"

SCRIPT = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
model(torch.ones(8, 64)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
if dist.get_rank() == 0:
    with open(os.environ["FIRST_STEP"], "w") as file:
        file.write(repr(time.time()))
dist.barrier()
dist.destroy_process_group()
"""

BY_HAND = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --cpus-per-task=8 --time=10 --output=/dev/null
export FIRST_STEP={step} PATH={path}:$PATH OMP_NUM_THREADS=1
date +%s.%N >{begun}
first=$(scontrol show hostnames | head -n 1)
head=$(scontrol show node -o "$first" | grep -oP ' NodeAddr=\\K\\S+')
srun --cpu-bind=none bash -c 'exec torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d \
  --rdzv-endpoint='"$head"':29411 --rdzv-conf=is_host=$((SLURM_NODEID == 0)) \
  $([ "$SLURM_NODEID" = 0 ] && echo --local-addr='"$head"') {script}'
"""


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(machine("torch") + "\n")
    with tempfile.TemporaryDirectory(prefix="rankup-bench-") as folder:
        print(bench(Path(folder), effort))


def bench(folder: Path, effort: Effort) -> str:
    """Measure and print everything; return the claim line."""
    rounds = effort.rounds
    script = folder / "first_step.py"
    script.write_text(SCRIPT)
    torchrun: list[str | Path] = [BIN / "torchrun", "--standalone", "--nproc-per-node=2", script]
    rankup: list[str | Path] = [RANKUP, "run", "--local", "--nproc", "2", script]
    found = take_turns(
        {
            "rankup": partial(_first_step, rankup, folder),
            "torchrun": partial(_first_step, torchrun, folder),
        },
        rounds,
    )
    ours, peer = found["rankup"], found["torchrun"]
    rows = [_row("here, 2 ranks", ours, peer)]
    quick = [["--version"], ["--help"], ["run", "--help"], ["status"]]
    times = [
        (" ".join(words), [seconds([RANKUP, *words], folder=folder) for _ in range(rounds)])
        for words in quick
    ]
    times.append(("status, 300 runs (fake Slurm)", many_runs(folder / "many", rounds)))
    if not effort.quick:
        under_slurm(folder, script, max(3, rounds // 2), rows, times)
    table(["seconds to the first step", "rankup", "bare torchrun", "difference"], rows)
    cells = [[name, f"{median(all_):.3f}", spread(all_)] for name, all_ in times]
    table(["seconds of", "median", "quartiles"], cells)
    note = (
        f"ours / peer at most 1.12; 2 gloo ranks on one machine; median of {rounds} turns; paired "
        f"{paired(ours, peer)}"
    )
    return claim("launch.extra", median(ours), median(peer), "s", note, better="lower")


def many_runs(folder: Path, rounds: int) -> list[float]:
    """Time `status` among 300 runs whose jobs have left no end, which accounting knows."""
    from tests.launch.handmade import asked, make_run, record
    from tests.slurm.fake import FakeSlurm

    folder.mkdir()
    slurm, rows = FakeSlurm(folder), []
    for number in range(300):
        path = make_run(folder / "runs", f"20261120-{120000 + number}-abcd")
        asked(path, str(number))
        record(path, job=str(number), start=1000, nodes="n1")
        ends = "2026-11-20T10:00:00|2026-11-20T11:00:00"
        rows.append(f"{number}|TIMEOUT|0:0|{ends}|n1|None|{path}")
    slurm.answers("squeue")
    slurm.answers("sacct", out="\n".join(rows))
    return [
        seconds([RANKUP, "status"], folder=folder, environment=slurm.environment)
        for _ in range(rounds)
    ]


def under_slurm(
    folder: Path,
    script: Path,
    rounds: int,
    rows: list[list[str]],
    times: list[tuple[str, list[float]]],
) -> None:
    """Add the same on a real Slurm of this host, started for it."""
    from tests.slurm import cluster as real

    if why := real.why_not():
        print(f"bench: no Slurm here ({why}); skipped: a Slurm job, 2 nodes x 2 ranks\n")
        return
    cluster = real.Cluster()
    try:
        environment = {**os.environ, **cluster.environment, "OMP_NUM_THREADS": "1"}
        words = ["run", "--nodes", "2", "--time", "10m", "--env", "OMP_NUM_THREADS=1"]
        submit = [*words, "--env", "FIRST_STEP", str(script)]
        found = take_turns(
            {
                "rankup": partial(_submitted, submit, folder, environment),
                "by hand": partial(_by_hand, folder, script, environment),
            },
            rounds,
        )
        rows.append(_row("as a Slurm job, 2 nodes x 2 ranks", *found.values()))
        for name in (["run", "--dry-run", "--nodes", "2", str(script)], ["status"]):
            took = [
                seconds([RANKUP, *name], folder=folder, environment=environment)
                for _ in range(rounds)
            ]
            times.append((f"{name[0]} {name[1] if len(name) > 1 else ''} (Slurm)", took))
    finally:
        cluster.close()


def _row(name: str, ours: list[float], peer: list[float]) -> list[str]:
    difference = median(ours) - median(peer)
    return [name, f"{median(ours):.2f}", f"{median(peer):.2f}", f"{difference:+.2f}"]


def _first_step(command: list[str | Path], folder: Path) -> float:
    step = folder / "step"
    environment = {**os.environ, "FIRST_STEP": str(step), "OMP_NUM_THREADS": "1"}
    began = time.time()
    run(command, folder=folder, environment=environment)
    return float(step.read_text()) - began


def _submitted(words: list[str], folder: Path, environment: Mapping[str, str]) -> float:
    step = folder / "step"
    step.unlink(missing_ok=True)
    run = folder / f"run-{time.time_ns()}"
    out = [words[0], "--out", str(run), *words[1:]]
    run([RANKUP, *out], folder=folder, environment={**environment, "FIRST_STEP": str(step)})
    _wait_for(step)
    [starts] = (path for name in ("attempts", "lives") for path in run.rglob(f"{name}.jsonl"))
    first = json.loads(starts.read_text().splitlines()[0])
    return float(step.read_text()) - float(first["start"])


def _by_hand(folder: Path, script: Path, environment: Mapping[str, str]) -> float:
    step, begun, job = folder / "step", folder / "begun", folder / "by-hand.sh"
    step.unlink(missing_ok=True)
    job.write_text(BY_HAND.format(step=step, begun=begun, path=BIN, script=script))
    run(["sbatch", job], folder=folder, environment=environment)
    _wait_for(step)
    return float(step.read_text()) - float(begun.read_text())


def _wait_for(step: Path) -> None:
    end = time.monotonic() + 120
    while not (step.exists() and step.stat().st_size):
        if time.monotonic() > end:
            raise SystemExit("bench: no first step within 120 s")
        time.sleep(0.05)
    time.sleep(2)  # the job ends, so that it does not run beside the next


if __name__ == "__main__":
    main()
