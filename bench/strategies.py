"""What a strategy costs: steps per second against the same by hand, bytes, memory, checkpoints.

Claims, all at 2 ranks of one thread each:
`strategies.ddp`, `strategies.fsdp`: steps/s of our loop to those of DDP and FSDP2 by hand, the
median of paired slices; the peer is the quicker of two loops by hand that do the same work.
`strategies.async_save`: the seconds that the loop waits for an asynchronous checkpoint to those of
a synchronous one, of 44 million parameters with their Adam state; lower is better.

Shown beside: tokens/s, bytes sent and memory of every strategy on 1 to 8 ranks. Warm as in
`overhead.py`; it runs in the environment it is started from, since torch is the only peer.
"""

from __future__ import annotations

import json
import random
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _strategies_rank import ANY
from _strategies_team import StrategyTeam, run_ranks
from common import Effort, arguments, machine, median, spread, table, write_text

MODEL = {"vocab": "byte", "seq_len": 64, "dropout": 0.1, "warmup": 100, "micro_batch": 8}


@dataclass(frozen=True)
class Case:
    """A claim: our loop against loops by hand; `shown` does other work and is no peer."""

    claim: str
    ours: str
    peers: tuple[str, ...]
    model: dict[str, Any]
    micro_batches: int
    shown: tuple[str, ...] = ()

    @property
    def contestants(self) -> tuple[str, ...]:
        return (self.ours, *self.peers, *self.shown)


CASES = (
    Case(
        "strategies.ddp",
        "rankup, ddp",
        ("DDP by hand", "DDP by hand, overlapped"),
        {**MODEL, "layers": 2, "dim": 64, "heads": 4},
        micro_batches=4,
    ),
    Case(
        "strategies.fsdp",
        "rankup, fsdp",
        ("FSDP2 by hand", "FSDP2 by hand, overlapped"),
        {**MODEL, "layers": 4, "dim": 128, "heads": 4},
        micro_batches=2,
        shown=("FSDP2 by hand, one exchange",),
    ),
)


@dataclass(frozen=True)
class Row:
    """A line of the table: a strategy on a number of ranks."""

    ranks: int
    name: str
    split: dict[str, Any]
    quick: bool = False


ROWS = (
    Row(1, "one rank", {}),
    Row(2, "ddp", {"strategy": "ddp"}, quick=True),
    Row(2, "fsdp", {"strategy": "fsdp"}, quick=True),
    Row(2, "tp", {"strategy": "tp"}, quick=True),
    Row(2, "pp", {"strategy": "pp"}, quick=True),
    Row(4, "ddp", {"strategy": "ddp"}),
    Row(4, "fsdp", {"strategy": "fsdp"}),
    Row(4, "hsdp, 2 x 2", {"strategy": "hsdp"}, quick=True),
    Row(4, "tp", {"strategy": "tp"}),
    Row(4, "pp", {"strategy": "pp"}),
    Row(4, "3d, pp 2 x tp 2", {"strategy": "3d"}, quick=True),
    Row(8, "fsdp", {"strategy": "fsdp"}),
    Row(8, "3d, pp 2 x shard 2 x tp 2", {"strategy": "3d"}),
)


def measure(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Seconds per step of each contestant, one value per round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        global_batch = case.model["micro_batch"] * case.micro_batches * 2
        options = {**case.model, "global_batch": global_batch}
        options = write_text(directory, options, 160 * global_batch)
        with closing(StrategyTeam(2, directory, options, case.contestants)) as ranks:
            for contestant in case.contestants:  # builds everything
                ranks.slice(contestant, 5)
            step = ranks.slice(case.ours, 5)
            steps = max(5, round(effort.slice_seconds / step))
            seconds: dict[str, list[float]] = {name: [] for name in case.contestants}
            for number in range(effort.rounds):
                for contestant in random.Random(number).sample(case.contestants, len(seconds)):
                    seconds[contestant].append(ranks.slice(contestant, steps))
    return seconds


def show(case: Case, seconds: dict[str, list[float]]) -> str:
    """Print a case; its claim line."""
    peer = min(case.peers, key=lambda name: median(seconds[name]))

    def ratios(name: str) -> list[float]:
        return [theirs / own for own, theirs in zip(seconds[name], seconds[peer], strict=True)]

    model = case.model
    what = (
        f"2 ranks, {case.micro_batches} micro-batches of {model['micro_batch']} x "
        f"{model['seq_len']} bytes per rank, {model['layers']} layers of width {model['dim']}: "
        f"steps of {median(seconds[peer]) * 1e3:.1f} ms"
    )
    print(what)
    rows = [
        [name, f"{1 / median(values):.1f}", f"{median(ratios(name)):.3f}", spread(ratios(name))]
        for name, values in seconds.items()
    ]
    table(["", "steps/s", f"to {peer}", "quartiles"], rows)
    rate, ratio = 1 / median(seconds[peer]), median(ratios(case.ours))
    note = (
        f"{what}; peer {peer}; ours is the peer's median times the median of "
        f"{len(seconds[peer])} paired ratios (quartiles {spread(ratios(case.ours))})"
    )
    return line(case.claim, ratio * rate, rate, "steps/s", "higher", note)


def saves(effort: Effort) -> str:
    """Measure and print checkpoints; their claim line."""
    with tempfile.TemporaryDirectory() as name:
        spec = {"directory": name, "rounds": effort.rounds}
        found = run_ranks("_strategies_save.py", 2, spec)
    waited = {m: [s["waited"] for s in found if s["mode"] == m] for m in _modes(found)}
    lost = median([save["lost"] for save in found if save["mode"] == "asynchronous"])
    size = median([save["bytes"] for save in found])
    print(f"checkpoints of {size / 1e6:.0f} MB by 2 ranks")
    rows = [[mode, f"{median(values):.3f}", spread(values)] for mode, values in waited.items()]
    table(["save", "s the loop waits", "quartiles"], rows)
    ours, peer = median(waited["asynchronous"]), median(waited["synchronous"])
    pairs = zip(waited["asynchronous"], waited["synchronous"], strict=True)
    note = (
        f"{size / 1e6:.0f} MB on disk, sharded over 2 ranks; median of {effort.rounds} pairs "
        f"{median([mine / theirs for mine, theirs in pairs]):.3f}; with the computing that a save "
        f"slows down beside it, all cores busy, an asynchronous one costs {lost:.2f} s"
    )
    return line("strategies.async_save", ours, peer, "s", "lower", note)


def _modes(found: list[dict[str, Any]]) -> list[str]:
    return sorted({save["mode"] for save in found})


def overview(effort: Effort) -> None:
    """The table of all strategies."""
    layers, dim = (4, 128) if effort.quick else (8, 384)
    model = {**MODEL, "layers": layers, "dim": dim, "heads": 8, "micro_batch": 2, "dropout": 0.0}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, {**model, "global_batch": 16}, 160 * 16)
        rows = [
            _looked_into(row, directory, {**options, **row.split}, effort)
            for row in ROWS
            if row.quick or not effort.quick
        ]
    print(
        f"{layers} layers of width {dim}, 8 micro-batches of 2 x 64 bytes per step, one thread per "
        "rank; bytes that a rank's connections carried per step, mean over ranks; held: weights "
        "(W), gradients (G), optimizer state (O), the most of any rank; grown: by how much a "
        "process grew at its largest, activations and buffers included"
    )
    head = ["strategy", "ranks", "tokens/s", "MB sent", "W MB", "G MB", "O MB", "grown MB"]
    table(head, rows)


def _looked_into(row: Row, directory: Path, options: dict[str, Any], effort: Effort) -> list[str]:
    steps, rounds = (2, 2) if effort.quick else (5, 3)
    with closing(StrategyTeam(row.ranks, directory, options, [ANY])) as ranks:
        ranks.answers(ANY, 1)
        slices = [ranks.answers(ANY, steps) for _ in range(rounds)]
    tokens = options["global_batch"] * options["seq_len"]
    rate = tokens / median([answers[0]["seconds"] for answers in slices])
    sent = median([sum(a["sent"] for a in answers) / row.ranks for answers in slices])
    last = slices[-1]
    most = [max(a[k] for a in last) for k in ("weights", "gradients", "optimizer", "grown")]
    sizes = [f"{value / 1e6:.1f}" for value in (sent, *most)]
    return [row.name, str(row.ranks), f"{rate:,.0f}", *sizes]


def line(name: str, ours: float, peer: float, unit: str, better: str, note: str) -> str:
    values = {"claim": name, "ours": round(ours, 4), "peer": round(peer, 4), "unit": unit}
    return json.dumps({**values, "better": better, "note": note}, ensure_ascii=False)


def main() -> None:
    effort = arguments(__doc__ or "")
    print(f"{machine(())}\n", flush=True)
    lines = [show(case, measure(case, effort)) for case in CASES]
    lines.append(saves(effort))
    overview(effort)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
