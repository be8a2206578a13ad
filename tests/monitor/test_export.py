"""What was recorded, read back as other programs would."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv, parquet

from rankup.base.errors import UserError
from rankup.monitor.export import export
from rankup.monitor.load import load
from rankup.monitor.recording import Recording

from . import traces
from .rundirs import NOBODY, head, sample, write
from .traces import BEGIN, Trace, healthy


def made(trace: Trace, directory: Path) -> Recording:
    return load(trace.write(directory), trace.facts())


def small() -> Trace:
    return healthy(
        nodes=2,
        seconds=300,
        fs={"/p/scratch": {"read": 1000, "write": 10, "operations": 3}},
        checkpoints=100,
        validations=100,
    )


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_have_every_sample(form: str, tmp_path: Path) -> None:
    recording = made(small(), tmp_path)
    paths = export(recording, tmp_path, form, tmp_path / "out")
    names = ["gpus", "nodes", "ranks", "file_systems", "steps"]
    assert [path.name for path in paths] == [f"{name}.{form}" for name in names]
    read = parquet.read_table if form == "parquet" else csv.read_csv
    gpus, nodes, ranks, mounts, steps = (read(path) for path in paths)
    assert (len(gpus), len(nodes), len(ranks), len(mounts)) == (31 * 8, 31 * 2, 31 * 8, 30 * 2)
    assert gpus.column_names[:6] == [
        *("time", "sample_seconds", "node", "gpu", "uuid", "util_percent"),
    ]
    row = gpus.slice(8, 1).to_pylist()[0]
    assert row["time"].timestamp() == pytest.approx(BEGIN + 20, abs=0.01)
    assert row["time"].tzinfo is not None
    assert (row["node"], row["gpu"], row["uuid"]) == ("jrc0001", 0, "GPU-00000000-0")
    assert 90 <= row["util_percent"] <= 100
    assert row["power_watts"] > 250
    assert row["throttle_bits"] == 0
    # A sampler's first sample has no rates: null, neither zero nor NaN.
    assert gpus.column("nvlink_bytes_per_s").slice(0, 5).null_count == 4
    highest = max(value for value in gpus.column("util_percent").to_pylist() if value is not None)
    assert highest == recording.gpu["util"].high.max()
    assert nodes.column("busiest_core_percent").to_pylist()[5] == 100
    assert nodes.column("network_fs_read_bytes_per_s").to_pylist()[1] == 1000
    assert sorted(set(ranks.column("rank").to_pylist())) == list(range(8))
    assert mounts.to_pylist()[0]["mount"] == "/p/scratch"
    assert steps.column("step").to_pylist() == recording.steps.step.tolist()
    assert steps.column("loss").to_pylist() == recording.steps.loss.tolist()
    losses = [value for value in steps.column("valid_loss").to_pylist() if value is not None]
    assert losses == recording.steps.valid[:, 1].tolist()
    assert {"tokens_per_s", "step_seconds", "grad_norm"} <= set(steps.column_names)


def test_tables_of_hostile_names_and_of_nothing(tmp_path: Path) -> None:
    strange = sample(100, fs={'/m,"=': [1, None, 1], "/silent": [None] * 3})
    write(tmp_path, [head(), strange, sample(200)], node='a",\n=b')
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"time": BEGIN + step, "step": step, "loss": 1, "step_seconds": 5, "é\n": 1})
            + "\n"
            for step in range(3)
        )
    )
    recording = load(tmp_path, NOBODY)
    for form in ("csv", "parquet"):
        paths = export(recording, tmp_path, form, tmp_path / "out")
        assert {path.stem for path in paths} >= {"gpus", "nodes", "ranks", "steps"}
    options = csv.ParseOptions(newlines_in_values=True)
    gpus = csv.read_csv(tmp_path / "out" / "gpus.csv", parse_options=options)
    assert set(gpus.column("node").to_pylist()) == {'a",\n=b'}
    mounts = parquet.read_table(tmp_path / "out" / "file_systems.parquet")
    assert mounts.column("mount").to_pylist() == ['/m,"=']
    steps = parquet.read_table(tmp_path / "out" / "steps.parquet")
    assert steps.column("step_seconds_").to_pylist() == [5, 5, 5]
    assert not list((tmp_path / "out").glob("*.tmp"))

    empty = load(tmp_path / "missing", NOBODY)
    # What another export left there is not of this run.
    assert export(empty, tmp_path / "missing", "csv", tmp_path / "out") == []
    assert list((tmp_path / "out").glob("*.csv")) == []


def test_a_failed_export_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = made(small(), tmp_path)
    paths = export(recording, tmp_path, "csv", tmp_path / "out")
    before = [path.read_bytes() for path in paths]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        export(recording, tmp_path, "csv", tmp_path / "out")
    assert [path.read_bytes() for path in paths] == before
    assert sorted((tmp_path / "out").iterdir()) == sorted(paths)


def test_forms_and_targets_that_are_none(tmp_path: Path) -> None:
    recording = load(tmp_path, NOBODY)
    with pytest.raises(UserError, match="did you mean parquet"):
        export(recording, tmp_path, "parkett", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not be written"):
        export(recording, tmp_path, "csv", tmp_path / "file")


def _scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The points of an event file by tag, read by TensorBoard's own definitions."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    data, at = path.read_bytes(), 0
    while at < len(data):  # length, its checksum, message, its checksum
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        assert event.wall_time > BEGIN - 1
        assert at or event.file_version == "brain.Event:2"
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
        at += 16 + length
    return found


def test_event_files_have_steps_and_bins(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    recording = made(small(), tmp_path)
    train, system = export(recording, tmp_path, "tensorboard", tmp_path / "out")
    assert "tfevents" in train.name
    steps = _scalars(train)
    assert [step for step, _ in steps["loss"]] == recording.steps.step.tolist()
    assert [value for _, value in steps["loss"]] == pytest.approx(recording.steps.loss.tolist())
    assert [step for step, _ in steps["valid_loss"]] == [100, 200, 300, 400, 500]
    assert "tokens_per_s" in steps
    bins = _scalars(system)
    assert len(bins["gpu_util_percent/jrc0002/gpu3"]) == recording.bins
    assert bins["node_cpu_percent/jrc0001"][5][0] == 55
    assert "rank_memory_bytes/jrc0002/rank7" in bins


def _exposed(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and values of labels, as Prometheus reads them."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as read

    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in read(text)
        for sample in family.samples
    }


def test_openmetrics_has_the_newest_values(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    trace = traces.running().with_gpu(util=lambda t, gpu, draw: np.where(t < 500, 10, 90 + gpu))
    recording = made(trace, tmp_path)
    (path,) = export(recording, tmp_path, "openmetrics", tmp_path / "a" / "rankup.prom")
    found = _exposed(path.read_text())
    run = recording.facts.run
    gpu = ("3", "jrc0002", run, "GPU-00000001-3")
    assert found[("rankup_gpu_utilisation_ratio", *gpu)] == pytest.approx(0.97)
    assert found[("rankup_gpu_memory_bytes", *gpu)] == 40 * 2**30
    assert found[("rankup_gpu_sm_clock_hertz", *gpu)] == pytest.approx(1.395e9, rel=0.02)
    assert found["rankup_running", run] == 1
    assert found["rankup_train_step", run] == recording.steps.step[-1]
    assert found["rankup_train_units_per_second", run, "tokens"] > 100_000
    assert found["rankup_last_sample_timestamp_seconds", run] == recording.end


def test_openmetrics_of_hostile_names_and_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    write(tmp_path, [head(), sample(10), sample(20)], node='a"\\\n} 1\x1b[31m')
    (path,) = export(load(tmp_path, NOBODY), tmp_path, "openmetrics", tmp_path / "a.prom")
    assert ("rankup_node_load", 'a"\\\n} 1\\x1b[31m', "r") in _exposed(path.read_text())
    nothing = load(tmp_path / "missing", NOBODY)
    (path,) = export(nothing, tmp_path, "openmetrics", tmp_path / "b.prom")
    assert _exposed(path.read_text())["rankup_running", "r"] == 0


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [
        ("tensorboard", "tensorboardX", "export"),
        ("openmetrics", "prometheus_client", "export"),
        ("wandb", "wandb", "wandb"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}, which is.*pip install 'rankup\[{extra}\]'"):
        export(load(tmp_path, NOBODY), tmp_path, form, tmp_path / "out" / "there")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import of_protobuf", "tensorboardX, which needs of_protobuf, and that is not installed"),
        ("from os import proto", "which cannot be imported here (cannot import name 'proto'"),
    ],
)
def test_a_package_that_lacks_something_itself_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    (tmp_path / "tensorboardX.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorboardX", raising=False)
    with pytest.raises(UserError, match=re.escape(why)):
        export(load(tmp_path, NOBODY), tmp_path, "tensorboard", tmp_path / "out")


def test_wandb_gets_steps_and_bins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in; the package itself is no part of the tests."""
    logged: list[dict[str, float]] = []

    class Run:
        dir = str(tmp_path / "out" / "wandb" / "offline-run-1" / "files")

        def define_metric(self, name: str, step_metric: str) -> None: ...

        def log(self, row: dict[str, float]) -> None:
            logged.append(row)

        def finish(self) -> None:
            logged.append({})

    class Package:
        Error = RuntimeError

        @staticmethod
        def Settings(**given: object) -> dict[str, object]:  # noqa: N802
            return given

        @staticmethod
        def init(mode: str, **given: object) -> Run:
            assert mode == "offline"
            if os.environ.get("WANDB_MODE") == "of":
                raise ValueError("mode\n  Input should be 'offline'")
            return Run()

    recording = made(small(), tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", Package)
    (folder,) = export(recording, tmp_path, "wandb", tmp_path / "out")
    assert folder.name == "offline-run-1"
    assert logged[-1] == {}
    assert logged[0]["step"] == 1
    assert "training/loss" in logged[0]
    assert logged[-2]["seconds"] == pytest.approx(295)
    monkeypatch.setenv("WANDB_MODE", "of")
    with pytest.raises(UserError, match=r"refuses.*Input should be.*unset.*WANDB_MODE=of"):
        export(recording, tmp_path, "wandb", tmp_path / "out")
