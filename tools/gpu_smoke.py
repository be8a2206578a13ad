"""What the first run on a machine with GPUs begins with: does all of rankup work there as on a CPU?

    python tools/gpu_smoke.py [--out FOLDER] [--only trace,same,tests,bench]

1. `trace`: steps of a script with `rankup.wrap` beside the same with DistributedDataParallel, on
   one rank and on two, under torch's profiler: what a step takes, how often the host waits inside
   the backward, and how many kernels of the backward run while NCCL sums gradients.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = ["--steps", "12", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0", "--clip", "0.5"]
STEPS += ["--schedule", "constant"]
SMALL = ["--vocab", "byte", "--seq-len", "32", "--layers", "4", "--dim", "64", "--heads", "4"]
BATCH = ["--global-batch", "12", "--micro-batch", "3", "--dropout", "0.1", "--valid-every", "12"]
APART = 1e-5  # relative, of a loss
OWN_MASKS = ("tp", "pp")  # whose ranks draw the masks of dropout for themselves
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
        "--strategy",
        "fsdp",
        "--precision",
        "bf16",
        "--compile",
        "--activation-checkpointing",
        "selective",
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
    started = []
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
            started.append(
                subprocess.Popen([*alone, *command], env=given, stdout=out, stderr=out, cwd=ROOT)
            )
        codes = [process.poll() for process in started]
        while None in codes and not any(codes):
            time.sleep(0.05)
            codes = [process.poll() for process in started]
        for process in started:
            if any(codes):
                process.kill()
            process.wait()
    return next((code for code in codes if code), 0)


# --- trace


def trace_rank(who: str, folder: Path) -> None:
    """Time steps of a model of 40 million parameters, profile five; write what was seen."""
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
    """Return, for a step of a profiler's trace, its kernels and those that start beside NCCL's, and
    on what the host waits in its backward.
    """
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
    beside = sum(
        any(one["ts"] <= event["ts"] < one["ts"] + one["dur"] for one in nccl)
        for event in kernels
        if event not in nccl
    )
    steps = max(1, len(backwards))
    return {
        "waits": waits,
        "nccl": len(nccl) / steps,
        "kernels": len(kernels) / steps,
        "beside": beside / steps,
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
            print(
                f"{who:10}{size:6}{seen['ms']:9.2f}{seen['kernels']:9.0f}{seen['nccl']:6.1f}"
                f"{seen['beside']:8.0f}  {seen['waits'] or 'none'}",
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
    print("\n-- same: the losses of 12 steps on two ranks against one")
    args = [*STEPS, *SMALL, *BATCH]
    plain = [*args, "--dropout", "0"]
    wanted = {"0": train(out, "one", 1, plain), "0.1": train(out, "one, dropout", 1, args)}
    failures = []
    for name, layout in LAYOUTS.items():
        given = plain if name in OWN_MASKS else args
        failures += compare(out, name, [*given, *layout], wanted["0" if given is plain else "0.1"])
    for name, layout in RUNS_ONLY.items():
        failures += compare(out, name, [*args, *layout], None)
    run = "ddp for 6 steps, then fsdp"
    failures += compare(out, run, [*args, *LAYOUTS["ddp"], "--steps", "6"], wanted["0.1"][:6])
    failures += compare(out, run, [*args, *LAYOUTS["fsdp"]], wanted["0.1"], resume=True)
    return failures


def compare(
    out: Path, name: str, args: list[str], wanted: list[float] | None, resume: bool = False
) -> list[str]:
    """Train on two ranks; return in a line if losses are not those wanted, or do not fall."""
    began = time.perf_counter()
    try:
        found = train(out, name, 2, args, resume)
    except RuntimeError as error:
        return [str(error)]
    seconds = time.perf_counter() - began
    if wanted is None:
        print(f"{name:34}{found[0]:.4f} to {found[-1]:.4f}{seconds:8.1f} s", flush=True)
        return [] if found[-1] < found[0] else [f"{name}: losses did not fall: {found}"]
    apart = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
    print(f"{name:34}{apart:.1e} apart{seconds:11.1f} s", flush=True)
    return [f"{name}: {apart:.1e} apart: {found}, {wanted}"] if apart > APART else []


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
    failures = [failure for name in given.only.split(",") for failure in whole(parts[name], name)]
    for failure in failures:
        print(f"FAILED {failure}")
    sys.exit(bool(failures))


def whole(part: Callable[[], list[str]], name: str) -> list[str]:
    try:
        return part()
    except Exception as error:  # the other parts still tell something
        return [f"{name}: {type(error).__name__}: {error}"]


if __name__ == "__main__":
    main()
