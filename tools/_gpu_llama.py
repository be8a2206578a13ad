"""A Llama through every layout, compiled or not, with each kind of activation checkpointing.

The rank side of `gpu_smoke.py`: in one process group it trains cell after cell by the loop that a
run has, and writes what the ranks of each showed as a line of JSON: graphs, breaks, the type of the
logits that reach the loss, what the host waited for in a step, losses.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEPS = 5
TOLERATED = 0.03  # relative, between losses in 16 bits that were rounded elsewhere
RECOMPUTE = ("none", "selective", "full")
LETTERS = 4 * 2**20  # of the text
SMALL = {
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
TINY = SMALL | {
    **{"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 300},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16},
}


@dataclass(frozen=True)
class Cell:
    """A layout, whether it is compiled, and what is recomputed."""

    layout: str
    words: tuple[str, ...]
    compiled: bool
    recompute: str

    def __str__(self) -> str:
        how = "compiled" if self.compiled else "eager"
        return f"{self.layout}, {how}, {self.recompute}"


def cells(ranks: int, tiny: bool) -> list[Cell]:
    """Return what is tried on so many ranks, the most usual first."""
    rest = ranks // 2
    split = ("--shard", str(rest)) if rest > 1 else ()
    layouts = {
        "fsdp": ("--strategy", "fsdp"),
        "tp": ("--tp", "2", *split),
        "ddp": ("--strategy", "ddp"),
        "pp": ("--pp", "2", *split),
        "cp": ("--cp", "2", *split),
    }
    if rest > 1:
        layouts["hsdp"] = ("--dp", "2", "--shard", str(rest))
    every = [
        Cell(layout, words, compiled, recompute)
        for layout, words in layouts.items()
        for compiled in (False, True)
        for recompute in RECOMPUTE
    ]
    few = [("fsdp", False, "none"), ("fsdp", True, "selective")]
    few += [("tp", True, "none"), ("pp", True, "none")]
    return [
        cell for cell in every if not tiny or (cell.layout, cell.compiled, cell.recompute) in few
    ]


def options_of(cell: Cell, folder: Path, ranks: int, tiny: bool) -> list[str]:
    """Return the options of `language-model`; `folder` holds the text and the model's sizes."""
    words = ["--model", str(folder / "config.json"), "--vocab", "byte"]
    words += [*texts(folder), "--seq-len", "16" if tiny else "1024"]
    words += ["--precision", "bf16", "--steps", str(STEPS), "--schedule", "constant"]
    words += ["--micro-batch", "2", "--global-batch", str(8 * ranks), "--valid-every", "1000"]
    words += ["--checkpoint-every", "1000", *cell.words]
    words += ["--activation-checkpointing", cell.recompute] if cell.recompute != "none" else []
    return [*words, "--compile"] if cell.compiled else words


def texts(folder: Path) -> list[str]:
    """Return the options that name what `write_text` has written."""
    short = str(folder / "short.txt")
    return ["--train", str(folder / "text.txt"), "--valid", short, "--test", short]


def write_text(folder: Path, sizes: dict[str, Any]) -> None:
    """Write the model's sizes, and letters to train on."""
    import random

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(sizes))
    letters = "".join(random.Random(0).choices("abcdefgh ", k=2**16))  # noqa: S311
    (folder / "text.txt").write_text(letters * (LETTERS // len(letters)))
    (folder / "short.txt").write_text(letters[: 2 * sizes["max_position_embeddings"] + 1])


@contextmanager
def strict(number: int, reached: list[int]) -> Iterator[None]:
    """In step `number` every wait of the host for the GPU is an error."""
    import torch

    from rankup.train.step import Trainer

    inner = Trainer.take

    @functools.wraps(inner)
    def take(self: Any, step: Any, stop: Any) -> Any:
        if step.number != number:
            return inner(self, step, stop)
        reached.append(number)
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")
        try:
            return inner(self, step, stop)
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")

    Trainer.take = take  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer.take = inner  # type: ignore[method-assign]


def tried(words: list[str], data: Path, directory: Path, world: Any) -> dict[str, Any]:
    """Train a cell on this rank; return what it showed."""
    import torch
    from torch._dynamo.utils import counters

    from rankup import recipes
    from rankup.recipes.language_model import LanguageModel
    from rankup.train.loop import train

    kinds: set[str] = set()

    class Seen(LanguageModel):
        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            def logits(*args: Any) -> Any:
                found = model(*args)
                kinds.add(str(getattr(found, "dtype", "")).removeprefix("torch."))
                return found

            return super().loss(logits, batch)  # type: ignore[arg-type]

    torch._dynamo.reset()
    counters.clear()
    directory.mkdir(parents=True, exist_ok=True)
    options = recipes.find("language-model").parse(words)
    reached: list[int] = []
    with strict(STEPS, reached):
        train(Seen(options, data), options, world, directory, resume=False)  # type: ignore[arg-type]
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "breaks": [str(why).split("\n")[0] for why in counters["graph_break"]],
        "logits": sorted(kinds - {""}),
        "strict": bool(reached),
    }


def together(every: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks showed of a cell: under `pp` the last stage alone sees logits."""
    errors = [shown for shown in every if "error" in shown]
    if errors:
        return errors[0]
    return {
        "graphs": min(shown["graphs"] for shown in every),
        "breaks": sorted({why for shown in every for why in shown["breaks"]}),
        "logits": sorted({kind for shown in every for kind in shown["logits"]}),
        "strict": all(shown["strict"] for shown in every),
    }


def where(error: BaseException) -> str:
    """Return the error, and the last line of rankup that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "rankup" in f.filename]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text[:300]}{place}"


def without_kernels() -> None:
    """On a CPU graphs are made and counted, but run operator by operator."""
    import torch
    from torch import nn

    torch.compile = functools.partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]
    nn.Module.compile = functools.partialmethod(  # type: ignore[assignment]
        nn.Module.compile, backend="aot_eager"
    )


def main() -> None:
    """Try all cells on this rank; rank 0 writes a line after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    import torch
    import torch.distributed as dist

    import rankup
    from rankup.recipes.options import TOKENS

    world = rankup.setup()
    if given.tiny:
        without_kernels()
    folder: Path = given.folder
    for number, cell in enumerate(cells(world.world_size, given.tiny)):
        words = options_of(cell, folder, world.world_size, given.tiny)
        found: dict[str, Any] = {}
        try:
            directory = folder / f"{number:02}"
            found = tried(words, folder / TOKENS, directory, world)
        except Exception as error:  # the other cells still tell something
            found = {"error": where(error)}
        every: list[Any] = [None] * world.world_size
        dist.all_gather_object(every, found)
        found = together(every)
        if world.is_root:
            records = directory / "metrics.jsonl"
            lines = records.read_text().splitlines() if records.is_file() else []
            losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
            line = {"cell": str(cell), **asdict(cell), "losses": losses, **found}
            with (folder / "found.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        dist.barrier()


def judged(found: list[dict[str, Any]], wanted: list[Cell]) -> list[str]:
    """Return a line for each thing that is not as it should be in the cells that ended."""
    failures = []
    known = {line["cell"]: line for line in found}
    first = next((line["losses"] for line in found if line["losses"]), [])
    for cell in wanted:
        line = known.get(str(cell))
        if line is None:
            continue
        failures += [f"{cell}: {text}" for text in objections(cell, line, first)]
    return failures


def objections(cell: Cell, line: dict[str, Any], first: list[float]) -> Iterator[str]:
    """Yield what is wrong with what a cell showed; `first` are the losses of the first cell."""
    if "error" in line:
        yield line["error"]
        return
    if cell.compiled and not line["graphs"]:
        yield "nothing was compiled"
    if cell.compiled and line["breaks"]:
        yield f"graphs are broken: {line['breaks'][0]}"
    if line["logits"] != ["bfloat16"]:
        yield f"logits reach the loss as {', '.join(line['logits'])}, not as bfloat16"
    if not line["strict"]:
        yield "no step was watched for waits of the host"
    apart = max((abs(a - b) / abs(b) for a, b in zip(line["losses"], first, strict=True)))
    if apart > TOLERATED:
        yield f"losses are {apart:.1e} from those of the first cell: {line['losses']}"


if __name__ == "__main__":
    sys.exit(main())
