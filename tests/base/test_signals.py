"""A request to stop, and a second one while the first is obeyed."""

from __future__ import annotations

import signal

import pytest

from rankup.base.processes import ended_as_an_exception


def test_after_the_first_signal_no_other_disturbs_the_clearing_up() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    cleared = []

    def stopped_twice() -> None:
        with ended_as_an_exception():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
                cleared.append(True)

    with pytest.raises(SystemExit) as ended:
        stopped_twice()
    assert cleared
    assert ended.value.code == 128 + signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
