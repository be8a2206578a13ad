"""Tables of published measurements, read as the model sees them; of every usual convention."""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from _plan_frameworks import EFA
from rankup.plan.estimate import Estimate, estimate
from rankup.plan.framework import FRAMEWORKS
from rankup.plan.layout import Layout
from rankup.plan.machine import GB, GIB, MACHINES, Machine
from rankup.plan.memory import memory
from rankup.plan.search import Search
from rankup.plan.shape import Shape
from rankup.plan.words import layout_text

DERIVED = re.compile(r"not a measurement|formula-derived", re.IGNORECASE)
SEQUENCE = re.compile(
    r"(?<!no )(?<!without )sequence[ _-]parallel(?!\W*(?:false|off|no|0))|\bsp\+|\+ sequence"
)
# How a table names a precision -> ours; the first that is found counts: a mixture with fp32 is the
# other one.
PRECISIONS = {
    r"f(?:p|loat)8|^8$": "fp8",
    r"bf": "bf16",
    r"16|half": "fp16",
    r"32|single": "fp32",
}


@dataclass(frozen=True)
class Row:
    """A measurement as the model sees it; `seconds` is of a step, `memory` in bytes or None.

    `searched`: the row does not say how the model was split, and the layout is the fastest that
    the search has.
    """

    source: str
    shape: Shape
    layout: Layout
    machine: Machine
    seconds: float
    memory: float | None
    layer_only: bool = False
    searched: bool = False

    @property
    def document(self) -> str:
        """The paper or repository: what is left out together."""
        found = re.search(r"arXiv \d+\.\d+|github [\w.-]+/[\w.-]+", self.source)
        return found[0] if found else self.source

    @property
    def fitted(self) -> bool:
        """Constants are fitted on it: fp8, fp32, single layers and searched layouts only try it."""
        plain = not self.layer_only and not self.searched
        return self.layout.precision in ("bf16", "fp16") and plain

    def estimate(self, machine: Machine | None = None) -> Estimate:
        """Return the model's estimate, of the layer alone where only that was measured."""
        found = estimate(self.shape, self.layout, machine or self.machine)
        if not self.layer_only:
            return found
        terms = tuple(one for one in found.terms if one.name not in ("head", "optimizer"))
        return replace(found, terms=terms, seconds=sum(one.seconds for one in terms))


def number(row: dict[str, str], key: str, usual: float) -> int:
    """Return a column's number; the usual one where it has none of 1 or more."""
    found = figure(row.get(key))
    return int(found if found >= 1 else usual)


def figure(text: str | None) -> float:
    """Return the number that a cell begins with, its unit left out; 0 where it holds none above 0.

    A comma before three digits separates thousands, any other is a decimal point.
    """
    plain = re.sub(r",(?=\d{3}(?!\d))", "", text or "").replace(",", ".")
    found = re.match(r"[\s~≈]*(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)(k\b)?", plain, re.IGNORECASE)
    value = float(found[1]) * (1024 if found[2] else 1) if found else 0.0
    return value if math.isfinite(value) else 0.0


def framework_of(text: str, gpu: str, split: bool) -> str:
    """Return the framework that a row's words name; where they name none, by whether models are
    `split` by tensor or pipeline parallelism."""
    for word, name in FRAMEWORK_OF.items():
        if word in text:
            return f"{name}-compiled" if name == "torchtitan" and "compile" in text else name
    if "megatron" in text or split:
        hopper = "megatron" in text and re.search(r"H[1-8]00", gpu.upper())
        if hopper or re.search(r"megatron[- _]core|\bmcore", text):
            return "megatron-core"
        return "megatron" if "flash" not in text and before_flash(text) else "megatron-flash"
    return "torchtitan-compiled" if "compile" in text else "script"


def before_flash(text: str) -> bool:
    """Return whether the words date a paper before FlashAttention (end of May 2022)."""
    if found := re.search(r"arxiv\W*(\d\d)(\d\d)\.", text):
        return (int(found[1]), int(found[2])) < (22, 6)
    found = re.search(r"\b(?:sc ?'?|20)(1[7-9]|2\d)\b", text)
    return found is not None and int(found[1]) < 22


# A word of the source or note -> its framework; the first that is found counts.
FRAMEWORK_OF = {
    "megatron-deepspeed": "megatron-deepspeed",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
    "llm-foundry": "llm-foundry",
    "mosaic": "llm-foundry",
    "fms-fsdp": "fms-fsdp",
    "torch kernel": "megatron",
    "megatron kernel": "megatron",
    "nemo": "megatron-core",
}
# GPUs that are another but for their NVLink, in bytes/s; None: the same.
LIKE = {"A800": ("A100", 200 * GB), "H800": ("H100", 200 * GB), "MI250": ("MI250X", None)}


def machine_of(gpu: str, text: str) -> Machine | None:
    """Return the machine that a row's GPU and words describe; None where nobody knows the GPU."""
    found = re.search(r"(?:GH200|H[128]00|A[18]00|V100|MI250X?)(?!\d)", gpu.upper())
    if found is None:
        return None
    name, link = LIKE.get(found[0], (found[0], None))
    names = [one for one in MACHINES if one.split("-")[0] == name]
    memory = re.search(r"(?<!\d)(\d{2,3}) ?(?:G|$)", gpu.upper())
    # Without its memory: most was published of the larger A100.
    usual = {"A100": "A100-80GB", "V100": "V100-32GB"}.get(name, names[0])
    asked = f"{name}-{memory[1]}GB" if memory else usual
    made = MACHINES[asked if asked in names else usual]
    if link:
        made = replace(made, node_link=link)
    gpus = r"(?:GPUs?|GCDs?|(?:GH|A|H|V)\d00s?)"
    counts = (
        rf"\b(\d+) ?x? ?(?:[\w-]+ )?{gpus}(?:/| per )node",
        r"\b(\d+)(?:/| per )node",
        r"\bnodes? (?:of|with) (\d+)",
        rf"\b(\d+) ?x ?{gpus}",
    )
    told = (int(one) for pattern in counts for one in re.findall(pattern, text))
    # More are those of the whole run.
    if count := next((one for one in told if 1 <= one <= 16), None):
        made = replace(made, gpus_per_node=count)
    if nic := adapters(text, made.gpus_per_node):
        made = replace(made, nic_per_node=nic)
    if re.search(r"\bEFA\b", text):
        made = replace(made, **EFA)
    return made


# What is no adapter's: the bandwidth within a node.
INSIDE = re.compile(
    r"(?:NVLink|NVSwitch|HBM)[^;,.\d]*[\d.]+ ?[GT]B?\S*|[\d.]+ ?[GT]B/s (?:NVLink|NVSwitch|HBM)",
    re.IGNORECASE,
)
INFINIBAND = {"EDR": 100, "HDR": 200, "NDR": 400}  # Gbit/s of an adapter


def adapters(text: str, gpus: int) -> float | None:
    """Return the bytes/s of a node's adapters that a note tells, in bits or bytes."""
    text = INSIDE.sub("", text)
    if found := re.search(r"(\d+) ?x ?([EHN]DR)-?(\d*)", text):
        return int(found[1]) * int(found[3] or INFINIBAND[found[2]]) / 8 * GB
    speed = r"(?:(\d+) ?x ?)?(\d+(?:\.\d+)?) ?([GT])([bB])(?:ps|/s|it/s)([^;,.]*(?:per |/)GPU)?"
    if found := re.search(speed, text.replace("gb", "Gb")):
        each = float(found[2]) * GB * (1000 if found[3] == "T" else 1)
        each /= 1 if found[4] == "B" else 8
        return each * int(found[1] or (gpus if found[5] else 1))
    return None


def recompute_of(cell: str) -> str:
    """Return what is recomputed, in our words."""
    named = cell.strip().lower()
    if re.match(r"no|false|off|without|disabled|n/a|0*\.?0*$", named):
        return "none"
    if re.search(r"\bsel|\bsac\b|\bop\b", named):
        return "selective"
    full = r"full|block|uniform|true|yes|\bon\b|all|every|checkpoint|recompute"
    return "full" if re.search(full, named) or figure(named) else "none"


def zero_of(cell: str, framework: str, text: str) -> int:
    """Return the stage of ZeRO that the column tells; where it does not, the words."""
    if told := re.fullmatch(r"(?:zero|stage)?[ _-]?([0-3])(?:\.0*)?", cell.strip().lower()):
        return int(told[1])
    if found := re.search(r"zero[- ]?([0-3])", text):
        return int(found[1])
    if "fsdp" in text or framework.startswith(("torchtitan", "llm-foundry", "fms-fsdp")):
        return 3
    return 1 if framework == "megatron-core" or "distributed optimizer" in text else 0


def read(row: dict[str, str]) -> Row | None:
    """Return a row of the table; None where it is no measured step, or lacks what decides."""
    note, gpu = row.get("setup_note", ""), row.get("gpu", "")
    source = row.get("source", "")
    words = f"{source} {note}"
    text = words.lower()
    metric = re.sub(r"\W+", "_", row.get("metric_name", "").strip().lower()).strip("_")
    value = figure(row.get("metric_value"))
    needed = ("layers", "hidden", "seq", "gpus")
    if DERIVED.search(note) or value <= 0 or not all(number(row, key, 0) for key in needed):
        return None
    machine = machine_of(gpu, words)
    if machine is None:
        return None
    tp, pp = number(row, "tp", 1), number(row, "pp", 1)
    framework = framework_of(text, gpu, tp * pp > 1)
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
        millions = re.search(r"\dM\b", row["params_b"].replace(" ", ""))
        shape = fitting(shape, billions * (1e6 if millions else 1e9))
    gpus = number(row, "gpus", 1)
    cp = number(row, "cp", 1)
    if tp * pp * cp > gpus:
        raise ValueError(f"tp {tp} x pp {pp} x cp {cp} is more than {gpus} GPUs")
    data = number(row, "dp", gpus // (tp * pp * cp))
    if data * tp * pp * cp != gpus:
        data = max(1, gpus // (tp * pp * cp))
    micro = number(row, "micro_batch", 1)
    zero = zero_of(row.get("zero_stage", ""), framework, text)
    recompute = recompute_of(row.get("act_recompute", ""))
    named = row.get("precision", "").strip().lower()
    precision = next(
        (ours for pattern, ours in PRECISIONS.items() if re.search(pattern, named)), "bf16"
    )
    if "tf32" in named and machine.gpu.startswith(("A100", "H100", "H200", "GH200")):
        machine = replace(machine, fp32_flops=machine.peak_flops / 2)
    usual_batch = micro * data
    if found := re.search(r"local batch (\d+)", text):
        usual_batch = int(found[1]) * data
    elif found := re.search(r"(?:grad(?:ient)?[- ]acc\w*) (\d+)", text):
        usual_batch *= int(found[1])
    batch = number(row, "global_batch_seqs", usual_batch)
    if found := re.search(r"\d ?(M\b)|[Tt]ok", row.get("global_batch_seqs", "")):
        millions = 1e6 if found[1] else 1
        batch = max(1, round(figure(row["global_batch_seqs"]) * millions / shape.seq))
    shard = data if zero >= 1 else 1
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
        global_batch=batch,
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
    searched = unknown(row, layout, text)
    if searched:
        if metric == "layer_fwd_bwd_ms":
            raise ValueError("one layer of a model whose layout is not told")
        layout = best_layout(row, shape, layout, machine)
    unit = 1e9 if framework == "nanotron" else GIB
    measured = figure(row.get("memory_gib")) * unit or None
    alone = metric == "layer_fwd_bwd_ms"
    return Row(source, shape, layout, machine, seconds, measured, alone, searched)


def unknown(row: dict[str, str], layout: Layout, text: str) -> bool:
    """Return whether a row leaves open how the model was split over several GPUs: a size of tensor
    or pipeline parallelism is not told, nor do others or a word say it."""
    told = [bool(row.get(key, "").strip()) for key in ("tp", "pp")]
    if all(told) or layout.gpus == 1:
        return False
    whole = layout.gpus // (layout.tp * layout.pp * layout.cp)
    if number(row, "dp", 0) == whole:
        return False
    copies = layout.zero == 3 or re.search(r"\bddp\b|data[- ]parallel only", text)
    return any(told) or not copies


def best_layout(row: dict[str, str], shape: Shape, told: Layout, machine: Machine) -> Layout:
    """Return the fastest layout that fits and has all that a row tells.

    Raises:
        ValueError: none does.
    """
    habits = FRAMEWORKS[told.framework]
    sizes = {key: number(row, key, 0) for key in ("tp", "pp", "cp")}
    found = []
    search = Search(
        shape,
        told.global_batch,
        told.precision,
        number(row, "micro_batch", 0) or None,
        cp=told.cp,
        framework=told.framework,
    )
    for one in search.candidates(machine, told.gpus):
        if one.zero in (1, 2) or one.recompute == "selective:2":
            continue  # as rankup does them, and nobody else
        if any(size and getattr(one, key) != size for key, size in sizes.items()):
            continue
        if row.get("act_recompute", "").strip() and one.recompute != told.recompute:
            continue
        if one.dp_shard > 1 and (row.get("zero_stage", "").strip() and told.zero < 3):
            continue
        zero = one.zero or min(told.zero, 2)
        shard = one.data if zero == 1 else one.dp_shard
        layout = replace(
            one,
            dp_replicate=one.data // shard,
            dp_shard=shard,
            zero=zero,
            sequence_parallel=one.tp > 1 and (habits.sequence_parallel or told.sequence_parallel),
            framework=told.framework,
        )
        if sum(part for _, part in memory(shape, layout, habits)) <= machine.memory_gib * GIB:
            found.append(layout)
    if not found:
        raise ValueError(f"no layout is told, and none of {told.gpus} GPUs holds the model")
    return min(found, key=lambda layout: estimate(shape, layout, machine).seconds)


def fitting(shape: Shape, parameters: float) -> Shape:
    """Return the shape, gated or not, tied or not, whose parameters are nearest."""
    forms = [
        replace(shape, gated=gated, tied=tied) for gated in (False, True) for tied in (True, False)
    ]
    return min(forms, key=lambda one: abs(math.log(one.parameters() / parameters)))


_STEP, _UNIT = r"(?:iter(?:ation)?|step)", r"(?:m?s|(?:milli)?sec\w*)"
STEP_TIME = re.compile(
    rf"{_STEP}_?time(?:_{_UNIT})?|{_STEP}_{_UNIT}|time_per_{_STEP}(?:_{_UNIT})?|{_UNIT}_(?:per_)?{_STEP}"
)
# Tokens, samples or steps per second.
RATE = re.compile(r"\b(?:throughput_)?(tgs$|(?:tok|sam|seq|ite|ste)(?=[a-z_]*_s(?:ec\w*)?(?:_|$)))")


def step_seconds(
    metric: str, value: float, shape: Shape, layout: Layout, machine: Machine
) -> float | None:
    """Return the seconds of a step, from any convention; None where it is of no step.

    hw_tflops counts a full recomputation, and all of attention [Narayanan 2021, eq. 3];
    model_tflops and mfu count forward and backward with all of attention, once.
    """
    tokens = layout.global_batch * shape.seq
    flops = tokens * shape.train_flops() / layout.gpus
    shared = layout.gpus if re.search(r"gpu|tgs|device", metric) else 1
    if metric == "layer_fwd_bwd_ms" or STEP_TIME.fullmatch(metric):
        return value / (1000 if re.search(r"(?:^|_)(?:ms|milli)", metric) else 1)
    if rate := RATE.search(metric):
        each = {
            "tok": tokens,
            "tgs": tokens,
            "sam": layout.global_batch,
            "seq": layout.global_batch,
        }
        return each.get(rate[1], 1) / value / shared
    hardware = re.search(r"hw_|hardware|hfu", metric)
    if hardware:
        again = shape.layers * (
            2.0 * (shape.attention_weights + shape.ffn_weights) + shape.attention_flops()
        )
        if layout.recompute == "selective":
            again = shape.layers * shape.attention_flops()
        if layout.recompute == "none":
            again = 0.0
        flops += tokens * again / layout.gpus
    if rate := re.search(r"([tp])flop", metric):
        everywhere = re.search(r"total|aggregate", metric)
        unit = 1e12 if rate[1] == "t" else 1e15
        return flops * (layout.gpus if everywhere else 1) / (value * unit)
    if re.search(r"[mh]fu", metric):
        percent = value if value > 1 else 100 * value
        return flops / (percent / 100 * machine.peak_flops)
    return None


def rows_of(path: Path) -> tuple[list[Row], int]:
    """Return the measured steps of a table, and how many of its rows are none, or lack sizes, or
    have a GPU that nobody knows; rows that cannot be are named on stderr."""
    raw = path.read_bytes()
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = raw.decode("utf-16" if wide else "utf-8-sig", errors="replace").replace("\0", "")
    text = text.lstrip("\r\n")
    header = text.partition("\n")[0]
    csv.field_size_limit(len(text) + 1)
    table = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=max(",;\t", key=header.count),
        skipinitialspace=True,
    )
    names = [re.sub(r"\W+", "_", name.lower()).strip("_") for name in next(table, [])]
    rows, unread = [], 0
    for cells in table:
        if not cells:
            continue
        # A short row lacks its last cells, a long one has some that no column names.
        row = None
        try:
            row = read(dict(zip(names, cells, strict=False)))
            if row is not None and not 0 < row.estimate().seconds < math.inf:
                raise ValueError("the model gives no time")
        except (ValueError, ArithmeticError, LookupError) as error:
            print(f"{path}, line {table.line_num}: not read: {error}", file=sys.stderr)
            row = None
        if row is None:
            unread += 1
        else:
            rows.append(row)
            if row.searched:
                layout = row.layout
                print(
                    f"{path}, line {table.line_num}: tells no layout: predicted by the fastest "
                    f"that fits, {layout_text(layout)}, micro-batch {layout.micro_batch}, "
                    f"recomputation {layout.recompute}",
                    file=sys.stderr,
                )
    return rows, unread
