"""How far `rankup plan` is from published measurements.

    bench/plan.py [--table FILE] [--leave-out | --fit] [--rows]
    bench/plan.py --calibrate [--cpu-clock] [--quick]

FILE has the columns of scaling_tables.csv (RANKUP_DATA). Prints one JSON line per source and claim:
plan.time is the |log error| of the step, plan.memory the relative error of the peak, plan.sweep the
rank correlation within the layouts of one model on as many GPUs, and how much slower than the
fastest of them the one was that the model would have chosen.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np

import _plan_calibrate
import _plan_fit
from rankup.plan.estimate import Estimate, estimate
from rankup.plan.framework import FRAMEWORKS
from rankup.plan.layout import Layout
from rankup.plan.machine import EFA, GB, GIB, MACHINES, Machine
from rankup.plan.shape import Shape

DERIVED = re.compile(r"not a measurement|formula-derived", re.IGNORECASE)
SEQUENCE = re.compile(
    r"(?<!no )(?<!without )sequence[ _-]parallel(?!\W*(?:false|off|no|0))|\bsp\+|\+ sequence"
)
# A part of what a table calls a precision -> ours; the first that is found counts.
PRECISIONS = {"8": "fp8", "bf": "bf16", "32": "fp32", "16": "fp16"}


@dataclass(frozen=True)
class Row:
    """A measurement as the model sees it; `seconds` is of a step, `memory` in bytes or None."""

    source: str
    shape: Shape
    layout: Layout
    machine: Machine
    seconds: float
    memory: float | None
    layer_only: bool = False

    @property
    def document(self) -> str:
        """The paper or repository: what is left out together."""
        found = re.search(r"arXiv \d+\.\d+|github [\w.-]+/[\w.-]+", self.source)
        return found[0] if found else self.source

    @property
    def plain(self) -> bool:
        """bf16 or fp16."""
        return self.layout.precision in ("bf16", "fp16")

    @property
    def fitted(self) -> bool:
        """Constants are fitted on it: fp8 and single layers only try them."""
        return self.plain and not self.layer_only

    def estimate(self, machine: Machine | None = None) -> Estimate:
        """Return the model's estimate, of the layer alone where only that was measured."""
        found = estimate(self.shape, self.layout, machine or self.machine)
        if not self.layer_only:
            return found
        terms = tuple(one for one in found.terms if one.name not in ("head", "optimizer"))
        return replace(found, terms=terms, seconds=sum(one.seconds for one in terms))


Pair = tuple[Row, Estimate]


def number(row: dict[str, str], key: str, usual: float) -> int:
    """Return a column's number; the usual one where it has none."""
    return int(figure(row.get(key)) or usual)


def figure(text: str | None) -> float:
    """Return the number that a cell holds, 0 where it holds none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return 0.0


def framework_of(text: str, split: bool) -> str:
    """Return the framework that a source's words name; where it names none, by whether models are
    `split` by tensor or pipeline parallelism."""
    for word, name in FRAMEWORK_OF.items():
        if word in text:
            return f"{name}-compiled" if name == "torchtitan" and "compile" in text else name
    return "megatron-flash" if split else "torchtitan-compiled" if "compile" in text else "rankup"


# A word of the source or note -> its framework; the first that is found counts.
FRAMEWORK_OF = {
    "vtrain": "megatron-deepspeed",
    "megatron-deepspeed": "megatron-deepspeed",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
    "llm-foundry": "llm-foundry",
    "mosaic": "llm-foundry",
    "fms-fsdp": "fms-fsdp",
    "2104.04473": "megatron",
    "2205.05198": "megatron",
    "torch kernel": "megatron",
    "megatron kernel": "megatron",
    "aleph": "megatron-flash",
    "megatron": "megatron-core",
    "nemo": "megatron-core",
}


def machine_of(gpu: str, text: str) -> Machine | None:
    """Return the machine that a row's GPU and words describe; None where nobody knows the GPU."""
    found = re.search(r"GH200|H200|H100|A100|V100|MI250X", gpu.upper())
    if found is None:
        return None
    names = [name for name in MACHINES if name.split("-")[0] == found[0]]
    memory = re.search(r"(\d{2,3}) ?G", gpu.upper())
    # Without its memory: most was published of the larger A100.
    usual = {"A100": "A100-80GB", "V100": "V100-32GB"}.get(found[0], names[0])
    asked = f"{found[0]}-{memory[1]}GB" if memory else usual
    made = MACHINES[asked if asked in names else usual]
    gpus = r"(?:GPUs?|(?:GH|A|H)\d00s?)"
    for pattern in (rf"(\d+) ?x? ?{gpus}(?:/| per )node", rf"\b(\d+) ?x ?{gpus}", r"00 (\d+)/node"):
        if count := re.search(pattern, text):
            made = replace(made, gpus_per_node=int(count[1]))
            break
    if nic := adapters(text, made.gpus_per_node):
        made = replace(made, nic_per_node=nic)
    if re.search(r"\bEFA\b", text):
        made = replace(made, **EFA)
    return made


def adapters(text: str, gpus: int) -> float | None:
    """Return the bytes/s of a node's adapters that a note tells, in bits or bytes."""
    if found := re.search(r"(\d+) ?x ?(?:HDR|NDR)(\d*)", text):
        return int(found[1]) * int(found[2] or 200) / 8 * GB
    if found := re.search(r"(?:(\d+) ?x ?)?(\d+) ?(Gb|GB|gb)(?:ps|/s|it/s)([^;,.]*per GPU)?", text):
        each = int(found[2]) * GB / (1 if found[3] == "GB" else 8)
        return each * int(found[1] or (gpus if found[4] else 1))
    return None


RECOMPUTES = {"selective": "selective", "full": "full", "block": "full", "uniform": "full"}


def zero_of(framework: str, text: str) -> int:
    """Return the stage of ZeRO that words tell, where the column does not."""
    if found := re.search(r"zero[- ]?([0-3])", text):
        return int(found[1])
    if "fsdp" in text or framework.startswith(("torchtitan", "llm-foundry", "fms-fsdp")):
        return 3
    return 1 if framework == "megatron-core" or "distributed optimizer" in text else 0


def read(row: dict[str, str]) -> Row | None:
    """Return a row of the table; None where it is no measured step, or lacks what decides."""
    note = row["setup_note"]
    words = f"{row['source']} {note}"
    text = words.lower()
    metric, value = row["metric_name"], figure(row["metric_value"])
    needed = ("layers", "hidden", "seq", "gpus")
    if DERIVED.search(note) or value <= 0 or not all(number(row, key, 0) for key in needed):
        return None
    machine = machine_of(row["gpu"], words)
    if machine is None:
        return None
    tp, pp = number(row, "tp", 1), number(row, "pp", 1)
    framework = framework_of(text, tp * pp > 1)
    hidden, layers = number(row, "hidden", 0), number(row, "layers", 0)
    heads = number(row, "heads", max(1, hidden // 128))
    vocab, ffn = number(row, "vocab", 50257), number(row, "ffn", 4 * hidden)
    shape = Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number(row, "kv_heads", heads),
        ffn=ffn,
        vocab=vocab,
        seq=number(row, "seq", 0),
    )
    if layers > 1 and (billions := figure(row.get("params_b"))):
        shape = fitting(shape, billions * 1e9)
    gpus = number(row, "gpus", 1)
    cp = number(row, "cp", 1)
    data = number(row, "dp", gpus // (tp * pp * cp))
    if data * tp * pp * cp != gpus:
        data = max(1, gpus // (tp * pp * cp))
    micro = number(row, "micro_batch", 1)
    zero = number(row, "zero_stage", zero_of(framework, text))
    recompute = RECOMPUTES.get(row["act_recompute"].lower(), "none")
    named = row["precision"].lower()
    precision = next((ours for part, ours in PRECISIONS.items() if part in named), "bf16")
    usual_batch = micro * data
    if found := re.search(r"local batch (\d+)", text):
        usual_batch = int(found[1]) * data
    elif found := re.search(r"(?:grad(?:ient)?[- ]acc\w*) (\d+)", text):
        usual_batch *= int(found[1])
    shard = data if zero >= 2 else 1
    hybrid = "hsdp" in text and zero == 3
    if hybrid:
        shard = min(data, machine.gpus_per_node)
    layout = Layout(
        gpus=gpus,
        dp_replicate=data // shard,
        dp_shard=shard,
        tp=tp,
        pp=pp,
        cp=cp,
        schedule="interleaved" if number(row, "interleave", 1) > 1 else "1f1b",
        interleave=number(row, "interleave", 2 if framework == "megatron-core" and pp > 1 else 1),
        micro_batch=micro,
        global_batch=number(row, "global_batch_seqs", usual_batch),
        recompute=recompute,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        zero=zero,
        sequence_parallel=tp > 1
        and (FRAMEWORKS[framework].sequence_parallel or bool(SEQUENCE.search(text))),
        framework=framework,
    )
    seconds = step_seconds(metric, value, shape, layout, machine)
    if seconds is None:
        return None
    unit = 1e9 if framework == "nanotron" else GIB
    measured = figure(row.get("memory_gib")) * unit or None
    alone = metric == "layer_fwd_bwd_ms"
    return Row(row["source"], shape, layout, machine, seconds, measured, alone)


def fitting(shape: Shape, parameters: float) -> Shape:
    """Return the shape, gated or not, tied or not, whose parameters are nearest."""
    forms = [
        replace(shape, gated=gated, tied=tied) for gated in (False, True) for tied in (True, False)
    ]
    return min(forms, key=lambda one: abs(math.log(one.parameters() / parameters)))


def step_seconds(
    metric: str, value: float, shape: Shape, layout: Layout, machine: Machine
) -> float | None:
    """Return the seconds of a step, from any convention; None where it is of no step.

    hw_tflops counts a full recomputation, and all of attention [Narayanan 2021, eq. 3];
    model_tflops and mfu count forward and backward with all of attention, once.
    """
    tokens = layout.global_batch * shape.seq
    flops = tokens * shape.train_flops() / layout.gpus
    if metric == "iter_time_s":
        return value
    if metric == "layer_fwd_bwd_ms":
        return value / 1000
    if metric == "tokens_per_s_per_gpu":
        return tokens / value / layout.gpus
    if metric == "tokens_per_s_total":
        return tokens / value
    if metric == "hw_tflops_per_gpu":
        again = shape.layers * (
            2.0 * (shape.attention_weights + shape.ffn_weights) + shape.attention_flops()
        )
        if layout.recompute == "selective":
            again = shape.layers * shape.attention_flops()
        if layout.recompute == "none":
            again = 0.0
        return (flops + tokens * again / layout.gpus) / (value * 1e12)
    if metric == "model_tflops_per_gpu":
        return flops / (value * 1e12)
    if metric == "mfu_pct":
        return flops / (value / 100 * machine.peak_flops)
    return None


def rows_of(path: Path) -> tuple[list[Row], int]:
    """Return the measured steps of a table, and how many of its rows are none, or lack sizes, or
    have a GPU that nobody knows."""
    with path.open(newline="", encoding="utf-8") as file:
        found = [read(row) for row in csv.DictReader(file)]
    rows = [row for row in found if row is not None]
    return rows, len(found) - len(rows)


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


def correlation(group: Sequence[Pair]) -> float:
    """Return Spearman's rank correlation of predicted and measured seconds."""
    measured = np.argsort(np.argsort([row.seconds for row, _ in group]))
    predicted = np.argsort(np.argsort([found.seconds for _, found in group]))
    return float(np.corrcoef(measured, predicted)[0, 1])


def lost(group: Sequence[Pair]) -> float:
    """Return how much slower than the fastest the layout was that the model would have chosen."""
    chosen = min(group, key=lambda pair: pair[1].seconds)[0]
    return chosen.seconds / min(row.seconds for row, _ in group) - 1


def claims(source: str, pairs: Sequence[Pair]) -> Iterator[dict[str, object]]:
    """Yield one claim after the other about the rows of a source."""
    for name, kind in (("plan.time", True), ("plan.time.fp8", False)):
        off = [math.log(found.seconds / row.seconds) for row, found in pairs if row.plain == kind]
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
    parser.add_argument("--calibrate", action="store_true", help="on CPU ranks of this machine")
    parser.add_argument("--cpu-clock", action="store_true", help="with it: seconds of processors")
    parser.add_argument("--quick", action="store_true", help="with --calibrate: four layouts")
    arguments = parser.parse_args()
    if arguments.calibrate:
        _plan_calibrate.main(arguments.cpu_clock, arguments.quick)
        return
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
