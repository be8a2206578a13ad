"""Is a GPU used? The language model at 124 million and 1 billion parameters, on one GPU.

Claims `gpu.124m`, `gpu.1b`: tokens/s of rankup's loop to those of a plain loop in the manner of
nanoGPT (the quicker of two: with a model of its own, and with the recipe's), bfloat16 and compiled,
the median of paired slices. All contestants stay alive on the GPU and take turns. Warm: compiled
code, text, optimizer state, and two steps before each slice; start-up is not counted.

First what the sampler's questions to NVML cost, for `bench/monitor.py`; no claim.

Without a GPU it says so and makes no claim; `--cpu-smoke` runs all of it on the CPU in tiny sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch

from _gpu_nvml import nvml
from common import BENCH, Effort, answer_of, median, spread, table
from rankup.monitor.collect.open_gpus import STAND_IN, open_source
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.train.metrics import peak_flops

CONTESTANTS = ("rankup", "plain loop", "plain loop, our model")
_ANSWER_SECONDS = 1200.0  # the first slice compiles


@dataclass(frozen=True)
class Case:
    """A size of model; `words` is its vocabulary, chosen so that the weights add up."""

    claim: str
    layers: int
    dim: int
    heads: int
    micro_batch: int
    micro_batches: int
    words: int = 25_088
    seq_len: int = 1024
    compiled: bool = True

    @property
    def options(self) -> dict[str, Any]:
        return {
            "vocab": "word",
            "seq_len": self.seq_len,
            "layers": self.layers,
            "dim": self.dim,
            "heads": self.heads,
            "micro_batch": self.micro_batch,
            "global_batch": self.micro_batch * self.micro_batches,
            "dropout": 0.0,
            "lr": 3e-4,
            "warmup": 100,
            "precision": "bf16",
            "compile": self.compiled,
        }


# GPT-2's size has its input and output embedding in one; ours are two, of half as many words each.
CASES = (
    Case("gpu.124m", layers=12, dim=768, heads=12, micro_batch=16, micro_batches=4),
    Case("gpu.1b", layers=18, dim=2048, heads=16, micro_batch=8, micro_batches=2),
)
SMOKE = (
    Case("smoke", 2, 32, 2, 2, 2, words=64, seq_len=16, compiled=False),
    Case("smoke, deeper", 3, 32, 2, 2, 2, words=64, seq_len=16, compiled=False),
)


class Contestant:
    """The process of a contestant."""

    def __init__(self, name: str, directory: Path, options: dict[str, Any], log: IO[str]) -> None:
        spec = {"directory": str(directory), "options": options, "contestant": name}
        launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        slurm = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
        env = {k: v for k, v in os.environ.items() if k not in (*launcher, *slurm)}
        self._name, self._log = name, log
        self.process = subprocess.Popen(
            [sys.executable, "-u", BENCH / "_gpu_rank.py", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            text=True,
        )

    def slice(self, steps: int) -> dict[str, float]:
        """Seconds per step and most bytes of GPU memory so far."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = answer_of(self.process, self._log, self._name, _ANSWER_SECONDS)
        found: dict[str, float] = json.loads(answer)
        return found


@contextlib.contextmanager
def contestants(directory: Path, options: dict[str, Any]) -> Iterator[dict[str, Contestant]]:
    """All contestants, for the time of the block."""
    with tempfile.TemporaryFile("w+") as log:
        found = {name: Contestant(name, directory, options, log) for name in CONTESTANTS}
        try:
            yield found
        finally:
            for contestant in found.values():
                contestant.process.kill()
                contestant.process.wait()


def write_words(directory: Path, case: Case) -> dict[str, Any]:
    """A text of exactly `case.words` - 1 different words, the unknown one beside them."""
    draw, options = random.Random(0), dict(case.options)
    samples = max(16 * options["global_batch"], 1 + 2 * case.words // case.seq_len)
    for split, number in (("train", samples), ("valid", 4), ("test", 4)):
        size = number * case.seq_len + 1
        known = range(case.words - 1)
        words = [*(known if split == "train" else ()), *draw.choices(known, k=size)][:size]
        path = directory / f"{split}.txt"
        path.write_text("\n".join(f"w{word}" for word in words))
        options[split] = str(path)
    LanguageModelOptions(**options).prepare(directory)
    return options


def bench(case: Case, effort: Effort, least: int) -> str:
    """Measure and print a case; its claim line.

    Args:
        least: steps of a slice, at least.
    """
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_words(directory, case)
        task = LanguageModel(LanguageModelOptions(**options), directory / TOKENS)
        with torch.device("meta"):
            model = task.build_model()
        flops = task.flops_per_unit(model)
        weights = sum(parameter.numel() for parameter in model.parameters())
        with contestants(directory, options) as running:
            for contestant in running.values():  # one after the other: each compiles
                contestant.slice(least)
            step = running["rankup"].slice(least)["seconds"]
            steps = max(least, round(8 * effort.slice_seconds / step))
            for number in range(effort.rounds):
                for name in random.Random(number).sample(CONTESTANTS, len(CONTESTANTS)):
                    found = running[name].slice(steps)
                    seconds[name].append(found["seconds"])
                    memory[name] = found["memory"]
    tokens = options["global_batch"] * case.seq_len
    what = (
        f"{weights / 1e6:.1f} M parameters, {case.layers} layers of width {case.dim}, "
        f"{case.micro_batches} micro-batches of {case.micro_batch} x {case.seq_len} tokens"
    )
    peer = min(CONTESTANTS[1:], key=lambda name: median(seconds[name]))
    peak = peak_flops(torch.device("cuda", 0)) if torch.cuda.is_available() else None

    def ratios(name: str) -> list[float]:
        return [theirs / own for own, theirs in zip(seconds[name], seconds[peer], strict=True)]

    def mfu(name: str) -> str:
        return f"{tokens / median(seconds[name]) * flops / peak:.3f}" if peak else "unknown"

    print(what)
    rows = [
        [
            name,
            f"{tokens / median(values):,.0f}",
            mfu(name),
            f"{median(ratios(name)):.3f}",
            spread(ratios(name)) if len(values) > 1 else "",
            f"{memory[name] / 1e9:.1f}",
        ]
        for name, values in seconds.items()
    ]
    table(["", "tokens/s", "MFU", f"to {peer}", "quartiles", "GB at most"], rows)
    rate, ratio = tokens / median(seconds[peer]), median(ratios("rankup"))
    note = (
        f"{what}; bfloat16, compiled; peer {peer}; ours is the peer's median times the median of "
        f"{effort.rounds} paired ratios; MFU of rankup {mfu('rankup')}, of the peer {mfu(peer)}"
    )
    values = {"claim": case.claim, "ours": round(ratio * rate, 1), "peer": round(rate, 1)}
    return json.dumps({**values, "unit": "tokens/s", "better": "higher", "note": note})


def smoke_nvml() -> None:
    """The measurement of NVML's costs, on a GPU that plays a script."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "gpus.json"
        script.write_text(json.dumps({"gpus": [{"values": {"util": 1}}], "call_seconds": 1e-4}))
        source, _ = open_source({STAND_IN: str(script)})
        assert source is not None
        nvml(source, rounds=2, apart=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 short rounds")
    parser.add_argument("--cpu-smoke", action="store_true", help="2 steps of tiny sizes, no claim")
    parser.add_argument("--micro-batch", type=int, help="samples at once, where memory is short")
    asked = parser.parse_args()
    if asked.cpu_smoke:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["OMP_NUM_THREADS"] = "1"
        smoke_nvml()
        for case in SMOKE:
            bench(case, Effort(True, 1, 0.0), 2)
        print("bench: it runs; tiny sizes on the CPU make no claim")
        return
    if not torch.cuda.is_available():
        print("bench: nothing measured, no claim: there is no GPU that torch sees")
        return
    effort = Effort(True, 3, 0.4) if asked.quick else Effort(False, 9, 0.6)
    print(
        f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}\n",
        flush=True,
    )
    source, why = open_source({})
    if source is None:
        print(f"bench: what NVML costs is not measured: {why}\n")
    else:
        nvml(source)
    cases = [replace(c, micro_batch=asked.micro_batch or c.micro_batch) for c in CASES]
    print("\n".join([bench(case, effort, 5) for case in cases]))


if __name__ == "__main__":
    main()
