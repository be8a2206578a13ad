"""Strategies that communicate seldom: their speed on a slow network, and their cost in accuracy.

Claim, with four workers: `lowcomm.bytes`, bytes that a worker sends per step under `diloco` at
H = 50, against those of ddp over 50; lower is better, 1.0 at most.

Shown beside: the share of ddp's gain over word frequencies that each strategy keeps after equal
tokens of WikiText-2 (`RANKUP_DATA`), and its speed on a quick and on a slow network. Sleeps stand
for computing and sending (`_lowcomm_rank.py`), so that two cores are enough; idle ones, since a
worker that waits for a core is slow as well. Every run is a whole one, with its start. `--quick`
takes the claim's runs alone. It runs in the environment it is started from.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _lowcomm_accuracy
from _lowcomm_runs import WORKERS, Run, Setting, run
from _ranks import write_text
from common import claim, data_folder, machine, table

SLEEP = 0.2  # seconds of a micro-batch: what the two cores really compute hardly counts
BANDWIDTH = 0.5e6  # bytes/s of each worker's line where it is slow: 4 Mbit/s
MODEL: dict[str, Any] = {
    "layers": 1, "dim": 64, "heads": 4, "seq_len": 16, "dropout": 0.0, "vocab": "byte",
    "global_batch": 32, "micro_batch": 4, "valid_every": 10**6, "checkpoint_every": 10**6,
}  # fmt: skip
SEEDS = 3  # of the runs that have a bar
_PER_STEP = MODEL["global_batch"] // MODEL["micro_batch"]

EVEN = Setting((SLEEP,) * WORKERS)
SETTINGS = {"quick network": EVEN, "slow network": replace(EVEN, bandwidth=BANDWIDTH)}


@dataclass(frozen=True)
class Contestant:
    """A strategy with its options.

    Attributes:
        warm: steps before what is timed, a whole number of those between exchanges.
        steps: in the settings of `SETTINGS`, a multiple of the same.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    warm: int = 5
    steps: tuple[int, int] = (30, 30)


CONTESTANTS = (
    Contestant("ddp", steps=(30, 15)),
    Contestant("local-sgd, H = 10", {"strategy": "local-sgd"}, 10),
    Contestant("diloco, H = 50", {"strategy": "diloco", "sync_every": "50"}, 50, (100, 100)),
)


def measure(text: Path, directory: Path, options: dict[str, Any]) -> None:
    """Measure samples/s of each strategy in each setting, and print them."""
    found = run(text, directory / "alone", {**options, **MODEL, "steps": 6}, Setting((SLEEP,)))
    alone = WORKERS * _samples_per_second(found, 2)
    rates: dict[tuple[str, str], float] = {}
    turns = [(one, at) for one in CONTESTANTS for at in range(len(SETTINGS))]
    for one, at in random.Random(0).sample(turns, len(turns)):
        where = list(SETTINGS)[at]
        given = {**options, **MODEL, **one.options, "steps": one.steps[at]}
        found = run(text, directory / f"{one.name}-{where}", given, SETTINGS[where])
        rates[one.name, where] = _samples_per_second(found, one.warm)
        print(f"  {one.name}, {where}: {rates[one.name, where]:.1f} samples/s", flush=True)
    print(
        f"\nsamples per second, {WORKERS} workers, each micro-batch of {MODEL['micro_batch']} "
        f"sleeps {SLEEP * 1e3:.0f} ms; slow network: each line {BANDWIDTH * 8 / 1e6:.0f} Mbit/s; "
        f"all workers alone, added up: {alone:.1f}"
    )
    rows = [[one.name, *_cells(rates, one.name)] for one in CONTESTANTS]
    table(["", *(cell for where in SETTINGS for cell in (where, "to ddp"))], rows)


def _samples_per_second(found: Run, warm_steps: int) -> float:
    return MODEL["micro_batch"] * found.micro_batches_per_second(warm_steps * _PER_STEP)


def _cells(rates: dict[tuple[str, str], float], name: str) -> list[str]:
    pairs = [(rates[name, where], rates["ddp", where]) for where in SETTINGS]
    return [cell for rate, ddp in pairs for cell in (f"{rate:.1f}", f"{rate / ddp:.2f}")]


def bytes_claim(text: Path, directory: Path, options: dict[str, Any], every: int = 50) -> str:
    """Measure the bytes of diloco against those of ddp over `every`; return the claim line."""
    counting = Setting(count_bytes=True)
    given = {**options, **MODEL}
    of_ddp = run(text, directory / "ddp", {**given, "steps": 2 * every}, counting)
    seldom = {"strategy": "diloco", "sync_every": str(every)}
    of_diloco = run(text, directory / "diloco", {**given, **seldom, "steps": 3 * every}, counting)
    share = _PER_STEP // WORKERS  # micro-batches of a worker in a step
    tcp_ddp = of_ddp.tcp_bytes(every * share - 1, 2 * every * share - 1) / every
    # From the end of a round's computing to that of the next but one: two exchanges.
    tcp = of_diloco.tcp_bytes(every * share - 1, 3 * every * share - 1) / (2 * every)
    ours, peer = of_diloco.bytes_per_step, of_ddp.bytes_per_step / every
    print(
        f"bytes that a worker sends per step: ddp {of_ddp.bytes_per_step:,.0f} (TCP: "
        f"{tcp_ddp:,.0f}), diloco at H = {every} {ours:,.0f} (TCP: {tcp:,.0f})\n"
    )
    note = (
        f"diloco at H = {every} against ddp / {every}, as runs count them (the model has no "
        f"buffers, which would be added); at most 1.0; by TCP's own counters, losses and heads "
        f"included, {tcp:,.0f} and {tcp_ddp / every:,.0f}"
    )
    return claim("lowcomm.bytes", ours, peer, "bytes per step and worker", note, better="lower")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="the claim's runs alone")
    parser.add_argument("--parts", nargs="+", choices=("accuracy", "speed"))
    given = parser.parse_args()
    parts = given.parts or (["speed"] if given.quick else ["accuracy", "speed"])
    print(f"{machine('torch')}\n", flush=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if "speed" in parts:
            text = directory / "bytes"
            shape = {key: MODEL[key] for key in ("vocab", "seq_len")}
            written = write_text(text, shape, 100 * MODEL["global_batch"])
            options = {key: written[key] for key in ("train", "valid", "test")}
            if not given.quick:
                measure(text, directory / "speed", options)
            lines.append(bytes_claim(text, directory / "sent", options))
        if "accuracy" in parts:
            text, seeds = directory / "words", 1 if given.quick else SEEDS
            files = _lowcomm_accuracy.write_wikitext(data_folder("wikitext-2"), text)
            place = directory / "accuracy"
            _lowcomm_accuracy.measure(text, place, files, seeds, given.quick)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
