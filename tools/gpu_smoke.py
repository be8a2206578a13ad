"""What the first run on a machine with GPUs begins with: does all of rankup work there as on a CPU?

    python tools/gpu_smoke.py [--out FOLDER] [--only trace,same,tests,bench]

1. `trace`: steps of a script with `rankup.wrap` beside the same with DistributedDataParallel, on one
   rank and on two, under torch's profiler: what a step takes, on which the host waits inside the
   backward, and which share of the seconds of NCCL passes while gradients are computed.
2. `same`: the language model on two ranks over NCCL, split in each way, has the losses of one rank;
   so has a run that goes on in another layout than it began in. bfloat16 and compiled ones run.
3. `tests`: `pytest -m gpu`.
4. `bench`: `bench/gpu.py --quick`.

Where there is one GPU, two ranks share it, each on a node of its own by name, which NCCL believes
(it needs root, or user namespaces): what they compute is right, what they take says nothing.
Ends with 1 if something has failed; each failure is a line that begins with FAILED.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = ["--steps", "12", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0", "--clip", "0.5"]
SMALL = ["--vocab", "byte", "--seq-len", "32", "--layers", "4", "--dim", "64", "--heads", "4"]
BATCH = ["--global-batch", "12", "--micro-batch", "3", "--dropout", "0.1", "--valid-every", "12"]
LAYOUTS = {
    "ddp": ["--strategy", "ddp"],
    "fsdp": ["--strategy", "fsdp"],
    "fsdp, offload": ["--strategy", "fsdp", "--offload"],
    "tp": ["--strategy", "tp", "--tp", "2"],
    "pp": ["--strategy", "pp", "--pp", "2"],
}
RUNS_ONLY = {
    "ddp, bf16, compiled": ["--strategy", "ddp", "--precision", "bf16", "--compile"],
    "fsdp, bf16, compiled, selective": [
        *("--strategy", "fsdp", "--precision", "bf16", "--compile"),
        *("--activation-checkpointing", "selective"),
    ],
    "local-sgd": ["--strategy", "local-sgd"],
    "powersgd": ["--strategy", "ddp", "--compress", "powersgd"],
}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::item")


def ranks_of(command: list[str], size: int, env: dict[str, str], log: Path) -> int:
    """Run a command as `size` ranks of one node, or of `size` nodes that share a GPU.

    Returns:
        0, or the exit code of the first rank that failed; the others are killed then.
    """
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = torch.cuda.device_count() >= size
    ranks = []
    with log.open("w") as out:
        for rank in range(size):
            place = {
                "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank if own else 0,
                "LOCAL_WORLD_SIZE": size if own else 1, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "OMP_NUM_THREADS": 4,
            }  # fmt: skip
            alone: list[str] = []
            if not own:
                place |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
                renamed = (
                    f"import os, socket, sys; socket.sethostname('node{rank}'); "
                    "os.execv(sys.argv[1], sys.argv[1:])"
                )
                alone = ["unshare", "--uts", "--", sys.executable, "-c", renamed]
            given = {**os.environ, **env, **{key: str(value) for key, value in place.items()}}
            ranks.append(
                subprocess.Popen([*alone, *command], env=given, stdout=out, stderr=out, cwd=ROOT)
            )
        codes = [rank.poll() for rank in ranks]
        while None in codes and not any(codes):
            time.sleep(0.05)
            codes = [rank.poll() for rank in ranks]
        for rank in ranks:
            if any(codes):
                rank.kill()
            rank.wait()
    return next((code for code in codes if code), 0)


# --- trace


def trace_rank(who: str, folder: Path) -> None:
    """Step a model of 40 million parameters, time it, then profile five steps; write what is seen."""
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    import rankup

    world = rankup.setup()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True, norm_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(world.device)
    if who == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[world.device.index])
    else:
        model = rankup.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randn(8, 256, 512, device=world.device)

    def step() -> None:
        with torch.autocast(world.device.type, torch.bfloat16):
            loss = model(data).float().square().mean()
        if who == "count":
            rankup.count(data.shape[0] + world.rank)
        with record_function("script: backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def synchronize() -> None:
        if world.device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    seconds = []
    for _ in range(5):
        synchronize()
        began = time.perf_counter()
        for _ in range(10):
            step()
        synchronize()
        seconds.append((time.perf_counter() - began) / 10)
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for _ in range(5):
            step()
        synchronize()
    if world.is_root:
        trace = folder / f"{who}-{world.world_size}.json"
        profiler.export_chrome_trace(str(trace))
        seen = {"ms": sorted(seconds)[2] * 1e3, **exchanges(json.loads(trace.read_text()))}
        trace.with_suffix(".seen").write_text(json.dumps(seen))


def exchanges(trace: dict[str, Any]) -> dict[str, Any]:
    """Return, of a profiler's trace, host waits in backwards and how NCCL lies beside kernels."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    backwards = [event for event in events if event["name"] == "script: backward"]
    backwards = [event for event in backwards if event["cat"] != "gpu_user_annotation"]
    waits: dict[str, int] = {}
    for event in events:
        if event["name"] in WAITS and any(
            one["ts"] <= event["ts"] < one["ts"] + one["dur"] for one in backwards
        ):
            waits[event["name"]] = waits.get(event["name"], 0) + 1
    kernels = [event for event in events if event["cat"] == "kernel"]
    nccl = [event for event in kernels if "nccl" in event["name"].lower()]
    other = sorted(
        (event["ts"], event["ts"] + event["dur"]) for event in kernels if event not in nccl
    )
    covered = sum(
        max(0.0, min(end, one["ts"] + one["dur"]) - max(start, one["ts"]))
        for one in nccl
        for start, end in other
    )
    whole = sum(one["dur"] for one in nccl)
    return {
        "waits": waits,
        "nccl": len(nccl) / max(1, len(backwards)),
        "kernels": len(kernels) / max(1, len(backwards)),
        "beside": covered / whole if whole else None,
    }


def trace(out: Path) -> list[str]:
    failures = []
    print("\n-- trace: wrap beside DDP; 41 M parameters, bfloat16 by autocast, AdamW")
    print(f"{'':10}{'ranks':>6}{'ms/step':>9}{'kernels':>9}{'NCCL':>6}{'beside':>8}  host waits")
    for size in (1, 2):
        for who in ("ddp", "wrap", "count"):
            command = [sys.executable, __file__, "--rank", who, "--out", str(out)]
            log = out / f"trace-{who}-{size}.log"
            code = ranks_of(command, size, {}, log)
            if code:
                failures.append(f"trace of {who} on {size} ranks ended with {code}: {tail(log)}")
                continue
            seen = json.loads((out / f"{who}-{size}.seen").read_text())
            share = "" if seen["beside"] is None else f"{seen['beside']:.0%}"
            print(
                f"{who:10}{size:6}{seen['ms']:9.2f}{seen['kernels']:9.0f}{seen['nccl']:6.1f}"
                f"{share:>8}  {seen['waits'] or 'none'}",
                flush=True,
            )
    return failures


# --- same


def train(out: Path, name: str, size: int, args: list[str], resume: bool = False) -> list[float]:
    """Train the language model as a rank's process does; return the losses by step.

    Raises:
        RuntimeError: it failed.
    """
    from rankup import recipes

    run = out / "runs" / name.replace(", ", "-")
    run.mkdir(parents=True, exist_ok=True)
    env = {"RANKUP_RUN_DIR": str(run), "RANKUP_MONITOR": "0", "RANKUP_RESUME": str(int(resume))}
    if not resume:
        recipes.find("language-model").parse(args).prepare(run)
    start = "from rankup.launch.worker import main; main()"
    command = [sys.executable, "-c", start, "language-model", *args]
    code = ranks_of(command, size, env, run / "out.log")
    if code:
        raise RuntimeError(f"{name} on {size} ranks ended with {code}: {tail(run / 'out.log')}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def same(out: Path) -> list[str]:
    print("\n-- same: losses of 12 steps on two ranks against one")
    failures: list[str] = []
    args = [*STEPS, *SMALL, *BATCH]
    wanted = train(out, "one", 1, args)
    began = time.perf_counter()
    for name, layout in LAYOUTS.items():
        try:
            found = train(out, name, 2, [*args, *layout])
        except RuntimeError as error:
            failures.append(str(error))
            continue
        apart = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
        print(f"{name:34}{apart:.1e} apart   {time.perf_counter() - began:6.1f} s", flush=True)
        if apart > 1e-4:
            failures.append(f"{name}: losses are {apart:.1e} apart: {found} and {wanted}")
    for name, layout in RUNS_ONLY.items():
        try:
            found = train(out, name, 2, [*args, *layout])
        except RuntimeError as error:
            failures.append(str(error))
            continue
        print(f"{name:34}{found[0]:.4f} to {found[-1]:.4f}   {time.perf_counter() - began:6.1f} s")
        if not found[-1] < found[0]:
            failures.append(f"{name}: losses did not fall: {found}")
    return failures


def tail(log: Path, lines: int = 25) -> str:
    return "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


# --- all


def called(name: str, command: list[str]) -> list[str]:
    print(f"\n-- {name}", flush=True)
    code = subprocess.run(command, cwd=ROOT).returncode
    return [f"{name} ended with {code}"] if code else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-smoke"), metavar="FOLDER")
    parser.add_argument("--only", default="trace,same,tests,bench", metavar="PARTS")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    out = given.out.resolve()
    if given.rank:
        trace_rank(given.rank, out)
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("gpu_smoke: torch sees no GPU here")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    print(f"torch {torch.__version__}, NCCL {nccl}, {gpus}", flush=True)
    parts = {
        "trace": lambda: trace(out),
        "same": lambda: same(out),
        "tests": lambda: called("tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu"]),
        "bench": lambda: called("bench", [sys.executable, "bench/gpu.py", "--quick"]),
    }
    failures = []
    for name in given.only.split(","):
        try:
            failures += parts[name]()
        except Exception as error:  # the other parts still tell something
            failures.append(f"{name}: {type(error).__name__}: {error}")
    for failure in failures:
        print(f"FAILED {failure}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
