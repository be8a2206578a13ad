"""`bench/plan.py` reads every convention of published figures, and the errors are small."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
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


def claims(table: Path) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, BENCH, "--table", table], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


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
