"""A split that does not come out is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import request
from rankup.site.rundir import Job
from tests.conftest import RunRankup

HEADS = ("--heads", "6", "--dim", "12")
REFUSED: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a product that is not the number of ranks": (
        ["--nproc", "3", "language-model", "--tp", "2"],
        # Three ranks cannot share four heads, so that is not proposed.
        (
            "pp 1 x dp 1 x shard 1 x tp 2 is 2 ranks, and there are 3",
            "nearest that come out: --shard 3 or --dp 3",
            "a multiple of 2",
        ),
    ),
    "a strategy that needs another number": (
        ["--nproc", "6", "language-model", "--strategy", "3d"],
        ("--strategy 3d on 6 ranks", "pp 2 x dp 1 x shard 1 x tp 2 is 4 ranks", "multiple of 4"),
    ),
    "heads that cannot be shared": (
        ["--nproc", "4", "language-model", "--tp", "4", *HEADS],
        ("over 4 ranks cannot share --heads 6", "--tp that fits: 1, 2, 3, 6"),
    ),
    "more stages than parts": (
        ["--nproc", "4", "language-model", "--strategy", "pp", "--layers", "1"],
        ("makes 4 pipeline stages, more than the 3 parts", "smaller --pp or more --layers"),
    ),
    "stages that a schedule doubles": (
        ["--nproc", "4", "language-model", "--strategy", "pp", "--pp-schedule", "interleaved"],
        ("--pp 4 under interleaved makes 8 pipeline stages, more than the 6 parts",),
    ),
    "an option of the recipe before its name": (
        ["--strategy", "fsdp", "language-model"],
        ("--strategy is an option of a recipe: it stands behind the recipe's name",),
    ),
    "an unknown schedule": (
        ["--nproc", "2", "language-model", "--strategy", "pp", "--pp-schedule", "interleafed"],
        ("unknown pipeline schedule 'interleafed'", "did you mean interleaved"),
    ),
    "host memory for what is not sharded": (
        ["--nproc", "2", "language-model", "--offload"],
        ("--offload keeps shards", "add --strategy fsdp"),
    ),
    "two words that contradict each other": (
        ["--nproc", "2", "language-model", "--strategy", "ddp", "--tp", "2"],
        ("--strategy ddp and --tp 2 contradict each other",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_what_would_come_out(
    rankup_here: RunRankup, tmp_path: Path, name: str
) -> None:
    words, said = REFUSED[name]
    done = rankup_here(["run", "--local", "--out", tmp_path / "run", *words])
    assert done.returncode == 2, done.stderr
    for part in said:
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "refused before anything is written"


def _job(*args: str, kind: str = "recipe") -> Job:
    return Job("one", kind, "language-model", list(args), "/", versions={}, git={})


def test_what_the_ranks_of_a_node_make_of_a_strategy_is_asked_of_all_nodes() -> None:
    assert request.split_notes(_job("--strategy", "3d"), 2, 2) == []
    with pytest.raises(UserError, match="on 3 ranks"):
        request.split_notes(_job("--strategy", "3d"), 3, 1)


def test_tensor_groups_over_several_nodes_are_warned_of() -> None:
    [note] = request.split_notes(_job("--tp", "4"), 2, 2)
    assert note.startswith("warning: --tp 4 spans nodes of 2 ranks")
    assert "--tp 2 stays on a node" in note


def test_ranks_without_a_micro_batch_are_counted_with_their_groups() -> None:
    args = ["--tp", "2", "--global-batch", "8", "--micro-batch", "8"]
    [note] = request.split_notes(_job(*args), 1, 4)
    assert "feeds 2 of 4 ranks; 2 will idle" in note


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--pp-schedule", "gpipe"], "--pp-schedule gpipe does nothing without --pp"),
        (["--zero", "2"], "--zero 2 does nothing where weights are not sharded"),
        (
            ["--strategy", "pp", "--global-batch", "8", "--micro-batch", "8"],
            "each pipeline has 1 micro-batches at a time for 2 stages, so most stages wait",
        ),
    ],
    ids=["schedule", "zero", "empty pipeline"],
)
def test_what_does_nothing_is_said(args: list[str], said: str) -> None:
    [note] = request.split_notes(_job("--global-batch", "32", *args), 1, 2)
    assert note.startswith(f"warning: {said}")


def test_a_script_splits_itself() -> None:
    assert request.split_notes(_job("--tp", "3", kind="script"), 1, 2) == []


_UNEVEN = ("--global-batch", "8", "--micro-batch", "8")


@pytest.mark.parametrize(
    ("strategy", "idle", "same"),
    [("ddp", True, True), ("diloco", True, False)],
)
def test_what_the_number_of_ranks_changes(strategy: str, idle: bool, same: bool) -> None:
    words = ("--strategy", strategy, *_UNEVEN)
    job = _job(*words)
    said = " ".join(request.split_notes(job, 1, 2))
    assert ("will idle" in said) == idle
    assert ("The result is the same" in said) == (idle and same)
    assert request.same_result(job) == same
