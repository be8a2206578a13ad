"""Invariant 10, *a figure is true*: benches count recorded steps and refuse what cannot be."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import common
from _ranks import Team, recorded, write_text

sys.path.pop(0)  # `bench/` has names that others have, too


def test_what_benches_import_of_rankup_is_there() -> None:
    """They run seldom, and a name that moved broke `bench/_loops.py` unseen."""
    for path in sorted(common.BENCH.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "rankup":
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name) or importlib.util.find_spec(
                        f"{module.__name__}.{name.name}"
                    ), f"{path.name} imports {name.name} of {node.module}"


@pytest.mark.parametrize(("better", "ours"), [("higher", 13.1), ("lower", 7.6)])
def test_a_ratio_that_cannot_be_is_refused(better: str, ours: float) -> None:
    with pytest.raises(SystemExit, match=r"cannot be") as refusal:
        common.claim("x.1", ours, 10.0, "steps/s", "", better=better, same_loop=True)  # type: ignore[arg-type]
    assert refusal.value.code  # a message: the exit status is 1
    line = json.loads(common.claim("x.1", 12.9, 10.0, "steps/s", "n", same_loop=True))
    expected = {"claim", "ours", "peer", "unit", "better", "note"}
    assert set(line) == expected
    assert line["ours"] == 12.9
    assert json.loads(common.claim("x.2", 50.0, 10.0, "steps/s", ""))["ours"] == 50  # other work
    with pytest.raises(SystemExit, match="cannot be"):
        common.claim("x.3", float("nan"), 10.0, "steps/s", "")


def test_steps_are_those_of_the_records(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [{"step": k, "time": 100.0 + k} for k in range(1, 9)]
    file.write_text("\n".join(json.dumps(line) for line in [*lines, {"checkpoint": 8, "time": 1}]))
    assert recorded(file, since=103.5) == [104.0, 105.0, 106.0, 107.0, 108.0]
    file.write_text("\n".join(json.dumps(line) for line in lines if line["step"] != 6))
    with pytest.raises(SystemExit, match="missing"):
        recorded(file, since=0.0)


@pytest.mark.slow
def test_each_contestant_takes_the_steps_it_is_timed_by(tmp_path: Path) -> None:
    options = {"vocab": "byte", "seq_len": 8, "layers": 1, "dim": 8, "heads": 2, "warmup": 5}
    options = write_text(tmp_path, {**options, "global_batch": 4, "micro_batch": 2}, 400)
    contestants = ("rankup", "by hand", "shard and wrap", "DistributedDataParallel")
    with closing(Team(2, tmp_path, options, contestants)) as team:
        for _ in range(2):
            for name in contestants:
                assert team.slice(name, 6).steps in (5, 6)
        for name in contestants:  # the last step of each turn is recorded in the next
            assert team.records(name)[-1]["step"] in (18, 19, 20)
