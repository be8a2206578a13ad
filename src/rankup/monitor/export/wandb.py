"""A W&B offline run, to be sent by `wandb sync` from where there is a network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..recording import Recording
from . import need
from .tensorboard import system, training


def write(recording: Recording, target: Path) -> Path:
    """Make an offline run in `target/wandb/`; the folder of it.

    Training values are there by `step`, those of the nodes by `seconds` since the begin.

    Raises:
        UserError: the package `wandb` is not installed.
    """
    wandb = need("wandb")
    facts = recording.facts
    config = {
        "run": facts.run,
        "command": facts.command,
        "site": facts.site,
        "partition": facts.partition,
        "nodes": facts.nodes,
        "ranks_per_node": facts.ranks,
        "gpus_per_node": facts.gpus,
        **facts.what,
    }
    run = wandb.init(
        mode="offline",
        dir=str(target),
        project="rankup",
        name=f"{facts.name} {facts.run}",
        config=config,
        # Nothing of this process: it is not the run.
        settings=wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
        ),
    )
    try:
        run.define_metric("training/*", step_metric="step")
        run.define_metric("system/*", step_metric="seconds")
        seconds = recording.times - recording.begin
        for at, row in _rows("training", training(recording)):
            run.log({"step": int(recording.steps.step[at]), **row})
        for at, row in _rows("system", system(recording)):
            run.log({"seconds": float(seconds[at]), **row})
        folder = Path(run.dir).parent
    finally:
        run.finish()
    return folder


def _rows(prefix: str, scalars: dict[str, Any]) -> Any:
    """For each time at which anything is said, its place and what is said."""
    if not scalars:
        return
    table = np.stack(list(scalars.values()), axis=1).tolist()
    tags = [f"{prefix}/{tag}" for tag in scalars]
    for at, values in enumerate(table):
        row = {tag: v for tag, v in zip(tags, values, strict=True) if not math.isnan(v)}
        if row:
            yield at, row
