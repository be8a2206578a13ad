"""`rankup verify` of a port by `--strategy fsdp`: each rank has a part of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.rewrite.ported import port
from rankup.port.verify import Request, start
from rankup.port.verify.command import judge

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "one_gpu_language_model.py"
LOADER = "rankup.shard(DataLoader(Text(70, 12, 1), batch_size=args.batch_size, shuffle=True))"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_run_is_proved_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "WORLDS", (2,))
    text = EXAMPLE.read_text(encoding="utf-8")
    text = text.replace("torch.save(model, ", "torch.save(model.state_dict(), ")
    Path("one.py").write_text(text)
    ported = port(Path("one.py"), strategy="fsdp").text
    assert ported.count("rankup.save_full_model(") == 2
    Path("two.py").write_text(ported)
    same = judge(Request("one.py", "two.py", seconds=240.0), lambda run: None)
    assert {one.state for one in same.results} == {"proved"}, same

    assert LOADER in ported
    Path("two.py").write_text(ported.replace(LOADER, LOADER[len("rankup.shard(") : -1]))
    other = judge(Request("one.py", "two.py", seconds=240.0), lambda run: None)
    assert "samples" in {one.check for one in other.results if one.state == "differs"}
