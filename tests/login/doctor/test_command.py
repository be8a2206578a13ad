"""`rankup doctor` as a user runs it: on a laptop, on Slurm, and where things hang or are broken."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor.command import QUESTIONS, examine
from rankup.login.question import question
from tests.conftest import RunRankup
from tests.login.doctor.test_deadline import gone
from tests.login.doctor.test_python import make_torch
from tests.slurm.fake import FakeSlurm, recorded


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked in this process gets more time than any check takes on a busy machine."""
    monkeypatch.setattr(examine, "__defaults__", (120.0,))


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """Slurm's commands, which answer as on a small cluster."""
    fake = FakeSlurm(tmp_path)
    for words, name in (
        ("scontrol show partition", "partitions"),
        ("scontrol show config", "config"),
        ("sinfo", "sinfo"),
    ):
        fake.answers(words, out=recorded(f"22.05.8/{name}.txt"))
    return fake


def found(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The findings of `doctor --json`."""
    assert done.stderr == ""
    values: list[dict[str, Any]] = json.loads(done.stdout)
    return values


def of(findings: list[dict[str, Any]], code: str) -> list[dict[str, Any]]:
    return [one for one in findings if one["code"] == code]


def clean_environment(**more: str) -> dict[str, str]:
    """Without what this machine may have set."""
    names = ("SYSTEMNAME", "PROJECT", "SCRATCH", "VIRTUAL_ENV", "CONDA_PREFIX", "HF_HOME")
    return {**dict.fromkeys(names, ""), **more}


def test_in_a_process_of_its_own_it_ends_with_a_line_that_counts(run_rankup: RunRankup) -> None:
    """Whatever has answered there in two seconds."""
    done = run_rankup(["doctor"], env=clean_environment())
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("0 errors, ")
    assert last.endswith(" s")


def test_on_a_machine_without_slurm(rankup_here: RunRankup) -> None:
    done = rankup_here(["doctor"], env=clean_environment())
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert first.startswith("ok    machine")
    assert "no known site and no Slurm" in first
    assert "none here: `rankup run` starts on this machine" in done.stdout
    findings = found(rankup_here(["doctor", "--json"], env=clean_environment()))
    assert set(findings[0]) == {"code", "level", "place", "message", "todo"}


def test_on_slurm_where_a_partition_does_not_fit_the_profile(
    rankup_here: RunRankup, slurm: FakeSlurm, tmp_path: Path
) -> None:
    (tmp_path / "rankup.toml").write_text(
        "[site.partitions.booster]\ngpus = 4\ncores = 8\n[job]\npartition = 'develop'\n"
    )
    done = rankup_here(["doctor", "--json"], env=clean_environment(**slurm.environment))
    findings = found(done)
    assert done.returncode == 1
    assert "Slurm is here (ClusterName=" in of(findings, "RK501")[0]["message"]
    wrong, booster, devel, *_, different = of(findings, "RK506")
    assert (wrong["level"], wrong["todo"]) == ("error", "did you mean devel?")
    assert booster["place"] == "booster (default)"
    assert booster["message"].startswith("3 of 3 nodes free now, 2 GPUs, 8 CPUs")
    assert devel["place"] == "devel"
    assert "gpus is 4 in the profile, 2 says Slurm" in different["message"]
    assert not of(findings, "RK538")
    assert not of(findings, "RK539")


def test_on_slurm_without_its_controller(rankup_here: RunRankup, slurm: FakeSlurm) -> None:
    slurm.unreachable()
    done = rankup_here(["doctor", "--json"], env=clean_environment(**slurm.environment))
    assert done.returncode == 1
    [silent] = of(found(done), "RK505")
    assert "does not answer" in silent["message"]
    assert "does not say its name" in of(found(done), "RK501")[0]["message"]


def test_a_command_of_slurm_that_hangs_holds_up_nothing(
    rankup_here: RunRankup,
    slurm: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a child of its own, as behind a site's wrapper.
    (tmp_path / "fake-slurm" / "bin" / "sinfo").write_text(
        f"#!/bin/bash\nsleep 600 & echo $! >> {shlex.quote(str(tmp_path))}/pids; wait\n"
    )
    end = time.monotonic() + 120
    for limit in (1.5, 3.0, 6.0, 12.0, 24.0):  # a busy machine may need more to come to it
        monkeypatch.setattr(examine, "__defaults__", (limit,))
        done = rankup_here(["doctor", "--json"], env=clean_environment(**slurm.environment))
        findings = found(done)
        if of(findings, "RK512") and (tmp_path / "pids").exists():
            break
        assert time.monotonic() < end
    [late] = of(findings, "RK538")
    assert late["level"] == "warning"
    assert "partitions" in late["message"]
    assert of(findings, "RK512")  # the rest goes on
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid)), "a process was left behind"


def test_the_first_of_two_torches_is_too_old(
    rankup_here: RunRankup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of them is imported."""
    module = make_torch(tmp_path / "module", "2.4.0")
    monkeypatch.setattr(sys, "path", [str(module), *sys.path])
    done = rankup_here(["doctor", "--json"], env=clean_environment())
    findings = found(done)
    assert done.returncode == 1
    old = [one for one in of(findings, "RK520") if one["level"] == "error"]
    assert "2.4.0" in old[0]["message"]
    assert "too old for FSDP2" in old[0]["message"]
    assert "two of them" in of(findings, "RK520")[1]["message"]


def test_a_site_from_its_clue_with_what_is_missing_there(rankup_here: RunRankup) -> None:
    done = rankup_here(["doctor", "--json"], env=clean_environment(SYSTEMNAME="jurecadc"))
    findings = found(done)
    assert "JURECA-DC" in of(findings, "RK501")[0]["message"]
    assert of(findings, "RK508")[0]["level"] == "warning"
    assert "jutil env activate" in of(findings, "RK515")[0]["todo"]
    assert of(findings, "RK514")[0]["level"] == "error"  # the tests' folder is not below /p


def test_a_script(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import json\n")
    (tmp_path / "train.py").write_text(
        "import helper\nimport torch\nimport no_such_thing\n"
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n"
    )
    done = rankup_here(["doctor", "--json", "train.py", "--lr", "1"], env=clean_environment())
    [missing] = of(found(done), "RK525")
    assert (done.returncode, missing["place"]) == (1, "train.py:3")
    assert missing["todo"].startswith("pip install no-such-thing")


@pytest.mark.parametrize(("name", "said"), [("train.py", "train.py:1"), ("trian.py", "")])
def test_a_script_with_a_mistake_in_it_or_none(
    rankup_here: RunRankup, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "train.py").write_text("def f(:\n")
    done = rankup_here(["doctor", "--json", name], env=clean_environment())
    [wrong] = of(found(done), "RK525")
    assert (done.returncode, wrong["level"]) == (1, "error")
    assert said in wrong["message"]


def test_names_from_elsewhere_cannot_write_to_the_terminal(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"a\x1b]0;owned\x07\n\xff")
    folder.mkdir()
    (folder / "rankup.toml").touch()
    done = rankup_here(["doctor", "no\x1b[2Jthing.py"], cwd=folder, env=clean_environment())
    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout + done.stderr
    assert "\\x1b]0;owned" in done.stdout
    assert "no\\x1b[2Jthing.py" in done.stdout


def test_a_path_that_is_none_is_bad_input(rankup_here: RunRankup) -> None:
    done = rankup_here(["doctor", ""])
    assert (done.returncode, done.stdout) == (2, "")
    assert "SCRIPT" in done.stderr


@pytest.mark.parametrize("verb", ["doctor", "env create", "fetch train.py", "fetch"])
def test_a_folder_that_is_gone_is_bad_input(tmp_path: Path, verb: str) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    start = f'rmdir "$0" && exec "$1" -m rankup {verb}'
    words = ["sh", "-c", start, str(folder), sys.executable]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "the folder you are in is no longer there" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_before_its_time_it_leaves_no_process(
    slurm: FakeSlurm, tmp_path: Path, number: int
) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "fake-slurm" / "bin" / "sinfo").write_text(
        f"#!/bin/bash\necho $$ > {shlex.quote(str(pid))}.new; mv {shlex.quote(str(pid))}.new "
        f"{shlex.quote(str(pid))}; exec sleep 600\n"
    )
    # Its own limit is none here, however long a busy machine takes to start it.
    start = (
        "import rankup.login.doctor.command as it; it.examine.__defaults__ = (600.0,); "
        "import rankup.cli; rankup.cli.main()"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", start, "doctor"],
        cwd=tmp_path,
        env={**os.environ, **clean_environment(**slurm.environment)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while not pid.exists():
        assert time.monotonic() < end, "sinfo was not asked"
        time.sleep(0.02)
    running.send_signal(number)
    assert running.wait(120) == 128 + number
    assert gone(int(pid.read_text())), "a process was left behind"


def test_a_broken_rankup_toml_is_a_finding(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text("[job]\nacount = 'x'\n")
    done = rankup_here(["doctor", "--json"], env=clean_environment())
    [wrong] = of(found(done), "RK504")
    assert (done.returncode, wrong["level"]) == (1, "error")
    assert "account" in wrong["message"]


def test_what_rankup_toml_lists_and_nobody_fetched(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text("[fetch]\nmodels = ['gpt2']\n")
    done = rankup_here(["doctor", "--json"], env=clean_environment())
    [unmet] = of(found(done), "RK527")
    assert (unmet["level"], unmet["todo"]) == ("error", "rankup fetch --model gpt2")
    assert "gpt2" in unmet["message"]


def test_a_question_that_fails_is_reported_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @question("RK520", "torch", "torch")
    def fail(facts: object) -> list[Finding]:
        raise ZeroDivisionError("a bug\nin two lines")

    @question("RK512", "space", "space")
    def denied(facts: object) -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/secret")

    monkeypatch.chdir(tmp_path)
    bug, no, machine = examine(None, (), questions=(fail, denied, QUESTIONS[0]))
    assert (bug.code, bug.level, bug.place) == ("RK539", "warning", "torch")
    assert "ZeroDivisionError: a bug in two lines" in bug.message
    assert (no.code, no.level) == ("RK512", "warning")
    assert "/secret" in no.message
    assert machine.code == "RK501"
