"""Nodes and the job: cores and memory that run out, lost GPUs, and the end."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .. import billing, words
from ..lines import Head
from ..recording import Recording, weighted
from ..thresholds import LIMITS
from .common import Diagnosis, Look, Values, Window, highest, lasts, places


def cores(look: Look) -> Iterator[Diagnosis]:
    """RK709 and RK710: more processes want to run than there are cores; or than they may use."""
    recording, seconds = look.recording, look.node_seconds
    if not lasts(seconds):
        return
    load = weighted(recording.host["load"].mean, seconds)
    use = weighted(recording.host["cpu"].mean, seconds)
    few: list[int] = []
    over: list[int] = []
    seen = ""
    for node, head in enumerate(recording.heads):
        trapped = _trapped(recording, node, head, float(load[node]), float(use[node]))
        if trapped:
            few.append(node)
            seen = seen or trapped
        # Of a part of a node the load says nothing: the rest of it is somebody else's.
        elif (
            _whole(head) and load[node] > LIMITS.load * head.cores and use[node] >= LIMITS.load_use
        ):
            over.append(node)
    if few:
        yield _few(look, tuple(few), seen)
    if over:
        yield _over(look, tuple(over), load)


def _trapped(recording: Recording, node: int, head: Head, load: float, use: float) -> str:
    """Say by what a node's ranks are seen to use only some of its cores; empty: they are not."""
    name = words.node_names(recording, [node])
    usable = len(head.usable)
    if not usable:
        return ""
    ranks = int((recording.rank_node == node).sum())
    asked = _number(head.environment.get("SLURM_CPUS_PER_TASK"))
    if usable < max(ranks, asked / 2) and use >= LIMITS.one_core:
        wanted = f"{asked} were asked for" if asked else f"{ranks} ranks run there"
        return (
            f"the job may use {words.plural(usable, 'core')} of {head.cores} on {name} "
            f"({use:.0f} % busy), though {wanted}"
        )
    if _whole(head) and load > LIMITS.load * head.cores and use < LIMITS.load_use:
        return (
            f"load {load:.0f} on {name} at {use:.0f} % use of its {head.cores} cores: many "
            "processes wait for few of them"
        )
    busy = np.sort(recording.core_use[node])[::-1]
    one = (
        usable >= 4
        and len(busy) >= 4
        and busy[0] >= LIMITS.one_core
        and busy[1] < LIMITS.other_cores
    )
    if ranks >= 2 and one:
        return f"{ranks} ranks on {name} share one core; the other {usable - 1} idle"
    return ""


def _few(look: Look, nodes: tuple[int, ...], seen: str) -> Diagnosis:
    recording = look.recording
    environment = recording.heads[nodes[0]].environment
    asked = environment.get("SLURM_CPUS_PER_TASK")
    missing = "SRUN_CPUS_PER_TASK" not in environment
    taken_over = 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
    if not missing and all(_whole(recording.heads[node]) for node in nodes):
        todo = (
            "the job has all cores of its nodes already: fewer ranks (`--nproc`) or data workers, "
            "and `taskset -cp PID` on the node shows which cores a process may use"
        )
    elif not missing:  # as in every job of `rankup run`, which does what is said below
        todo = "whole nodes (`--sbatch=--exclusive`), or fewer ranks per node (`--nproc`)"
    elif asked:
        todo = (
            f"`{taken_over}` before `srun`, which does not take `--cpus-per-task` over from "
            "`sbatch`, and `srun --cpu-bind=none`; `rankup run` does both"
        )
    else:
        todo = (
            f"`#SBATCH --cpus-per-task=` cores per node / ranks per node, `{taken_over}`, and "
            "`srun --cpu-bind=none`; `rankup run` does all three"
        )
    if asked and missing:
        seen += "; SRUN_CPUS_PER_TASK is not set"
    return Diagnosis(
        "RK710",
        "warning",
        words.node_names(recording, nodes),
        seen,
        todo,
        nodes=nodes,
        share=_slack(look),
    )


def _over(look: Look, nodes: tuple[int, ...], load: Values) -> Diagnosis:
    recording = look.recording
    worst = max(nodes, key=lambda node: load[node])
    head = recording.heads[worst]
    ranks = max(1, int((recording.rank_node == worst).sum()))
    seconds = look.node_seconds[:, recording.rank_node]
    workers = np.nan_to_num(weighted(recording.rank["workers"].mean, seconds))
    own = float(workers[recording.rank_node == worst].sum())
    each = max(1, head.cores // ranks)
    threads = head.environment.get("OMP_NUM_THREADS")
    return Diagnosis(
        "RK709",
        "warning",
        words.node_names(recording, nodes),
        f"load {load[worst]:.0f} on the {head.cores} cores of "
        f"{words.node_names(recording, [worst])} ({words.plural(ranks, 'rank')}, "
        f"{own:.0f} workers): processes take turns",
        f"`DataLoader(num_workers={max(1, each - 1)})` at most, and "
        f"`export OMP_NUM_THREADS={max(1, each // (1 + round(own / ranks)))}`"
        + (f" (it is {words.shown(threads)})" if threads else ""),
        nodes=nodes,
        share=_slack(look),
    )


def _slack(look: Look) -> float:
    """The share of the time that did no work, less what a healthy run has of that anyway."""
    efficiency = look.work.efficiency
    return 0.0 if efficiency is None else max(0.0, LIMITS.usual - efficiency)


def _whole(head: Head) -> bool:
    return head.cores > 0 and len(head.usable) >= head.cores


def _number(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        return 0
    return value if math.isfinite(value) and value > 0 else 0


def host_memory(look: Look) -> Iterator[Diagnosis]:
    """RK714: what counts against the cgroup's limit, or else the node's memory, is nearly full."""
    recording, seconds = look.recording, look.covered(look.in_attempts)
    cgroup = highest(recording.host["cgroup"].high, seconds)
    whole = highest(recording.host["memory"].high, seconds)
    limit = np.array([head.memory_limit or np.nan for head in recording.heads], float)
    size = np.array([head.memory or np.nan for head in recording.heads], float)
    limited = np.isfinite(cgroup) & np.isfinite(limit)
    share = np.where(limited, cgroup / limit, whole / size)
    nodes = places(share >= LIMITS.host_near)
    if not nodes:
        return
    worst = nodes[int(np.argmax(share[list(nodes)]))]
    is_limit = bool(limited[worst])
    used, most = (cgroup, limit) if is_limit else (whole, size)
    yield Diagnosis(
        "RK714",
        "warning",
        words.node_names(recording, nodes),
        f"{words.memory(float(used[worst]))} of {words.memory(float(most[worst]))} "
        f"({words.percent(share[worst])}) of the {'memory limit' if is_limit else 'memory'} "
        f"were used on {words.node_names(recording, [worst])}: at 100 % the "
        "kernel kills a process",
        "fewer DataLoader workers (each has its own copy of what the data set holds)"
        + (", or a larger `--mem`" if is_limit else ""),
        nodes=nodes,
    )


_FAILED = {
    "FAILED": "the run failed",
    "OUT_OF_MEMORY": "the node's main memory ran out",
    "NODE_FAIL": "a node died",
    "BOOT_FAIL": "a node did not start",
    "UNKNOWN": "the run ended without a word",
}


def gpu_lost(look: Look) -> Iterator[Diagnosis]:
    """RK723: billed GPUs that could not be read, from the start or from some time on."""
    recording, billed = look.recording, look.recording.facts.gpus
    if not billed:
        return
    missing: dict[str, list[int]] = {}
    for node, head in enumerate(recording.heads):
        seen = ""
        if head.gpu_error:
            seen = f"no GPU can be read: {words.shown(head.gpu_error)}"
        elif 0 < len(head.gpus) < billed:
            seen = f"{len(head.gpus)} of {billed} billed GPUs are there"
        if seen:
            missing.setdefault(seen, []).append(node)
    for seen, alike in missing.items():
        name, todo = words.node_names(recording, alike), _TELL
        said = f"{name}: {seen}"
        why = recording.heads[alike[0]].gpu_error
        if why and len(alike) == len(recording.heads):
            said = f"no node of the run has a GPU that can be read: {words.shown(why)}"
            todo = (
                "see that the partition has GPUs and the job asks for them (`--partition`, "
                "`nvidia-smi` in the job); if it does, their driver is missing: tell the site"
            )
        yield Diagnosis("RK723", "warning", name, said, todo, nodes=tuple(alike))
    columns, windows = _vanished(look)
    if columns:
        nodes = tuple(sorted({int(recording.gpu_node[column]) for column in columns}))
        begin = min(window[0] for window in windows)
        yield Diagnosis(
            "RK723",
            "error",
            words.node_names(recording, nodes),
            f"{words.gpus(recording, columns)} could not be read from {words.clock(begin)} on: "
            "the driver lost it, or it fell off the bus",
            _TELL,
            windows=windows,
            gpus=columns,
            nodes=nodes,
        )


_TELL = (
    "`nvidia-smi` and `dmesg | grep -i xid` on that node say more; tell the site, and run without "
    "the node (`sbatch --exclude=NODE`)"
)


def failed(look: Look) -> Iterator[Diagnosis]:
    """RK724: the run's last attempt came to no good end."""
    recording, attempts = look.recording, look.attempts
    attempt = attempts[-1]
    if attempt.state not in _FAILED:
        return
    said_end = recording.running or recording.steps.final is not None
    if attempt.state == "UNKNOWN" and (said_end or not recording.facts.attempts):
        return
    said = words.shown(attempt.words).rstrip(".")
    gpu_memory = "out of memory" in said.lower() and attempt.state == "FAILED"
    seen = "a GPU's memory ran out" if gpu_memory else _FAILED[attempt.state]
    # The last attempt may be no more than a requeued job that was not to start again.
    seen += f" after {words.duration(look.ran)}"
    seen += f" in {len(attempts)} attempts" if len(attempts) > 1 else ""
    if said:
        seen += f": {said}"
    lost = lost_work(look)
    if lost is not None:
        paid = look.bill
        share = lost / max(1e-9, look.ran)
        seen += (
            f"; the last checkpoint is {words.duration(lost)} older, that work "
            f"({words.amount(share * paid.units)} {paid.unit}) is lost"
        )
    logs = f"rankup logs {words.argument(recording.facts)}"
    todo = f"`{logs} --cause` names the rank, the node and the exception"
    if gpu_memory:
        todo = "a smaller `--micro-batch` (the same run, slower), or `--strategy fsdp`; " + todo
    elif attempt.state == "OUT_OF_MEMORY":
        todo = "fewer DataLoader workers, or more `--mem`; " + todo
    elif attempt.state == "NODE_FAIL":
        todo = f"`{words.resume(recording.facts)}` goes on from the last checkpoint"
    yield Diagnosis("RK724", "error", "run", seen, todo)


def _vanished(look: Look) -> tuple[tuple[int, ...], tuple[Window, ...]]:
    """GPUs without a value while their node was sampled, having had some before."""
    recording = look.recording
    known = np.isfinite(recording.gpu["util"].mean) | np.isfinite(recording.gpu["memory"].mean)
    sampled = (np.nan_to_num(recording.covered) > 0) & look.in_attempts[:, None]
    columns: list[int] = []
    windows: set[Window] = set()
    for column in np.flatnonzero(known.any(axis=0) & ~known.all(axis=0)).tolist():
        blind = sampled[:, recording.gpu_node[column]] & ~known[:, column]
        blind &= np.cumsum(known[:, column]) > 0
        if found := look.stretches(blind, LIMITS.gap_least):
            columns.append(column)
            windows.update(found)
    return tuple(columns), tuple(sorted(windows))


def lost_work(look: Look) -> float | None:
    """Seconds from the last checkpoint to the end of the last attempt.

    None where no checkpoint is on record: a script may write its own without a word.
    """
    end = billing.end_of(look.attempts[-1], look.recording)
    saved = [event.time for event in look.recording.events if event.kind == "checkpoint"]
    return max(0.0, end - max(saved)) if saved else None


TOO_SHORT = "too short to judge"


def limit_long(look: Look) -> Iterator[Diagnosis]:
    """RK716: a run that came to its end in a small part of the time that it asked for."""
    attempt, took = look.attempts[-1], look.bill.seconds[-1]
    if attempt.state != "COMPLETED" or not attempt.limit or took < LIMITS.short:
        return
    if took >= LIMITS.limit_share * attempt.limit or attempt.limit - took < LIMITS.limit_least:
        return
    enough = max(600.0, 1.5 * took)
    yield Diagnosis(
        "RK716",
        "warning",
        "time limit",
        f"the run took {words.duration(took)} of the {words.duration(attempt.limit)} that it "
        f"asked for ({words.percent(took / attempt.limit)}): short jobs start earlier, "
        "in gaps of others",
        f"`--time {_option(enough)}`",
    )


def limit_hit(look: Look) -> Iterator[Diagnosis]:
    """RK717: the run's last attempt was ended by its time limit."""
    attempt = look.attempts[-1]
    if attempt.state != "TIMEOUT":
        return
    lost = lost_work(look)
    limit = f" of {words.duration(attempt.limit)}" if attempt.limit else ""
    after = ""
    if lost is not None:
        after = f"; the last checkpoint is {words.duration(lost)} older, that work is lost"
    yield Diagnosis(
        "RK717",
        "warning",
        "time limit",
        f"the run was ended by its time limit{limit}{after}",
        f"`{words.resume(look.recording.facts)}` goes on from the last checkpoint; a script of "
        "your own saves in time with `rankup.Deadline()` (docs/time-limit.md)",
    )


def short(look: Look) -> Iterator[Diagnosis]:
    """RK718: too short for a judgement, or hardly worth its time in the queue. No reproach."""
    took, queued = look.ran, look.recording.facts.queued or 0.0
    if billing.goes_on(look.recording) or not took:
        return
    brief = took < LIMITS.short
    waited = queued >= max(LIMITS.queue_least, LIMITS.queue_times * took)
    if not brief and not waited:
        return
    after = f" after {words.duration(queued)} in the queue" if queued > took else ""
    judged = f"{TOO_SHORT}: " if brief else ""
    seen = f"{judged}the run took {words.duration(took)}{after}"
    yield Diagnosis(
        "RK718",
        "ok",
        "run",
        seen,
        "try short runs on a partition for development, or several in one job" if waited else "",
    )


def _option(seconds: float) -> str:
    """As `--time` takes it: 2h, 1h30m, 20m; whole five minutes."""
    minutes = -(-int(seconds) // 300) * 5
    hours, rest = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{rest}m" if rest or not hours else "")
