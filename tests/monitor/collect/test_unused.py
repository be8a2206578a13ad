"""An unused GPU is said once, within two minutes, and never of a job that works."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rankup.monitor.collect.sampler import Watch
from rankup.monitor.lines import GPU, Gpu, Head

BUSY = {"util": 95, "memory": 3e10, "processes": 1}
EMPTY = {"util": 0, "memory": 1e7, "processes": 0}


def _row(values: dict[str, float | None]) -> list[float | None]:
    return [values.get(name) for name in GPU]


def _watch(
    count: int = 4, granted: Sequence[bool | None] = (), ranks: int = 1, **billing: bool
) -> Watch:
    gpus = [
        Gpu(index, "A100", "", 4e10, granted=granted[index] if granted else None)
        for index in range(count)
    ]
    head = Head("jwb0001", 0.0, 2.0, "1", 8, (), 1e9, gpus=tuple(gpus), ranks=ranks)
    return Watch(head, **{"billed": True, **billing})


def _see(watch: Watch, *rows: dict[str, float | None], until: float = 120.0) -> list[str]:
    """What is said, looking every 2 s of running ranks."""
    times = [2.0 * number for number in range(int(until / 2) + 1)]
    return [said for at in times if (said := watch.see([_row(row) for row in rows], at))]


def test_one_of_four_works_as_in_the_course() -> None:
    (said,) = _see(_watch(), BUSY, EMPTY, EMPTY, EMPTY)
    assert said.startswith(
        "GPU 1, 2 and 3 of node jwb0001 have done nothing for 90 s although this job is billed "
        "for them: 1 of 4 GPUs is in use (RK701)\n  -> to use all of it, start one rank per GPU"
    )


@pytest.mark.parametrize(
    "row",
    [
        {**EMPTY, "util": None},  # nobody says whether it works
        {**EMPTY, "memory": 6e8},  # taken, though nothing runs yet
        {**EMPTY, "processes": 1, "memory": 4e8},
        {**EMPTY, "util": 2},
    ],
)
def test_a_gpu_that_is_taken_is_not_unused(row: dict[str, float | None]) -> None:
    assert _see(_watch(2), BUSY, row) == []


def test_work_long_ago_counts() -> None:
    watch = _watch(2)
    watch.see([_row(BUSY), _row(BUSY)], 2.0)
    assert _see(watch, BUSY, EMPTY) == []


def test_before_there_are_ranks_nothing_is_said() -> None:
    watch = _watch(2)
    assert watch.see([_row(EMPTY), _row(EMPTY)], None) is None
    assert _see(watch, EMPTY, EMPTY, until=88) == []


def test_gpus_of_other_jobs_on_the_node_are_theirs() -> None:
    rows = (BUSY, EMPTY, EMPTY, EMPTY)
    granted = (True, False, False, False)
    assert _see(_watch(4, granted), *rows) == []
    (said,) = _see(_watch(4, granted, whole_node=True), *rows)
    assert "1 of 4" in said


def test_the_words_fit_what_was_seen() -> None:
    (said,) = _see(_watch(2, ranks=2), BUSY, EMPTY)
    assert "GPU 1 of node jwb0001 has done nothing" in said
    assert "torch.cuda.set_device(local_rank)" in said
    (said,) = _see(_watch(2, billed=False), EMPTY, EMPTY)
    assert "billed" not in said
    assert "0 of 2 GPUs are in use" in said
    assert "torch.cuda.is_available()" in said
