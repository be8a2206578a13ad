"""Use of one GPU: the language model at 124 million and 1 billion parameters.

Claims `gpu.124m`, `gpu.1b`: tokens/s of rankup's loop to those of the same loop by hand, bfloat16
and compiled, the median of paired slices. Both stay alive on the GPU, each in a process of its own,
and take turns. Compiled code, text and optimizer state are warm; start-up is not counted.

First what the sampler's questions to NVML cost, for `CALL_SECONDS` of `bench/monitor.py`; no claim.

Without a GPU it says so and makes no claim; `--cpu-smoke` runs all of it on the CPU in tiny sizes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from _ranks import Team, claimed, interleave
from common import FULL, QUICK, Effort, machine, median, ratios, spread, table
from rankup.monitor.collect.gpu import MOMENTARY, QUESTIONS, Failed, Lost, NotThere, Nvml
from rankup.monitor.collect.node import open_source
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.train.metrics import peak_flops

CONTESTANTS = ("rankup", "by hand")
_BURST = 20  # questions to NVML in a row


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
SMOKE = Case("smoke", 2, 32, 2, 2, 2, words=64, seq_len=16, compiled=False)


def write_words(directory: Path, case: Case) -> dict[str, Any]:
    """Write a text of exactly `case.words` - 1 different words, the unknown one beside them."""
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


def bench(case: Case, effort: Effort, device: str) -> str:
    """Measure and print a case; return its claim line."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        options = write_words(directory, case)
        task = LanguageModel(LanguageModelOptions(**options), directory / TOKENS)
        with torch.device("meta"):
            model = task.build_model()
        flops = task.flops_per_unit(model)
        weights = sum(parameter.numel() for parameter in model.parameters())
        teams = {
            name: stack.enter_context(closing(Team(1, directory, options, [name], device)))
            for name in CONTESTANTS
        }
        found = interleave(teams, effort, least=5, longer=8)
        memory = {name: team.records(name)[-1]["peak_memory"] for name, team in teams.items()}
    seconds = {name: [one.seconds for one in slices] for name, slices in found.items()}
    tokens = options["global_batch"] * case.seq_len
    what = (
        f"{weights / 1e6:.1f} M parameters, {case.layers} layers of width {case.dim}, "
        f"{case.micro_batches} micro-batches of {case.micro_batch} x {case.seq_len} tokens"
    )
    peak = peak_flops(torch.device("cuda", 0)) if device == "cuda" else None
    mfu = {
        name: f"{tokens / median(values) * flops / peak:.3f}" if peak else "unknown"
        for name, values in seconds.items()
    }
    print(what)
    rows = []
    for name, values in seconds.items():
        pairs = ratios(seconds["by hand"], values)
        shares = [f"{median(pairs):.3f}", spread(pairs), f"{memory[name] / 1e9:.1f}"]
        rows.append([name, f"{tokens / median(values):,.0f}", mfu[name], *shares])
    table(["", "tokens/s", "MFU", "to by hand", "quartiles", "GB at most"], rows)
    note = f"{what}; bfloat16, compiled; MFU {mfu['rankup']}, by hand {mfu['by hand']}"
    return claimed(case.claim, seconds, *CONTESTANTS, note, tokens, "tokens/s")


def nvml(source: Nvml, rounds: int = 5, apart: float = 2.0) -> None:
    """Print the seconds per question of the clock and of the CPU, of the GPU that costs most.

    Args:
        apart: seconds between questions, as the sampler asks: the driver may keep an answer.
    """
    rows = []
    gpus = [gpu.index for gpu in source.gpus()]
    for what in (*QUESTIONS, *MOMENTARY, "counters"):
        costs = [_cost(_question(source, index, what), rounds, apart) for index in gpus]
        said = [cost for cost in costs if cost is not None]
        cells = [f"{max(column) * 1e3:.3f}" for column in zip(*said, strict=True)]
        rows.append([what, *(cells or ["not answered", "", ""])])
    table(["NVML, ms per call", "after a pause", "in a row", "CPU, in a row"], rows)


def _question(source: Nvml, index: int, what: str) -> Callable[[], object]:
    if what == "counters":
        return lambda: source.counters(index)
    return lambda: source.ask(index, what)


def _cost(
    ask: Callable[[], object], rounds: int, apart: float
) -> tuple[float, float, float] | None:
    """Return seconds of the clock after a pause, and of the clock and the CPU in a row."""
    cold, wall, cpu = [], [], []
    try:
        for _ in range(rounds):
            time.sleep(apart)
            began = time.perf_counter()
            ask()
            cold.append(time.perf_counter() - began)
            began, used = time.perf_counter(), time.process_time()
            for _ in range(_BURST):
                ask()
            wall.append((time.perf_counter() - began) / _BURST)
            cpu.append((time.process_time() - used) / _BURST)
    except (NotThere, Lost, Failed):
        return None
    return median(cold), median(wall), median(cpu)


def smoke() -> None:
    """Run the training on the CPU in tiny sizes."""
    bench(SMOKE, Effort(True, 3, 0.2), "cpu")
    print("bench: it runs; tiny sizes on the CPU make no claim")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="3 short rounds")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny sizes on the CPU, no claim")
    given = parser.parse_args()
    if given.cpu_smoke:
        smoke()
        return
    if not torch.cuda.is_available():
        print("bench: nothing measured, no claim: torch sees no GPU")
        return
    print(f"{machine('torch')}, {torch.cuda.get_device_name()}\n", flush=True)
    source, why = open_source()
    if source is None:
        print(f"bench: what NVML costs is not measured: {why}\n")
    else:
        nvml(source)
    effort = QUICK if given.quick else FULL
    print("\n".join([bench(case, effort, "cuda") for case in CASES]))


if __name__ == "__main__":
    main()
