"""`--log`: what goes into `metrics.jsonl` goes to TensorBoard and W&B as well, by their libraries.

<run>/tensorboard/live/   events; a resume has TensorBoard forget what is done again
      wandb/              the run of W&B, and `id`: the name under which a resume goes on with it

No torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from ..base.errors import UserError
from ..base.files import write_atomic
from ..site import rundir

# The package behind a name, the extra of rankup that brings it, and the least version that will do:
# with an older wandb a run whose server is gone never ends.
PACKAGES = {"tensorboard": ("tensorboardX", "tensorboard", ""), "wandb": ("wandb", "wandb", "0.27")}
# What a step's values are called outside of `metrics.jsonl`; all others are `logged/NAME`.
STEP_NAMES = {
    "loss": "loss",
    "seconds": "step_seconds",
    "data_wait": "data_wait_share",
    "mfu": "mfu",
    "valid_loss": "valid_loss",
}
RATE = "_per_s"
LOGGED = "logged/"
_APART = ("step", "time", "valid_seconds")
_TAIL = 1 << 16  # bytes, of which the last lines are read
_PATIENCE = 30  # s for W&B's server
_QUEUE = 1000  # values on their way to TensorBoard's file, so that those of a step never wait


def need_package(purpose: str, package: str, extra: str, least: str = "") -> Any:
    """Return a package that comes with an extra of rankup.

    Args:
        least: version.

    Raises:
        UserError: it, or what it needs itself, is not installed, or it is older.
    """
    try:
        found = importlib.import_module(package)
        if least and Version(here := importlib.metadata.version(package)) < Version(least):
            raise UserError(
                f"{purpose} needs {package} {least} or newer, and {here} is installed here: "
                f"pip install -U 'rankup[{extra}]'"
            )
        return found
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        what = f"the package {package}, "
        if missing == package:
            what += "which is not installed here"
        elif missing:
            what += f"which needs {missing}, and that is not installed here"
        else:
            what += f"which cannot be imported here ({error})"
        raise UserError(f"{purpose} needs {what}: pip install 'rankup[{extra}]'") from None


def outside(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step's line, by the names that they have outside."""
    found = {}
    for name, value in record.items():
        if name in _APART or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if math.isfinite(value):
            known = name if name.endswith(RATE) else STEP_NAMES.get(name)
            found[known or LOGGED + name] = float(value)
    return found


class _Tracker(Protocol):
    def step(self, number: int, values: dict[str, float], time: float) -> None: ...
    def close(self) -> None: ...


class _TensorBoard:
    """Args: resumed_at: of what an earlier attempt did beyond this step, nothing is shown."""

    def __init__(self, directory: Path, resumed_at: int) -> None:
        writer = importlib.import_module(PACKAGES["tensorboard"][0]).SummaryWriter
        again = resumed_at + 1 if resumed_at else None
        folder = str(directory / "tensorboard" / "live")
        before = {*threading.enumerate()}
        self._writer = writer(folder, purge_step=again, max_queue=_QUEUE)
        self._threads = {*threading.enumerate()} - before

    def step(self, number: int, values: dict[str, float], time: float) -> None:
        self._require_alive()
        for name, value in values.items():
            self._writer.add_scalar(name, value, number, walltime=time)

    def close(self) -> None:
        self._require_alive()
        self._writer.close()

    def _require_alive(self) -> None:
        """The library writes in a thread, and waits forever for one that a full disk has ended."""
        if not all(thread.is_alive() for thread in self._threads):
            raise OSError("it could not write its events (a full disk?)")


class _Wandb:
    """Args: sent: the newest step that an earlier attempt has sent; it is not sent again."""

    def __init__(self, directory: Path, sent: int, config: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        self._folder = folder = directory / "wandb"
        title = directory.name
        folder.mkdir(exist_ok=True)
        name = folder / "id"
        self._sent = sent if name.is_file() else 0
        if not name.is_file():
            write_atomic(name, secrets.token_hex(8))
        with suppress(UserError):
            job = rundir.read(directory)
            title = f"{job.name} {job.id}"
        self._run = wandb.init(
            dir=str(directory),
            project=os.environ.get("WANDB_PROJECT", "rankup"),
            name=os.environ.get("WANDB_NAME", title),
            id=name.read_text(),
            resume="allow",
            config=dict(config),
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                init_timeout=_PATIENCE,
                finish_timeout=_PATIENCE,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("training/*", step_metric="step")

    def step(self, number: int, values: dict[str, float], time: float) -> None:
        if number > self._sent:
            row = {f"training/{name}": value for name, value in values.items()}
            self._run.log({"step": number, **row}, step=number)

    def close(self) -> None:
        try:
            self._run.finish()
        except TimeoutError:
            raise TimeoutError(
                f"its server did not take all values within {_PATIENCE} s of the end; `wandb sync "
                f"{self._folder}/run-*-{self._run.id}` sends them from the disk"
            ) from None


class Trackers:
    """All that were asked for; one that fails is left out from then on, and the training goes on.

    Args:
        names: of `PACKAGES`.
        directory: of the run, with `metrics.jsonl` as the attempt before has left it.
        resumed_at: the step that the run goes on from.
        config: the run's options, for who compares runs.
        say: tells the user a line.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        directory: Path,
        resumed_at: int,
        config: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._all: dict[str, _Tracker] = {}
        if "tensorboard" in names:
            self._begin("tensorboard", lambda: _TensorBoard(directory, resumed_at))
        if "wandb" in names:
            lines = rundir.metrics(directory, _TAIL) if resumed_at else []
            done = [line["step"] for line in lines if isinstance(line.get("step"), int)]
            sent = max(done, default=resumed_at)
            self._begin("wandb", lambda: _Wandb(directory, sent, config))

    def step(self, record: Mapping[str, Any]) -> None:
        """Hand a step's line on."""
        values = outside(record)
        for name, tracker in [*self._all.items()]:
            self._do(name, partial(tracker.step, record["step"], values, record["time"]))

    def close(self) -> None:
        for name, tracker in [*self._all.items()]:
            self._do(name, tracker.close)

    def _begin(self, name: str, make: Callable[[], _Tracker]) -> None:
        def begin() -> None:
            self._all[name] = make()

        self._do(name, begin)

    def _do(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a library raises, a run is worth more than its curve
            self._all.pop(name, None)
            reason = " ".join(str(error).split())[:300]
            self._say(f"warning: --log {name} failed, and the run goes on without it: {reason}")
