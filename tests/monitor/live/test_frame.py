"""Pictures of runs in terminals of several sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console, Group

from rankup.monitor.live import frame
from rankup.monitor.live.state import Run, Watch
from rankup.monitor.live.troubles import troubles
from rankup.slurm.job import Attempt

from ..traces import Trace, computing, cpu_only, one_of_four, only_gpu, running

LOG = [f"rankup: step {step}/4000" for step in range(100)]


def _watch(trace: Trace, folder: Path, name: str = "train", **known: Any) -> Watch:
    trace.write(folder)
    (folder / "log").mkdir()
    log = folder / "log" / "12.out"
    log.write_text("\n".join(LOG) + "\n")
    steps = known.pop("steps", None)
    watch = Watch(folder, Run("20251122-180000-abcd", name, _attempt(**known), steps, log))
    watch.look()
    return watch


def _attempt(**known: Any) -> Attempt:
    return Attempt(
        **{"job": "12", "state": "UNKNOWN", "words": "", "source": "", "live": False, **known}
    )


def _lines(watch: Watch, now: float, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, color_system=None, force_terminal=True)
    with console.capture() as captured:
        console.print(Group(*frame.frame(watch, now, width, height)))
    texts = [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]
    assert len(texts) == height
    assert max(map(cell_len, texts)) <= width
    return texts


def _now(trace: Trace) -> float:
    return trace.begin + trace.attempts[-1].end + 3


@pytest.mark.parametrize("nodes", [1, 30])
def test_it_fits_every_terminal(tmp_path: Path, nodes: int) -> None:
    trace = running().but(nodes=nodes)
    watch = _watch(trace, tmp_path)
    for width, height in [(80, 24), (120, 40), (200, 60), (40, 10), (20, 4)]:
        lines = _lines(watch, _now(trace), width, height)
        if width >= 80:
            assert any("step 1,761 · loss 2.906 · 129," in line for line in lines)
            assert any(f"{4 * nodes} GPUs on {nodes} node" in line for line in lines)
            assert lines[-1].endswith("q ends the view, the run goes on")
            assert LOG[-1] in lines[-2]
        if (nodes, width) == (1, 120):
            assert re.search(r"1[34]\d\d MHz +PCIe 1\.\d+ GB/s", "\n".join(lines))
            assert any("network" in line for line in lines)


def test_a_node_shows_each_of_its_gpus(tmp_path: Path) -> None:
    trace = running().but(nodes=1, gpu=only_gpu(2))
    text = "\n".join(_lines(_watch(trace, tmp_path), _now(trace)))
    assert re.search(r"GPU 2 +█+░? +9\d %  3\d\d/400 W  28/40 GiB +\d\d °C *\n", text)
    assert re.search(r"GPU 3 +░+ +0 %  5\d/400 W +0/40 GiB +3\d °C +nobody uses it", text)
    assert "! GPUs 0-1,3 of jrc0001 unused for 1 min and more" in text


def test_of_many_nodes_the_worst_come_first(tmp_path: Path) -> None:
    def one_idles(t: Any, gpu: Any, draw: Any) -> Any:
        return np.where(gpu == 4 * 41 + 1, 12, 95 + gpu % 4)

    trace = running().but(nodes=60, stays=(), seconds=120).with_gpu(util=one_idles)
    watch = _watch(trace.but(silences=()), tmp_path)
    lines = _lines(watch, _now(trace))
    title = next(k for k, line in enumerate(lines) if line.startswith("node"))
    assert lines[title + 1].startswith("jrc0042  ")
    (rest,) = (line for line in lines if line.startswith("… "))
    shown = sum(line.startswith("jrc") for line in lines)
    assert rest.startswith(f"… {60 - shown} more nodes: GPUs 95-98 %, ")


def test_a_silent_node_is_said_to_be_silent(tmp_path: Path) -> None:
    trace = running().but(nodes=3)
    watch = _watch(trace, tmp_path)
    file = tmp_path / "monitor" / "jrc0002.host.csv"
    t, _, rest = file.read_text().splitlines()[-1].partition(",")
    for name in ("jrc0001", "jrc0003"):
        with (tmp_path / "monitor" / f"{name}.host.csv").open("a") as out:
            out.writelines(f"{float(t) + 10 * k},{rest}\n" for k in range(1, 10))
    watch.look()
    text = "\n".join(_lines(watch, _now(trace) + 90))
    assert re.search(r"! no sample for 1 min 3\d s from jrc0002", text)
    assert re.search(r"jrc0002 .*  no sample for 1 min 3\d s", text)


def test_what_was_a_head_and_a_note_is_shown(tmp_path: Path) -> None:
    trace = running()
    watch = _watch(trace, tmp_path)
    for name in ("jrc0001", "jrc0002"):
        with (tmp_path / "monitor" / f"{name}.jsonl").open("a") as out:
            note = {"kind": "note", "t": 1, "code": "RK701", "text": "GPU 3 \x1b[2Jis unused"}
            out.write(json.dumps(note) + "\n")
    watch.look()
    assert troubles(watch, _now(trace)) == [r"all 2 nodes: GPU 3 \x1b[2Jis unused [RK701]"]


def test_a_loss_that_is_none(tmp_path: Path) -> None:
    bad = running().with_metrics(loss=lambda t, step, draw: np.where(step > 1700, np.nan, 3.0))
    watch = _watch(bad, tmp_path)
    assert troubles(watch, _now(bad))[0] == "the loss is nan since step 1,701"
    assert any("loss nan" in line for line in _lines(watch, _now(bad)))


def test_nodes_without_gpus(tmp_path: Path) -> None:
    trace = cpu_only(3)
    lines = _lines(_watch(trace, tmp_path), _now(trace))
    assert "3 nodes · CPU 94 %" in lines[4]
    assert any(re.match(r"jrc0003  CPU  █+░* +9\d %  load 12\d/128 +6\d/477 GiB", x) for x in lines)


def test_time_left_and_what_the_steps_need(tmp_path: Path) -> None:
    trace = running()
    now = _now(trace)

    def until(end: float) -> Any:
        asked = {"bill": {"minutes": (end - trace.begin) / 60}}
        return {"state": "RUNNING", "live": True, "started": trace.begin, "asked": asked}

    watch = _watch(trace, tmp_path, steps=4000, **until(now + 3600))
    lines = _lines(watch, now)
    assert lines[0].endswith("RUNNING 15 min")
    assert lines[1].startswith("step 1,761/4,000 (44 %)")
    assert lines[3] == "1 h left until the time limit · the steps need 19 min more"
    watch.run = Run("x", attempt=_attempt(**until(now + 600)), steps=4000)
    lines = _lines(watch, now)
    assert any("the steps need 19 min more: longer than that" in line for line in lines)


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    trace = one_of_four()
    end = trace.begin + trace.attempts[-1].end
    known = {"state": "COMPLETED", "live": False, "started": trace.begin, "ended": end}
    watch = _watch(trace, tmp_path, **known)
    assert watch.over()
    assert _lines(watch, _now(trace))[0].endswith("  COMPLETED, took 1 h 32 min")
    lines = _lines(watch, _now(trace))
    assert "the training has come to its end" in lines[3]
    assert any("GPUs 1-3 of jrc0001 unused" in line for line in lines)
    assert lines[-1].endswith("ended; next: rankup report 20251122-180000-abcd")


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    waits = _attempt(state="PENDING", words="It waits.", live=True)
    watch = Watch(tmp_path, Run("r", "t", waits))
    watch.look()
    text = "\n".join(_lines(watch, 1e9))
    for words in ("PENDING", "It waits.", "no step is written down yet", "no sample of a node yet"):
        assert words in text
    assert frame.small(watch) == ""


def test_names_from_elsewhere_draw_nothing(tmp_path: Path) -> None:
    trace = running().but(heads={"node": "[red]\x1b[2J\u202e" + "x" * 300})
    watch = _watch(trace, tmp_path, name="\x1b]0;title\x07[bold]")
    lines = _lines(watch, _now(trace))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines))
    assert "[bold]" in lines[0]


def test_lines_of_a_wrong_form_hurt_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "monitor"
    folder.mkdir()
    odd: list[dict[str, Any]] = [
        {"kind": "head", "t": "x", "gpus": 5, "usable": {}},
        {"kind": "head", "t": 1.0, "gpus": [{"memory": "x", "power_limit": -1}, 3]},
        {"t": 2.0, "gpu": [[None, True]], "host": "abc"},
        {"kind": "note"},
        {"kind": "unheard of", "t": []},
    ]
    (folder / "n.jsonl").write_text("".join(json.dumps(record) + "\n" for record in odd))
    (folder / "n.host.csv").write_text("t,cpu\nx,1\n2,x\n3\n4,1e999,5\n")
    (folder / "n.gpu.csv").write_text("t,gpu,util\n2,x,1\n3,0,nan\n3\n")
    steps: list[dict[str, Any]] = [
        {"step": True},
        {"step": 10**30},
        {"step": 1, "loss": "x", "time": None},
        {"step": 2, "loss": 10**400, "x_per_s": "y", "time": 1e999},
        {"step": 3, "loss": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in steps))
    watch = Watch(tmp_path, Run("r"))
    watch.look()
    assert any("step 3" in line for line in _lines(watch, 4.0))


def test_it_keeps_up_with_what_grows(tmp_path: Path) -> None:
    """Only the news are read, and show in the next picture."""
    trace = running().but(nodes=1, gpu=computing())
    trace.write(full := tmp_path / "full")
    files = [*(full / "monitor").iterdir(), full / "metrics.jsonl"]
    watch = Watch(tmp_path / "run", Run("r"))
    (tmp_path / "run" / "monitor").mkdir(parents=True)
    seen = []
    for part in range(1, 5):
        for file in files:
            lines = file.read_bytes()
            out = tmp_path / "run" / file.relative_to(full)
            before = out.stat().st_size if out.exists() else 0
            with out.open("ab") as stream:
                stream.write(lines[before : len(lines) * part // 4])  # torn anywhere
        watch.look()
        assert watch.progress.newest is not None
        seen.append(watch.progress.newest.number)
    assert seen == sorted(set(seen))
    assert seen[-1] == 1761
    (node,) = watch.known()
    assert node.last is not None
    assert abs(node.last - (trace.begin + 900)) < 1


@pytest.mark.parametrize("loss", ["NaN", "0.0"])
def test_the_newest_validation_loss_is_shown_whatever_it_is(tmp_path: Path, loss: str) -> None:
    watch = _watch(running().but(nodes=1, gpu=computing()), tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 90001, "valid_loss": 2.5}\n')
        file.write(f'{{"step": 90002, "valid_loss": {loss}}}\n')
    watch.look()
    assert str(watch.progress.valid) == str(float(loss))
