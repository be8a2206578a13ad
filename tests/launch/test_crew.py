"""`--strategy gossip`: workers are killed, stopped and resumed, and the others go on."""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rankup.launch.crew import own_gpus
from tests.conftest import RunRankup, TextFiles

from .live import TINY, Live, live, losses, records

# Two threads for such small work only wait for each other on a busy machine. A worker that gives
# no sign of life is left out after the seconds of RANKUP_PATIENCE.
ENV = {"OMP_NUM_THREADS": "1", "RANKUP_PATIENCE": "15"}
START = 300.0  # on a machine that is busy with other things


def _args(text: TextFiles, out: Path, nproc: int, steps: int, *more: str) -> list[str]:
    recipe = ["--train", text.train, "--valid", text.valid, "--test", text.test, *TINY]
    words = ["run", "--local", "--nproc", nproc, "--out", out, "language-model", *recipe]
    return [*map(str, words), "--strategy", "gossip", "--steps", str(steps), *more]


def _workers(run: Live, number: int) -> list[psutil.Process]:
    """The processes of the workers, in order; waits until they are there."""

    def there() -> list[psutil.Process]:
        found = {}
        for process in run.family():
            with suppress(psutil.Error, KeyError):
                if "rankup.launch.worker" in " ".join(process.cmdline()[:4]):
                    found[int(process.environ()["RANKUP_WORKER"])] = process
        return [found[worker] for worker in sorted(found)] if len(found) == number else []

    workers: list[psutil.Process] = run.until(there, START)
    return workers


def _final(out: Path) -> dict[str, Any]:
    [final] = [record for record in records(out) if record.get("final")]
    return final


def _drawn(path: Path) -> dict[tuple[int, int], int]:
    """How often each sample of each epoch was drawn, by all workers."""
    found: dict[tuple[int, int], int] = {}
    for file in path.parent.glob(f"{path.name}.*"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            for sample in record["samples"]:
                key = (record["epoch"], sample)
                found[key] = found.get(key, 0) + 1
    return found


def test_one_worker_has_nobody_to_talk_to(
    rankup_here: RunRankup, small_text: TextFiles, tmp_path: Path
) -> None:
    done = rankup_here(_args(small_text, tmp_path / "out", 1, 9), env=ENV)
    assert done.returncode == 2
    assert "--strategy gossip on one worker has nobody to talk to" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_gpu_for_each_worker() -> None:
    assert own_gpus({"CUDA_VISIBLE_DEVICES": ""}, 2) == [{}, {}]
    one, two = own_gpus({"CUDA_VISIBLE_DEVICES": "4,GPU-5,7"}, 2)
    assert (one, two) == ({"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "GPU-5"})
    with pytest.raises(ValueError, match="3 workers on a node with 2 GPUs"):
        own_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, 3)


@pytest.mark.slow
def test_a_killed_worker_is_named_and_the_others_finish(
    small_text: TextFiles, tmp_path: Path
) -> None:
    which, out, trace = 0, tmp_path / "out", tmp_path / "trace"
    words = _args(small_text, out, 3, 80, "--lr", "0.01", "--trace-samples", str(trace))
    with live(words, tmp_path, ENV) as run:
        workers = _workers(run, 3)
        run.until(lambda: len(records(out)) >= 3, START)
        workers[which].send_signal(signal.SIGKILL)
        assert run.wait(START) == 0, run.err
        run.nobody_left()
    lines = run.err.splitlines()
    lost = rf"worker {which} \(node .+\) was lost: .*SIGKILL.*; the others go on"
    assert sum(bool(re.fullmatch(lost, line)) for line in lines) == 1, run.err
    assert re.fullmatch(rf"rankup: the run ended without worker {which} .*SIGKILL.*", lines[-1])
    assert "Traceback" not in run.err
    final = _final(out)
    assert final["workers_lost"] == [which]
    assert final["workers_averaged"] == [worker for worker in range(3) if worker != which]
    assert final["step"] == 80
    # A step's four micro-batches of eight are dealt to three workers as two, one and one.
    assert 0 <= final["samples_lost"] <= 16, "what it had in hand, at most"
    assert set(_drawn(trace).values()) == {1}, "no sample was drawn twice"
    trained = list(losses(out).values())
    assert final["valid_loss"] < trained[0] - 0.5
    assert {"bytes_sent", "waited", "extra_compute", "extra_memory"} <= final["exchange"].keys()
    assert {"bytes_sent", "waited", "extra_compute", "extra_memory"} <= records(out)[0].keys()
    assert torch.load(out / "model-final.pt", weights_only=True)


@pytest.mark.slow
def test_stop_and_go_on_with_another_number(
    run_rankup: RunRankup, small_text: TextFiles, tmp_path: Path
) -> None:
    out, trace = tmp_path / "out", tmp_path / "trace"
    # As many steps as one epoch has of this size: at its end a step would have fewer samples.
    small = ("--global-batch", "32", "--micro-batch", "4", "--trace-samples", str(trace))
    with live(_args(small_text, out, 2, 80, *small), tmp_path, ENV) as run:
        run.until(lambda: len(records(out)) >= 3, START)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(START) == 143, run.err
        run.nobody_left()
    said = re.search(r"stopped at step (\d+) of 80$", run.err, re.MULTILINE)
    assert said, run.err
    step = int(said[1])
    assert [p.name for p in (out / "checkpoints").iterdir()][-1:] == [f"step-{step:08d}"]
    resumed = run_rankup(["run", "--local", "--nproc", "3", "--resume", out], env=ENV, timeout=200)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming at step {step} of 80" in resumed.stdout
    assert resumed.stdout.count("resuming") == 1
    final = _final(out)
    assert final["workers"] == 3
    assert final["samples_drawn"] == 32 * (80 - step)
    drawn = _drawn(trace)
    assert set(drawn.values()) == {1}
    assert len(drawn) == 32 * 80, "nothing was left out or done twice"


@pytest.mark.slow
def test_a_stalled_worker_is_left_out(small_text: TextFiles, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with live(_args(small_text, out, 3, 200), tmp_path, {**ENV, "RANKUP_PATIENCE": "5"}) as run:
        workers = _workers(run, 3)
        run.until(lambda: len(records(out)) >= 3, START)
        workers[0].send_signal(signal.SIGSTOP)
        assert run.wait(START) == 0, run.err
        run.nobody_left()
    assert re.search(r"worker 0 \(node .+\) was lost: no sign of life for 5 s", run.err), run.err
    assert "it did not come to the end, and was killed" in run.err.splitlines()[-1]
    assert _final(out)["workers_averaged"] == [1, 2]


@pytest.mark.slow
def test_what_is_wrong_for_all_stops_all(
    run_rankup: RunRankup, small_text: TextFiles, tmp_path: Path
) -> None:
    """A loss that is not finite ends each worker; the run fails and names one of them."""
    out = tmp_path / "out"
    words = _args(small_text, out, 2, 50, "--lr", "1e30", "--optimizer", "sgd", "--clip", "0")
    done = run_rankup(words, env=ENV, timeout=200)
    assert done.returncode == 1, done.stderr
    assert "is no longer finite" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
