"""A recording for TensorBoard, as an offline run of W&B, and as OpenMetrics text."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UserError
from ...base.files import replacing, write_atomic
from ...base.text import clean_lines
from ...train.trackers import LOGGED
from ..recording import Band, Recording, strip
from . import channels, need, of_steps

_SETTINGS = ("WANDB_MODE", "WANDB_CONSOLE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_ID")
MOST_NODES = 16  # whose GPUs are shown one by one; of more, the lowest, mean and highest


def write_tensorboard(recording: Recording, target: Path) -> list[Path]:
    """Write the runs `training` and `system` into a folder, as far as there is anything to show.

    Raises:
        OSError: a file cannot be written.
    """
    runs = {
        "training": (recording.steps.time, recording.steps.step, training(recording)),
        "system": (
            recording.times,
            np.rint(recording.times - recording.begin).astype(np.int64),
            system(recording),
        ),
    }
    paths = []
    for name, (times, steps, scalars) in runs.items():
        folder = target / name
        if not scalars:
            continue
        folder.mkdir(exist_ok=True)
        path = folder / f"events.out.tfevents.{int(recording.begin)}.rankup"
        with replacing(path) as file:
            _write_events(f"/dev/fd/{file.fileno()}", times, steps, scalars)
        paths.append(path)
    return paths


def training(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """Values of each step by tag, NaN where there is none."""
    extra = {LOGGED + name: values for name, values in recording.steps.extra.items()}
    found = {**of_steps(recording.steps), **extra}
    return {tag: values for tag, values in found.items() if not np.isnan(values).all()}


def system(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """Values of each bin by tag, NaN where there is none."""
    found: dict[str, NDArray[np.float64]] = {}
    few = len(recording.heads) <= MOST_NODES
    gpus = [name.replace(":", "/gpu") for name in recording.gpu_names()]
    numbers = zip(recording.rank_node.tolist(), recording.ranks.tolist(), strict=True)
    ranks = [f"{recording.nodes[node]}/rank{number}" for node, number in numbers]
    for kind, bands, names, things in (
        ("gpu", recording.gpu, channels("gpu"), gpus),
        ("node", recording.host, channels("host"), list(recording.nodes)),
        ("rank", recording.rank, channels("rank"), ranks),
    ):
        for channel, band in bands.items():
            if few:
                for at, thing in enumerate(things):
                    found[f"{kind}_{names[channel].name}/{thing}"] = band.mean[:, at].astype(float)
            elif things:
                tag, over = f"{kind}_{names[channel].name}", strip(band)
                ends = {"lowest": over.low, "mean": over.mean, "highest": over.high}
                found |= {f"{tag}/{name}": end.astype(float) for name, end in ends.items()}
    return {tag: values for tag, values in found.items() if not np.isnan(values).all()}


def _write_events(
    path: str,
    times: NDArray[np.float64],
    steps: NDArray[np.int64],
    scalars: dict[str, NDArray[np.float64]],
) -> None:
    """Write an event file: its version, then an event per time with all that is said then."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    writer = RecordWriter(path)
    try:
        first = float(times[0]) if len(times) else 0.0
        writer.write(Event(wall_time=first, file_version="brain.Event:2").SerializeToString())
        tags = [tag.encode(errors="replace").decode() for tag in scalars]
        table = np.stack(list(scalars.values()), axis=1)
        for time, step, row in zip(times.tolist(), steps.tolist(), table, strict=True):
            values = [
                Summary.Value(tag=tags[at], simple_value=row[at])
                for at in np.flatnonzero(~np.isnan(row))
            ]
            if values:
                event = Event(wall_time=time, step=step, summary=Summary(value=values))
                writer.write(event.SerializeToString())
    finally:
        writer.close()


def write_wandb(recording: Recording, target: Path) -> Path:
    """Make an offline run in `target/wandb/`; the folder of it.

    Training values are there by `step`, those of the nodes by `seconds` since the begin.

    Raises:
        UserError: the package `wandb` is not installed, or refuses what its variables say.
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
    try:
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
    except (ValueError, wandb.Error) as error:  # it reads its variables whatever we ask for
        said = ", ".join(f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ)
        reason = " ".join(str(error).split())
        raise UserError(
            f"the export to wandb could not begin, as wandb refuses its settings ({reason}); "
            f"unset what is wrong of {said or 'its variables WANDB_…'}"
        ) from None
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


_UNITS = ("ratio", "bytes", "watts", "celsius", "hertz", "seconds")

Labels = dict[str, str]
Sample = tuple[Labels, float]


def write_openmetrics(recording: Recording, target: Path) -> Path:
    """Replace the target file by the newest values of a run, for a site's Prometheus.

    It is also what node_exporter's textfile collector reads: there are no time stamps, which that
    one refuses, and gauges only. How old they are, `rankup_last_sample_timestamp_seconds` says.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(target, _exposition(recording))
    return target


def _exposition(recording: Recording) -> bytes:
    """The exposition of a run, which ends with `# EOF`."""
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.openmetrics.exposition import generate_latest

    class Newest:
        def collect(self) -> Iterator[Metric]:
            for name, meaning, found in _families(recording):
                unit = name.rpartition("_")[2]
                metric = Metric(f"rankup_{name}", meaning, "gauge", unit if unit in _UNITS else "")
                for labels, value in found:
                    if not math.isnan(value):
                        said = {"run": recording.facts.run, **labels}
                        # Seven digits are what a recording has; times and bytes are whole.
                        rounded = float(f"{value:.7g}") if abs(value) < 1e7 else value
                        metric.add_sample(metric.name, _sound(said), rounded)
                if metric.samples:
                    yield metric

    registry = CollectorRegistry()
    registry.register(Newest())
    return generate_latest(registry)


def _families(recording: Recording) -> Iterator[tuple[str, str, list[Sample]]]:
    facts = recording.facts
    about = {"name": facts.name, "site": facts.site, "partition": facts.partition}
    yield "run", "A run that rankup recorded; always 1.", [(about, 1)]
    yield "running", "Whether samples are still taken.", [({}, float(recording.running))]
    yield "last_sample_timestamp_seconds", "When something was last heard.", [({}, recording.end)]
    yield "gaps", "Stretches of a node without samples.", [({}, float(len(recording.gaps)))]
    nodes = [{"node": head.node} for head in recording.heads]
    gpus = [
        {**nodes[int(node)], "gpu": str(gpu.index), "uuid": gpu.uuid}
        for node, gpu in zip(recording.gpu_node, recording.gpus, strict=True)
    ]
    ranks = [
        {**nodes[int(node)], "rank": str(rank)}
        for node, rank in zip(recording.rank_node, recording.ranks, strict=True)
    ]
    newest = _newest(recording)
    yield from _channels("gpu", recording.gpu, gpus, newest[recording.gpu_node])
    totals = [(labels, gpu.memory) for labels, gpu in zip(gpus, recording.gpus, strict=True)]
    yield "gpu_memory_bytes", "Memory of the GPU.", totals
    limits = [
        (labels, math.nan if gpu.power_limit is None else gpu.power_limit)
        for labels, gpu in zip(gpus, recording.gpus, strict=True)
    ]
    yield "gpu_power_limit_watts", "Power that the GPU may take.", limits
    yield from _channels("host", recording.host, nodes, newest)
    yield from _channels("rank", recording.rank, ranks, newest[recording.rank_node])
    yield from _newest_step(recording)


def _newest_step(recording: Recording) -> Iterator[tuple[str, str, list[Sample]]]:
    steps = recording.steps
    if not len(steps.step):
        return
    yield "train_step", "Number of the newest step.", [({}, float(steps.step[-1]))]
    yield "train_loss", "Loss of the newest step.", [({}, float(steps.loss[-1]))]
    yield "train_step_seconds", "Duration of the newest step.", [({}, float(steps.seconds[-1]))]
    rate = ({"unit": steps.unit}, float(steps.rate[-1]))
    yield "train_units_per_second", "Units of the newest step, over all ranks.", [rate]
    wait = float(steps.data_wait[-1])
    yield "train_data_wait_ratio", "Share of the newest step spent waiting for data.", [({}, wait)]
    yield "train_mfu_ratio", "Model FLOP/s over peak FLOP/s.", [({}, float(steps.mfu[-1]))]
    if len(steps.valid):
        yield "train_valid_loss", "Newest validation loss.", [({}, float(steps.valid[-1, 1]))]


def _newest(recording: Recording) -> np.ndarray:
    """(nodes,) the last bin of each in which there is any sample; 0 where there is none."""
    said = recording.covered > 0
    last = recording.bins - 1 - np.argmax(said[::-1], axis=0)
    return np.where(said.any(axis=0), last, 0)


def _channels(
    kind: str, bands: dict[str, Band], labels: list[Labels], newest: np.ndarray
) -> Iterator[tuple[str, str, list[Sample]]]:
    for one in channels(kind).values():
        if one.metric:
            values = bands[one.channel].mean[newest, np.arange(len(labels))].astype(np.float64)
            said = (values * float(one.factor)).tolist()
            yield one.metric, one.meaning, list(zip(labels, said, strict=True))


def _sound(labels: Labels) -> Labels:
    # As they may be shown: no colours, and no lone surrogate, which could not even be written.
    return {name: clean_lines(value.replace("\x1b", "\\x1b")) for name, value in labels.items()}
