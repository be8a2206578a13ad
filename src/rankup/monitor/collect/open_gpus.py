"""Finds who answers for the GPUs of this node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .gpu import Failed, Source

STAND_IN = "RANKUP_NVML"


def open_source(environment: Mapping[str, str]) -> tuple[Source | None, str | None]:
    """NVML, or the stand-in that `RANKUP_NVML` names; None and why where there is no GPU.

    Raises:
        UserError: `RANKUP_NVML` names no script of GPUs.
    """
    script = environment.get(STAND_IN)
    try:
        if script:
            from .stand_in import StandIn

            return StandIn(Path(script)), None
        try:
            from .nvml import Nvml
        except ImportError as error:
            return None, f"nvidia-ml-py is not installed: {error}"
        return Nvml(), None
    except Failed as error:
        return None, str(error)
