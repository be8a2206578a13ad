"""Strategies that communicate seldom: their speed with slow parts, and their cost in accuracy.

Claims, with four workers:
`lowcomm.async_straggler`: samples/s with one of four workers three
times slower, against the sum of the workers' speeds alone; 0.8 at least.
`lowcomm.bytes`: bytes that a worker sends per step under `diloco` at H = 50, against those of ddp
over 50; lower is better, 1.0 at most.

Shown beside: the share of ddp's gain over word frequencies that each strategy keeps after equal
tokens of WikiText-2 (`RANKUP_DATA`), and its speed with even workers, a straggler and a slow
network. Sleeps stand for slow computing and sending (`_lowcomm_rank.py`), so that two cores are
enough; idle ones, since a worker that waits for a core is slow as well. Every run is a whole one,
with its start. `--quick` takes the claims' runs alone, once, and leaves accuracy out. It runs in
the environment it is started from.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _lowcomm_accuracy
from _lowcomm_runs import WORKERS, Run, Setting, run
from _ranks import write_text
from common import claim, data_folder, machine, median, spread, table

# Seconds of a micro-batch, and how many times as many the straggler takes: so long that what the
# two cores really compute hardly counts.
SLEEP, SLOWER = 0.2, 3
BANDWIDTH = 0.5e6  # bytes/s of each worker's line where it is slow: 4 Mbit/s
MODEL: dict[str, Any] = {
    "layers": 1, "dim": 64, "heads": 4, "seq_len": 16, "dropout": 0.0, "vocab": "byte",
    "global_batch": 32, "micro_batch": 4, "valid_every": 10**6, "checkpoint_every": 10**6,
}  # fmt: skip
SEEDS, ROUNDS = 3, 3  # of the runs that have a bar; of the claims on speed
_PER_STEP = MODEL["global_batch"] // MODEL["micro_batch"]

EVEN = Setting((SLEEP,) * WORKERS)
STRAGGLER = Setting((*(SLEEP,) * (WORKERS - 1), SLOWER * SLEEP))
SLOW = replace(EVEN, bandwidth=BANDWIDTH)
SETTINGS = {"even": EVEN, "straggler": STRAGGLER, "slow network": SLOW}


@dataclass(frozen=True)
class Contestant:
    """A strategy with its options.

    Attributes:
        warm: steps before what is timed, a whole number of those between exchanges.
        steps: in the settings of `SETTINGS`, a multiple of the same; 0 where it is left out.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    warm: int = 5
    steps: tuple[int, int, int] = (30, 30, 30)
    quick: bool = False


CONTESTANTS = (
    Contestant("ddp", steps=(30, 15, 15), quick=True),
    Contestant("ddp, int8", {"compress": "int8"}, steps=(30, 15, 25)),
    Contestant("local-sgd, H = 10", {"strategy": "local-sgd"}, 10, (30, 20, 30)),
    Contestant("diloco, H = 50", {"strategy": "diloco", "sync_every": "50"}, 50, (100, 0, 100)),
    Contestant("async-sgd", {"strategy": "async-sgd"}, steps=(30, 30, 10), quick=True),
)


def measure(
    text: Path, directory: Path, options: dict[str, Any], rounds: int, quick: bool
) -> list[str]:
    """Measure samples/s of each strategy in each setting; return the claim lines."""
    contestants = [one for one in CONTESTANTS if one.quick or not quick]
    alone: dict[str, list[float]] = {"fast": [], "slow": []}
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        place = directory / str(number)
        for name, seconds in (("fast", SLEEP), ("slow", SLOWER * SLEEP)):
            setting = Setting((seconds,))
            found = run(text, place / name, {**options, **MODEL, "steps": 6}, setting)
            alone[name].append(_samples_per_second(found, 2))
        turns = [(one, at) for one in contestants for at in range(len(SETTINGS))]
        for one, at in random.Random(number).sample(turns, len(turns)):
            where = list(SETTINGS)[at]
            if (quick or number) and not (one.quick and where == "straggler"):
                continue  # the claims' own alone
            if not one.steps[at]:
                continue
            given = {**options, **MODEL, **one.options, "steps": one.steps[at]}
            found = run(text, place / f"{one.name}-{where}", given, SETTINGS[where])
            rate = _samples_per_second(found, one.warm)
            rates.setdefault((one.name, where), []).append(rate)
            print(f"  round {number}: {one.name}, {where}: {rate:.1f} samples/s", flush=True)
    _show(contestants, alone, rates)
    ideal = _sum_alone(alone)
    return [
        _claim("lowcomm.async_straggler", rates, "async-sgd", ideal),
    ]


def _samples_per_second(found: Run, warm_steps: int) -> float:
    return MODEL["micro_batch"] * found.micro_batches_per_second(warm_steps * _PER_STEP)


def _sum_alone(alone: dict[str, list[float]]) -> list[float]:
    """Return the sum of the workers' speeds, one of them slower, in each round."""
    pairs = zip(alone["fast"], alone["slow"], strict=True)
    return [(WORKERS - 1) * fast + slow for fast, slow in pairs]


def _show(
    contestants: list[Contestant],
    alone: dict[str, list[float]],
    rates: dict[tuple[str, str], list[float]],
) -> None:
    print(
        f"\nsamples per second, {WORKERS} workers, each micro-batch of {MODEL['micro_batch']} "
        f"sleeps {SLEEP * 1e3:.0f} ms; straggler: one of them {SLOWER} times as long; slow "
        f"network: each line {BANDWIDTH * 8 / 1e6:.0f} Mbit/s"
    )
    fast, slow = median(alone["fast"]), median(alone["slow"])
    sums = [WORKERS * fast, (WORKERS - 1) * fast + slow, WORKERS * fast]
    rows = [["all workers alone, added up", *_cells(sums, rates)]]
    for one in contestants:
        found = [median(rates.get((one.name, where), [0.0])) for where in SETTINGS]
        rows.append([one.name, *_cells(found, rates)])
    table(["", *(cell for where in SETTINGS for cell in (where, "to ddp"))], rows)


def _cells(found: list[float], rates: dict[tuple[str, str], list[float]]) -> list[str]:
    cells = []
    for where, rate in zip(SETTINGS, found, strict=True):
        ddp = rates.get(("ddp", where))
        cells += [f"{rate:.1f}", f"{rate / median(ddp):.2f}"] if ddp and rate else ["", ""]
    return cells


def _claim(
    name: str, rates: dict[tuple[str, str], list[float]], strategy: str, ideal: list[float]
) -> str:
    own = rates[strategy, "straggler"]
    ddp = median(rates["ddp", "straggler"])
    note = (
        f"one of {WORKERS} workers {SLOWER} times slower (sleeps of {SLEEP * 1e3:.0f} ms per "
        f"micro-batch); peer: the workers' speeds alone, added up; at least 0.8; median of "
        f"{len(own)} rounds {spread(own)}; ddp {ddp:.1f}"
    )
    return claim(name, median(own), median(ideal), "samples/s", note, same_loop=True)


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
    parser.add_argument("--quick", action="store_true", help="one short round of the claims' runs")
    parser.add_argument("--parts", nargs="+", choices=("accuracy", "speed"))
    parser.add_argument("--curves", type=Path, help="write loss curves here, as JSON")
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
            rounds = 1 if given.quick else ROUNDS
            lines += measure(text, directory / "speed", options, rounds, given.quick)
            lines.append(bytes_claim(text, directory / "sent", options))
        if "accuracy" in parts:
            text, seeds = directory / "words", 1 if given.quick else SEEDS
            files = _lowcomm_accuracy.write_wikitext(data_folder("wikitext-2"), text)
            place = directory / "accuracy"
            curves = _lowcomm_accuracy.measure(text, place, files, seeds, given.quick)
            if given.curves:
                given.curves.write_text(json.dumps(curves))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
