"""`rankup plan --calibrate`: constants that give back what was measured, and who uses them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankup.plan import compute, framework
from rankup.plan.calibrate import machines_of
from rankup.plan.estimate import estimate
from rankup.plan.layout import Layout
from rankup.plan.machine import GB, GIB, Machine
from rankup.plan.network import Group
from rankup.plan.shape import Shape
from rankup.site.jobspec import JobSpec
from tests.conftest import RunRankup

TRUE = Machine(
    "CPU",
    8.0,
    peak_flops=1e11,
    fp32_flops=1e11,
    hbm=7 * GB,
    matmul_efficiency=0.95,
    matmul_half=2e5,
    attention_efficiency=0.3,
    hbm_efficiency=1.0,
    optimizer_rate=18 * GB,
    launch=3e-6,
    sharded_layer=8e-3,
    tensor_layer=12e-3,
    contention=1.0,
    gpus_per_node=4,
    node_link=4 * GB,
    node_efficiency=1.0,
    node_latency=8e-5,
    nic_per_node=2 * GB,
    nic_efficiency=1.0,
    nic_latency=2e-4,
)


def _block(width: int, heads: int, length: int, batch: int) -> compute.Work:
    shape = Shape(1, width, heads, heads, 4 * width, 1, length)
    layout = Layout(1, micro_batch=batch, precision="fp32")
    return compute.layer(shape, layout, TRUE, framework.FRAMEWORKS["rankup"])


def _rows(ranks: int, nodes: int = 1) -> Iterator[dict[str, Any]]:
    """The measurements of `TRUE`."""

    def row(kind: str, seconds: float, **sizes: int) -> dict[str, Any]:
        return {"ranks": ranks, "kind": kind, "seconds": seconds, **sizes}

    for m, n, k in ((256, 64, 64), (256, 256, 256), (256, 1024, 512)):
        yield row("product", compute.matmul(TRUE, m, n, k), m=m, n=n, k=k)
    for width, heads, length, batch in ((128, 4, 64, 4), (384, 6, 64, 8), (64, 1, 8, 1)):
        work = _block(width, heads, length, batch)
        sizes = {"hidden": width, "heads": heads, "seq": length, "batch": batch}
        yield row("attention", work.attention, **sizes)
        yield row("forward", work.forward, **sizes)
        yield row("block", work.forward + work.backward, **sizes)
    yield row("optimizer", compute.optimizer(10**6, TRUE), parameters=10**6)
    group = Group(ranks * nodes, ranks, TRUE)
    for size in (4096, 2**20, 2**24) if ranks * nodes > 1 else ():
        sizes = {"bytes": size, "group": ranks * nodes}
        yield row("all-reduce", 2 * group.gather(size), **sizes)
        yield row("all-gather", group.gather(size), **sizes)
        yield row("send", group.send(size), **sizes)


def _split(kind: str, tp: int) -> Iterator[dict[str, Any]]:
    """Forward and backward of models of two depths on four ranks that `TRUE` would give."""
    data = 4 // tp
    for layers in (2, 6):
        sizes = {"hidden": 256, "heads": 4, "seq": 64, "batch": 4, "vocab": 256}
        shape = Shape(layers, 256, 4, 4, 1024, 256, 64)
        layout = Layout(
            4,
            dp_replicate=data if tp > 1 else 1,
            dp_shard=1 if tp > 1 else data,
            tp=tp,
            micro_batch=4,
            global_batch=4 * data,
            zero=0 if tp > 1 else 3,
            sequence_parallel=tp > 1,
            precision="fp32",
        )
        terms = estimate(shape, layout, TRUE).terms
        seconds = sum(term.seconds for term in terms if term.name != "optimizer")
        row = {"ranks": 4, "kind": kind, "layers": layers, "tp": tp, "group": 4, **sizes}
        yield {**row, "seconds": seconds}


def _measured(*rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{"device": "CPU", "memory": 8 * GIB, "per_node": 4, "nodes": 1, "precision": "fp32"},
        "rows": [row for some in rows for row in some],
    }


def test_a_machine_is_found_again_in_the_times_that_it_gives() -> None:
    split = (_split("fsdp", 1), _split("tp", 2), _split("tp", 4))
    found = machines_of(_measured(_rows(1), _rows(2), _rows(4), *split))
    assert sorted(found) == [1, 2, 4]
    for ranks, one in found.items():
        assert one.calibrated
        rates = (one.peak_flops * one.matmul_efficiency, one.hbm * one.hbm_efficiency)
        assert rates == pytest.approx((0.95e11, 7 * GB), rel=0.1)
        assert one.optimizer_rate == pytest.approx(18 * GB)
        assert one.launch == pytest.approx(3e-6, rel=0.1)
        assert one.sharded_layer == pytest.approx(8e-3, rel=0.1)
        assert one.tensor_layer == pytest.approx(12e-3, rel=0.1)
        if ranks > 1:
            assert (one.node_link, one.node_latency) == pytest.approx((4 * GB, 8e-5), rel=0.01)


def test_groups_over_several_nodes_say_what_the_network_gives() -> None:
    found = machines_of(_measured(_rows(2, nodes=2), _rows(4, nodes=2)))
    for one in found.values():
        assert (one.nic_per_node, one.nic_latency) == pytest.approx((2 * GB, 2e-4), rel=0.01)


def test_what_was_measured_here_is_what_plans_here_take(
    rankup_here: RunRankup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYSTEMNAME", raising=False)
    monkeypatch.setenv("RANKUP_CACHE", str(tmp_path))
    words = ["plan", "--json", "--gpus", "1,4", "language-model", "--vocab", "byte"]
    assert rankup_here(words).returncode == 2  # nobody knows this machine
    file = tmp_path / "rankup" / "plan" / f"local-{os.uname().nodename}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(_measured(_rows(1), _rows(4))))
    done = rankup_here(words)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["machine"]["calibrated"]
    for damaged in ("{", "[]", '{"rows": []}', json.dumps({**_measured(), "rows": [{}]})):
        file.write_text(damaged)
        done = rankup_here(words)
        assert done.returncode == 2
        assert "is not what `rankup plan --calibrate` writes" in done.stderr


def test_a_noisy_calibration_leaves_the_older_one(
    rankup_here: RunRankup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYSTEMNAME", raising=False)
    monkeypatch.setenv("RANKUP_CACHE", str(tmp_path))
    good = _measured(_rows(1), _rows(4))
    noisy = json.loads(json.dumps(good))
    for row in noisy["rows"]:
        if row["kind"] == "product":  # the larger, the faster
            row["seconds"] = 1 / (row["m"] * row["n"] * row["k"])
    results = [good, noisy]

    def run(job: JobSpec) -> int:
        file = Path(job.args[0])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results.pop(0)))
        return 0

    monkeypatch.setattr("rankup.launch.run.run", run)
    done = rankup_here(["plan", "--calibrate"])
    assert (done.returncode, done.stderr) == (0, "")
    file = tmp_path / "rankup" / "plan" / f"local-{os.uname().nodename}.json"
    assert json.loads(file.read_text()) == good
    done = rankup_here(["plan", "--calibrate"])
    assert done.returncode == 1
    assert "measured too noisily" in done.stderr
    assert "the older calibration stays" in " ".join(done.stderr.split())
    assert json.loads(file.read_text()) == good


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--site", "jupiter"], "--calibrate measures the machine that it runs on"),
        (["--gpu", "H100-80GB"], "--gpu says nothing to --calibrate"),
        (["--json"], "--json says nothing to --calibrate"),
        (["language-model"], "target says nothing to --calibrate"),
    ],
)
def test_calibrate_measures_this_machine_and_no_other(
    rankup_here: RunRankup, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.delenv("SYSTEMNAME", raising=False)
    monkeypatch.setattr("rankup.launch.run.run", lambda job: pytest.fail(f"{job} was started"))
    done = rankup_here(["plan", "--calibrate", *words])
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [["--nodes", "2"], ["--nproc", "2"], ["--account", "me"]])
def test_options_of_its_job_belong_to_calibrate(rankup_here: RunRankup, words: list[str]) -> None:
    done = rankup_here(["plan", *words, "language-model"])
    assert done.returncode == 2
    assert "is of the job of --calibrate" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cpu_ranks_are_measured(run_rankup: RunRankup, tmp_path: Path) -> None:
    environment = {"RANKUP_CACHE": str(tmp_path), "SYSTEMNAME": "", "CUDA_VISIBLE_DEVICES": ""}
    done = run_rankup(["plan", "--calibrate", "--nproc", "2"], timeout=800, env=environment)
    if done.returncode:  # on a machine that is busy with other tests the times may mean nothing
        assert "measured too noisily" in done.stderr, done.stderr
        assert not list(tmp_path.glob("rankup/plan/local-*.json"))
        return
    assert "plans for this machine take these from now on" in done.stdout
    words = ["plan", "--json", "--gpus", "1,2", "language-model", "--vocab", "byte"]
    done = run_rankup(words, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["gpu"] == "CPU"
    assert all(row["seconds_per_step"] > 0 for row in found["rows"])
