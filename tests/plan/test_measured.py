"""`rankup plan --measured RUN`: one constant from the steps of a run, and runs that say none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.plan.estimate import estimate
from rankup.plan.machine import machine
from rankup.plan.machines import Site
from rankup.plan.measured import at_pace
from rankup.plan.target import Sizes, find
from rankup.plan.words import layout_of
from rankup.site import rundir
from rankup.site.rundir import Job
from tests.conftest import RunRankup

WORDS = ["--vocab", "byte", "--layers", "12", "--dim", "1024", "--heads", "16", "--seq-len", "1024"]
WORDS += ["--global-batch", "64", "--micro-batch", "8", "--precision", "bf16"]
GPU = ["--gpu", "GH200", "--gpus-per-node", "4", "--nic", "100GB/s"]
BEGAN = "2026-11-29T12:00:00+0000"
FASTER = 0.8  # than the constants give


def _record(number: int, seconds: float, **more: Any) -> dict[str, Any]:
    """A line of metrics.jsonl, at half of GH200's peak."""
    tokens = 64 * 1024
    shape = find("language-model", WORDS, Sizes()).shape
    flops = tokens * shape.train_flops() / (4 * 989e12)
    began = rundir.moment(BEGAN) or 0.0
    record = {"step": number, "loss": 1.0, "seconds": seconds, "data_wait": 0.0}
    return record | {"mfu": flops / seconds, "time": began + number} | more


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four GH200, whose first steps took long."""
    path = rundir.create(tmp_path / "runs" / "language-model" / "20261129-120000-abcd")
    attempt = {"started": BEGAN, "nodes": 1, "nproc": 4}
    job = Job(path.name, "recipe", "language-model", WORDS, str(tmp_path), {}, {}, [attempt])
    rundir.write(path, job)
    seconds = FASTER * _predicted()
    steps = [_record(n, 9.0 if n < 4 else seconds) for n in range(1, 41)]
    # Of another attempt, on other ranks; a validation; and what no line is.
    before = [_record(n, 100.0, time=1.0) for n in range(1, 41)]
    others = [{"step": 40, "valid_loss": 2.0}, {"final": True}]
    lines = [json.dumps(record) for record in (*before, *steps, *others)]
    (path / "metrics.jsonl").write_text("\n".join([*lines, '{"torn']))
    return path


def _predicted() -> float:
    target = find("language-model", WORDS, Sizes())
    assert target.recipe is not None
    layout = layout_of(target.recipe, 4, target.recipe.layout(4, 4))
    return estimate(target.shape, layout, machine("GH200", 4, 100e9)).seconds


def _plan(rankup: RunRankup, *words: str) -> Any:
    done = rankup(["plan", *GPU, "--gpus", "4,16", "--json", *words, "language-model", *WORDS])
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_all_times_are_at_the_pace_of_the_run(rankup_here: RunRankup, run: Path) -> None:
    plain, paced = _plan(rankup_here), _plan(rankup_here, "--measured", "last")
    assert paced["machine"]["pace"] == pytest.approx(FASTER)
    assert plain["machine"]["pace"] is None
    for one, other in zip(plain["rows"], paced["rows"], strict=True):
        assert one["layout"] == other["layout"]
        assert other["seconds_per_step"] == pytest.approx(FASTER * one["seconds_per_step"])
        assert other["memory_total"] == one["memory_total"]
        assert other["band"] < one["band"]  # nobody had measured a GH200
        terms = sum(term["seconds"] for term in other["terms"])
        assert terms == pytest.approx(other["seconds_per_step"])
    said = paced["notes"][-1]
    assert f"{run.name} took {FASTER * _predicted():.3g} s per step on 4 GPUs (ddp;" in said
    assert "median of 35 steps" in said


def test_what_waits_for_data_is_no_pace(rankup_here: RunRankup, run: Path) -> None:
    seconds = FASTER * _predicted()
    steps = [_record(n, seconds / 0.8, data_wait=0.2) for n in range(1, 41)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    found = _plan(rankup_here, "--measured", str(run))
    assert found["machine"]["pace"] == pytest.approx(FASTER)
    assert "20% more waiting for data" in found["notes"][-1]


def _rewritten(run: Path, **changes: Any) -> None:
    job = json.loads((run / rundir.JOB).read_text())
    (run / rundir.JOB).write_text(json.dumps({**job, **changes}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "/home/me/train.py", "kind": "script"}, "is a run of train; how much a step"),
        ({"attempts": []}, "does not say on how many ranks"),
        ({"attempts": [{"started": "2027-01-01T00:00:00+0000", "nproc": 4}]}, "has 0 steps behind"),
    ],
)
def test_a_run_that_says_no_pace_is_refused(
    rankup_here: RunRankup, run: Path, change: dict[str, Any], said: str
) -> None:
    _rewritten(run, **change)
    done = rankup_here(["plan", *GPU, "--measured", "last", "language-model", *WORDS])
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("seconds", "more", "gpu", "said"),
    [
        (1.0, {"mfu": None}, "GH200", "was on no GPU that rankup knows"),
        (1.0, {}, "A100-80GB", "was on GPUs of 989 TFLOP/s, and A100-80GB has 312"),
        (60.0, {}, "GH200", "or something else held it up"),
    ],
)
def test_a_run_on_another_machine_is_refused(
    rankup_here: RunRankup, run: Path, seconds: float, more: dict[str, Any], gpu: str, said: str
) -> None:
    steps = [_record(n, seconds * _predicted(), **more) for n in range(1, 41)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    done = rankup_here(["plan", "--gpu", gpu, "--measured", "last", "language-model", *WORDS])
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_a_run_that_is_not_there_is_said(rankup_here: RunRankup, run: Path) -> None:
    done = rankup_here(["plan", *GPU, "--measured", "nowhere", "language-model", *WORDS])
    assert done.returncode == 2
    assert "no run 'nowhere'" in done.stderr
    assert run.name in done.stderr


def test_a_run_in_tf32_leaves_the_machine_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Path
) -> None:
    """The plan is of another run, which may multiply in float32."""
    monkeypatch.chdir(tmp_path)
    words = [*WORDS[:-1], "fp32", "--tf32"]
    _rewritten(run, args=words)
    site = Site("ours", machine("GH200", 4, 100e9))
    target = find("language-model", words, Sizes())
    assert target.recipe is not None
    layout = layout_of(target.recipe, 4, target.recipe.layout(4, 4))
    seconds = estimate(target.shape, layout, site.tf32().machine).seconds
    (run / "metrics.jsonl").write_text(
        "\n".join(json.dumps(_record(n, seconds)) for n in range(1, 41))
    )
    paced = at_pace(site, "last").machine
    assert paced.pace == pytest.approx(1.0)
    assert replace(paced, pace=None) == site.machine


def test_a_model_whose_folder_is_gone_is_as_the_run_has_kept_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096}
    config |= {"num_hidden_layers": 12, "num_attention_heads": 16, "vocab_size": 32000}
    config |= {"max_position_embeddings": 1024, "rms_norm_eps": 1e-5}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    words = ["--model", str(folder), *WORDS[8:]]
    target = find("language-model", words, Sizes())
    assert target.recipe is not None
    layout = layout_of(target.recipe, 4, target.recipe.layout(4, 4))
    site = Site("ours", machine("GH200", 4, 100e9))
    seconds = estimate(target.shape, layout, site.machine).seconds
    _rewritten(run, args=words, kept=target.recipe.kept)
    (folder / "config.json").unlink()
    mfu = 64 * 1024 * target.shape.train_flops() / (4 * 989e12) / seconds
    (run / "metrics.jsonl").write_text(
        "\n".join(json.dumps(_record(n, seconds, mfu=mfu)) for n in range(1, 41))
    )
    assert at_pace(site, "last").machine.pace == pytest.approx(1.0)
