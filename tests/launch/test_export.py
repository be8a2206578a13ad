"""`rankup export`: the model of a run as one file, from the parts any layout has written."""

from __future__ import annotations

import errno
import importlib.util
import json
import pickle
import platform
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankup.base import gone
from rankup.base.errors import UserError
from rankup.launch import weights as module
from rankup.launch.weights import export
from rankup.runtime.restore import fingerprint
from rankup.runtime.world import World
from rankup.site import rundir
from rankup.train.checkpoint import Saved, Saver
from rankup.train.plan import Place
from tests.conftest import RunRankup
from tests.pool import RankPool
from tests.runtime.split import SIZES, Net, advance, assert_equal, make

from .handmade import make_run


def _train(world: World, layout: str, folder: Path) -> Any:
    split = make(layout)
    saver = Saver(folder / "checkpoints", 2, asynchronous=False)
    for step in (1, 2):
        advance(split, range(step, step + 1))
        saver.save(split.model, split.optimizer, Saved(Place(step), {}, (2.5, 1)), split.copies)
        assert saver.wait() == ""
    return split.model.state_dict() if layout == "plain" else None


@pytest.fixture(scope="module")
def made(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, one per layout, and `wanted.pt` with what their models came to."""
    root = tmp_path_factory.mktemp("runs")
    for layout in ("plain", "fsdp", "tp", "pp"):
        run = make_run(root, name=f"20261120-120000-{layout.replace(' ', '')[:4]:x<4}")
        found = ranks.run(SIZES[layout], _train, layout, run)[0]
        if layout == "plain":
            torch.save(found, root / "wanted.pt")
    return root


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


def _run(runs: Path, letters: str) -> Path:
    [path] = runs.glob(f"*/*-{letters}")
    return path


def _load(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return state


@pytest.mark.parametrize(
    ("letters", "to"),
    [("plai", "torch"), ("fsdp", "safetensors"), ("tpxx", "torch"), ("ppxx", "safetensors")],
)
def test_the_newest_checkpoint_as_one_file(
    runs: Path, letters: str, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(runs, letters)
    assert export(str(run), to) == 0
    path = run / f"model-step-00000002{module.SUFFIXES[to]}"
    assert str(path) in capsys.readouterr().out
    assert_equal(_load(path), torch.load(runs / "wanted.pt", weights_only=True))
    Net().load_state_dict(_load(path), strict=True)
    assert not list(run.glob(".*.tmp"))


def test_the_command(runs: Path, rankup_here: RunRankup, tmp_path: Path) -> None:
    run, out = _run(runs, "fsdp"), tmp_path / "one.safetensors"
    done = rankup_here(["export", run, "--to", "safetensors", "--step", "1", "--out", out])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "step 1" in done.stdout
    assert not torch.equal(
        load_file(out)["up.weight"], torch.load(runs / "wanted.pt", weights_only=True)["up.weight"]
    )
    again = rankup_here(["export", run, "--to", "safetensors", "--step", "1", "--out", out])
    assert again.returncode == 2
    assert "--force replaces it" in again.stderr


@pytest.mark.parametrize(
    ("args", "typed"),
    [
        (["--strategy", "gossip", "--steps", "9"], "--strategy gossip"),
        (["--steps", "9", "--compress=topk:0.1"], "--compress topk"),
        (["--strategy", "pp", "--pp-timeline"], "--pp-timeline"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_with_an_option_that_is_gone_says_so(
    runs: Path, rankup_here: RunRankup, tmp_path: Path, args: list[str], typed: str
) -> None:
    """Its weights are written, and status shows it; a resume ends with the sentence."""
    run = _run(runs, "plai")
    ended: dict[str, Any] = {"started": "2026-11-20T12:00:00+0000", "nproc": 1, "code": 1}
    ended |= {"ended": "2026-11-20T12:01:00+0000", "node": platform.node()}
    old: dict[str, Any] = {"kind": "recipe", "target": "language-model", "args": args}
    old["attempts"] = [ended]
    rundir.write(run, replace(rundir.read(run), **old))
    sentence = gone.sentence(*typed.split())
    to = ["--to", "safetensors", "--out", "model.safetensors"]
    exported = rankup_here(["export", str(run), *to])
    assert exported.returncode == 0, exported.stderr
    assert f"note: {sentence}; the weights" in exported.stderr
    resumed = rankup_here(["run", "--local", "--resume", str(run)])
    assert (resumed.returncode, sentence in resumed.stderr) == (2, True), resumed.stderr
    shown = rankup_here(["status", str(run)])
    assert shown.returncode == 0, shown.stderr
    assert sentence in " ".join(shown.stdout.split())


def test_a_run_of_a_recipe_that_is_gone_says_so(
    runs: Path, rankup_here: RunRankup, tmp_path: Path
) -> None:
    """Its weights are written all the same; what needs the recipe ends with the sentence."""
    run = _run(runs, "plai")
    failed = {"started": "2026-11-20T12:00:00+0000", "ended": "2026-11-20T12:01:00+0000"}
    failed |= {"nproc": 1, "node": platform.node(), "code": 1}  # type: ignore[dict-item]
    old = {"kind": "recipe", "target": "summarization", "args": ["--beams", "2"]}
    rundir.write(run, replace(rundir.read(run), **old, attempts=[failed]))  # type: ignore[arg-type]
    sentence = gone.sentence("summarization")
    to = ["--to", "safetensors", "--out", "model.safetensors"]
    exported = rankup_here(["export", str(run), *to])
    assert exported.returncode == 0, exported.stderr
    assert exported.stderr == f"note: {sentence}; the weights are written by their own names\n"
    torch.testing.assert_close(
        _load(tmp_path / "model.safetensors"), torch.load(runs / "wanted.pt", weights_only=True)
    )
    for words in (
        ["generate", str(run), "a text"],
        ["run", "--local", "--resume", str(run)],
        ["run", "--local", "summarization"],
        ["recipes", "summarization"],
    ):
        refused = rankup_here(words)
        assert refused.returncode == 2
        assert refused.stderr.splitlines()[-1] == f"rankup: {sentence}"
    shown = rankup_here(["status", str(run)])
    assert shown.returncode == 0
    assert sentence in " ".join(shown.stdout.split())
    assert "--resume" not in shown.stdout


def test_the_best_model(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of step 1, while step 2 is the newest."""
    run = _run(runs, "plai")
    export(str(run), "safetensors", best=True)
    assert "2.5, was at step 1" in capsys.readouterr().err
    export(str(run), "torch", step=1)
    assert_equal(load_file(run / "model-best.safetensors"), _load(run / "model-step-00000001.pt"))
    shutil.rmtree(run / "checkpoints" / "step-00000001")
    with pytest.raises(UserError, match=r"no complete checkpoint of step 1 .* there are: 2"):
        export(str(run), "safetensors", best=True, force=True)


def test_what_is_torn_is_passed_over_and_said(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(runs, "fsdp")
    (run / "checkpoints" / "step-00000002" / "__1_0.distcp").unlink()
    export(str(run), "torch")
    assert "step-00000002 is torn (__1_0.distcp is missing)" in capsys.readouterr().err
    assert (run / "model-step-00000001.pt").exists()
    with pytest.raises(UserError, match="step 2 is torn"):
        export(str(run), "torch", step=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 7}, r"no complete checkpoint of step 7 .* there are: 2, 1"),
        ({"best": True, "step": 1}, "give one of them"),
        ({"to": "onnx"}, "known are safetensors, torch"),
        ({"run": "nosuch"}, "no run 'nosuch'"),
        ({"out": "nowhere/model.pt"}, "there is no folder"),
        ({"out": "."}, "is a folder"),
    ],
)
def test_errors_say_what_there_is(
    runs: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(runs)
    given = {"run": str(_run(runs, "plai")), "to": "torch", **options}
    with pytest.raises(UserError, match=words):
        export(**given)


@pytest.mark.parametrize("best", [False, True])
def test_a_run_without_a_checkpoint(tmp_path: Path, best: bool) -> None:
    with pytest.raises(UserError, match="no complete checkpoint"):
        export(str(make_run(tmp_path)), "torch", best=best)


def test_a_run_that_never_validated(runs: Path) -> None:
    run = _run(runs, "plai")
    for path in run.glob("checkpoints/*/COMPLETE"):
        about = json.loads(path.read_text())
        about["extra"]["best"] = None
        del about["hash"]
        path.write_text(json.dumps(about))
    with pytest.raises(UserError, match="the run has not validated yet"):
        export(str(run), "torch", best=True)


def test_safetensors_may_be_missing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "safetensors" else find(name)
    )
    with pytest.raises(UserError, match="pip install safetensors"):
        export(str(_run(runs, "plai")), "safetensors")


@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_a_failure_leaves_the_old_file(
    runs: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    run, out = _run(runs, "plai"), runs / "old"
    out.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        export(str(run), to, out=str(out), force=True)
    assert out.read_text() == "old"
    assert not list(runs.glob(".*.tmp"))


@pytest.mark.parametrize("to", ["safetensors", "torch"])
def test_a_full_disk_is_called_one(runs: Path, tmp_path: Path, to: str) -> None:
    run, before = _run(runs, "plai"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            export(str(run), to, out=str(tmp_path / "model"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert to != "torch" or caught.value.errno == errno.EFBIG
    assert not list(tmp_path.glob("*model*"))


@pytest.mark.parametrize("hostile", [{}, torch.Size([1]), "record"], ids=str)
def test_metadata_that_is_none_is_said(runs: Path, hostile: Any) -> None:
    folder = _run(runs, "plai") / "checkpoints" / "step-00000002"
    if hostile == "record":
        hostile = pickle.loads((folder / ".metadata").read_bytes())
        hostile.state_dict_metadata["model.up.weight"].size = None
    (folder / ".metadata").write_bytes(pickle.dumps(hostile))
    marker = json.loads((folder / "COMPLETE").read_text())
    del marker["hash"]
    marker["files"][".metadata"] = fingerprint(folder / ".metadata")
    (folder / "COMPLETE").write_text(json.dumps(marker))
    with pytest.raises(UserError, match="step-00000002 cannot be read"):
        export(str(_run(runs, "plai")), "torch")
