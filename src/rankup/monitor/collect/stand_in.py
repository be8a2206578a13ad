"""GPUs that play a script, for tests and demonstrations on machines without any.

`RANKUP_NVML` names a JSON file:

    {"gpus": [{"name": "A100", "uuid": "GPU-0", "memory": 4e10,
               "power_limit": 400, "clock_max": 1410,
               "values": {"util": 97, "memory": [1e9, 3e10], "power": null, "temperature": 61},
               "counters": {"nvlink": 2e10}}],
     "call_seconds": 5e-5, "error": "why there are none"}

A value is a number, a list (one per question, the last one stays), null (this GPU does not say) or
"lost". Counters grow by so many bytes per second. A call takes `call_seconds` of CPU time; where
that is an object, those of its question ("counters" is one), else none.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ..lines import Gpu
from .gpu import Failed, Lost, NotThere


class StandIn:
    """`gpu.Source` of a script.

    Raises:
        UserError: the file is not there, or no script.
        Failed: the script says that there are no GPUs.
    """

    def __init__(self, path: Path) -> None:
        try:
            script: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._gpus: list[dict[str, Any]] = list(script.get("gpus", []))
            cost = script.get("call_seconds", 0.0)
            self._costs: dict[str, float] = cost if isinstance(cost, dict) else {}
            self._cost = 0.0 if isinstance(cost, dict) else float(cost)
            self._described = [_describe(index, gpu) for index, gpu in enumerate(self._gpus)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"RANKUP_NVML={str(path)!r} is no script of GPUs: {error}; unset it for real ones"
            ) from None
        if script.get("error"):
            raise Failed(str(script["error"]))
        self._calls: dict[tuple[int, str], int] = {}
        self._began = time.monotonic()

    def gpus(self) -> list[Gpu]:
        """See `gpu.Source`."""
        return self._described

    def ask(self, index: int, what: str) -> float:
        """See `gpu.Source`."""
        self._burn(what)
        call = self._calls.get((index, what), 0)
        self._calls[index, what] = call + 1
        value = self._gpus[index].get("values", {}).get(what)
        if isinstance(value, list):
            value = value[min(call, len(value) - 1)] if value else None
        if value == "lost":
            raise Lost("GPU is lost")
        if value is None:
            raise NotThere(what)
        return float(value)

    def counters(self, index: int) -> dict[str, float]:
        """See `gpu.Source`."""
        self._burn("counters")
        seconds = time.monotonic() - self._began
        counters = self._gpus[index].get("counters", {})
        return {name: float(rate) * seconds for name, rate in counters.items()}

    def _burn(self, what: str) -> None:
        end = time.thread_time() + self._costs.get(what, self._cost)
        while time.thread_time() < end:
            pass


def _describe(index: int, gpu: dict[str, Any]) -> Gpu:
    return Gpu(
        index=index,
        name=str(gpu.get("name", "stand-in")),
        uuid=str(gpu.get("uuid", f"GPU-{index}")),
        memory=float(gpu.get("memory", 4e10)),
        power_limit=gpu.get("power_limit"),
        clock_max=gpu.get("clock_max"),
    )
