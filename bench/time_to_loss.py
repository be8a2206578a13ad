"""Seconds of training until our `language-model` is as good as the course's after 300 steps.

Claim `time_to_loss`: ours / peer, 0.7 at most. The peer is the course's formulation in plain
PyTorch (`_time_to_loss_run.py`), with the causal mask that it lacks; ours is the recipe as
`rankup run` trains it, with metrics and checkpoints. Both have the same text (WikiText-2 of
`RANKUP_DATA`), the same vocabulary, windows of 32 words, one thread, the best learning rate of one
grid, and are validated on the whole validation text in windows of 32; ours has fewer parameters.
Per seed both run at the same time, so that what else the machine does hits both. Time is CPU time
of the process, which on an idle machine is the wall's; wall times stand beside. Validations, at
which ours is looked for the peer's loss, do not count, nor does starting Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ranks import rank_environments
from _time_to_loss_run import Point
from common import BENCH, claim, data_folder, machine, median, ratios, table
from rankup.recipes.options import LanguageModelOptions

GRID = (1e-3, 2e-3, 4e-3)
BAR = 0.7
_FEW_WORDS = 8_000  # of a quick validation


@dataclass(frozen=True)
class Effort:
    """How long to measure: steps of the peer, of ours and of the trials of the grid; seeds."""

    peer: int
    ours: int
    every: int
    grid: int
    seeds: int
    quick: bool = False


@dataclass(frozen=True)
class Run:
    """One training, in a process of its own."""

    who: str
    lr: float
    seed: int
    steps: int
    every: int


def main() -> None:
    effort, keep = _arguments()
    print(f"{machine('torch')}, one thread each\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        text = _text(folder / ("text-quick" if effort.quick else "text"), effort.quick)
        rates = _best_rates(folder, text, effort)
        pairs = []
        for seed in range(effort.seeds):
            peer = Run("peer", rates["peer"], seed, effort.peer, effort.peer)
            ours = Run("ours", rates["ours"], seed, effort.ours, effort.every)
            done = _together(folder, text, [peer, ours])
            pairs.append((done[0], done[1]))
    _report(pairs, rates, effort)


def _report(
    pairs: list[tuple[list[Point], list[Point]]], rates: dict[str, float], effort: Effort
) -> None:
    rows, cpu, wall = [], [], []
    for seed, (course, ours) in enumerate(pairs):
        target = course[-1]
        met = next((point for point in ours if point.loss <= target.loss), None)
        if met is None:
            rows.append([str(seed), f"{target.loss:.3f}", f"{target.cpu:.0f}", "never", "", ""])
            continue
        if met.parameters > target.parameters:
            raise SystemExit(f"bench: ours has {met.parameters} parameters, {target.parameters}")
        cpu.append((met.cpu, target.cpu))
        wall.append((met.wall, target.wall))
        share = f"{met.cpu / target.cpu:.3f}"
        seconds = [f"{target.cpu:.0f}", f"{met.cpu:.0f}", share, f"{met.wall / target.wall:.3f}"]
        rows.append([f"{seed}", f"{target.loss:.3f}", *seconds, str(met.step)])
    head = ["seed", "loss", "peer CPU s", "ours CPU s", "ratio", "ratio of walls", "our step"]
    table(head, [row + [""] * (len(head) - len(row)) for row in rows])
    if len(cpu) < len(pairs):
        raise SystemExit("bench: ours did not come to the peer's loss with every seed: no claim")
    mine, theirs = (median([pair[side] for pair in cpu]) for side in (0, 1))
    note = (
        f"CPU seconds to the loss of the peer after {effort.peer} steps, median of {len(cpu)} "
        f"seeds; lr {rates['ours']:g} and {rates['peer']:g}; at most {BAR}; ratio of walls "
        f"{median(ratios(*zip(*wall, strict=True))):.3f}"
    )
    print(claim("time_to_loss", mine, theirs, "s", note, better="lower"))


def _best_rates(folder: Path, text: Path, effort: Effort) -> dict[str, float]:
    """Return for each the learning rate of the grid with the lowest loss, by runs of seed 0."""
    if not effort.grid:
        return {"peer": 2e-3, "ours": 2e-3}
    best, rows = {}, []
    # Ours takes eight steps in the time of one: it is tried by the time, not by the steps.
    for who, steps in (("peer", effort.grid), ("ours", effort.ours // 2)):
        found = {}
        for lr in GRID:
            [points] = _together(folder, text, [Run(who, lr, 0, steps, steps)])
            found[lr] = points[-1].loss
        rows.append([f"{who}, {steps} steps", *(f"{found[lr]:.3f}" for lr in GRID)])
        best[who] = min(found, key=lambda lr: found[lr])
    table(["loss by learning rate", *(f"{lr:g}" for lr in GRID)], rows)
    return best


def _together(folder: Path, text: Path, runs: list[Run]) -> list[list[Point]]:
    """Train at the same time what is not kept from before; return the points of each run."""
    files = [folder / f"{r.who}-{r.lr:g}-{r.seed}-{r.steps}-{text.name}.jsonl" for r in runs]
    started = [
        None if file.exists() else _start(run, file, text)
        for run, file in zip(runs, files, strict=True)
    ]
    try:
        for process, run, file in zip(started, runs, files, strict=True):
            if process is None:
                continue
            if process.wait():
                raise SystemExit(f"bench: {run} failed; see {file.with_suffix('.log')}")
            file.with_suffix(".part").replace(file)
    finally:
        for process in started:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
    return [[Point(**json.loads(line)) for line in f.read_text().splitlines()] for f in files]


def _start(run: Run, file: Path, text: Path) -> subprocess.Popen[bytes]:
    place = file.with_suffix(".run")
    spec: dict[str, Any] = {**vars(run), "text": str(text), "place": str(place)}
    [environment] = rank_environments(1)
    with file.with_suffix(".part").open("wb") as out, file.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-u", BENCH / "_time_to_loss_run.py", json.dumps(spec)],
            stdout=out,
            stderr=log,
            env=environment,
        )


def _text(folder: Path, quick: bool) -> Path:
    """Tokenise WikiText-2; the test text is only evaluated for the last line of a run."""
    data = data_folder("wikitext-2")
    folder.mkdir(parents=True, exist_ok=True)
    words = (data / "valid.txt").read_text().split()
    files = {name: folder / f"{name}.txt" for name in ("valid", "test")}
    files["valid"].write_text(" ".join(words[: _FEW_WORDS if quick else None]))
    files["test"].write_text(" ".join(words[:200]))
    LanguageModelOptions(
        train=str(data / "train.txt"), valid=str(files["valid"]), test=str(files["test"])
    ).prepare(folder)
    return folder


def _arguments() -> tuple[Effort, Path | None]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="20 steps of the peer, one seed")
    parser.add_argument("--keep", type=Path, help="keep what is done here, and go on from it")
    given = parser.parse_args()
    if given.quick:
        return Effort(20, 120, 20, 0, 1, True), given.keep
    return Effort(300, 1200, 50, 100, 3), given.keep


if __name__ == "__main__":
    main()
