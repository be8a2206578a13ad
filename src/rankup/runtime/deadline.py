"""When to save and stop: before the job's time limit, or at a signal.

The clock is the first source: the job script exports `RANKUP_END_TIME`. A signal is the second,
since some sites do not deliver it. Both only set a wish; the ranks agree on it at a step's end,
save together, and leave a marker at which the job script starts the next attempt; not where
somebody has ended the run.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from .collectives import barrier, broadcast
from .world import is_root_process, several

# What a rank may wish for, so that a sum over ranks still tells the two apart.
GO_ON = 1.0  # stop, and go on in a next attempt
END = float(1 << 20)  # stop; somebody ended the run
# Seconds in which a second signal is the first one's: Slurm and torchrun both hand one on.
_ONE_WISH = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # by which a run is ended


class Deadline:
    """The end of this attempt of the job, agreed on by all ranks.

        deadline = rankup.Deadline()
        for step in range(start, steps):
            ...
            if deadline.reached():  # the same answer on every rank at the same step
                save_checkpoint(...)
                deadline.leave()  # the job goes on in a next attempt, from the checkpoint

    The end comes from `RANKUP_END_TIME` (seconds since 1970, exported by rankup's job script), else
    from Slurm; outside a job there is none. SIGUSR1 brings it forward to now, and so does SIGTERM,
    by which `scancel` and `rankup cancel` end a run: no next attempt follows then.
    SIGTERM once more, a second later or more, ends the process at once.

    Args:
        margin: seconds before the end at which to stop; by default twice the longest save and step
            so far, and a reserve of 5 % of the time, 5 to 60 s. Before the first save is measured
            (`with deadline.saving():`) it counts as 10 % of the time, at most 300 s.
        end: seconds since 1970, instead of the job's own.
        signals: that bring the end forward.

    Raises:
        RuntimeError: the margin is all the time there is, `RANKUP_END_TIME` is not a number, or
            several ranks have no process group yet.
    """

    def __init__(
        self,
        margin: float | None = None,
        end: float | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGUSR1, signal.SIGTERM),
    ) -> None:
        self.end = _end_time() if end is None else end
        given = None if self.end is None else max(0.0, self.end - time.time())
        if margin is not None and given is not None and margin >= given:
            raise RuntimeError(
                f"Deadline(margin={margin:g}): only {given:.0f} s are left before the end of this "
                "attempt; give a smaller margin or a longer time limit"
            )
        self._margin = margin
        self._reserve = min(60.0, max(5.0, 0.05 * (given or 0.0)))
        self._unmeasured = min(300.0, 0.1 * (given or 0.0))
        self._save = 0.0
        self._step = 0.0
        self._saved = 0.0
        self._last: float | None = None
        self._calls = 0
        self._pending: tuple[torch.Tensor, dist.Work | None] | None = None
        self._wish = self._agreed = 0.0
        self._asked = math.inf  # when somebody ended the run
        self._pid = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                signal.signal(number, self._wish_to_end if number in _ENDING else self._go_on)

    @property
    def margin(self) -> float:
        """Seconds before the end at which this rank would stop by now."""
        if self._margin is not None:
            return self._margin
        return self._reserve + (2 * self._save or self._unmeasured) + 2 * self._step

    @property
    def wish(self) -> float:
        """What this rank wishes for: 0 to go on, `GO_ON`, `END`. Not agreed on with the others."""
        if self._wish == 0 and self.end is not None and time.time() >= self.end - self.margin:
            return GO_ON
        return self._wish

    def tick(self) -> None:
        """A step has ended: how long they take belongs to the margin."""
        now = time.monotonic()
        self._calls += 1
        if self._last is not None and self._calls > 2:  # the first is slow for other reasons
            self._step = max(self._step, now - self._last - self._saved)
        self._last, self._saved = now, 0.0

    def reached(self) -> bool:
        """Whether all ranks stop now. Call it on every rank at the end of every step.

        One number is summed over ranks while the next step runs, so the answer is the same
        everywhere and comes one step late.
        """
        self.tick()
        before, self._pending = self._pending, self._vote()
        if before is None:
            return False
        total, work = before
        if work is not None:
            work.wait()
        self._agreed = total.item()
        return bool(self._agreed)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure the saving of a checkpoint; its time is kept free before the end."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.saved_in(took)
            self._saved += took  # not a part of the step it happens in

    def saved_in(self, seconds: float) -> None:
        """Note how long a checkpoint took, where it was not written inside `saving()`."""
        self._save = max(self._save, seconds)

    def leave(self) -> NoReturn:
        """End this process well, and let the job go on in a next attempt, unless somebody has ended
        the run. Call it on every rank.

        The checkpoint must be whole by now: behind the last rank, rank 0 leaves the marker.
        """
        if self._pending is not None and self._pending[1] is not None:
            self._pending[1].wait()
        barrier()
        if is_root_process():
            if self._agreed < END:
                ask_for_next_attempt()
            when = "before the deadline" if self._agreed < END else "as the run was ended"
            print(f"stopped {when}, after a checkpoint", flush=True)
        sys.exit(0)

    def _vote(self) -> tuple[torch.Tensor, dist.Work | None]:
        total = torch.tensor(self.wish, dtype=torch.float64)
        if not several():
            return total, None
        if "cpu" not in str(dist.get_backend_config()) and dist.get_backend() == "nccl":
            total = total.cuda()  # a group that the script made itself may have no gloo
        return total, dist.all_reduce(total, async_op=True)

    def _go_on(self, number: int, frame: object) -> None:
        if os.getpid() == self._pid:  # a DataLoader's workers inherit the handler
            self._wish = self._wish or GO_ON

    def _wish_to_end(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if os.getpid() == self._pid and now < self._asked + _ONE_WISH:
            self._asked, self._wish = min(self._asked, now), END
        else:  # asked again; or forked by this process. It ends, as it would without a handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def ask_for_next_attempt() -> Path | None:
    """Leave the marker that the job script looks for; outside a job there is nobody to look."""
    directory, job = os.environ.get("RANKUP_RUN_DIR"), os.environ.get("SLURM_JOB_ID")
    if directory is None and job is None:
        return None
    path = Path(directory) / "requeue" if directory is not None else Path(f"requeue.{job}")
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps({"time": round(time.time(), 3)}) + "\n")
    temporary.replace(path)
    return path


def _end_time() -> float | None:
    for name in ("RANKUP_END_TIME", "SLURM_JOB_END_TIME"):
        value = os.environ.get(name)
        if value:
            try:
                end = float(value)
                if math.isnan(end):
                    raise ValueError
                return end
            except ValueError:
                raise RuntimeError(
                    f"{name}={value!r} is not a time in seconds since 1970; unset it, or set it "
                    "to when the job ends"
                ) from None
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        # The last task of an array has the number of the whole array as its own.
        job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        raise RuntimeError("call rankup.setup() before Deadline(): one rank asks Slurm for all")
    # A thousand ranks asking would be felt by everybody on the machine.
    return broadcast(_ask_slurm(job) if is_root_process() else None)


def _ask_slurm(job: str) -> float | None:
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"rankup: squeue does not say when job {job} ends ({error}): no deadline", flush=True)
        return None
    left = seconds_left(done.stdout)
    return None if left is None else time.time() + left


def seconds_left(text: str) -> float | None:
    """`1-02:03:04` -> 93784.0: the time left as squeue's %L gives it; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
