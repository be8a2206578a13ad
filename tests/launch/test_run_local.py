"""`rankup run SCRIPT`: a script finds what it would find under plain python."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rankup
from rankup.launch import local
from rankup.site.rundir import Job
from tests.conftest import RunRankup

from .live import live, script

PROBE = """
import json, os, sys
from pathlib import Path
import beside
rank = os.environ.get("RANK", "plain")
Path(os.environ["ANSWERS"], rank).write_text(json.dumps({
    "args": sys.argv[1:],
    "argv0": os.path.realpath(sys.argv[0]),
    "file": os.path.realpath(__file__),
    "name": __name__,
    "path0": sys.path[0],
    "cwd": os.getcwd(),
    "beside": beside.VALUE,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "torch": "torch" in sys.modules,
    "world": [os.environ.get(k) for k in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")],
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "allocator": os.environ.get("PYTORCH_ALLOC_CONF"),
    "run": os.environ.get("RANKUP_RUN_DIR"),
}))
sys.stdout.write(f"said by {rank}\\n")  # at once, or the ranks talk at the same time
"""
_OURS = ("threads", "allocator")
ARGS = (
    *("plain", "two words", "", "quo'te\"s", "$HOME `id`; rm *", "übergröße 漢字", "a\\b", "x\ny"),
    *("--nproc", "7", "--help", "--out=x", "--", "-h", "--", "-x=1", "--rdzv-backend", "c10d"),
)


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """The path of a script that writes down what it finds, with a module beside it."""
    script(tmp_path, "VALUE = 1", "deep/beside.py")
    return script(tmp_path, PROBE, "deep/probe.py")


def _answers(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_a_script_finds_what_plain_python_gives_it(
    run_rankup: RunRankup, probe: Path, tmp_path: Path
) -> None:
    answers, cwd = tmp_path / "answers", tmp_path / "elsewhere"
    answers.mkdir()
    cwd.mkdir()
    env = {"ANSWERS": str(answers), "RANKUP_MONITOR": "1"}
    environment = {**os.environ, **env}
    environment.pop("OMP_NUM_THREADS", None)
    relative = os.path.relpath(probe, cwd)
    subprocess.run([sys.executable, relative, *ARGS], cwd=cwd, env=environment, check=True)
    words = ["run", "--no-monitor", "--nproc", "2", relative, *ARGS]
    done = run_rankup(words, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    found = _answers(answers)
    plain = found.pop("plain")
    assert set(found) == {"0", "1"}
    [run] = (cwd / "runs" / "probe").iterdir()
    for rank, answer in found.items():
        assert answer.pop("world") == ["2", rank, "2"]
        assert answer.pop("run") == str(run)
        if "OMP_NUM_THREADS" not in os.environ:
            assert answer["threads"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
        expected = {key: plain[key] for key in plain if key not in ("world", "run", *_OURS)}
        for key in _OURS:
            answer.pop(key)
        assert answer == expected
    assert sorted(done.stdout.splitlines()) == ["said by 0", "said by 1"]
    *warnings, last = done.stderr.splitlines()
    assert last == f"run {run.name} in {run}"
    assert [line.split()[1] for line in warnings] == ["--nproc", "--out"], "easily misplaced"
    _check_job(run, probe, cwd)
    assert not (run / "monitor").exists(), "it was not to be sampled"
    assert not (run / "report.html").exists()


def _check_job(run: Path, probe: Path, cwd: Path) -> None:
    job = json.loads((run / "job.json").read_text())
    [attempt] = job.pop("attempts")
    assert attempt["nproc"] == 2
    assert attempt["node"] == os.uname().nodename
    assert time.strptime(attempt["started"], "%Y-%m-%dT%H:%M:%S%z")
    versions = {
        "rankup": rankup.__version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }
    assert job == {
        "id": run.name,
        "kind": "script",
        "target": str(probe),
        "args": list(ARGS),
        "cwd": str(cwd),
        "versions": versions,
        "git": {},
        "launch": {"nproc": 2},
        "module": None,
        "kept": {},
    }
    assert (run / "log").is_dir()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "expandable_segments:True"),
        ({"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_ALLOC_CONF": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
    ids=["a GPU", "set by its old name", "set to nothing", "no GPU"],
)
def test_how_torch_cuts_gpu_memory(
    run_rankup: RunRankup,
    probe: Path,
    tmp_path: Path,
    given: dict[str, str],
    found: str | None,
) -> None:
    (tmp_path / "answers").mkdir()
    env = {"ANSWERS": str(tmp_path / "answers"), **given}
    done = run_rankup(["run", "--no-monitor", "--nproc", "1", str(probe)], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert _answers(tmp_path / "answers")["0"]["allocator"] == found


@pytest.mark.slow
def test_files_in_the_current_folder_do_no_harm(probe: Path, tmp_path: Path) -> None:
    """`python deep/probe.py` never sees a `random.py` in the current folder, nor does `rankup`."""
    (tmp_path / "answers").mkdir()
    for name in ("random", "queue", "tempfile", "torch"):
        script(tmp_path, "raise ImportError('not this one')", f"{name}.py")
    done = subprocess.run(
        [Path(sys.executable).with_name("rankup"), "run", probe],
        cwd=tmp_path,
        env={**os.environ, "ANSWERS": str(tmp_path / "answers"), "OMP_NUM_THREADS": "5"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = _answers(tmp_path / "answers")["0"]
    assert answer["threads"] == "5", "what is set stays"
    assert answer["world"][0] == "1", "one rank is the default on CPU"


COMMIT = """
import subprocess
for words in (["init", "-q"], ["add", "one.py"], ["commit", "-qm", "first"]):
    name = ["-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run(["git", *name, *words], check=True)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that are started from here on: no process is."""
    jobs: list[Job] = []

    def start(job: Job, *_: object) -> int:
        jobs.append(job)
        return 0

    monkeypatch.setattr(local, "start", start)
    return jobs


def test_the_commit_is_noted(rankup_here: RunRankup, started: list[Job], tmp_path: Path) -> None:
    folder = tmp_path / "project"
    one = script(folder, "pass", "one.py")
    subprocess.run([sys.executable, "-c", COMMIT], cwd=folder, check=True)
    for out, changed in (("a", False), ("b", True)):
        done = rankup_here(["run", "--out", tmp_path / out, one], cwd=folder)
        assert done.returncode == 0, done.stderr
        git = json.loads((tmp_path / out / "job.json").read_text())["git"]
        assert len(git["commit"]) == 40
        assert git["changed"] is changed
        one.write_text("pass  # changed")
    assert [job.target for job in started] == [str(one)] * 2


STOPS = """
import os
from pathlib import Path
from rankup.runtime.deadline import ask_for_next_attempt
if os.environ["RANKUP_RESUME"] == "0":
    assert ask_for_next_attempt() == Path(os.environ["RANKUP_RUN_DIR"]) / "requeue"
"""


@pytest.mark.slow
def test_an_attempt_that_stopped_before_its_end_says_how_to_go_on(
    run_rankup: RunRankup, tmp_path: Path
) -> None:
    path = script(tmp_path, STOPS)
    done = run_rankup(["run", path])
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "runs" / "script").iterdir()
    assert done.stderr.splitlines()[-1] == f"go on with: rankup run --resume {run.name}"
    again = run_rankup(["run", "--resume", run.name])
    assert again.returncode == 0, again.stderr
    assert "go on with" not in again.stderr
    attempts = json.loads((run / "job.json").read_text())["attempts"]
    assert [(attempt["code"], attempt.get("stopped")) for attempt in attempts] == [
        (0, True),
        (0, None),
    ]
    assert not (run / "requeue").exists()


def test_options_of_a_slurm_job_are_said_to_mean_nothing_here(
    rankup_here: RunRankup, started: list[Job], tmp_path: Path
) -> None:
    path = script(tmp_path, "pass")
    options = ["--time", "1h", "--max-attempts", "3", "--env", "A=hidden"]
    for here, why in (([], "there is no Slurm here, so "), (["--local"], "")):
        done = rankup_here(["run", *here, *options, path])
        assert done.returncode == 0, done.stderr
        note = f"note: {why}this runs on this machine alone; without meaning here: "
        [line] = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
        assert line.startswith(f"{note}--time, --env, --max-attempts. ")
    assert len(started) == 2


def test_an_argument_that_is_no_text_is_refused(rankup_here: RunRankup, tmp_path: Path) -> None:
    done = rankup_here(["run", script(tmp_path, "pass"), "\udcff"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "an argument is not UTF-8" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("beside_python", [True, False])
def test_a_rank_of_a_job_script_finds_the_modules_that_plain_python_does(
    tmp_path: Path, beside_python: bool
) -> None:
    """`rankup-rank train.py`, whose own folder, wherever that is, is none to import from."""
    command = Path(sys.executable).with_name("rankup-rank")
    if not beside_python:  # as `pip install --user` puts it
        (tmp_path / "bin").mkdir()
        command = Path(shutil.copy(command, tmp_path / "bin"))
    script(tmp_path, "import json, sys; print(json.dumps(sys.path))", "paths.py")
    environment = {**os.environ, "RANK": "0"}
    outputs = []
    for start in ([sys.executable], [str(command)]):
        done = subprocess.run(
            [*start, "paths.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        outputs.append([os.path.realpath(tmp_path / entry) for entry in json.loads(done.stdout)])
    assert outputs[0] == outputs[1]


SLEEP = "import os, time; open(os.environ['ANSWERS'], 'w').close(); time.sleep(100)"


def test_a_run_is_not_started_twice(rankup_here: RunRankup, tmp_path: Path) -> None:
    out, there = tmp_path / "out", tmp_path / "there"
    path = script(tmp_path, SLEEP)
    with live(["run", "--out", out, path], tmp_path, {"ANSWERS": str(there)}) as first:
        first.until(there.exists)
        again = rankup_here(["run", "--resume", out])
        assert again.returncode == 2
        assert "is going on already (process" in again.stderr
        same = rankup_here(["run", "--out", out, path])
        assert same.returncode == 2
        assert "is a run already" in same.stderr
        assert len(json.loads((out / "job.json").read_text())["attempts"]) == 1


def test_a_run_in_a_folder_of_its_own_is_listed_and_is_the_last(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    out = tmp_path / "elsewhere"
    two = ["run", "--local", "--nproc", "2", "--no-check"]
    done = rankup_here([*two, "--out", out, script(tmp_path, "pass")])
    assert done.returncode == 0, done.stderr
    run_id = json.loads((out / "job.json").read_text())["id"]
    # A resume takes the number of ranks over, and one that is only to be shown starts nothing.
    shown = rankup_here(["run", "--local", "--dry-run", "--resume", run_id]).stdout
    assert "--nproc-per-node=2 " in shown
    assert len(json.loads((out / "job.json").read_text())["attempts"]) == 1
    one = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    fewer = rankup_here(["run", "--local", "--resume", run_id], env=one).stderr
    assert "--nproc 2, as the run had, asks for more ranks than the 1 GPU(s)" in fewer
    assert run_id in rankup_here(["status"]).stdout
    for name in ("last", run_id):
        assert str(out) in rankup_here(["status", name]).stdout
    refused = rankup_here(
        ["run", "--local", "--out", tmp_path / "b", "--stage", "no.h5", "script.py"]
    )
    assert refused.returncode == 2
    assert len(list((tmp_path / "runs").glob("*/*"))) == 1


DRIVER = """
class NVMLError(Exception): pass
nvmlInit = lambda: None
nvmlDeviceGetHandleByIndex = int
nvmlDeviceGetCpuAffinity = lambda gpu, words: [1 << gpu]
"""


@pytest.mark.parametrize(
    ("size", "switch", "bound"), [(2, "1", True), (2, "0", False), (1, "1", False)]
)
def test_a_rank_keeps_to_the_cores_next_to_its_gpu(
    tmp_path: Path, size: int, switch: str, bound: bool
) -> None:
    script(tmp_path, DRIVER, "driver/pynvml.py")
    path = script(tmp_path, "import os; print(sorted(os.sched_getaffinity(0)))")
    mine = sorted(os.sched_getaffinity(0))
    code = "import sys; from rankup.launch.worker import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "driver"),
            **{"RANK": "0", "LOCAL_RANK": str(mine[-1]), "LOCAL_WORLD_SIZE": str(size)},
            "RANKUP_NUMA": switch,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == (mine[-1:] if bound else mine)


SAVES = """
import os, signal, sys, time
def save(number, frame):
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
    open("saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(100)
"""


def test_a_signal_that_comes_twice_at_once_asks_the_ranks_to_save(tmp_path: Path) -> None:
    # As `timeout` does it: once for the process, once for its group.
    path, go = script(tmp_path, SAVES), tmp_path / "go"
    with live(
        ["run", "--local", "--out", tmp_path / "out", path], tmp_path, {"GO": str(go)}
    ) as run:
        run.until((tmp_path / "ready").exists)
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGTERM)
        run.until(lambda: "asking the ranks to stop" in run.err)
        go.touch()
        assert run.wait(60) == 128 + signal.SIGTERM, run.err
    assert (tmp_path / "saved").exists(), run.err
    assert "Traceback" not in run.err


WITHOUT_STARTING = """
import sys
from rankup.launch import local
local.start = lambda *args: print("started") or 0
from rankup.cli import app
for target in ("script.py", "language-model"):
    app(["run", "--nproc", "2", target], standalone_mode=False)
print("torch" in sys.modules)
"""


def test_the_parent_process_imports_no_torch(tmp_path: Path) -> None:
    script(tmp_path, "pass")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_STARTING],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == ["started", "started", "False"], done.stderr


@pytest.mark.slow
def test_a_module_is_run_as_python_would(run_rankup: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "size.py").write_text("SIZE = 3\n")
    text = "import sys\nfrom .size import SIZE\nprint('size', SIZE, sys.argv[1:], __name__)\n"
    (tmp_path / "package" / "train.py").write_text(text)
    done = run_rankup(["run", "--local", "--no-monitor", "-m", "package.train", "--lr", "1"])
    assert done.returncode == 0, done.stderr
    assert "size 3 ['--lr', '1'] __main__" in done.stdout
    again = run_rankup(["run", "--local", "--no-monitor", "--resume", "last"])
    assert "size 3 ['--lr', '1'] __main__" in again.stdout, again.stderr
    by_path = run_rankup(["run", "--local", "--no-monitor", "package/train.py"])
    assert by_path.returncode == 1
    assert "run by its name: rankup run -m PACKAGE.MODULE" in by_path.stderr
    none = run_rankup(["run", "--local", "-m", "package.other"])
    assert none.returncode == 2
    assert "neither package/other.py nor package/other/__main__.py is here" in none.stderr


UNREADABLE = """
import os
from pathlib import Path
file = Path(os.environ["RANKUP_RUN_DIR"]) / "job.json"
file.unlink()
file.mkdir()
"""


def test_a_report_that_cannot_be_made_says_why(run_rankup: RunRankup, tmp_path: Path) -> None:
    done = run_rankup(["run", "--local", script(tmp_path, UNREADABLE)], env={"RANKUP_MONITOR": "1"})
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "no report" in line]
    assert said.startswith("warning: no report: /")
    assert "job.json cannot be read" in said


def test_what_a_run_here_prints_is_kept(
    run_rankup: RunRankup, rankup_here: RunRankup, tmp_path: Path
) -> None:
    path = script(tmp_path, "import sys\nprint('kept')\nsys.exit('the reason')\n")
    done = run_rankup(["run", "--local", "--no-monitor", path])
    assert done.returncode == 1
    assert done.stdout == "kept\n"
    assert "the reason" in done.stderr
    shown = rankup_here(["logs"])
    assert shown.stdout.splitlines()[0] == "kept"
    assert "the reason" in shown.stdout
    path.write_text("print('second')\n")
    run_rankup(["run", "--local", "--no-monitor", "--resume", "last"])
    assert rankup_here(["logs"]).stdout.splitlines() == ["second"], "of the newest start"
    [kept] = (tmp_path / "runs").glob("*/*/log/run.out")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_run_without_a_stdout_is_kept_all_the_same(tmp_path: Path) -> None:
    path = script(tmp_path, "print('kept')\n")
    rankup = [Path(sys.executable).with_name("rankup"), "run", "--local", "--no-monitor", path]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *rankup],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    [kept] = (tmp_path / "runs").glob("*/*/log/run.out")
    assert kept.read_text() == "kept\n"


def _waited(words: str, log: Path) -> int:
    return local.wait(["sh", "-c", words], os.environ, lambda *_: False, last=print, log=log)


LEAVES = """
import subprocess
words = "until [ -e go ]; do sleep 0.05; done; /bin/echo later && touch lived"
subprocess.Popen(["sh", "-c", words], start_new_session=True)
print("now")
"""


def test_a_process_that_a_run_left_behind_lives_and_prints_on(
    run_rankup: RunRankup, tmp_path: Path
) -> None:
    done = run_rankup(["run", "--local", "--no-monitor", script(tmp_path, LEAVES)])
    assert (done.returncode, done.stdout) == (0, "now\n"), done.stderr
    [kept] = (tmp_path / "runs").glob("*/*/log/run.out")
    (tmp_path / "go").touch()
    while not (tmp_path / "lived").exists() or "later" not in kept.read_text():
        time.sleep(0.01)


def test_a_full_disk_gets_room_back_for_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, write = tmp_path / "run.out", os.write
    log.write_text("earlier\n")

    def filled(file: int, data: bytes) -> int:
        found = os.fstat(file)
        if found.st_ino == log.stat().st_ino and found.st_size > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", filled)
    assert _waited("head -c 300000 /dev/zero | tr '\\0' x; exit 3", log) == 3
    assert log.stat().st_size <= 100_000
    assert log.read_text().startswith("earlier\nxxx")
    assert f"{log} does not keep all that was printed: No space left" in capsys.readouterr().err


def test_of_a_flood_the_first_part_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "MOST_KEPT", 2 * 10**6)
    log = tmp_path / "run.out"
    assert _waited("head -c 2500000 /dev/zero", log) == 0
    assert log.stat().st_size == 2 * 10**6
    [said] = capsys.readouterr().err.splitlines()
    assert said == f"note: {log} does not keep all that was printed: it has 2 MB of this start"


@pytest.mark.slow
def test_the_ranks_run_in_the_active_environment(run_rankup: RunRankup, tmp_path: Path) -> None:
    other = tmp_path / "env"
    make = [sys.executable, "-m", "venv", "--without-pip", str(other)]
    subprocess.run(make, check=True, timeout=60)
    [site] = other.glob("lib/python3*/site-packages")
    path = script(tmp_path, "import sys\nprint('in', sys.prefix)\nimport not_there\n")
    (tmp_path / "torch.py").touch()  # of the current folder: no torch
    words, env = ["run", "--local", "--no-monitor", path], {"VIRTUAL_ENV": str(other)}
    without = run_rankup(words, env=env)
    assert f"in {sys.prefix}\n" in without.stdout, "it has no torch"
    assert "active environment" not in without.stderr
    ours = [str(Path(torch.__file__).parents[1]), str(Path(rankup.__file__).parents[1])]
    (site / "ours.pth").write_text("\n".join(ours))
    half = run_rankup(words, env=env)
    assert f"in {sys.prefix}\n" in half.stdout
    assert f"note: the ranks run in {sys.executable}; the active environment {other}" in half.stderr
    (other / "bin" / "rankup-rank").touch()
    done = run_rankup(words, env=env)
    assert f"in {other}\n" in done.stdout
    assert f"(the ranks run in {other}/bin/python: install it there" in done.stderr
