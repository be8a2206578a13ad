"""A run directory as a recording: what is gathered, and what is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.monitor import lines
from rankup.monitor.diagnose import diagnose
from rankup.monitor.load import load
from rankup.monitor.newest import newest_steps
from rankup.monitor.report.curves import curves

from . import traces
from .rundirs import NOBODY, average, head, sample, usable, write
from .traces import BEGIN, Silence, healthy


def test_the_courses_job() -> None:
    recording = traces.one_of_four().recording()
    usable(recording)
    assert len(recording.gpus) == 4
    assert (recording.width, recording.bins) == (10, 552)
    means = average(recording, recording.gpu["util"])
    assert means[0] == pytest.approx(92.7, abs=0.5)
    assert means[1:].tolist() == [0, 0, 0]
    assert recording.gpu["throttle_power"].high.max() == 0
    assert recording.core_use[0][:6].tolist() == pytest.approx([100, 30, 30, 30, 30, 0])
    assert recording.host["busiest"].mean[5, 0] == pytest.approx(100)
    assert recording.gpu_names()[3] == "jrc0001:3"
    assert recording.gaps == ()
    assert (recording.samples, recording.torn, recording.running) == (553, 0, False)
    assert recording.covered.min() > 0.99


def test_events_of_checkpoints_validations_and_attempts() -> None:
    recording = traces.two_attempts().recording()
    usable(recording)
    kinds = [event.kind for event in recording.events if event.kind != "checkpoint"]
    assert kinds == ["start", "end", "resume", "end"]
    saved = [event for event in recording.events if event.kind == "checkpoint"]
    assert saved[0].seconds == 0.4
    assert "500" in saved[0].text
    # No step lasts from one attempt into the next.
    assert np.nanmax(recording.steps.seconds) < 2
    assert [gap.why for gap in recording.gaps] == ["between attempts"] * 2


@pytest.mark.parametrize(
    ("line", "begin", "end"),
    [
        # Our own: written with the time at which the step ended.
        ({"step": 9, "loss": 3.0, "seconds": 0.5, "valid_loss": 2.5, "valid_seconds": 60.0}, 0, 60),
        # A script's, logged when its validation is over, with or without its step's numbers.
        ({"valid_loss": 2.5, "valid_seconds": 60.0}, -60, 0),
        ({"step": 9, "loss": 3.0, "valid_loss": 2.5, "valid_seconds": 60.0}, -60, 0),
    ],
)
def test_when_a_validation_was(line: dict[str, Any], begin: float, end: float) -> None:
    trace = healthy(seconds=600, validations=None).but(records=({**line, "time": BEGIN + 300},))
    (event,) = (one for one in trace.recording().events if one.kind == "validation")
    assert (event.time - event.seconds - BEGIN, event.time - BEGIN) == (300 + begin, 300 + end)


def test_gaps_say_why() -> None:
    recording = traces.torn().recording()
    usable(recording)
    assert recording.torn == 1
    gaps = recording.gaps
    found = [(gap.node, round(gap.begin - BEGIN, -1), gap.end - BEGIN, gap.why) for gap in gaps]
    assert found == [
        ("jrc0001", 3000, 3600, "killed"),
        ("jrc0002", 1000, pytest.approx(1600, abs=1), "killed"),
    ]


def test_a_node_without_a_file_has_not_started(tmp_path: Path) -> None:
    trace = healthy(nodes=3, seconds=300)
    trace.write(tmp_path)
    (tmp_path / "monitor" / "jrc0002.jsonl").unlink()
    (tmp_path / "monitor" / "jrc0003.jsonl").write_bytes(b"")
    recording = load(tmp_path, trace.facts())
    usable(recording)
    assert [(gap.node, gap.why) for gap in recording.gaps] == [
        ("jrc0003", "not started"),
        ("jrc0002", "not started"),
    ]
    assert recording.nodes == ("jrc0001",)


def test_samplers_may_go_by_other_names(tmp_path: Path) -> None:
    """Of a local run: `localhost` in one place, the host's name in the other."""
    trace = healthy(seconds=300)
    trace.write(tmp_path)
    (attempt,) = trace.facts().attempts
    facts = trace.facts(attempts=(replace(attempt, nodes=("localhost",)),))
    assert load(tmp_path, facts).gaps == ()


def test_a_sampler_that_comes_late_is_a_gap() -> None:
    late = healthy(seconds=600, silences=(Silence(0, -1, 300, again=True),)).recording()
    assert [(gap.why, round(gap.end - gap.begin, -1)) for gap in late.gaps] == [
        ("not started", 300)
    ]


def test_a_stopped_sampler_has_not_seen_what_was_meanwhile(tmp_path: Path) -> None:
    records = [head(), *(sample(10 * k) for k in range(1, 30)), sample(900, dt=610)]
    recording = load(write(tmp_path, records), NOBODY)
    usable(recording)
    (gap,) = recording.gaps
    assert (gap.why, gap.begin - BEGIN, gap.end - BEGIN) == ("killed", 290, 870)


def test_peaks_of_a_long_run_stay(tmp_path: Path) -> None:
    """One second of 100 % in a day of idling."""
    times = range(0, 86400, 20)
    records = [head(), *(sample(t, 20, util=100 if t == 43200 else 0) for t in times)]
    recording = load(write(tmp_path, records), NOBODY)
    assert recording.bins == 1440
    assert recording.width == 60
    assert recording.gpu["util"].high.max(axis=0).tolist() == [100] * 4
    assert average(recording, recording.gpu["util"]) == pytest.approx([100 / 4320] * 4, rel=1e-3)


def test_throttle_bits_are_shares(tmp_path: Path) -> None:
    def bits(value: int) -> list[list[Any]]:
        return [[99, 1, 1, 1, 1, value, 1, 1, 1, 1]]

    values = [0x4, 0x80, 0x1, 0x20 | 0x4, 0x8, 0x0]
    records = [head(every=60), *(sample(60 * k, 60, gpu=bits(b)) for k, b in enumerate(values, 1))]
    gpu = load(write(tmp_path, records), NOBODY).gpu
    shares = {name: gpu[f"throttle_{name}"].mean[:, 0] for name in ("power", "heat", "hardware")}
    assert shares["power"].tolist() == [1, 1, 0, 1, 0, 0]
    assert shares["heat"].tolist() == [0, 0, 0, 1, 0, 0]
    assert shares["hardware"].tolist() == [0, 0, 0, 0, 1, 0]
    assert math.isnan(gpu["util"].mean[0, 1])


def test_file_systems_are_summed(tmp_path: Path) -> None:
    rows = {"/p/scratch": [100, 10, 5], "/p/home": [None, 20, 1]}
    records = [head(), *(sample(10 * k, fs=rows) for k in range(1, 11))]
    recording = load(write(tmp_path, records), NOBODY)
    assert recording.fs == {"/p/scratch": (10000, 1000), "/p/home": (0, 2000)}
    assert recording.host["fs_read"].mean[3, 0] == 100
    assert recording.host["fs_write"].mean[3, 0] == 30
    assert recording.host["fs_operations"].mean[3, 0] == 6


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    """A later version writes more columns, in another order, and leaves one out."""
    write(tmp_path, [head(v=3, later=1)])
    folder = tmp_path / "monitor"
    times = range(10, 50, 10)
    for kind, header, row in (
        ("gpu", "t,dt,new,gpu,power,util", "10,7,0,300,80"),
        ("host", "t,dt,load,cpu", "10,3,40"),
        ("rank", "rank,t,dt", ""),
    ):
        rows = [f"{BEGIN + t},{row}" if row else f"5,{BEGIN + t},10" for t in times]
        (folder / f"n1.{kind}.csv").write_text("\n".join([header, *rows, ""]))
    recording = load(tmp_path, NOBODY)
    usable(recording)
    assert recording.gpu["util"].mean[0, 0] == 80
    assert recording.gpu["power"].mean[0, 0] == 300
    assert np.isnan(recording.gpu["memory"].mean).all()
    assert recording.host["cpu"].mean[0, 0] == 40
    assert recording.ranks.tolist() == [5]


def test_a_later_head_has_other_gpus(tmp_path: Path) -> None:
    """A requeued job on a node where one GPU was replaced: all are kept, by their uuid."""
    one, two = head(), head(t=100, attempt="2.0")
    swapped = [two["gpus"][1], two["gpus"][0], {**two["gpus"][2], "uuid": "new"}]
    two["gpus"] = [{**gpu, "index": index} for index, gpu in enumerate(swapped)]
    records = [
        one,
        *(sample(10 * k, gpu=[[u] for u in (10, 20, 30, 40)]) for k in range(1, 5)),
        two,
        *(sample(100 + 10 * k, gpu=[[u] for u in (21, 11, 99)]) for k in range(1, 5)),
    ]
    recording = load(write(tmp_path, records), NOBODY)
    usable(recording)
    named = dict(zip([g.uuid for g in recording.gpus], recording.gpu["util"].high.T, strict=True))
    highs = {uuid: np.nanmax(high) for uuid, high in named.items()}
    old = [f"GPU-00000000-{at}" for at in range(4)]
    assert highs == {old[1]: 21, old[0]: 11, "new": 99, old[2]: 30, old[3]: 40}
    assert list(highs)[:3] == [old[1], old[0], "new"]
    assert [event.kind for event in recording.events] == ["start", "resume"]


def test_two_samplers_on_a_node_count_once(tmp_path: Path) -> None:
    records = [head(), head(), *(sample(10 * (k // 2), util=k % 2 * 100) for k in range(2, 60))]
    recording = load(write(tmp_path, records), NOBODY)
    usable(recording)
    assert recording.gpu["util"].mean[3].tolist() == [50] * 4


def test_nothing_at_all(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        recording = load(directory, NOBODY)
        usable(recording)
        assert (recording.bins, recording.heads, recording.gaps) == (1, (), ())
        assert (recording.begin, recording.end) == (0, 0)
        assert len(recording.steps.step) == 0
        assert not recording.running


def test_what_any_script_logs(tmp_path: Path) -> None:
    """`rankup.log_metrics`: no rate, steps in several lines, values of any kind."""
    records: list[dict[str, Any]] = []
    for step in range(20):
        time = BEGIN + step
        records += [
            {"time": time, "step": step, "loss": 1 / (step + 1)},
            {"time": time + 0.1, "step": step, "accuracy": step / 20, "phase": "a", "ok": True},
        ]
    records.append({"time": BEGIN + 20, "f1": 0.5})
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text(text + '{"time": 17638')
    recording = load(tmp_path, NOBODY)
    usable(recording)
    steps = recording.steps
    assert steps.step.tolist() == list(range(20))
    assert steps.unit == ""
    assert np.isnan(steps.rate).all()
    assert set(steps.extra) == {"accuracy", "f1"}
    assert steps.extra["f1"][-1] == 0.5
    assert recording.torn == 1


def test_a_value_of_some_steps_only_is_a_line_in_the_report(tmp_path: Path) -> None:
    """As the losses of several validation texts: with gaps between them nothing would be drawn."""
    records = [{"time": BEGIN + step, "step": step, "loss": 1.0} for step in range(20)]
    for step in (4, 9, 19):
        records[step] |= {"valid_loss": 2.0, "valid_loss_web": step / 10}
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text(text)
    found = {figure.title: figure.data[0] for figure in curves(load(tmp_path, NOBODY))}
    assert found["valid_loss_web"]["y"].tolist() == pytest.approx([0.4, 0.9, 1.9])
    assert found["valid_loss_web"]["step"].tolist() == [4, 9, 19]


def test_names_of_a_script_are_no_lines_of_ours(tmp_path: Path) -> None:
    own = [
        {"time": BEGIN + k, "step": k, "loss": 2.0, "checkpoint": k // 5, "stall": 1, "final": True}
        for k in range(20)
    ]
    ours = [
        {"time": BEGIN + 20, "checkpoint": 19, "stall": 0.5},
        {"time": BEGIN + 21, "step": 20, "loss": 1.0},
        {"time": BEGIN + 22, "final": True, "step": 20, "valid_loss": None, "test_loss": 1.5},
    ]
    text = "".join(json.dumps(record) + "\n" for record in own)
    (tmp_path / "metrics.jsonl").write_text(text)
    steps = newest_steps(tmp_path)
    assert (steps.final, len(steps.losses)) == (False, 20)
    text += "".join(json.dumps(record) + "\n" for record in ours)
    (tmp_path / "metrics.jsonl").write_text(text)
    assert newest_steps(tmp_path).final
    recording = load(tmp_path, NOBODY)
    assert recording.steps.step.tolist() == [*range(21)]
    assert recording.steps.extra["checkpoint"][:20].tolist() == [k // 5 for k in range(20)]
    saved = [event.text for event in recording.events if event.kind == "checkpoint"]
    assert saved == ["step 19"]
    assert recording.steps.final == ours[-1]


def test_a_loss_of_nan_is_told_from_none(tmp_path: Path) -> None:
    losses = [1.0, math.nan, math.inf, None, 2.0] * 10
    text = "".join(
        json.dumps({"time": BEGIN + step, "step": step, "loss": loss, "lr": 0.1}) + "\n"
        for step, loss in enumerate(losses)
    )
    (tmp_path / "metrics.jsonl").write_text(text)
    steps = load(tmp_path, NOBODY).steps
    assert steps.not_finite[:4].tolist() == [1, 2, 6, 7]
    assert np.isnan(steps.loss).sum() == 30


@pytest.mark.parametrize("count", [3, 40])  # few are read one by one
@pytest.mark.filterwarnings("error")
def test_absurdly_large_numbers_are_left_out(tmp_path: Path, count: int) -> None:
    text = "".join(
        json.dumps(
            {"time": BEGIN + k, "step": k, "loss": 1e308, "lr": -1e308, "token_per_s": 1e30, "x": 1}
        )
        + "\n"
        for k in range(count)
    )
    last = {"time": BEGIN + count, "step": count, "loss": math.inf, "valid_loss": 1e308}
    (tmp_path / "metrics.jsonl").write_text(text + json.dumps(last))
    recording = load(tmp_path, NOBODY)
    steps = recording.steps
    assert len(steps.step) == count + 1
    for values in (steps.loss, steps.rate, steps.extra["lr"], steps.valid[:, 1]):
        assert np.isnan(values).all()
    assert np.nanmean(steps.extra["x"]) == 1
    assert steps.not_finite.tolist() == [count]
    diagnose(recording)


def test_times_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    """Of another century, or behind all that is known of the run: a clock that jumped."""
    records = [head(), *(sample(10 * k) for k in range(1, 400))]
    jumped = [sample(5e9), sample(-BEGIN + 12), sample(1e300), *(sample(2e4 + k) for k in range(3))]
    more = [sample(10 * k) for k in range(400, 800)]
    recording = load(write(tmp_path, [*records, *jumped, *more]), NOBODY)
    usable(recording)
    assert recording.end - BEGIN == 7990
    assert (recording.samples, recording.torn) == (799, 6)
    assert any("6 samples left out, whose time cannot be" in e.text for e in recording.events)


def test_a_sampler_that_slows_down_leaves_no_gap(tmp_path: Path) -> None:
    """As ours does: every 2 s at first, every 10 s in the end."""
    times = [*range(2, 600, 2), *range(600, 7200, 5), *range(7200, 20000, 10)]
    steps = np.diff(times, prepend=0).tolist()
    records = [head(every=2.0), *(sample(t, dt) for t, dt in zip(times, steps, strict=True))]
    recording = load(write(tmp_path, records), NOBODY)
    usable(recording)
    assert recording.gaps == ()
    assert recording.width == 20
    assert recording.covered[:-1].min() == 1


@given(
    st.lists(
        st.tuples(
            st.floats(0.5, 20) | st.none(),
            st.floats(0, 3),
            st.lists(st.floats(0, 100) | st.none(), min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_no_peak_is_lost_and_means_are_weighted(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[float | None, float, list[float | None]]],
) -> None:
    now, records = 0.0, [head()]
    for dt, pause, utils in drawn:
        now += (dt or 0.0) + pause
        records.append(sample(now, dt=dt, gpu=[[util] for util in utils]))
    recording = load(write(tmp_path_factory.mktemp("run"), records), NOBODY)
    usable(recording)
    util = recording.gpu["util"]
    for gpu in range(4):
        said = [(dt or 0.0, utils[gpu]) for dt, _, utils in drawn if utils[gpu] is not None]
        if not said:
            assert np.isnan(util.high[:, gpu]).all()
            continue
        values = np.array([value for _, value in said], np.float32)
        assert np.nanmax(util.high[:, gpu]) == values.max()
        assert np.nanmin(util.low[:, gpu]) == values.min()
        seconds = np.array([min(dt, 30.0) for dt, _ in said])
        # Where a bin is said in full, its mean stands for all that is covered of it; but a sample
        # that says for no time alone in its bin.
        if len(said) == len(drawn) and all(dt for dt, _, _ in drawn):
            weight = recording.covered[:, 0].astype(float) * recording.width
            weight[-1] += seconds.sum() - weight.sum()  # a little after the last bin counts there
            mean = np.nansum(util.mean[:, gpu] * weight) / weight.sum()
            assert mean == pytest.approx((values * seconds).sum() / seconds.sum(), abs=0.01)


def test_the_steps_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody knows of attempts, and the samplers' starts stand for them."""
    healthy(seconds=300).write(tmp_path)
    reads: list[Path] = []
    records = lines.records

    def counted(path: Path) -> Any:
        reads.append(path)
        return records(path)

    monkeypatch.setattr(lines, "records", counted)
    assert len(load(tmp_path, NOBODY).steps.step) > 100
    assert [path.name for path in reads].count("metrics.jsonl") == 1
