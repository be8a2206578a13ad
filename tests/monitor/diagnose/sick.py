"""Runs with one cause planted, clearly, just enough, and just not enough, by code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankup.monitor.thresholds import LIMITS

from ..traces import (
    GPU_MEMORY,
    GPU_POWER,
    Numbers,
    Stay,
    Trace,
    computing,
    cpu_only,
    healthy,
    level,
    one_of_four,
    only_gpu,
    unused,
)

Draw = np.random.Generator
BURST = 20.0  # s of a saw-tooth: half of it busy


def run(seconds: float = 1800.0, **changes: Any) -> Trace:
    """A healthy run of half an hour whose steps take two seconds."""
    usual: dict[str, Any] = {"step": 2.0, "checkpoints": 200, "validations": 200, "limit": 2400.0}
    return healthy(seconds=seconds, **{**usual, **changes})


def silent(trace: Trace) -> Trace:
    """The same by a script that logs nothing."""
    return trace.but(metrics=None, checkpoints=None, validations=None)


def of_one(which: int, channel: float, others: float, spread: float = 1.0) -> Any:
    """A channel of one GPU, and of the others."""

    def values(t: Numbers, gpu: Numbers, draw: Draw) -> Numbers:
        noise = spread * draw.standard_normal((len(t), gpu.shape[1]))
        return np.where(gpu == which, channel, others) + noise.clip(-2 * spread, 2 * spread)

    return values


def saw(low: float, high: float) -> Any:
    """Use that swings between two values."""

    def values(t: Numbers, gpu: Numbers, draw: Draw) -> Numbers:
        busy = (t % BURST) < BURST / 2
        return np.where(busy, high, low) + 0.0 * gpu + draw.uniform(0, 2, (len(t), gpu.shape[1]))

    return values


def from_time(begin: float, end: float, then: float, before: float, spread: float = 1.0) -> Any:
    """A channel that has another value between two times."""

    def values(t: Numbers, thing: Numbers, draw: Draw) -> Numbers:
        noise = draw.standard_normal((len(t), thing.shape[1])).clip(-2, 2)
        inside = (t >= begin) & (t < end)
        return np.where(inside, then + 0.1 * spread * noise, before + spread * noise)

    return values


def hang(
    trace: Trace, seconds: float, power: float = 0.25, begin: float = 900.0, util: float = 100.0
) -> Trace:
    """From `begin` on, GPUs spin for a while; steps go on afterwards."""
    end = begin + seconds

    def took(t: Numbers, step: Numbers, draw: Draw) -> Numbers:
        hanging = step == round((begin - 20) / trace.step)
        return np.where(hanging, seconds, trace.step) + 0.01 * draw.standard_normal(step.shape)

    spun = trace.with_gpu(
        util=from_time(begin, end, util, 95.5, 1),
        power=from_time(begin, end, power * GPU_POWER, 0.8 * GPU_POWER, 12),
        pcie_rx=from_time(begin, end, 1e4, 1e9, 1e3),
    )
    return spun.but(step_seconds=took)


def late(trace: Trace, seconds: float, begin: float = 900.0) -> Trace:
    """Three GPUs spin in a collective for a while until GPU 2 comes, which is idle meanwhile."""

    def channel(spins: float, idles: float, before: float, noise: float) -> Any:
        def values(t: Numbers, gpu: Numbers, draw: Draw) -> Numbers:
            inside = (t >= begin) & (t < begin + seconds)
            usual = before + noise * draw.standard_normal((len(t), gpu.shape[1])).clip(-2, 2)
            return np.where(inside, np.where(gpu == 2, idles, spins), usual)

        return values

    power = channel(0.25 * GPU_POWER, 0.15 * GPU_POWER, 0.8 * GPU_POWER, 12)
    return hang(trace, seconds, begin=begin).with_gpu(util=channel(100, 0, 95.5, 1), power=power)


def starve(wait: float, workers_cpu: float = 390.0, workers: int = 4, **changes: Any) -> Trace:
    """Ranks that wait for data for a share of each step; their GPUs do nothing meanwhile."""
    busy = 1 - wait
    return (
        run(**changes)
        .with_metrics(data_wait=level(wait, 0.003))
        .with_gpu(util=level(96 * busy, 2), power=level((0.14 + 0.6 * busy) * GPU_POWER, 4))
        .with_rank(workers=workers, workers_cpu=level(workers_cpu, 2))
    )


def slow_files(workers_cpu: float) -> Trace:
    fs = {"/p/scratch": {"read": level(2e7, 1e6), "write": 0.0, "operations": level(1500, 50)}}
    return starve(0.5, workers_cpu=workers_cpu).but(fs=fs)


def saving(every: int, stall: float) -> Trace:
    """Training that stands still while it saves; GPUs do nothing meanwhile."""

    def of(busy: float, waiting: float) -> Any:
        def values(t: Numbers, gpu: Numbers, draw: Draw) -> Numbers:
            place = (t - 20) % (2.0 * every + stall)
            noise = draw.uniform(-1, 1, (len(t), gpu.shape[1]))
            return np.where((place >= 2.0 * every) & (t > 20), waiting, busy) + noise

        return values

    trace = run(checkpoints=every, stall=stall, step_seconds=level(2.0, 0))
    return trace.with_gpu(util=of(96, 1), power=of(330, 70))


def memory(share: float, **changes: Any) -> Trace:
    return run(**changes).with_gpu(
        memory=level(share * GPU_MEMORY, 0), power=level(0.6 * GPU_POWER, 8)
    )


def ended(state: str, words: str = "", seconds: float = 1800.0, limit: float = 7200.0) -> Trace:
    return run(stays=(Stay(0, seconds, state=state, words=words),), limit=limit)


def slow() -> Trace:
    """GPUs that work half of the time, for want of somebody who launches kernels."""
    return run().with_gpu(util=level(48, 2), power=level(190, 5))


def few_cores(usable: int, asked: str = "48") -> Trace:
    return (
        run(
            environment={"SLURM_CPUS_PER_TASK": asked},
            heads={"usable": tuple(range(usable))},
            core_use=lambda t, core, draw: np.where(core < usable, 99, 0) + 0 * t,
        )
        .with_host(cpu=level(99, 0.3), load=level(20, 1))
        .with_rank(cpu=level(24, 1), workers_cpu=1)
    )


def losses(loss: Callable[[Numbers], Numbers]) -> Trace:
    def values(t: Numbers, step: Numbers, draw: Draw) -> Numbers:
        return loss(step.astype(float)) + 0.01 * draw.standard_normal(step.shape)

    return run().with_metrics(loss=values)


def vanishing(at: float) -> Trace:
    """GPU 2 falls off the bus."""

    def gone(name: str) -> Any:
        usual: Any = computing()[name]

        def values(t: Numbers, gpu: Numbers, draw: Draw) -> Numbers:
            seen = usual(t, gpu, draw) if callable(usual) else usual + 0.0 * t + 0.0 * gpu
            return np.where((gpu == 2) & (t >= at), np.nan, seen)

        return values

    return run().with_gpu(**{name: gone(name) for name in computing()})


def idle_memory(share: float) -> dict[str, Any]:
    """GPU channels where only GPU 0 works, and the others hold some memory of a process."""
    idling = {**unused(), "memory": share * GPU_MEMORY, "processes": 1}
    channels = only_gpu(0)
    return {
        **channels,
        "memory": lambda t, gpu, draw: np.where(
            gpu == 0, 0.7 * GPU_MEMORY, idling["memory"] + 0.0 * t
        ),
        "processes": 1,
    }


@dataclass(frozen=True)
class Case:
    """A trace and the codes that belong to it: exactly these."""

    code: str
    name: str
    trace: Trace
    expected: tuple[str, ...]


def case(code: str, name: str, trace: Trace, found: bool = True, *more: str) -> Case:
    return Case(code, name, trace, ((code,) if found else ()) + more)


def cases() -> list[Case]:
    """All of them."""
    minute = LIMITS.spin_least
    return [
        case("RK701", "the course's job", one_of_four()),
        case("RK701", "of two nodes one", run(nodes=2).but(gpu=only_nodes(0))),
        case("RK701", "nothing at all", silent(run()).but(gpu=unused())),
        case("RK701", "one of 32", run(nodes=8, seconds=900, limit=1200.0).but(gpu=but(31))),
        case("RK702", "a context and no work", run(ranks=4).but(gpu=idle_memory(0.1))),
        case("RK702", "4.5 %", run().with_gpu(util=level(4.5, 0.3), power=70.0)),
        case(
            "RK702",
            "idle at the end",
            run(seconds=3600, limit=4000.0)
            .but(stays=())
            .with_gpu(util=from_time(1800, 9e9, 0, 96), power=from_time(1800, 9e9, 60, 320, 5))
            .but(metrics=None),
        ),
        case(
            "RK702",
            "idle for ten minutes of an hour",
            silent(
                run(seconds=3600, limit=4000.0).with_gpu(
                    util=from_time(1800, 2400, 0, 96), power=from_time(1800, 2400, 60, 320, 5)
                )
            ),
            False,
        ),
        case("RK703", "12 %", run().with_gpu(util=level(12, 2), power=level(110.0, 3))),
        case("RK703", "24 %", run().with_gpu(util=level(24, 0.5), power=level(130.0, 3))),
        case("RK703", "27 %", run().with_gpu(util=level(27, 0.5), power=level(140.0, 3)), False),
        case("RK704", "half of the time", starve(0.5)),
        case("RK704", "12 %", starve(0.12), False),
        case("RK704", "no workers", starve(0.5, workers_cpu=0, workers=0)),
        case(
            "RK704",
            "a saw-tooth, workers busy",
            silent(
                run(every=5.0)
                .with_gpu(util=saw(0, 98), power=saw(80, 300))
                .with_rank(workers_cpu=level(385, 3))
            ),
        ),
        case(
            "RK704",
            "a saw-tooth, workers calm",
            silent(
                run(every=5.0)
                .with_gpu(util=saw(0, 98), power=saw(80, 300))
                .with_rank(workers_cpu=level(150, 3))
            ),
            False,
        ),
        case("RK705", "one slow GPU", run().with_gpu(util=of_one(2, 60, 97))),
        case(
            "RK705",
            "one GPU waits and spins less",
            run(nodes=4).with_gpu(util=100.0, power=of_one(5, 330, 190, 5)),
        ),
        case("RK705", "a fifth", run().with_gpu(util=of_one(2, 78, 97)), False),
        case("RK705", "30 %", run().with_gpu(util=of_one(2, 66, 97))),
        case(
            "RK705",
            "ranks on CPU nodes",
            cpu_only().but(seconds=1800, limit=2400.0).with_rank(cpu=of_one(1, 2950, 1500, 20)),
        ),
        case("RK706", "ten minutes", hang(run(), 600)),
        case("RK706", "three minutes", hang(run(), minute + 60)),
        case("RK706", "a minute", hang(run(), minute - 60), False, "RK727"),
        case("RK706", "without steps, ten minutes", silent(hang(run(), 600))),
        case("RK706", "a slow step at 60 % power", hang(run(), 600, power=0.6), False, "RK727"),
        case("RK727", "one rank came late", late(run(), 60)),
        case("RK727", "20 s", late(run(), 18), False),
        case("RK708", "99 %", memory(0.99)),
        case("RK708", "97.5 %", memory(0.975)),
        case("RK708", "95 %", memory(0.95), False),
        case("RK709", "twice", slow().with_host(load=level(96, 1), cpu=level(99, 0.3))),
        case("RK709", "1.1", run().with_host(load=level(53, 0.5), cpu=level(99, 0.3)), False),
        case(
            "RK709",
            "a neighbour's load",
            run(heads={"usable": tuple(range(12))}).with_host(load=level(96, 1), cpu=level(60, 1)),
            False,
        ),
        case(
            "RK710", "much load, little use", slow().with_host(load=level(90, 1), cpu=level(9, 0.5))
        ),
        case("RK710", "one core of 48", few_cores(1)),
        case("RK710", "half of the threads", few_cores(24), False),
        case(
            "RK710",
            "one core busy",
            run(core_use=lambda t, core, draw: np.where(core == 0, 100, 1) + 0 * t)
            .with_rank(cpu=level(24, 1), workers_cpu=1)
            .with_host(cpu=level(3, 0.2)),
        ),
        case(
            "RK712",
            "half of the time",
            run().with_gpu(
                throttle=lambda t, gpu, draw: np.where((gpu == 1) & (t % 20 < 10), 0x40, 0),
                temperature=of_one(1, 91, 58),
            ),
        ),
        case(
            "RK712",
            "a moment",
            run().with_gpu(
                throttle=lambda t, gpu, draw: np.where((gpu == 1) & (t // 10 == 100), 0x40, 0)
            ),
            False,
        ),
        case("RK712", "half of the clock", run().with_gpu(throttle=0x4, clock=level(700, 10))),
        case("RK712", "60 %", run().with_gpu(throttle=0x80, clock=level(850, 5))),
        case(
            "RK712",
            "at its limit, as it should be",
            run().with_gpu(throttle=0x4, clock=level(1100, 10)),
            False,
        ),
        case(
            "RK714",
            "98 % of the limit",
            run(memory_limit=80e9).with_host(cgroup=level(78.5e9, 1e7)),
        ),
        case("RK714", "98 % of the node", run().with_host(memory=level(502e9, 1e8), cgroup=None)),
        case(
            "RK714",
            "90 % of the limit",
            run(memory_limit=80e9).with_host(cgroup=level(72e9, 1e8)),
            False,
        ),
        case("RK715", "a third of the time", saving(20, 20.0)),
        case("RK715", "2 %", run(checkpoints=200, stall=8.0), False),
        case("RK716", "a tenth", run(limit=18000.0)),
        case("RK716", "24 %", run(limit=7500.0)),
        case("RK716", "30 %", run(limit=6000.0), False),
        case("RK717", "hit", ended("TIMEOUT", limit=1800.0)),
        case("RK717", "just not", ended("COMPLETED", limit=1805.0), False),
        case("RK718", "a minute", run(seconds=60, every=2.0, limit=600.0)),
        case("RK718", "five minutes", run(seconds=300, limit=600.0), False),
        case(
            "RK718",
            "five minutes after a day",
            run(seconds=300, limit=600.0, known={"queued": 86400.0}),
        ),
        case("RK704", "workers wait for files too", slow_files(60)),
        case("RK704", "workers read files, and are busy", slow_files(380)),
        case(
            "RK720", "from step 300 on", losses(lambda s: np.where(s < 300, 3.0 - s / 200, np.nan))
        ),
        case("RK720", "one step", losses(lambda s: np.where(s == 300, np.inf, 9 - s / 200))),
        case("RK723", "off the bus", vanishing(900.0)),
        case(
            "RK723",
            "no driver",
            run(gpus=0, gpu_error="the NVIDIA driver is not loaded", known={"gpus": 4}),
        ),
        case(
            "RK723",
            "a CPU node",
            cpu_only().but(seconds=1800, limit=2400.0, gpu_error="no NVML"),
            False,
        ),
        case("RK724", "failed", ended("FAILED", "Rank 3 on jrc0001 failed: ValueError")),
        case("RK724", "no GPU memory", ended("FAILED", "CUDA out of memory")),
        case("RK724", "no memory", ended("OUT_OF_MEMORY")),
        case("RK724", "cancelled by its user", ended("CANCELLED", limit=2400.0), False),
        case(
            "RK702",
            "20 minutes without a step",
            hang(run(seconds=3600, limit=4000.0), 1200, 0.15, util=0.0),
            True,
            "RK727",
        ),
    ]


def only_nodes(used: int) -> dict[str, Any]:
    """GPU channels where only the four GPUs of a node work."""
    return _where(lambda gpu: gpu // 4 == used)


def but(left: int) -> dict[str, Any]:
    """GPU channels where all GPUs but one work."""
    return _where(lambda gpu: gpu != left)


def _where(works: Callable[[Numbers], Numbers]) -> dict[str, Any]:
    on, off = computing(), unused()

    def one(name: str) -> Any:
        def values(t: Numbers, gpu: Numbers, draw: Draw) -> Numbers:
            pair = [v(t, gpu, draw) if callable(v) else v for v in (on[name], off[name])]
            return np.where(works(gpu), *pair) + 0.0 * t

        return values

    return {name: one(name) for name in on if name != "throttle"} | {"throttle": 0}
