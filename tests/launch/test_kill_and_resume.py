"""kill -9 of a rank, a resume at another world size: each sample once (invariant 2), same run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import psutil
import pytest

from tests.conftest import RunRankup, TextFiles
from tests.gallery import SAMPLES as PER_RUN
from tests.gallery import TRACE, Gallery, run_by_pool
from tests.pool import RankPool

from .live import TINY, live, losses, records

ENV = {"OMP_NUM_THREADS": "1"}
BATCH, EPOCHS = 24, 1
SAMPLES = 1440  # of 8 bytes, cut from the text


def _args(text: TextFiles, folder: Path, nproc: int) -> list[str]:
    return ["run", "--nproc", str(nproc), "--out", str(folder), *_recipe(text, folder)]


def _recipe(text: TextFiles, folder: Path) -> list[str]:
    short = folder.parent / "short.txt"
    short.write_bytes(text.train.read_bytes()[: SAMPLES * 8 + 1])
    words: list[object] = ["language-model"]
    words += ["--train", short, "--valid", text.valid, "--test", text.test, *TINY]
    words += ["--global-batch", BATCH, "--micro-batch", 4, "--epochs", EPOCHS]
    words += ["--optimizer", "sgd", "--lr", 0.1, "--momentum", 0, "--dropout", 0.1]
    words += ["--checkpoint-every", 8, "--valid-every", 1000]
    words += ["--trace-samples", folder.parent / f"{folder.name}.trace"]
    return list(map(str, words))


def _trace(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _each_once(path: Path) -> None:
    lines = _trace(path)
    for epoch in range(EPOCHS):
        drawn = [i for line in lines if line["epoch"] == epoch for i in line["samples"]]  # type: ignore[attr-defined]
        assert sorted(drawn) == list(range(SAMPLES))
    steps = -(-SAMPLES // BATCH) * EPOCHS
    assert sorted({line["step"] for line in lines}) == list(range(1, steps + 1))  # type: ignore[type-var]
    pairs = [(line["step"], line["rank"]) for line in lines]
    assert len(set(pairs)) == len(pairs)


def _killed(args: list[str], out: Path, at: int, rank: int, nproc: int) -> int:
    """Start, kill -9 `rank` when `at` steps are done; the last step that was written down."""
    with live(args, out.parent, ENV) as run:
        ranks: list[psutil.Process] = run.ranks(nproc)
        run.until(lambda: len(records(out)) >= at)
        ranks[rank].kill()
        assert run.wait(300) == 137, run.err
        run.nobody_left()
        lines = run.err.rstrip().splitlines()
    assert lines[-1] == f"go on with: rankup run --resume {out}"
    assert f"rank {rank} on " in lines[-2]
    assert "killed by SIGKILL" in lines[-2]
    return int(records(out)[-1]["step"])


def _resume(run_rankup: RunRankup, out: Path, nproc: int) -> None:
    more: list[str | Path] = ["language-model", "--trace-samples", out.with_suffix(".trace")]
    done = run_rankup(["run", "--resume", out, "--nproc", str(nproc), *more], env=ENV)
    assert done.returncode == 0, done.stderr
    _each_once(out.with_suffix(".trace"))
    final = records(out)[-1]
    assert final["final"] is True
    attempts = json.loads((out / "job.json").read_text())["attempts"]
    assert attempts[-1]["nproc"] == nproc
    assert len(attempts) == 2


def test_killed_and_resumed_on_another_number_each_sample_is_drawn_once(gallery: Gallery) -> None:
    """Two ranks, of which one is killed in the middle of a checkpoint; three go on."""
    run, whole = gallery.run("resumed"), gallery.run("2")
    drawn: dict[int, list[int]] = {}
    for line in _trace(run / TRACE):
        drawn.setdefault(line["epoch"], []).extend(line["samples"])  # type: ignore[call-overload]
    full = [sorted(samples) == list(range(PER_RUN)) for samples in drawn.values()]
    assert full.count(False) <= 1, "the last epoch alone is not whole"
    assert full[:-1] == [True] * (len(full) - 1)
    pairs = [(line["step"], line["rank"]) for line in _trace(run / TRACE)]
    assert len(set(pairs)) == len(pairs)
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)
    assert records(run)[-1]["final"] is True
    started = json.loads((run / "job.json").read_text())["attempts"]
    assert [(attempt["nproc"], attempt["code"]) for attempt in started] == [(2, 137), (3, 0)]


@pytest.mark.slow
def test_kill_at_any_step_and_resume(
    run_rankup: RunRankup, ranks: RankPool, small_text: TextFiles, tmp_path: Path
) -> None:
    """On as many ranks as before: bit for bit what nothing interrupted."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    recipe, *words = _recipe(small_text, whole)
    run_by_pool(ranks, 2, recipe, words, whole)
    _each_once(whole.with_suffix(".trace"))
    dice = random.Random(1)
    last = _killed(_args(small_text, out, 2), out, dice.randint(9, 40), dice.randrange(2), 2)
    assert last < max(losses(whole))
    _resume(run_rankup, out, 2)
    assert losses(out) == losses(whole)
