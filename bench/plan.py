"""How far `rankup plan` is from published measurements.

    bench/plan.py [--table FILE] [--leave-out | --fit] [--rows]

FILE has the columns of scaling_tables.csv (RANKUP_DATA). Prints one JSON line per source and claim:
plan.time is the |log error| of the step in bf16 or fp16, plan.time.fp8 and plan.time.fp32 of the
others, plan.memory the relative error of the peak, plan.sweep the rank correlation within the
layouts of one model on as many GPUs, and how much slower than the fastest of them the one was that
the model would have chosen; plan.layout how many rows tell no layout (tensor, pipeline) and are
predicted by the fastest of the search. These, and those that are left out, stand on stderr by line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median

import numpy as np

import _plan_fit
from _plan_table import Row, rows_of
from rankup.plan.estimate import MANY_COPIES, Estimate

Pair = tuple[Row, Estimate]


def left_out(rows: Sequence[Row]) -> list[Estimate]:
    """Return the estimate of every row with constants fitted on the other documents."""
    found: dict[int, Estimate] = {}
    for document in sorted({row.document for row in rows}):
        x = _plan_fit.fit([row for row in rows if row.document != document and row.fitted])
        own = [row for row in rows if row.document == document]
        found.update(
            {id(row): one for row, one in zip(own, _plan_fit.predict(x, own), strict=True)}
        )
    return [found[id(row)] for row in rows]


def torch_memory(row: Row, found: Estimate) -> float:
    """Return the bytes that torch itself reports: without the context, and where a framework
    prints what is allocated, without what the allocator keeps."""
    outside = {"CUDA context and libraries"}
    if row.layout.framework == "nanotron":
        outside.add("fragmentation")
    return sum(size for name, size in found.memory if name not in outside)


def sweeps(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the runs of one model on as many GPUs with the same batch, by four layouts or more."""
    groups: dict[object, list[Pair]] = defaultdict(list)
    for row, found in pairs:
        shape, layout = row.shape, row.layout
        key = (shape.layers, shape.hidden, shape.kv_heads, shape.seq, layout.gpus)
        groups[(row.source, key, layout.global_batch, layout.precision)].append((row, found))
    return [group for group in groups.values() if len(group) >= 4 and group[0][0].fitted]


def paced(pairs: Sequence[Pair]) -> list[float]:
    """Return the errors that are left in log seconds where one run gives the pace of the others: of
    each two runs of a framework, a document and a GPU that of the one with as many GPUs or more.

    Tensor parallelism across nodes and many unsharded copies, which have bands of their own, are
    left out.
    """
    known = [
        (row, math.log(found.seconds / row.seconds))
        for row, found in pairs
        if row.fitted and not row.layout.tp > row.machine.gpus_per_node
    ]
    return [
        abs(error - off)
        for measured, off in known
        for row, error in known
        if row is not measured
        and of_pace(row) == of_pace(measured)
        and row.layout.gpus >= measured.layout.gpus
        and (row.layout.zero >= 2 or row.layout.data < MANY_COPIES)
    ]


def of_pace(row: Row) -> tuple[str, str, str]:
    """Return what a run and those that it gives the pace of have in common."""
    return row.document, row.layout.framework, row.machine.gpu


def correlation(group: Sequence[Pair]) -> float:
    """Return Spearman's rank correlation of predicted and measured seconds."""
    measured = np.argsort(np.argsort([row.seconds for row, _ in group]))
    predicted = np.argsort(np.argsort([found.seconds for _, found in group]))
    return float(np.corrcoef(measured, predicted)[0, 1])


def lost(group: Sequence[Pair]) -> float:
    """Return how much slower than the fastest the layout was that the model would have chosen."""
    chosen = min(group, key=lambda pair: pair[1].seconds)[0]
    return chosen.seconds / min(row.seconds for row, _ in group) - 1


# Claim of time -> the precisions it is about.
TIMES = {"plan.time": ("bf16", "fp16"), "plan.time.fp8": ("fp8",), "plan.time.fp32": ("fp32",)}


def claims(source: str, pairs: Sequence[Pair]) -> Iterator[dict[str, object]]:
    """Yield one claim after the other about the rows of a source."""
    for name, kinds in TIMES.items():
        off = [
            math.log(found.seconds / row.seconds)
            for row, found in pairs
            if row.layout.precision in kinds
        ]
        if off:
            size = [abs(one) for one in off]
            yield {
                "claim": name,
                "source": source,
                "n": len(off),
                "median": round(median(size), 4),
                "mean": round(mean(size), 4),
                "bias": round(mean(off), 4),
                "within_80": round(float(np.quantile(size, 0.8)), 4),
            }
    known = [(torch_memory(*pair) / pair[0].memory) for pair in pairs if pair[0].memory]
    if known:
        yield {
            "claim": "plan.memory",
            "source": source,
            "n": len(known),
            "mape": round(mean(abs(one - 1) for one in known), 4),
            "bias": round(mean(known) - 1, 4),
            "within_80": round(float(np.quantile([abs(one - 1) for one in known], 0.8)), 4),
        }
    if left := paced(pairs):
        yield {
            "claim": "plan.measured",
            "source": source,
            "n": len(left),
            "median": round(median(left), 4),
            "within_80": round(float(np.quantile(left, 0.8)), 4),
        }
    groups = sweeps(pairs)
    if groups:
        yield {
            "claim": "plan.sweep",
            "source": source,
            "n": len(groups),
            "rank_correlation": round(median(map(correlation, groups)), 3),
            "lost_median": round(median(map(lost, groups)), 4),
            "lost_most": round(max(map(lost, groups)), 4),
            "within_5_percent": round(mean(lost(one) <= 0.05 for one in groups), 3),
        }


def main() -> None:
    """Print the claims of a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    usual = Path(os.environ.get("RANKUP_DATA", "../shared/data")) / "scaling_tables.csv"
    parser.add_argument("--table", type=Path, default=usual)
    parser.add_argument("--leave-out", action="store_true", help="fit without each row's document")
    parser.add_argument("--fit", action="store_true", help="print the constants that fit best")
    parser.add_argument("--rows", action="store_true", help="print every row, too")
    arguments = parser.parse_args()
    if not arguments.table.is_file():
        print(f"no table {arguments.table}: skipped; give --table FILE or set RANKUP_DATA")
        return
    rows, unread = rows_of(arguments.table)
    if arguments.fit:
        found = np.exp(_plan_fit.fit([row for row in rows if row.fitted]))
        print(
            json.dumps(
                {name: float(f"{x:.4g}") for name, x in zip(_plan_fit.PRIOR, found, strict=True)},
                indent=1,
            )
        )
        return
    estimates = left_out(rows) if arguments.leave_out else [row.estimate() for row in rows]
    pairs = list(zip(rows, estimates, strict=True))
    for source in dict.fromkeys(row.source for row in rows):
        own = [pair for pair in pairs if pair[0].source == source]
        for claim in claims(source, own):
            print(json.dumps(claim))
        if arguments.rows:
            for pair in own:
                print(described(*pair))
    for claim in claims("all", pairs):
        print(json.dumps(claim))
    if guessed := sum(row.searched for row in rows):
        print(json.dumps({"claim": "plan.layout", "source": "all", "n": guessed}))
    print(json.dumps({"claim": "plan.unread", "source": "all", "n": unread}))


def described(row: Row, found: Estimate) -> str:
    """Return a row in words: error, set-up, measured seconds, shares of the terms."""
    layout, shape = row.layout, row.shape
    shares = " ".join(
        f"{term.name} {term.seconds / found.seconds:.0%}"
        for term in found.terms
        if term.seconds > 0.02 * found.seconds
    )
    return (
        f"  {math.log(found.seconds / row.seconds):+.3f} {row.machine.gpu} x{layout.gpus} "
        f"{shape.parameters() / 1e9:.1f}B s{shape.seq} mb{layout.micro_batch} "
        f"m{layout.micro_batches} tp{layout.tp} pp{layout.pp}x{layout.interleave} "
        f"dp{layout.data} zero{layout.zero} {layout.recompute} {row.seconds:.3f} s: {shares}"
    )


if __name__ == "__main__":
    main()
