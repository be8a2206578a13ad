"""What the first run on a machine with GPUs begins with: does all of rankup work there as on a CPU?

    python tools/gpu_smoke.py [--out FOLDER] [--minutes 10] [--only PARTS]

1. `llama`: a Llama in bfloat16 over all GPUs, each layout eager and compiled, with each kind of
   activation checkpointing: graphs and breaks, the type of the logits that reach the loss, one step
   in which every wait of the host is an error (`torch.cuda.set_sync_debug_mode`), the losses.
2. `mfu`: tokens/s and MFU of a Llama of 160 million parameters and, where it fits, of 1 billion,
   compiled, beside what `rankup plan` says of the same.
3. `trace`: steps of a script with `rankup.wrap` beside the same with DistributedDataParallel, on
   one rank and on two, under torch's profiler: what a step takes, how often the host waits inside
   the backward, and how many kernels of the backward run while NCCL sums gradients.
4. `same`: the language model on two ranks over NCCL, split in each way, has the losses of one rank;
   so has a run that goes on in another layout than it began in. local-sgd and powersgd run.
5. `tests`: `pytest -m gpu`.
6. `bench`: `bench/gpu.py --quick`.

Where there is one GPU, two ranks share it, each on a node of its own by name, which NCCL believes
(it needs root, or user namespaces): what they compute is right, what they take says nothing.
Ends with 1 if something has failed; each failure is a line that begins with FAILED. After
`--minutes` it ends in any case: what was running is killed, and what is left is `not run`.

`--cpu-smoke` goes through `llama` with two ranks on a CPU in a tiny size: that the tool works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import _gpu_llama

ROOT = Path(__file__).resolve().parent.parent
STEPS = ["--steps", "12", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0", "--clip", "0.5"]
STEPS += ["--schedule", "constant"]
SMALL = ["--vocab", "byte", "--seq-len", "32", "--layers", "4", "--dim", "64", "--heads", "4"]
BATCH = ["--global-batch", "12", "--micro-batch", "3", "--dropout", "0.1", "--valid-every", "12"]
APART = 1e-5  # relative, of a loss
OWN_MASKS = ("pp",)  # whose ranks draw the masks of dropout for themselves
LAYOUTS = {
    "ddp": ["--strategy", "ddp"],
    "fsdp": ["--strategy", "fsdp"],
    "fsdp, offload": ["--strategy", "fsdp", "--offload"],
    "tp": ["--strategy", "tp", "--tp", "2"],
    "pp": ["--strategy", "pp", "--pp", "2"],
}
RUNS_ONLY = {
    "local-sgd": ["--strategy", "local-sgd"],
    "powersgd": ["--strategy", "ddp", "--compress", "powersgd"],
}
VOCABULARY = 32000
MOST_RANKS = 8
# Parts that have a limit of their own, in shares of the whole time, so that others are reached.
SHARES = {"llama": 0.5, "mfu": 0.8}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::item")


class LateError(Exception):
    """The time is over."""


class Clock:
    """How long things may take.

    Args:
        seconds: for all of it.
    """

    def __init__(self, seconds: float) -> None:
        self.began, self.seconds = time.monotonic(), seconds
        self.ends = self.began + seconds

    def part(self, name: str) -> None:
        """Begin a part, which has to leave time to those behind it."""
        self.ends = self.began + SHARES.get(name, 1.0) * self.seconds

    def left(self) -> float:
        return self.ends - time.monotonic()


CLOCK = Clock(600.0)


def started_alone(command: list[str], **keywords: Any) -> subprocess.Popen[bytes]:
    """Start a process that is killed with all that it starts."""
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **keywords)


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ranks_of(command: list[str], size: int, env: dict[str, str], log: Path) -> int:
    """Run a command as `size` ranks of one node, or of `size` nodes that share a GPU.

    Returns:
        0, or the exit code of the first rank that failed; the others are killed then.

    Raises:
        LateError: they were killed, since the time is over.
    """
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = torch.cuda.device_count() >= size or not torch.cuda.is_available()
    started: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack, log.open("w") as out:
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
            started.append(started_alone([*alone, *command], env=given, stdout=out, stderr=out))
            stack.callback(end, started[-1])
        codes = [process.poll() for process in started]
        while None in codes and not any(codes):
            if CLOCK.left() <= 0:
                raise LateError
            time.sleep(0.05)
            codes = [process.poll() for process in started]
    return next((code for code in codes if code), 0)


# --- llama


def llama(out: Path, tiny: bool = False) -> list[str]:
    """Every layout, compiled or not, with each kind of activation checkpointing."""
    import torch

    from rankup import recipes

    size = 2 if tiny else max(2, min(MOST_RANKS, torch.cuda.device_count()) // 2 * 2)
    wanted = _gpu_llama.cells(size, tiny)
    folder = out / "llama"
    _gpu_llama.write_text(folder, _gpu_llama.TINY if tiny else _gpu_llama.SMALL)
    (folder / "found.jsonl").unlink(missing_ok=True)
    words = _gpu_llama.options_of(wanted[0], folder, size, tiny)
    recipes.find("language-model").parse(words).prepare(folder)
    print(f"\n-- llama: {size} ranks, bfloat16, {_gpu_llama.STEPS} steps of each", flush=True)
    command = [sys.executable, str(ROOT / "tools" / "_gpu_llama.py"), str(folder)]
    failures, code, late = [], 0, False
    try:
        env = {"RANKUP_MONITOR": "0"}
        code = ranks_of([*command, *(["--tiny"] if tiny else [])], size, env, folder / "out.log")
    except LateError:
        late = True
    lines = folder / "found.jsonl"
    found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    print(f"{'':30}{'graphs':>7}{'breaks':>7}  {'logits':10}  losses")
    for line in found:
        if "error" in line:
            print(f"{line['cell']:30}  {line['error']}")
            continue
        losses = f"{line['losses'][0]:.4f} to {line['losses'][-1]:.4f}"
        kinds = ", ".join(line["logits"])
        print(
            f"{line['cell']:30}{line['graphs']:7}{len(line['breaks']):7}  {kinds:10}  {losses}",
            flush=True,
        )
    missing = [str(cell) for cell in wanted[len(found) :]]
    if missing:
        print(f"not run: {'; '.join(missing)}")
    if code:
        failures.append(f"llama ended with {code}: {tail(folder / 'out.log')}")
    failures += _gpu_llama.judged(found, wanted)
    if late:
        print("the time of this part was over")
    if not found:
        failures.append("llama: no layout came to its end")
    return failures


# --- mfu


def mfu(out: Path) -> list[str]:
    """Tokens/s and MFU of Llamas over all GPUs, beside what a plan says."""
    import torch

    from rankup.recipes.llama import SIZES

    size = max(1, min(MOST_RANKS, torch.cuda.device_count()))
    memory = torch.cuda.get_device_properties(0).total_memory
    print(f"\n-- mfu: {size} ranks, bfloat16, compiled; MFU as planned beside it", flush=True)
    failures = []
    for name, micro, recompute in (("llama-160m", 16, "none"), ("llama-1b", 4, "selective")):
        shape = replace(SIZES[name], vocab_size=VOCABULARY, longest=2048)
        folder = out / "mfu" / name
        _gpu_llama.write_text(folder, shape.config())
        words = ["--model", str(folder / "config.json"), "--vocab", "byte", "--seq-len", "2048"]
        words += [*_gpu_llama.texts(folder), "--precision", "bf16", "--compile"]
        words += ["--steps", "25", "--strategy", "fsdp" if size > 1 else "ddp"]
        words += ["--micro-batch", str(micro), "--global-batch", str(2 * micro * size)]
        words += ["--activation-checkpointing", recompute, "--valid-every", "1000"]
        estimate = planned(words, size)
        if estimate is not None and estimate.memory_total > 0.95 * memory:
            print(f"{name}: not run: a plan says {estimate.memory_total / 2**30:.0f} GiB")
            continue
        try:
            train(out, name, size, words)
        except RuntimeError as error:
            failures.append(str(error))
            continue
        except LateError:
            print(f"{name}: not run to its end: the time of this part was over")
            break
        text = (out / "runs" / name / "metrics.jsonl").read_text()
        records = [json.loads(line) for line in text.splitlines()]
        # The first steps compile, and the last one is validated.
        late = [record for record in records if "tokens_per_s" in record][10:-1]
        rate = statistics.median(record["tokens_per_s"] for record in late)
        share = statistics.median(record["mfu"] or 0.0 for record in late)
        peak = max(record["peak_memory"] or 0 for record in late)
        said = "unknown"
        if estimate is not None:
            said = f"{estimate.mfu:.3f}, {estimate.memory_total / 2**30:.1f} GiB"
        print(
            f"{name:12}{rate / size:10,.0f} tokens/s per GPU, MFU {share:.3f}, "
            f"{peak / 2**30:.1f} GiB; planned {said}",
            flush=True,
        )
    return failures


def planned(words: list[str], size: int) -> Any:
    """Return what a plan says of a run on these GPUs; None where it does not know them."""
    import torch

    from rankup import recipes
    from rankup.plan.estimate import estimate
    from rankup.plan.machine import GIB, MACHINES
    from rankup.plan.target import Sizes, find
    from rankup.plan.words import layout_of

    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    known = [one for one in MACHINES.values() if one.gpu.partition("-")[0] in name]
    if not known:
        return None
    machine = min(known, key=lambda one: abs(one.memory_gib - memory / GIB))
    options = recipes.find("language-model").parse(words)
    layout = layout_of(options, size, options.layout(size, size))  # type: ignore[arg-type]
    return estimate(find("language-model", words, Sizes()).shape, layout, machine)


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
    process = started_alone(command)
    try:
        code = process.wait(max(0.0, CLOCK.left()))
    except subprocess.TimeoutExpired:
        raise LateError from None
    finally:
        end(process)
    return [f"{name} ended with {code}"] if code else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-smoke"), metavar="FOLDER")
    parser.add_argument("--only", default="llama,mfu,trace,same,tests,bench", metavar="PARTS")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which it ends")
    parser.add_argument("--cpu-smoke", action="store_true", help="that the tool works, on a CPU")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    out = given.out.resolve()
    if given.rank:
        trace_rank(given.rank, out)
        return
    CLOCK.__init__(60 * given.minutes)  # type: ignore[misc]
    import torch

    if given.cpu_smoke:
        finish(whole(lambda: llama(out, tiny=True), "llama, tiny"))
    if not torch.cuda.is_available():
        sys.exit("gpu_smoke: torch sees no GPU here")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    print(f"torch {torch.__version__}, NCCL {nccl}, {gpus}", flush=True)
    parts = {
        "llama": lambda: llama(out),
        "mfu": lambda: mfu(out),
        "trace": lambda: trace(out),
        "same": lambda: same(out),
        "tests": lambda: called("tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu"]),
        "bench": lambda: called("bench", [sys.executable, "bench/gpu.py", "--quick"]),
    }
    finish([failure for name in given.only.split(",") for failure in whole(parts[name], name)])


def finish(failures: list[str]) -> NoReturn:
    for failure in failures:
        print(f"FAILED {failure}")
    sys.exit(bool(failures))


def whole(part: Callable[[], list[str]], name: str) -> list[str]:
    CLOCK.part(name)
    if CLOCK.left() <= 0:
        print(f"\n-- {name}\nnot run: the time was over")
        return []
    try:
        return part()
    except LateError:
        print(f"{name}: broken off: the time was over")
        return []
    except Exception as error:  # the other parts still tell something
        return [f"{name}: {type(error).__name__}: {error}"]


if __name__ == "__main__":
    main()
