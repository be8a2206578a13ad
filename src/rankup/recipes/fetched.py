"""Where a data set lies that `rankup fetch --dataset` has brought. No torch."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import UserError
from ..login import record
from ..login.record import Record
from ..site import config


def dataset(name: str) -> Record:
    """The record of a fetched data set whose files are all here.

    Raises:
        UserError: it was not fetched for this project, or is no longer here; what fetches it.
    """
    project = config.load(Path.cwd()).project(Path.cwd())
    found = record.find(project, f"dataset:{name}")
    command = f"rankup fetch --dataset {name}"
    if found is None:
        raise UserError(
            f"--dataset {name} was not fetched for {project}; on a machine with a network: "
            f"{command}; or give files of your own"
        )
    if gone := found.missing():
        raise UserError(f"--dataset {name}: {gone[0]}; fetch it again: {command}")
    return found


def files(name: str, *parts: str) -> dict[str, Path]:
    """The files of these names in a fetched data set, by name without their suffix.

    Raises:
        UserError: as `dataset`, or it came without one of them.
    """
    found = {item.name: Path(item.path) for item in dataset(name).items}
    for part in parts:
        if part not in found:
            raise UserError(
                f"--dataset {name} has no {part}; fetch it again: rankup fetch --dataset {name}"
            )
    return {Path(part).stem: found[part] for part in parts}
