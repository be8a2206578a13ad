"""Runs that never were: the scenarios that the monitor's tests have in common.

A `Trace` says how long, how wide and how each channel runs; `write` makes the files of a run
directory, `facts` what Slurm would say of it, `recording` what `load` reads from both:

    trace = healthy(nodes=2).with_gpu(util=lambda t, gpu, draw: np.where(gpu == 3, 0, 97))
    recording = trace.recording()
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .channels import GPU_MEMORY as GPU_MEMORY
from .channels import GPU_POWER as GPU_POWER
from .channels import STARTUP as STARTUP
from .channels import Channel as Channel
from .channels import Numbers as Numbers
from .channels import Value as Value
from .channels import computing as computing
from .channels import feeding as feeding
from .channels import learning as learning
from .channels import level as level
from .channels import only_gpu as only_gpu
from .channels import serving as serving
from .channels import unused as unused
from .trace import BEGIN as BEGIN
from .trace import Silence as Silence
from .trace import Stay as Stay
from .trace import Trace as Trace


def healthy(nodes: int = 1, gpus: int = 4, **changes: Any) -> Trace:
    """A run as it should be: with validations and checkpoints that hardly cost anything."""
    usual: dict[str, Any] = {"checkpoints": 500, "stall": 0.4, "validations": 500}
    return Trace(nodes=nodes, gpus=gpus, **{**usual, **changes})


def one_of_four() -> Trace:
    """The course's job on JURECA: 1 h 32, four GPUs billed, one used at 93 %."""
    one = {**computing(), "util": level(93, 1.5, idle=0), "nvlink": 0}
    return Trace(
        cores=128,
        seconds=5520,
        ranks=1,
        gpu=only_gpu(0, one),
        core_use=_first_cores(1, 4),
        checkpoints=2000,
        stall=0.4,
    ).with_host(cpu=level(1.8, 0.2), load=level(2.4, 0.2), ib_rx=level(5e7, 1e6), ib_tx=1e5)


def cpu_only(nodes: int = 1) -> Trace:
    """A job on nodes without GPUs, whose cores are busy."""
    return (
        Trace(
            nodes=nodes,
            gpus=0,
            cores=128,
            ranks=4,
            core_use=lambda t, core, draw: np.full((len(t), core.shape[1]), 94),
        )
        .with_host(cpu=level(94, 1, idle=5), load=level(126, 1, idle=5))
        .with_rank(cpu=level(2950, 20), workers=0, workers_cpu=0)
    )


def short() -> Trace:
    """A job of three quarters of a minute, sampled every 2 s."""
    return Trace(seconds=45, every=2.0, limit=600.0)


def crashed() -> Trace:
    """Two nodes, killed in the middle of it all: no end is said, the last line is torn."""
    stay = Stay(0, 1834, state="FAILED", closed=False, words="A rank failed.")
    return Trace(nodes=2, stays=(stay,), torn=(1,), checkpoints=1000, stall=0.4)


def running() -> Trace:
    """A run that still goes on, for a quarter of an hour so far."""
    return Trace(nodes=2, stays=(Stay(0, 900, state="RUNNING", closed=False),))


def torn() -> Trace:
    """Samplers killed for good, killed and started again."""
    return Trace(
        nodes=3,
        seconds=3600,
        silences=(Silence(0, 3000, 3600), Silence(1, 1000, 1600, again=True)),
        torn=(0,),
    )


def two_attempts() -> Trace:
    """A run that met its time limit, waited a while, and went on from its checkpoint."""
    return Trace(
        nodes=2,
        stays=(
            Stay(0, 1800, state="TIMEOUT", words="It met its time limit."),
            Stay(2400, 4000),
        ),
        limit=1800.0,
        checkpoints=500,
        stall=0.4,
    )


def _first_cores(ranks: int, workers: int) -> Channel:
    def use(t: Numbers, core: Numbers, draw: np.random.Generator) -> Numbers:
        busy = np.where(core < ranks, 98, np.where(core < ranks + workers, 30, 0))
        return busy + 0 * t

    return use
