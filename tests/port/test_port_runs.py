"""A port computes and prints what its original does, on 1, 2 and 3 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pool import RankPool

from .running import CASES, compare

RUNNING = sorted(CASES.glob("run_*.in.py"))
# Each is of another kind; the rest runs in the slow suite.
FAST = (
    "average_meter",
    "drawn_batches",
    "eval_lists",
    "gan",
    "loaders_from_helper_file",
    "one_writer",
    "trainer_class",
    "trainer_in_another_file",
    "trainer_of_two_scripts",
)


def test_ports_print_what_their_originals_print(ranks: RankPool, tmp_path: Path) -> None:
    compare(ranks, [CASES / f"run_{name}.in.py" for name in FAST], tmp_path, (3,))


@pytest.mark.slow
def test_every_port_prints_what_its_original_prints(ranks: RankPool, tmp_path: Path) -> None:
    compare(ranks, RUNNING, tmp_path, (2, 3))
