"""`tools/gpu_smoke.py`, which a machine with GPUs begins with, works and ends: shown on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "gpu_smoke.py"


def smoke(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--cpu-smoke", "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.slow
def test_it_counts_graphs_types_and_losses(tmp_path: Path) -> None:
    done = smoke(tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = {
        line[:30].strip(): line[30:].split()
        for line in done.stdout.splitlines()
        if line.startswith(("fsdp,", "tp,", "pp,"))
    }
    compiled = {"fsdp, compiled, selective", "tp, compiled, none", "pp, compiled, none"}
    assert set(rows) == {"fsdp, eager, none", *compiled}
    for cell, (graphs, breaks, logits, first, _, last) in rows.items():
        assert (int(graphs) > 0) == ("compiled" in cell), done.stdout
        assert (breaks, logits) == ("0", "bfloat16")
        assert float(last) < float(first)


def test_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    done = smoke(tmp_path, "--minutes", "0.1")
    assert "not run: " in done.stdout, done.stdout
    assert "Traceback" not in done.stderr
