"""`--log`: TensorBoard and W&B get what metrics.jsonl gets, by names with their units."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.train.options import TrainOptions
from rankup.train.trackers import Trackers, outside

from ..conftest import RunRankup

Shown = dict[int, dict[str, float]]


def _line(step: int, **more: Any) -> dict[str, Any]:
    own = {"loss": 1.0 / step, "seconds": 0.5, "tokens_per_s": 9.0, "data_wait": 0.25, "mfu": None}
    return {"step": step, **own, "lr": 0.1, "time": 1.7e9 + step, **more}


class _Library:
    """Stands for both packages: what was sent, how it began; `broken` from that step on."""

    def __init__(self, broken: int = 1000) -> None:
        self.begun: list[dict[str, Any]] = []
        self.sent: list[tuple[int, dict[str, float]]] = []
        self.broken, self.finished = broken, 0

    def begin(self, *args: Any, **given: Any) -> _Library:
        self.begun.append(given)
        return self

    init = SummaryWriter = begin

    def Settings(self, **given: Any) -> None: ...  # noqa: N802

    def define_metric(self, name: str, step_metric: str) -> None: ...

    def log(self, row: dict[str, float], step: int) -> None:
        if step >= self.broken:
            raise OSError("no server")
        self.sent.append((step, row))

    def add_scalar(self, name: str, value: float, step: int, walltime: float) -> None:
        self.sent.append((step, {name: value}))

    def finish(self) -> None:
        self.finished += 1

    close = finish


def _write(directory: Path, *steps: int) -> None:
    directory.mkdir(exist_ok=True)
    lines = (json.dumps(_line(step)) + "\n" for step in steps)
    (directory / "metrics.jsonl").write_text("".join(lines))


def test_what_a_step_is_called_outside() -> None:
    line = _line(1, mfu=0.3, valid_loss=2.0, valid_seconds=1.0)
    known = {"loss", "step_seconds", "tokens_per_s", "data_wait_share", "mfu", "valid_loss"}
    assert set(outside(line)) == {*known, "logged/lr"}


def test_a_resume_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 3 was done by an attempt that was killed, and is done again from step 2 on."""
    library = _Library()
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setitem(sys.modules, "tensorboardX", library)
    for name, resumed_at, done in (
        ("wandb", 0, []),
        ("wandb", 2, [1, 2, 3]),
        ("tensorboard", 2, []),
    ):
        _write(tmp_path, *done)
        trackers = Trackers((name,), tmp_path, resumed_at, {"lr": 1}, pytest.fail)
        for step in range(resumed_at + 1, resumed_at + 4):
            trackers.step(_line(step))
        trackers.close()
        if name == "wandb" and resumed_at:
            assert [step for step, _ in library.sent] == [1, 2, 3, 4, 5]
            assert library.sent[0][1]["training/loss"] == 1.0
            assert library.begun[0]["id"] == library.begun[1]["id"]
            assert library.begun[0]["config"] == {"lr": 1}
    assert library.begun[2]["purge_step"] == 3
    assert library.finished == 3


def test_what_fails_is_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, said = _Library(broken=3), list[str]()
    monkeypatch.setitem(sys.modules, "wandb", library)
    _write(tmp_path, 1, 2)  # of an attempt that did not send anything
    trackers = Trackers(("wandb",), tmp_path, 1, {}, said.append)
    for step in (2, 3, 4):
        trackers.step(_line(step))
    trackers.close()
    assert [step for step, _ in library.sent] == [2]
    assert said == ["warning: --log wandb failed, and the run goes on without it: no server"]


def test_a_thread_of_tensorboard_that_a_full_disk_ended_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()

    class Threaded(_Library):
        def SummaryWriter(self, *args: Any, **given: Any) -> _Library:  # noqa: N802
            self.thread = threading.Thread(target=full.wait, daemon=True)
            self.thread.start()
            return self

    library, said = Threaded(), list[str]()
    monkeypatch.setitem(sys.modules, "tensorboardX", library)
    trackers = Trackers(("tensorboard",), tmp_path, 0, {}, said.append)
    trackers.step(_line(1))
    full.set()
    library.thread.join()
    trackers.step(_line(2))
    trackers.close()
    assert {step for step, _ in library.sent} == {1}
    assert library.finished == 0
    assert [line.partition(",")[0] for line in said] == ["warning: --log tensorboard failed"]


def test_a_package_that_is_missing_is_said_before_ranks_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"--log wandb needs .*pip install 'rankup\[wandb\]'"):
        TrainOptions(log="wandb").need_packages()
    with pytest.raises(UserError, match="--log wand: did you mean wandb"):
        TrainOptions(log="tensorboard,wand")


class _Server(BaseHTTPRequestHandler):
    """As much of W&B's server as begins a run; once `gone` is set it answers nothing more."""

    gone = threading.Event()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])) or "{}")
        if self.gone.is_set():
            threading.Event().wait()
        about = {"name": "x", "project": {"name": "rankup", "entity": {"name": "me"}}}
        made = {"bucket": about, "inserted": True} if "mutation" in asked.get("query", "") else {}
        answer = json.dumps({"data": {"upsertBucket": made, "model": None}}).encode()
        if made:
            self.gone.set()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.mark.slow
def test_a_run_ends_though_the_server_of_wandb_is_gone(
    tmp_path: Path, run_rankup: RunRankup
) -> None:
    pytest.importorskip("wandb")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    asked = ["language-model", "--tiny", "--log", "wandb", "--steps", "4"]
    done = run_rankup(
        ["run", "--local", "--out", tmp_path / "run", *asked],
        env={"WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40},
        timeout=250,
    )
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "did not take all values within 30 s of the end; `wandb sync" in done.stderr
    lines = [*map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert "test_loss" in lines[-1]
    name = (tmp_path / "run" / "wandb" / "id").read_text()
    assert [*tmp_path.glob(f"run/wandb/run-*-{name}/*.wandb")]


def test_an_older_wandb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", _Library())
    monkeypatch.setattr("importlib.metadata.version", {"wandb": "0.26.1"}.__getitem__)
    with pytest.raises(UserError, match=r"needs wandb 0.27 or newer, and 0.26.1 is installed"):
        TrainOptions(log="wandb").need_packages()


@pytest.mark.slow
def test_both_libraries_take_a_run_and_its_resume(tmp_path: Path, run_rankup: RunRankup) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    words = ["--tiny", "--log", "wandb,tensorboard", "--steps"]
    environment = {"WANDB_MODE": "offline"}
    for where in (["--out", out], ["--resume", out]):
        steps = "4" if "--out" in where else "6"
        command = ["run", "--local", *where, "language-model", *words, steps]
        done = run_rankup(command, env=environment, timeout=250)
        assert done.returncode == 0, done.stderr
        assert "failed" not in done.stderr + done.stdout
    name = (out / "wandb" / "id").read_text()
    assert len([*(out / "wandb").glob(f"offline-run-*-{name}")]) == 2
    assert len([*(out / "tensorboard" / "live").glob("events.*")]) == 2
