"""Which lines of `metrics.jsonl` are rankup's own, and no step with names that a script chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_checkpoint(record: Mapping[str, Any]) -> bool:
    """Whether a line says that the run was saved; with a `step` it is one of the script's."""
    return "checkpoint" in record and "stall" in record and "step" not in record


def is_final(record: Mapping[str, Any]) -> bool:
    """Whether a line says that the run came to its end, as its last one does.

    A script may call a value of its steps `final`; but ours has results of the whole run, and no
    loss.
    """
    return (
        record.get("final") is True
        and "loss" not in record
        and any(name in record for name in ("valid_loss", "test_loss", "exchange"))
    )
