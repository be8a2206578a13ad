"""`rankup verify` of a port by `--strategy fsdp`: each rank has a part of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.rewrite.ported import port

from .several import differing, results

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "one_gpu_language_model.py"
LOADER = "rankup.shard(DataLoader(Text(70, 12, 1), batch_size=args.batch_size, shuffle=True))"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_run_is_proved_and_another_is_not(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    text = text.replace("torch.save(model, ", "torch.save(model.state_dict(), ")
    (tmp_path / "one.py").write_text(text)
    ported = port(tmp_path / "one.py", strategy="fsdp").text
    assert ported.count("rankup.save_full_model(") == 2
    assert LOADER in ported
    other = ported.replace(LOADER, LOADER[len("rankup.shard(") : -1])
    found = results(tmp_path, text, {"same": ported, "other": other}, ["same"], 240.0)
    assert {one.state for one in found["same"]} == {"proved"}, found["same"]
    assert "samples" in differing(found["other"])
