"""One rule and one advice for GPUs that nobody uses, wherever it is said."""

from __future__ import annotations

import pytest

from rankup.monitor.diagnose import codes
from rankup.monitor.thresholds import MIB
from rankup.monitor.unused import CODE, advice, untouched


@pytest.mark.parametrize(
    ("util", "memory", "processes", "expected"),
    [
        (0, 4 * MIB, 0, True),
        (1, 499 * MIB, None, True),
        (0, None, None, True),
        (None, 4 * MIB, 0, False),
        (2, 4 * MIB, 0, False),
        (0, 500 * MIB, 0, False),
        (0, 4 * MIB, 1, False),
    ],
)
def test_what_nobody_uses(
    util: float | None, memory: float | None, processes: float | None, expected: bool
) -> None:
    assert untouched(util, memory, processes) is expected


def test_the_advice_fits_what_was_seen() -> None:
    assert advice(4, 4, 1, 4).startswith("nothing ran on any of them: ")
    assert advice(3, 4, 4, 4).startswith("all ranks share the other GPUs: ")
    assert advice(3, 4, 1, 4).startswith("to use all of it, start one rank per GPU")
    assert advice(4, 8, 4, 4, used_nodes=1).startswith("`rankup run --nodes 1 …` asks for what")


def test_it_is_the_code_of_the_report() -> None:
    assert CODE == codes.UNUSED
