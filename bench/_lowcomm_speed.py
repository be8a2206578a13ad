"""How fast the strategies are with a slow worker or a slow network; sleeps stand for both."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _lowcomm_runs import WORKERS, Run, Setting, run
from common import median, spread, table

# Seconds of a micro-batch, and how many times as many the straggler takes: so long that what the
# two cores really compute hardly counts.
SLEEP, SLOWER = 0.2, 3
BANDWIDTH = 0.5e6  # bytes/s of each worker's line where it is slow: 4 Mbit/s
MODEL: dict[str, Any] = {
    "layers": 1, "dim": 64, "heads": 4, "seq_len": 16, "dropout": 0.0, "vocab": "byte",
    "global_batch": 32, "micro_batch": 4, "valid_every": 10**6, "checkpoint_every": 10**6,
}  # fmt: skip
_PER_STEP = MODEL["global_batch"] // MODEL["micro_batch"]

EVEN = Setting((SLEEP,) * WORKERS)
STRAGGLER = Setting((*(SLEEP,) * (WORKERS - 1), SLOWER * SLEEP))
SLOW = replace(EVEN, bandwidth=BANDWIDTH)
SETTINGS = {"even": EVEN, "straggler": STRAGGLER, "slow network": SLOW}


@dataclass(frozen=True)
class Contestant:
    """A strategy.

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
    Contestant("gossip", {"strategy": "gossip"}, quick=True),
    Contestant("gossip, int8", {"strategy": "gossip", "compress": "int8"}),
)


def measure(
    text: Path, directory: Path, options: dict[str, Any], rounds: int, quick: bool
) -> list[str]:
    """Samples per second of each strategy in each setting; the claim lines."""
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
        _claim("lowcomm.gossip_straggler", rates, "gossip", ideal),
    ]


def _samples_per_second(found: Run, warm_steps: int) -> float:
    return MODEL["micro_batch"] * found.micro_batches_per_second(warm_steps * _PER_STEP)


def _sum_alone(alone: dict[str, list[float]]) -> list[float]:
    """Of the workers' speeds, one of them slower, in each round."""
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
    values = {
        "claim": name,
        "ours": round(median(own), 2),
        "peer": round(median(ideal), 2),
        "unit": "samples/s",
        "better": "higher",
        "note": f"one of {WORKERS} workers {SLOWER} times slower (sleeps of {SLEEP * 1e3:.0f} ms "
        f"per micro-batch); peer: the workers' speeds alone, added up; at least 0.8; median of "
        f"{len(own)} rounds" + (f" ({spread(own)})" if len(own) > 2 else "") + f"; ddp {ddp:.1f}",
    }
    return json.dumps(values, ensure_ascii=False)


def bytes_claim(text: Path, directory: Path, options: dict[str, Any], every: int = 50) -> str:
    """Bytes per step of diloco against those of ddp over `every`; its claim line."""
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
    values = {
        "claim": "lowcomm.bytes",
        "ours": round(ours, 1),
        "peer": round(peer, 1),
        "unit": "bytes per step and worker",
        "better": "lower",
        "note": f"diloco at H = {every} against ddp / {every}, as runs count them (the model has "
        f"no buffers, which would be added); at most 1.0; by TCP's own counters, losses and heads "
        f"included, {tcp:,.0f} and {tcp_ddp / every:,.0f}",
    }
    return json.dumps(values, ensure_ascii=False)
