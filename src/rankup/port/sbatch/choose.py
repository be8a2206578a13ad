"""Which lines of a batch script train, and what keeps one from going to many nodes."""

from __future__ import annotations

import re
from pathlib import Path

from ...base.errors import UserError
from ...base.files import open_regular
from . import rules_use
from .launches import TORCHRUN, Launch
from .seen import Seen

_TRAINS = re.compile(
    rb"\.backward\s*\(|\.fit\s*\(|\.fine_tune\s*\(|\.fit_one_cycle\s*\(|\bTrainer\s*\(|\.train\s*\("
)
_READ = 1 << 20


def chosen(seen: Seen) -> list[Launch]:
    """The launches that are to go to all GPUs, in their order.

    Raises:
        UserError: there are none, it cannot be told which, or one is started in a way that a
            rewrite would break.
    """
    path = seen.script.path
    able = [one for one in seen.launches if one.script is not None or "-m" in one.words]
    for one in seen.launches:
        if one.kind not in ("python", *TORCHRUN):
            raise UserError(
                f"{path}:{one.line}: {one.kind} is a launcher of its own; port rewrites lines that "
                "start python or torchrun. Its manual says how it starts on several nodes"
            )
    if not able:
        raise UserError(
            f"{path} starts no Python script (python train.py); port rewrites the line that "
            "does. Code in the line itself (python -c, python - <<EOF) has to go into a file"
        )
    names = {one.script or " ".join(one.words[:3]) for one in able}
    training = able
    if len(names) > 1:
        known = {name: _trains(seen, name) for name in names}
        training = [one for one in able if one.script is not None and known[one.script]]
        if not training:
            raise UserError(
                f"{path} starts {', '.join(sorted(names))}, and which of them trains cannot be "
                "told from here; put the batch script beside them, or take the others out"
            )
    for one in training:
        _refuse(seen, one)
    return training


def _trains(seen: Seen, name: str) -> bool:
    found = rules_use.find(seen, seen.script.resolve(name))
    if found is None:
        return False
    try:
        with open_regular(Path(found)) as file:
            return bool(_TRAINS.search(file.read(_READ)))
    except OSError:
        return False


def _refuse(seen: Seen, launch: Launch) -> None:
    """UserError for a launch that would not be the same run, or not run at all."""
    place = f"{seen.script.path}:{launch.line}"
    if launch.container:
        raise UserError(
            f"{place}: it runs in a container, inside which torchrun would have to start; "
            "`rankup run --container IMAGE` makes such jobs"
        )
    if launch.command.after == "&":
        raise UserError(
            f"{place}: it is started in the background, so several runs share the GPUs of a node; "
            "they are parallel already. Start one run, or a job for each"
        )
    tasks, nodes = seen.tasks(launch), seen.nodes(launch)
    if launch.torchrun:
        if nodes is None or nodes > 1 or launch.option("nnodes", "rdzv-endpoint") is not None:
            raise UserError(
                f"{place}: {launch.kind} starts on several nodes already; `rankup check` says what "
                "is wrong with it"
            )
        if launch.script is None or "no-python" in launch.options:
            raise UserError(f"{place}: which script {launch.kind} starts is not to be seen")
    elif launch.srun is not None and (tasks != 1 or nodes != 1):
        raise UserError(
            f"{place}: srun starts it several times already, and it has to find out its rank by "
            "itself; ask for one task (--ntasks=1), or let it be as it is"
        )
