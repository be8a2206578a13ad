"""`bench/plan.py` reads every convention of published figures, and the errors are small."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "plan.py"
GPT_39B = {
    "source": "arXiv 2104.04473",
    "setup_note": "8 GPU/node, 8x200Gbps HDR",
    "gpu": "A100-80GB",
    "gpus": "512",
    "params_b": "39.1",
    "layers": "48",
    "hidden": "8192",
    "heads": "64",
    "ffn": "32768",
    "vocab": "51200",
    "seq": "2048",
    "global_batch_seqs": "1536",
    "micro_batch": "4",
    "tp": "8",
    "pp": "2",
    "interleave": "1",
    "dp": "32",
    "zero_stage": "0",
    "act_recompute": "full",
    "precision": "fp16",
}
COLUMNS = [
    *GPT_39B,
    "kv_heads",
    "cp",
    "metric_name",
    "metric_value",
    "mfu_or_pct_peak",
    "memory_gib",
]


SELENE = {
    **GPT_39B,
    "metric_name": "hw_tflops_per_gpu",
    "metric_value": "138",
    "setup_note": "Selene, 8 GPU/node, 8x200Gbps HDR",
}


def run(table: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, BENCH, "--table", table], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


def claims(table: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in run(table).stdout.splitlines()]


def table_of(path: Path, rows: Sequence[Mapping[str, str]], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def errors_of(table: Path) -> dict[str, tuple[object, object]]:
    """Return the signed error of every source in a table of one row each."""
    times = [one for one in claims(table) if str(one["claim"]).startswith("plan.time")]
    return {
        str(one["source"]): (one["claim"], one["bias"]) for one in times if one["source"] != "all"
    }


def test_all_conventions_tell_the_same_step(tmp_path: Path) -> None:
    """Hardware FLOPs with the recomputation, model FLOPs, MFU, tokens/s, seconds: one run."""
    layers, hidden, vocab, seq, batch, gpus = 48, 8192, 51200, 2048, 1536, 512
    seconds, tokens = 16.0, batch * seq
    hardware = 96 * tokens * layers * hidden**2 / seconds / gpus
    hardware *= 1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)
    model = 72 * tokens * layers * hidden**2 / seconds / gpus
    model *= 1 + seq / (6 * hidden) + vocab / (12 * layers * hidden)
    told = {
        "iter_time_s": seconds,
        "tokens_per_s_total": tokens / seconds,
        "tokens_per_s_per_gpu": tokens / seconds / gpus,
        "hw_tflops_per_gpu": hardware / 1e12,
        "model_tflops_per_gpu": model / 1e12,
        "mfu_pct": 100 * model / 312e12,
    }
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for name, value in told.items():
            writer.writerow({**GPT_39B, "source": name, "metric_name": name, "metric_value": value})
        derived = {"setup_note": "NOT A MEASUREMENT", "metric_name": "iter_time_s"}
        writer.writerow({**GPT_39B, **derived, "metric_value": 1e9})
    found = {claim["source"]: claim for claim in claims(table) if claim["claim"] == "plan.time"}
    assert set(found) == {*told, "all"}
    assert found["all"]["n"] == len(told)
    errors = [found[name]["bias"] for name in told]
    assert errors == pytest.approx([errors[0]] * len(told), abs=2e-4)


@pytest.mark.parametrize(
    ("delimiter", "encoding", "header"),
    [
        (",", "utf-8-sig", str.upper),
        (";", "latin-1", str.title),
        ("\t", "utf-16", lambda line: line.replace("_", " ")),
        (",", "utf-8", lambda line: line.replace(",", ", ")),
    ],
)
def test_a_table_of_another_program_reads_the_same(
    delimiter: str, encoding: str, header: Callable[[str], str], tmp_path: Path
) -> None:
    rows = [{**SELENE, "source": "Jülich, arXiv 2104.04473"}]
    expected = claims(table_of(tmp_path / "plain.csv", rows))
    table = table_of(tmp_path / "other.csv", rows, delimiter)
    first, rest = table.read_text(encoding="utf-8").split("\n", 1)
    table.write_bytes(f"{header(first)}\n{rest}".encode(encoding))
    found = claims(table)
    assert [{**one, "source": ""} for one in found] == [{**one, "source": ""} for one in expected]


def test_a_bad_cell_loses_its_row_at_most(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    bad = [
        {**SELENE, "source": f"{key}={value}", key: value}
        for key in COLUMNS
        if key not in ("source", "setup_note")
        for value in ("nan", "inf", "-1", "0", "0.5", "?", "1e30")
    ]
    good = [SELENE, {**SELENE, "source": "none", "setup_note": "0 GPUs per node"}]
    table_of(table, [*bad, *good])
    with table.open("a") as file:
        file.write("\n,,,\nx,y,A100-80GB,8\n")
    found = claims(table)
    counted = sum(
        int(str(one["n"]))
        for one in found
        if one["source"] == "all" and str(one["claim"]).startswith(("plan.time", "plan.unread"))
    )
    assert counted == len(bad) + len(good) + 2
    assert "tp 8 x pp 2 x cp 1" in run(table).stderr  # of 512 GPUs: named, with its line


def test_a_table_without_most_columns_is_read(tmp_path: Path) -> None:
    decisive = ("gpu", "gpus", "layers", "hidden", "seq", "metric_name", "metric_value")
    for kept, unread in ((decisive, 0), (decisive[:-1], 1)):
        lines = [",".join(kept), ",".join(SELENE[key] for key in kept)]
        table = tmp_path / "table.csv"
        table.write_text("\n".join(lines))
        assert claims(table)[-1] == {"claim": "plan.unread", "source": "all", "n": unread}


# What a cell may say, and what reads the same. All of one run.
SAME: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"precision": "fp16/fp32 mixed"}, {}),
    ({"precision": "bf16 (8-bit Adam)"}, {"precision": "bf16"}),
    ({"act_recompute": "True"}, {}),
    ({"act_recompute": "full "}, {}),
    ({"act_recompute": "uniform-1"}, {}),
    ({"act_recompute": "op"}, {"act_recompute": "selective"}),
    ({"zero_stage": "0.0"}, {}),
    ({"params_b": "39.1B"}, {}),
    ({"global_batch_seqs": "1,536 sequences"}, {}),
    ({"metric_value": "138 TFLOP/s"}, {}),
    ({"metric_name": "HW TFLOPS/GPU"}, {}),
    ({"metric_name": "iter_time_ms", "metric_value": "16000"}, {"metric_name": "iter_time_s"}),
    ({"metric_name": "step_time_s", "metric_value": "16"}, {"metric_name": "iter_time_s"}),
    ({"metric_name": "samples_per_s", "metric_value": "96"}, {"metric_name": "iter_time_s"}),
    ({"setup_note": "512x A100-80GB, 8x200Gbps HDR"}, {}),
    ({"setup_note": "NVLink 600 GB/s, 8x 200 Gb/s IB"}, {}),
    ({"setup_note": "8x HDR, 600 GB/s NVLink"}, {}),
    ({"setup_note": "8 per node, 200 Gb/s/GPU"}, {}),
    ({"setup_note": "4x NDR"}, {}),
    ({"setup_note": "1.6 Tbps"}, {}),
]


def test_cells_in_other_words_read_the_same(tmp_path: Path) -> None:
    rows = []
    for at, (one, other) in enumerate(SAME):
        as_usual = {"metric_value": "16"} if other.get("metric_name") else {}
        rows.append({**SELENE, **one, "source": f"arXiv 2104.04473, {at}"})
        rows.append({**SELENE, **as_usual, **other, "source": f"arXiv 2104.04473, {at} usual"})
    found = errors_of(table_of(tmp_path / "table.csv", rows))
    for at, pair in enumerate(SAME):
        read, usual = (found[f"arXiv 2104.04473, {at}{end}"] for end in ("", " usual"))
        assert read == usual, pair


def test_cells_that_differ_are_not_read_as_the_usual(tmp_path: Path) -> None:
    """ZeRO 0 is not FSDP, TF32 not float32 and not fp8, H800's NVLink not H100's; Megatron is
    without FlashAttention before that was published, and Megatron-Core on Hopper."""
    torchtitan = {**SELENE, "tp": "1", "pp": "1", "dp": "512", "setup_note": "torchtitan FSDP"}
    rows = {
        "ddp": {**torchtitan, "zero_stage": "0"},
        "fsdp": {**torchtitan, "zero_stage": ""},
        "tf32": {**SELENE, "precision": "TF32"},
        "fp32": {**SELENE, "precision": "fp32"},
        "H100": {**SELENE, "gpu": "H100"},
        "H800": {**SELENE, "gpu": "H800"},
        "A800": {**SELENE, "gpu": "A800-80GB"},
        "Megatron-LM, arXiv 2105.00001": SELENE,
        "Megatron-LM, arXiv 2402.00001": SELENE,
        "Megatron-LM, arXiv 2402.00002": {**SELENE, "gpu": "H100"},
        "Megatron-Core": {**SELENE, "gpu": "H100"},
    }
    named = [{**row, "source": source} for source, row in rows.items()]
    found = errors_of(table_of(tmp_path / "table.csv", named))
    assert list(found) == list(rows)
    claim = {source: pair[0] for source, pair in found.items()}
    assert claim["tf32"] == claim["fp32"] == "plan.time.fp32"
    old, new, hopper = (
        f"Megatron-LM, arXiv {one}" for one in ("2105.00001", "2402.00001", "2402.00002")
    )
    assert found[hopper] == found["Megatron-Core"]
    pairs = [("ddp", "fsdp"), ("tf32", "fp32"), ("H100", "H800"), (old, new)]
    for one, other in pairs:
        assert found[one] != found[other], (one, other)


def test_a_row_without_a_layout_is_predicted_by_the_fastest_that_fits(tmp_path: Path) -> None:
    """And said to be; it is left out where none fits, and where its words say a layout."""
    bare = {**SELENE, "tp": "", "pp": "", "dp": "", "interleave": ""}
    rows = [
        {**SELENE, "source": "told"},
        {**bare, "source": "untold"},
        {**bare, "source": "too large", "gpus": "8", "global_batch_seqs": "24"},
        {**bare, "source": "torchtitan FSDP", "zero_stage": "", "precision": "bf16"},
        {**bare, "source": "by copies", "dp": "512"},
    ]
    done = run(table_of(tmp_path / "table.csv", rows))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["n"] for one in found if one["claim"] == "plan.layout"] == [1]
    assert found[-1] == {"claim": "plan.unread", "source": "all", "n": 1}
    times = {one["source"] for one in found if one["claim"] == "plan.time"}
    assert times == {"told", "untold", "torchtitan FSDP", "by copies", "all"}
    said = done.stderr.splitlines()
    assert len(said) == 2
    assert "line 3: tells no layout: predicted by the fastest that fits, dp " in said[0]
    assert "line 4: not read: no layout is told, and none of 8 GPUs holds the model" in said[1]


def test_errors_on_published_runs_stay_below_the_bars(data_root: Path | None) -> None:
    table = data_root / "scaling_tables.csv" if data_root is not None else None
    if table is None or not table.is_file():
        pytest.skip("RANKUP_DATA holds no scaling_tables.csv")
    found = claims(table)
    for claim in found:
        if claim["claim"] == "plan.time":
            # nanotron's tensor parallelism across nodes is not understood: its mean is larger.
            mean = 0.16 if "nanotron" in str(claim["source"]) else 0.15
            assert float(str(claim["median"])) <= 0.10, claim
            assert float(str(claim["mean"])) <= mean, claim
        if claim["claim"] == "plan.memory" and claim["source"] == "all":
            assert float(str(claim["mape"])) <= 0.12, claim
        if claim["claim"] == "plan.sweep" and claim["source"] == "all":
            assert float(str(claim["rank_correlation"])) >= 0.9, claim
            assert float(str(claim["lost_median"])) <= 0.05, claim
