"""A line for people costs no run."""

from __future__ import annotations

import os
import sys

import pytest

from rankup.base.text import say


def test_a_reader_that_is_gone_loses_lines_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        say("worker 1 was lost")
        say("and another")
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())  # its own end flushes, too
