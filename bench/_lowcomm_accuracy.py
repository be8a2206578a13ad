"""Accuracy of the strategies that communicate seldom: equal tokens, four workers."""

from __future__ import annotations

import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from _lowcomm_runs import WORKERS, Run, Setting, run
from common import table
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.recipes.text import TokenFile, open_tokens

_RARE = 10  # a word seen fewer times is unknown, to all alike; saves most of the time
_VALID_WORDS = 10_000  # of the validation text

# Trained until more steps bring ddp nothing: twenty epochs, a batch of 32 samples for each worker,
# the recipe's own dropout, and the learning rate at which ddp ends lowest.
MODEL: dict[str, Any] = {
    "layers": 2, "dim": 64, "heads": 4, "seq_len": 32, "dropout": 0.1,
    "global_batch": 128, "micro_batch": 32, "steps": 1000, "lr": 2.5e-3, "warmup": 100,
    "valid_every": 50, "checkpoint_every": 10**6,
}  # fmt: skip
_AT_ONCE = 2  # runs


@dataclass(frozen=True)
class Contestant:
    """A strategy with its options.

    Attributes:
        bar: share of ddp's gain that it has to keep; 0 where the figure is only shown.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    bar: float = 0.0
    quick: bool = False


_APART = {"lr": 5e-3}  # AdamW divides by the noise of a quarter of the batch, twice that of all


def _copies(strategy: str, every: int, **more: Any) -> dict[str, Any]:
    return {"strategy": strategy, "sync_every": str(every), **_APART, **more}


# The outer step size and momentum that add up to whole steps: 0.7 / (1 - 0.3) = 1.
_OUTER = {"outer_lr": 0.7, "outer_momentum": 0.3}
DDP = Contestant("ddp", quick=True)
CONTESTANTS = (
    DDP,
    Contestant("local-sgd, H = 10", _copies("local-sgd", 10), 0.95, quick=True),
    Contestant("diloco, H = 10", _copies("diloco", 10, **_OUTER), 0.95, quick=True),
    Contestant("diloco, H = 50", _copies("diloco", 50, **_OUTER)),
    Contestant("local-sgd, H = 50", _copies("local-sgd", 50)),
    Contestant("diloco, H = 10, 0.7 and 0.9", _copies("diloco", 10)),
)


def measure(text: Path, directory: Path, options: dict[str, Any], seeds: int, quick: bool) -> None:
    """Train the contestants and print the losses they reach.

    Args:
        seeds: of ddp and those that have a bar; the others run once.
    """
    contestants = [one for one in CONTESTANTS if one.quick or not quick]
    runs: dict[str, dict[int, Run]] = {one.name: {} for one in contestants}

    def train(one: Contestant, seed: int) -> None:
        given = {**options, **MODEL, **one.options, "seed": seed}
        given |= {"steps": 100, "warmup": 20} if quick else {}
        found = run(text, directory / f"{one.name}-{seed}", given, Setting())
        runs[one.name][seed] = found
        print(f"  seed {seed}: {one.name} {_best(found):.4f}", flush=True)

    turns = [
        (one, seed)
        for seed in range(seeds)
        for one in contestants
        if seed == 0 or one.bar or one is DDP
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda turn: train(*turn), turns))
    _show_losses(contestants, runs, unigram_loss(text))


def _best(found: Run) -> float:
    """Return the lowest validation loss, that of the run's best checkpoint."""
    final = found.final["valid_loss"]
    return float(min(final, found.final.get("best_valid_loss", final)))


def _show_losses(
    contestants: list[Contestant], runs: dict[str, dict[int, Run]], unigram: float
) -> None:
    print(
        f"\nlowest validation loss, {WORKERS} workers, equal tokens; share of the gain that ddp of "
        f"the same seed has over word frequencies ({unigram:.4f}), mean and least of the seeds"
    )
    heads = ["", "seeds", "lowest", "at the end", "share", "least", "bar", "kB/step"]
    table(heads, [_row(one, runs, unigram) for one in contestants])


def _row(one: Contestant, runs: dict[str, dict[int, Run]], unigram: float) -> list[str]:
    own, ddp = runs[one.name], runs[DDP.name]
    shares = [share_of_gain(_best(own[seed]), _best(ddp[seed]), unigram) for seed in own]
    return [
        one.name,
        str(len(own)),
        f"{statistics.mean(map(_best, own.values())):.4f}",
        f"{statistics.mean(found.final['valid_loss'] for found in own.values()):.4f}",
        f"{statistics.mean(shares):.1%}",
        f"{min(shares):.1%}",
        f"{one.bar:.0%}" if one.bar else "",
        f"{own[0].bytes_per_step / 1e3:,.0f}",
    ]


def write_wikitext(source: Path, directory: Path) -> dict[str, str]:
    """Tokenise WikiText-2 into `directory`; return its files by the options that name them."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {n: (source / f"{n}.txt").read_text().lower().split() for n in ("train", "valid")}
    counts = Counter(texts["train"])
    known = frozenset(word for word, number in counts.items() if number >= _RARE)
    texts["valid"] = texts["valid"][:_VALID_WORDS]
    texts["test"] = texts["valid"][:200]  # nobody looks at it
    files = {name: str(directory / f"{name}.txt") for name in texts}
    for name, words in texts.items():
        Path(files[name]).write_text(" ".join(w if w in known else "<unk>" for w in words))
    LanguageModelOptions(train=files["train"], valid=files["valid"], test=files["test"]).prepare(
        directory
    )
    return files


def unigram_loss(directory: Path) -> float:
    """Return the validation loss per word, in nats, of the frequencies in the training text.

    Each word of the vocabulary is counted once more than it was seen.
    """
    file: TokenFile = open_tokens(directory / TOKENS)
    counts = np.bincount(file.splits["train"], minlength=file.vocab_size) + 1
    seen = np.bincount(file.splits["valid"][1:], minlength=file.vocab_size)
    chosen = seen > 0
    logs = np.log(counts[chosen] / counts.sum())
    return -float((seen[chosen] * logs).sum() / seen.sum())


def share_of_gain(loss: float, reference: float, unigram: float) -> float:
    """Return the share of the reference's gain over the unigram model that a loss has."""
    return (unigram - loss) / (unigram - reference)
