"""What was recorded, for other programs: `export(recording, directory, form, target)`.

`csv` and `parquet` hold every sample as it was taken; `tensorboard`, `wandb` and `openmetrics` are
made of the recording's bins, by packages that come with extras of rankup. No form needs a network.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UserError, nearest
from ...train.trackers import PACKAGES, RATE, STEP_NAMES, need_package
from ..recording import Recording, Steps

FORMS = ("csv", "parquet", "tensorboard", "wandb", "openmetrics")
# The package that writes a form, and the extra of rankup that brings it.
_PACKAGES = {**PACKAGES, "openmetrics": ("prometheus_client", "export")}


@dataclass(frozen=True)
class Channel:
    """A row of `channels.csv`: what a column of `lines` is called outside of rankup, with its unit.

    Attributes:
        name: in tables; metric: in OpenMetrics, empty for one that is not there.
        factor: of the metric; meaning: its help.
    """

    kind: str
    channel: str
    name: str
    metric: str
    factor: str
    meaning: str


def channels(kind: str) -> dict[str, Channel]:
    """Return the channels of a kind by what `lines` calls them."""
    file = resources.files(__name__).joinpath("channels.csv")
    rows = csv.reader(file.read_text("utf-8").splitlines())
    return {row[1]: Channel(*row) for row in rows if row[0] == kind}


def need(form: str) -> Any:
    """Return the package that writes a form, None where there is no need of one.

    Raises:
        UserError: it, or what it needs itself, is not installed.
    """
    if form not in _PACKAGES:
        return None
    try:
        return need_package(f"the export to {form}", *_PACKAGES[form])
    except UserError as error:
        raise UserError(f"{error}; csv and parquet need nothing more") from None


def export(recording: Recording, directory: Path, form: str, target: Path) -> list[Path]:
    """Write a run in another form.

    Args:
        recording: of the run.
        directory: the run directory, of which `csv` and `parquet` read the samples.
        form: one of `FORMS`.
        target: a folder, made where it is missing; of `openmetrics` a file. Each file there is
            replaced as a whole or stays as it was.

    Returns:
        The files written; of `wandb` the folder of its run.

    Raises:
        UserError: there is no such form, its package is missing, or the target cannot be written.
    """
    # Here, as Arrow alone takes a third of a second to import.
    from .tables import write as write_tables
    from .trackers import write_openmetrics, write_tensorboard, write_wandb

    if form not in FORMS:
        raise UserError(f"there is no export to {form!r}: {nearest(form, FORMS)}")
    need(form)
    try:
        if form == "openmetrics":
            target.parent.mkdir(parents=True, exist_ok=True)
            return [write_openmetrics(recording, target)]
        target.mkdir(parents=True, exist_ok=True)
        if form == "tensorboard":
            return write_tensorboard(recording, target)
        if form == "wandb":
            return [write_wandb(recording, target)]
        return write_tables(recording, directory, form, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"the export to {target} could not be written: {reason}; make room there, or name "
            "another place"
        ) from error


def of_steps(steps: Steps) -> dict[str, NDArray[np.float64]]:
    """Return what is known of each step, by the names that it has outside; NaN where not said."""
    valid = dict(steps.valid.tolist())
    names = STEP_NAMES
    return {
        names["loss"]: steps.loss,
        names["seconds"]: steps.seconds,
        f"{steps.unit or 'units'}{RATE}": steps.rate,
        names["data_wait"]: steps.data_wait,
        names["mfu"]: steps.mfu,
        names["valid_loss"]: np.array([valid.get(float(step), np.nan) for step in steps.step]),
    }
