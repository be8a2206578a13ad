"""`--profile`: steps of a run under torch's profiler, as a trace and the numbers of the report.

<run>/profile/steps-10-15-rank0.json.gz   the trace, for https://ui.perfetto.dev
              steps-10-15-rank0.json      its numbers, written last
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from ..base.files import write_json
from ..base.text import say
from ..runtime.world import World
from ..site import rundir
from .options import TrainOptions

_MOST = 10  # operators
_STEP = "step "
_BETWEEN = "between operators (Python, waits)"
_BLOCKING = ("c10d::", "_c10d_functional::")  # in the thread that computes
_COLLECTIVE = ("gloo:", "nccl", *_BLOCKING)
_Spans = list[tuple[float, float]]


class Profile:
    """The profiler of one rank; outside of its steps it costs nothing.

    Args:
        directory: of the run.
        steps: the first and the last.
    """

    def __init__(self, directory: Path, world: World, steps: tuple[int, int]) -> None:
        self._folder, self._world = directory / rundir.PROFILE, world
        self._first, self._last = steps
        self._path = self._folder / f"steps-{self._first}-{self._last}-rank{world.rank}.json"
        self._running: profile | None = None
        self._steps: list[int] = []

    @classmethod
    def wanted(
        cls, options: TrainOptions, directory: Path, world: World, done: int
    ) -> Profile | None:
        """Return the profiler of this rank, one on each node, where steps are left to profile."""
        steps = options.profiled
        if steps is None or world.local_rank:
            return None
        found = cls(directory, world, steps)
        if steps[1] > done:
            return found
        if world.is_root and not found._path.exists():  # an attempt before may have done it
            say(f"--profile {options.profile} lies behind step {done}, where the run goes on", "")
        return None

    @contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Record what is computed within, if it is one of the steps."""
        if not self._first <= step <= self._last:
            if step > self._last:
                self.close()
            yield
            return
        if self._running is None:
            self._begin()
        self._steps.append(step)
        with record_function(f"{_STEP}{step}"):
            yield
        if step == self._last:
            self.close()

    def close(self) -> None:
        """Write what was recorded. That it cannot be written ends no run."""
        running, self._running = self._running, None
        if running is None:
            return
        self._wait()
        running.stop()
        try:
            self._write(running)
        except (OSError, RuntimeError) as error:
            say(f"{self._path} could not be written ({error}); training goes on", "")

    def _begin(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its remarks on stderr help nobody
        activities = [ProfilerActivity.CPU]
        if self._world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._wait()
        self._running = profile(activities=activities)
        self._running.start()

    def _wait(self) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

    def _write(self, running: profile) -> None:
        self._folder.mkdir(exist_ok=True)
        trace = self._path.with_suffix(".json.gz")
        temporary = trace.with_name(f".{trace.name}.tmp.gz")
        running.export_chrome_trace(str(temporary))
        temporary.replace(trace)
        about = {
            "rank": self._world.rank,
            "node": self._world.node,
            "steps": [self._steps[0], self._steps[-1]],
            "trace": trace.name,
        }
        write_json(self._path, {**about, **numbers(running, self._world.device.type == "cuda")})
        say(f"steps {self._steps[0]} to {self._steps[-1]} were profiled: {trace}", "")


def numbers(recorded: profile, on_gpu: bool) -> dict[str, Any]:
    """Return the time of the recorded steps by what it went into, in seconds.

    `computing`: something was computed, on the GPU where there is one. `collectives`: one was under
    way, and of that `waiting`: nothing was computed meanwhile. `operators`: by the time spent in
    them and not in others that they call.
    """
    events: Any = recorded.events()
    steps, computing, collectives, blocking = [], [], [], []
    for event in events:
        span = (event.time_range.start, event.time_range.end)
        if event.name.startswith(_STEP) and event.device_type == DeviceType.CPU:
            steps.append(span)
        elif on_gpu and (event.device_type == DeviceType.CPU or event.is_user_annotation):
            continue
        elif event.name.startswith(_COLLECTIVE):
            collectives.append(span)
            if event.name.startswith(_BLOCKING):
                blocking.append(span)
        elif on_gpu or event.name.startswith("aten::"):
            computing.append(span)
    steps = _union(steps)
    if steps:  # what the last one has begun belongs to it
        ends = [end for _, end in (*computing, *collectives)]
        steps[-1] = (steps[-1][0], max(steps[-1][1], *ends))
    computing, collectives, blocking = (
        _within(_union(spans), steps) for spans in (computing, collectives, blocking)
    )
    computed = _length(_union([*computing, *blocking])) - _length(blocking)
    return {
        "seconds": _length(steps),
        "computing": computed,
        "collectives": _length(collectives),
        "waiting": _length(_union([*computing, *collectives])) - computed,
        "operators": _operators(recorded, on_gpu),
    }


def _operators(recorded: profile, on_gpu: bool) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for event in recorded.key_averages():
        if event.device_type != DeviceType.CPU:  # a kernel counts for the operator that started it
            continue
        name = event.key.partition(" (")[0]  # FSDP says the module: `FSDP::all_gather (blocks.1)`
        if event.key.startswith(_STEP):
            name = _BETWEEN
        micro = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        entry = found.setdefault(name, {"name": name, "calls": 0, "seconds": 0.0})
        entry["calls"] += event.count
        entry["seconds"] += micro / 1e6
    most = sorted(found.values(), key=lambda entry: -entry["seconds"])[:_MOST]
    return [entry for entry in most if entry["seconds"] > 0]


def _union(spans: Iterable[tuple[float, float]]) -> _Spans:
    """Return spans in order that do not overlap and cover the same."""
    found: _Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _within(spans: _Spans, steps: _Spans) -> _Spans:
    """Return the parts of spans that lie in a step; a collective may have begun before."""
    cut = ((max(b, first), min(e, last)) for b, e in spans for first, last in steps)
    return [(begin, end) for begin, end in cut if begin < end]


def _length(spans: _Spans) -> float:
    """Return the seconds of spans in microseconds."""
    return sum(end - begin for begin, end in spans) / 1e6
