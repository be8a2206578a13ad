"""What NVML's answers cost: seconds of the clock and of the CPU per question, for each GPU.

`bench/monitor.py` burns the CPU seconds in its stand-in; `CALL_SECONDS` there is where to put them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from common import median, table
from rankup.monitor.collect.gpu import MOMENTARY, QUESTIONS, Failed, Lost, NotThere, Source

_SECONDS = 2.0  # apart, as the sampler asks: the driver may keep an answer for a while
_BURST = 20


def nvml(source: Source, rounds: int = 5, apart: float = _SECONDS) -> dict[str, float]:
    """Print the costs of each question; CPU seconds by question, of the dearest GPU."""
    found: dict[str, float] = {}
    rows = []
    gpus = [gpu.index for gpu in source.gpus()]
    for what in (*QUESTIONS, *MOMENTARY, "counters"):
        costs = [_cost(_question(source, index, what), rounds, apart) for index in gpus]
        said = [cost for cost in costs if cost is not None]
        if said:
            cold, wall, cpu = (max(column) for column in zip(*said, strict=True))
            found[what] = cpu
            rows.append([what, f"{cold * 1e3:.3f}", f"{wall * 1e3:.3f}", f"{cpu * 1e3:.3f}"])
        else:
            rows.append([what, "not said", "", ""])
    table(["NVML, ms per call", "after a pause", "in a row", "CPU, in a row"], rows)
    return found


def _question(source: Source, index: int, what: str) -> Callable[[], object]:
    if what == "counters":
        return lambda: source.counters(index)
    return lambda: source.ask(index, what)


def _cost(
    ask: Callable[[], object], rounds: int, apart: float
) -> tuple[float, float, float] | None:
    """Seconds: of the clock after a pause, of the clock and of the CPU in a row."""
    cold, wall, cpu = [], [], []
    try:
        for _ in range(rounds):
            time.sleep(apart)
            began = time.perf_counter()
            ask()
            cold.append(time.perf_counter() - began)
            began, used = time.perf_counter(), time.process_time()
            for _ in range(_BURST):
                ask()
            wall.append((time.perf_counter() - began) / _BURST)
            cpu.append((time.process_time() - used) / _BURST)
    except (NotThere, Lost, Failed):
        return None
    return median(cold), median(wall), median(cpu)
