"""Cost of a strategy: steps per second of FSDP2 against by hand, bytes, memory, checkpoints.

Claims, all at 2 ranks of one thread each:
`strategies.fsdp`: steps/s of rankup's loop to those of FSDP2 by hand, the median of paired slices
(DDP is `overhead.2`).
`strategies.async_save`: the seconds that the loop waits for an asynchronous checkpoint to those of
a synchronous one, of 44 million parameters with their Adam state; lower is better.

Shown beside: tokens/s, bytes sent and memory of every strategy on 1 to 4 ranks. Warm as in
`overhead.py`; it runs in the environment it is started from, since torch is the only peer.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ranks import Team, claimed, interleave, run_ranks, show_rates, write_text
from common import Effort, claim, machine, median, paired, parse_effort, spread, table

MODEL = {"vocab": "byte", "seq_len": 64, "dropout": 0.1, "warmup": 100, "micro_batch": 8}


OURS, PEER = "rankup, fsdp", "FSDP2 by hand"
SHARDED = {**MODEL, "layers": 4, "dim": 128, "heads": 4, "global_batch": 32}


@dataclass(frozen=True)
class Row:
    """A line of the table: a strategy on a number of ranks."""

    ranks: int
    name: str
    strategy: str | None
    quick: bool = False


ROWS = (
    Row(1, "one rank", None),
    Row(2, "ddp", "ddp", quick=True),
    Row(2, "fsdp", "fsdp", quick=True),
    Row(2, "tp", "tp"),
    Row(2, "pp", "pp"),
    Row(4, "ddp", "ddp"),
    Row(4, "fsdp", "fsdp"),
    Row(4, "hsdp, 2 x 2", "hsdp"),
    Row(4, "tp", "tp"),
    Row(4, "pp", "pp"),
    Row(4, "3d, pp 2 x tp 2", "3d", quick=True),
)


def sharded(effort: Effort) -> str:
    """Measure and print FSDP2 against that by hand; return its claim line."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, SHARDED, 160 * SHARDED["global_batch"])
        with closing(Team(2, directory, options, [OURS, PEER])) as team:
            found = interleave({OURS: team, PEER: team}, effort, least=5)
    seconds = {name: [one.seconds for one in slices] for name, slices in found.items()}
    what = (
        f"2 ranks, 2 micro-batches of 8 x 64 bytes per rank, {SHARDED['layers']} layers of width "
        f"{SHARDED['dim']}, steps of {median(seconds[PEER]) * 1e3:.1f} ms"
    )
    show_rates(seconds, PEER, what)
    return claimed("strategies.fsdp", seconds, OURS, PEER, what)


def saves(effort: Effort) -> str:
    """Measure and print checkpoints; return their claim line."""
    with tempfile.TemporaryDirectory() as name:
        spec = {"directory": name, "rounds": effort.rounds}
        found = run_ranks("_save_rank.py", 2, spec)
    waited = {
        mode: [save["waited"] for save in found if save["mode"] == mode]
        for mode in ("asynchronous", "synchronous")
    }
    lost = median([save["lost"] for save in found if save["mode"] == "asynchronous"])
    size = median([save["bytes"] for save in found])
    print(f"checkpoints of {size / 1e6:.0f} MB by 2 ranks")
    rows = [[mode, f"{median(values):.3f}", spread(values)] for mode, values in waited.items()]
    table(["save", "s the loop waits", "quartiles"], rows)
    ours, peer = waited["asynchronous"], waited["synchronous"]
    note = (
        f"{size / 1e6:.0f} MB on disk, sharded over 2 ranks; median of {effort.rounds} pairs "
        f"{paired(ours, peer)}; with the computing that a save slows down beside it, all cores "
        f"busy, an asynchronous one costs {lost:.2f} s"
    )
    return claim("strategies.async_save", median(ours), median(peer), "s", note, better="lower")


def overview(effort: Effort) -> None:
    """Print the table of all strategies."""
    layers, dim = (4, 128) if effort.quick else (8, 384)
    model = {**MODEL, "layers": layers, "dim": dim, "heads": 8, "micro_batch": 2, "dropout": 0.0}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, {**model, "global_batch": 16}, 160 * 16)
        rows = [
            _measured(row, directory, {**options, "strategy": row.strategy}, effort)
            for row in ROWS
            if row.quick or not effort.quick
        ]
    print(
        f"{layers} layers of width {dim}, 8 micro-batches of 2 x 64 bytes per step, one thread per "
        "rank; bytes that a rank's connections carried per step, mean over ranks; held: weights "
        "(W), gradients (G), optimizer state (O), the most of any rank"
    )
    table(["strategy", "ranks", "tokens/s", "MB sent", "W MB", "G MB", "O MB"], rows)


def _measured(row: Row, directory: Path, options: dict[str, Any], effort: Effort) -> list[str]:
    steps, rounds = (2, 1) if effort.quick else (5, 3)
    with closing(Team(row.ranks, directory, options, ["rankup"])) as team:
        team.slice("rankup", 2)
        slices = [team.slice("rankup", steps) for _ in range(rounds)]
    rate = options["global_batch"] * options["seq_len"] / median([one.seconds for one in slices])
    sent = median([sum(rank["sent"] for rank in one.ranks) / row.ranks for one in slices])
    last = slices[-1].ranks
    most = [max(rank[key] for rank in last) for key in ("weights", "gradients", "optimizer")]
    sizes = [f"{value / 1e6:.1f}" for value in (sent, *most)]
    return [row.name, str(row.ranks), f"{rate:,.0f}", *sizes]


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(f"{machine('torch')}\n", flush=True)
    lines = [sharded(effort), saves(effort)]
    overview(effort)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
