"""OpenMetrics text: the newest values of a run, for a site's Prometheus, by prometheus_client.

The text is also what node_exporter's textfile collector reads: it has no time stamps, which that
one refuses, and gauges only. How old the values are, `rankup_last_sample_timestamp_seconds` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...base.files import write_atomic
from ...base.text import clean_lines
from ..recording import Band, Recording
from . import channels

_UNITS = ("ratio", "bytes", "watts", "celsius", "hertz", "seconds")

Labels = dict[str, str]
Sample = tuple[Labels, float]


def write(recording: Recording, target: Path) -> Path:
    """Replace the target file by the newest values.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(target, text(recording))
    return target


def text(recording: Recording) -> bytes:
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
    yield from _training(recording)


def _training(recording: Recording) -> Iterator[tuple[str, str, list[Sample]]]:
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
