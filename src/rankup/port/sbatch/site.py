"""The machine that a batch script is for: the detected one, or told by its partition."""

from __future__ import annotations

import os
from pathlib import Path

from ...base.errors import UserError
from ...site import config, detect, profile
from .block import Site
from .parsed import BatchScript


def site_of(script: BatchScript) -> tuple[Site, str]:
    """The machine, and a line about it where it was taken from the partition's name.

    Raises:
        UserError: `rankup.toml` is damaged.
    """
    found, _ = detect.choose(config.load(Path.cwd()), os.environ, os.uname().nodename)
    partition = script.asked("partition")
    note = ""
    if found.name in ("local", "generic") and partition:
        known = [one for one in map(profile.load, profile.names()) if partition in one.partitions]
        if len(known) == 1:
            found = known[0]
            note = f"partition {partition}: taken for {found.title}'s"
    if found.name == "local":
        return Site(), note
    shape = found.shape(partition)
    if partition is not None and found.partitions and shape is None:
        raise UserError(
            f"{script.path}: {found.title} has no partition {partition} that is known here "
            f"(known: {', '.join(sorted(found.partitions))}); correct it, or describe it in "
            "rankup.toml: [site.partitions]"
        )
    return Site(
        gpus=shape.gpus or None if shape else None,
        cores=shape.cores or None if shape else None,
        suffix=found.host_suffix,
        list_gpus=found.list_gpus,
        variables=dict(found.environment),
        srun=found.srun,
    ), note
