"""The Llama of 160 million parameters against transformers', and what a sharded start takes.

Claims:
`llama.160m.1`, `llama.160m.2`: tokens/s on 1 and 2 ranks of one thread each, of the recipe's loop
and model to the loop by hand (`_loops.py`, DDP on 2 ranks) with transformers' `LlamaForCausalLM`,
both in float32 with AdamW. Ours keeps the memory that it frees, as a rank of `rankup run` does on
the CPU, the loop by hand in its own processes does not; on 1 rank a loop by hand that does is shown
beside.
`llama.load`: the most memory that a rank takes beside torch's own while 4 ranks under FSDP read a
model of 1.0 billion parameters in bfloat16 from a Hugging Face folder (`--init`), to a rank's part
in float32 and one layer; lower is better. Anonymous memory: the file's pages are the kernel's.

Shown beside: seconds to build the model of 8 billion parameters without memory (on meta). The
quick version has shorter sequences.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from _ranks import Team, claimed, interleave, run_ranks, show_rates, write_text
from common import Effort, claim, machine, median, paired, parse_effort
from rankup.recipes.llama import CONFIG, SIZES, LlamaShape, theirs

OURS, PEER = "rankup", "transformers by hand"
KEPT = f"{PEER}, memory kept"
VOCABULARY = 32_000
SMALL = replace(SIZES["llama-160m"], vocab_size=VOCABULARY)
LARGE = replace(SIZES["llama-1b"], vocab_size=VOCABULARY)
RANKS = 4


def options_of(shape: LlamaShape, folder: Path) -> dict[str, Any]:
    """Return the recipe's options for a model of this shape, whose config.json is written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(shape.config()))
    sizes = {name: getattr(shape, name) for name in ("layers", "dim", "heads", "kv_heads", "ffn")}
    return {**sizes, "vocab": "byte", "dropout": 0.0}


def rates(world_size: int, effort: Effort) -> str:
    """Measure and print the training loop; return its claim line."""
    length = 32 if effort.quick else 128
    sizes = {"seq_len": length, "micro_batch": 1, "global_batch": 2 * world_size, "warmup": 100}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        config = directory / "model"
        model = {**options_of(SMALL, config), "model": str(config), **sizes}
        options = write_text(directory, model, 160 * sizes["global_batch"])

        def team(contestant: str, keep: bool) -> Team:
            made = Team(world_size, directory, options, [contestant], keep=keep)
            return stack.enter_context(closing(made))

        teams = {OURS: team(OURS, keep=True), PEER: team(PEER, keep=False)}
        if world_size == 1:  # of several ranks memory would not hold a third
            teams[KEPT] = team(KEPT, keep=True)
        found = interleave(teams, effort, least=3)
    seconds = {name: [one.seconds for one in slices] for name, slices in found.items()}
    what = (
        f"{world_size} rank{'s' * (world_size > 1)}, 2 micro-batches of {length} tokens per rank, "
        f"llama-160m with {VOCABULARY:,} tokens, load {os.getloadavg()[0]:.1f} at the end"
    )
    show_rates(seconds, PEER, what)
    spent = {
        name: {kind: median([one.ranks[0][kind] for one in slices]) for kind in ("cpu", "faults")}
        for name, slices in found.items()
    }
    for name, of in spent.items():
        print(f"{name}: a step takes {of['cpu']:.3f} CPU s, {of['faults']:,.0f} page faults")
    what += f"; by seconds of the processor {spent[PEER]['cpu'] / spent[OURS]['cpu']:.2f}"
    if world_size == 1:
        what += (
            f"; to the loop by hand with memory kept {paired(seconds[KEPT], seconds[OURS])}, "
            f"by seconds of the processor {spent[KEPT]['cpu'] / spent[OURS]['cpu']:.2f}"
        )
    amount = sizes["global_batch"] * length
    name = f"llama.160m.{world_size}"
    return claimed(name, seconds, OURS, PEER, what, amount, "tokens/s")


def write_weights(shape: LlamaShape, folder: Path) -> int:
    """Write random weights in bfloat16, a file per layer; return how many numbers they are."""
    import torch
    from safetensors.torch import save_file

    from rankup.recipes.models.llama import Llama

    with torch.device("meta"):
        named = dict(Llama(shape).named_parameters())
    files: dict[str, dict[str, torch.Size]] = {}
    for name, parameter in named.items():
        place = name.split(".")[1] if name.startswith("blocks.") else "ends"
        files.setdefault(place, {})[theirs(name)] = parameter.shape
    for place, shapes in files.items():
        values = {
            name: torch.full(size, 0.01, dtype=torch.bfloat16) for name, size in shapes.items()
        }
        save_file(values, folder / f"model-{place}.safetensors", metadata={"format": "pt"})
    return sum(parameter.numel() for parameter in named.values())


def load(effort: Effort) -> str:
    """Measure and print the sharded load; return its claim line."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        weights = directory / "weights"
        options = {**options_of(LARGE, weights), "init": str(weights), "strategy": "fsdp"}
        numbers = write_weights(LARGE, weights)
        options |= {"seq_len": 32, "global_batch": RANKS, "micro_batch": 1}
        options = write_text(directory, options, 4 * RANKS)
        spec = {"directory": str(directory), "options": options}
        [found] = run_ranks("llama.py", RANKS, spec)
    layer = sum(found["layer"].values())
    least = 4 * (numbers / RANKS + layer)
    print(
        f"{numbers / 1e9:.2f} billion parameters by {RANKS} ranks in {found['seconds']:.1f} s: "
        f"{max(found['peaks']) / 1e9:.2f} GB of a rank beside torch's {found['base'] / 1e9:.2f}"
    )
    note = (
        f"{numbers / 1e9:.2f} billion parameters, FSDP over {RANKS} ranks, the largest layer "
        f"{4 * layer / 1e6:.0f} MB; read in {found['seconds']:.1f} s; the most of any rank"
    )
    return claim("llama.load", max(found["peaks"]) / 1e9, least / 1e9, "GB", note, better="lower")


def on_meta() -> None:
    """Print how long the largest model takes to be built without memory."""
    import torch

    from rankup.recipes.models.llama import Llama

    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        with torch.device("meta"):
            model = Llama(replace(SIZES["llama-8b"], vocab_size=128_256))
        seconds.append(time.perf_counter() - began)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count / 1e9:.2f} billion parameters on meta: {median(seconds):.2f} s")


class Peak(threading.Thread):
    """The most anonymous memory of this process, looked at all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.base = self.most = anonymous()
        self.start()

    def run(self) -> None:
        while True:
            self.most = max(self.most, anonymous())
            time.sleep(0.002)


def anonymous() -> int:
    """Return the bytes of memory that this process has of its own."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("bench: /proc/self/status does not say RssAnon")


def rank(spec: dict[str, Any]) -> None:
    """Build and fill the model as a run does; rank 0 prints what it took."""
    import torch

    from rankup.recipes.language_model import LanguageModel
    from rankup.recipes.options import TOKENS, LanguageModelOptions
    from rankup.runtime.collectives import all_gather_object
    from rankup.runtime.world import setup
    from rankup.train.start import fill, start

    torch.set_num_threads(1)
    world = setup()
    task = LanguageModel(LanguageModelOptions(**spec["options"]), Path(spec["directory"]) / TOKENS)
    all_gather_object(world.rank)  # connections are torch's own
    peak, began = Peak(), time.perf_counter()
    built = start(task, task.options, world)
    fill(task, built)
    seconds = time.perf_counter() - began
    peaks = all_gather_object(max(peak.most, anonymous()) - peak.base)
    if world.is_root:
        layers: dict[str, dict[str, int]] = {}
        for name, parameter in built.whole.named_parameters():
            place = name.rpartition("blocks.")[2].split(".")[0] if "blocks." in name else name
            layers.setdefault(place, {})[name] = parameter.numel()
        layer = max(layers.values(), key=lambda sizes: sum(sizes.values()))
        answer = {"seconds": seconds, "peaks": peaks, "base": peak.base, "layer": layer}
        print(json.dumps(answer), flush=True)
    os._exit(0)


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(machine("torch", "transformers") + "\n", flush=True)
    on_meta()
    lines = [load(effort), rates(1, effort), rates(2, effort)]
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(json.loads(sys.argv[-1]))
    else:
        main()
