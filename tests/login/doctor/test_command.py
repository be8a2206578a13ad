"""`rankup doctor` as a user runs it: on a laptop, on Slurm, and where things hang or are broken."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import codes, gather
from rankup.login.doctor.examine import examine
from rankup.login.doctor.gather import Check
from tests.conftest import RunRankup
from tests.login.doctor.again import Done, all_in_time, asked
from tests.login.doctor.test_asking import gone
from tests.login.doctor.test_torch import ARM, X86, make_torch
from tests.slurm.cluster import Cluster
from tests.slurm.fake import FakeSlurm, recorded

# Two seconds are promised; a machine that is busy with other tests gets more.
SECONDS = 6.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked in this process gets more time than any check takes on a busy machine."""
    monkeypatch.setattr(examine, "__defaults__", (30.0,))


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


def test_on_a_machine_without_slurm(run_rankup: RunRankup) -> None:
    done = asked(lambda: run_rankup(["doctor"], env=clean_environment()))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok    machine")
    assert "no known site and no Slurm" in lines[0]
    assert "none here: `rankup run` starts on this machine" in done.stdout
    assert lines[-1].startswith("0 errors, ")
    assert lines[-1].endswith(" s")


def test_in_json(rankup_here: RunRankup) -> None:
    findings = found(rankup_here(["doctor", "--json"], env=clean_environment()))
    assert {one["code"] for one in findings} <= set(codes.TITLES)
    assert set(findings[0]) == {"code", "level", "place", "message", "todo"}


def test_on_slurm(run_rankup: RunRankup, slurm: Cluster) -> None:
    env = clean_environment(**slurm.environment)
    took = 0.0

    def doctor() -> Done:
        nonlocal took
        start = time.monotonic()
        done = run_rankup(["doctor", "--json"], env=env)
        took = time.monotonic() - start
        return done

    def good(done: Done) -> bool:
        # The name has less time than a check: it is not known, rather than late.
        return took < SECONDS and all_in_time(done) and "ClusterName=rankup" in done.stdout

    done = asked(doctor, good)
    assert took < SECONDS
    findings = found(done)
    assert done.returncode == 0
    assert "ClusterName=rankup" in of(findings, codes.MACHINE)[0]["message"]
    booster, devel = of(findings, codes.PARTITION)
    assert booster["place"] == "booster (default)"
    assert booster["message"].startswith("3 of 3 nodes free now, 2 GPUs, 8 CPUs")
    assert "0:30 h at most, 1 nodes a job" in devel["message"]
    assert [one["place"] for one in of(findings, codes.NODE_NAMES)] == ["node n1", "node n3"]
    assert not of(findings, codes.LATE)
    assert not of(findings, codes.FAILED)


def test_on_slurm_without_its_controller(run_rankup: RunRankup, slurm: Cluster) -> None:
    env = clean_environment(**slurm.environment)
    with slurm.without_controller():
        done = asked(lambda: run_rankup(["doctor", "--json"], env=env))
    assert done.returncode == 1
    [silent] = of(found(done), codes.SLURM)
    assert "does not answer" in silent["message"]


def test_a_partition_that_does_not_fit_the_profile(
    run_rankup: RunRankup, slurm: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "rankup.toml").write_text(
        "[site.partitions.booster]\ngpus = 4\ncores = 8\n[job]\npartition = 'develop'\n"
    )
    env = clean_environment(**slurm.environment)
    done = asked(lambda: run_rankup(["doctor", "--json"], env=env))
    findings = found(done)
    assert done.returncode == 1
    [different] = of(findings, codes.DIFFERENCE)
    assert "gpus is 4 in the profile, 2 says Slurm" in different["message"]
    [wrong] = [one for one in of(findings, codes.PARTITION) if one["level"] == "error"]
    assert wrong["todo"] == "did you mean devel?"


@pytest.mark.parametrize("command", ["sinfo", "scontrol"])
def test_a_command_of_slurm_that_hangs_holds_up_nothing(
    run_rankup: RunRankup, tmp_path: Path, command: str
) -> None:
    fake = FakeSlurm(tmp_path)
    fake.answers("scontrol show partition", out=recorded("22.05.8/partitions.txt"))
    fake.answers("scontrol show config", out=recorded("22.05.8/config.txt"))
    program = tmp_path / "fake-slurm" / "bin" / command
    # In a child of its own, as behind a site's wrapper.
    program.write_text(
        f"#!/bin/bash\nsleep 300 & echo $! >> {shlex.quote(str(tmp_path))}/pids; wait\n"
    )
    took = 0.0

    def doctor() -> Done:
        nonlocal took
        start = time.monotonic()
        done = run_rankup(["doctor", "--json"], env=clean_environment(**fake.environment))
        took = time.monotonic() - start
        return done

    def good(done: Done) -> bool:
        return took < SECONDS and codes.SPACE in done.stdout and (tmp_path / "pids").exists()

    done = asked(doctor, good)
    assert took < SECONDS
    findings = found(done)
    late = of(findings, codes.LATE)
    assert late
    assert all(one["level"] == "warning" for one in late)
    assert of(findings, codes.SPACE)  # the rest goes on
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid)), f"{command} left a process behind"


def test_torch_is_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom rankup.login.doctor.command import show\nshow(None, (), as_json=True)\n"
        "sys.exit('torch' in sys.modules)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_torch_made_for_other_hardware(run_rankup: RunRankup, tmp_path: Path) -> None:
    other = ARM if os.uname().machine == "x86_64" else X86
    site = make_torch(tmp_path / "module", machine=other)
    env = clean_environment(PYTHONPATH=str(site))
    done = asked(lambda: run_rankup(["doctor", "--json"], env=env))
    [wrong] = of(found(done), codes.TORCH_ARCHITECTURE)
    assert (done.returncode, wrong["level"]) == (1, "error")
    assert "cannot be imported here" in wrong["message"]


def test_torch_twice_and_the_first_one_too_old(run_rankup: RunRankup, tmp_path: Path) -> None:
    machine = X86 if os.uname().machine == "x86_64" else ARM
    module = make_torch(tmp_path / "module", "2.4.0", machine=machine)
    env = clean_environment(PYTHONPATH=str(module))
    done = asked(lambda: run_rankup(["doctor", "--json"], env=env))
    findings = found(done)
    assert done.returncode == 1
    old = [one for one in of(findings, codes.TORCH) if one["level"] == "error"]
    assert "2.4.0" in old[0]["message"]
    assert "too old for FSDP2" in old[0]["message"]
    assert of(findings, codes.TORCH_TWICE)


def test_a_site_from_its_clue_with_what_is_missing_there(rankup_here: RunRankup) -> None:
    done = rankup_here(["doctor", "--json"], env=clean_environment(SYSTEMNAME="jurecadc"))
    findings = found(done)
    assert "JURECA-DC" in of(findings, codes.MACHINE)[0]["message"]
    assert of(findings, codes.ACCOUNT)[0]["level"] == "warning"
    assert "jutil env activate" in of(findings, codes.PROJECT_FOLDERS)[0]["todo"]
    assert of(findings, codes.MOUNTED)[0]["level"] == "error"  # the tests' folder is not below /p


def test_a_script(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import json\n")
    (tmp_path / "train.py").write_text(
        "import helper\nimport torch\nimport no_such_thing\n"
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n"
    )
    done = rankup_here(["doctor", "--json", "train.py", "--lr", "1"], env=clean_environment())
    [missing] = of(found(done), codes.IMPORTS)
    assert (done.returncode, missing["place"]) == (1, "train.py:3")
    assert missing["todo"].startswith("pip install no-such-thing")


def test_a_script_with_a_mistake_in_it(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(:\n")
    done = rankup_here(["doctor", "--json", "train.py"], env=clean_environment())
    [wrong] = of(found(done), codes.SCRIPT)
    assert (done.returncode, wrong["level"]) == (1, "error")
    assert "train.py:1" in wrong["message"]


def test_a_script_that_is_not_there(rankup_here: RunRankup) -> None:
    done = rankup_here(["doctor", "--json", "trian.py"], env=clean_environment())
    [wrong] = of(found(done), codes.SCRIPT)
    assert (done.returncode, wrong["level"]) == (1, "error")


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


def test_a_folder_that_is_gone_is_bad_input(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    words = ["sh", "-c", 'rmdir "$0" && exec "$1" -m rankup doctor', str(folder), sys.executable]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "the folder you are in is no longer there" in done.stderr


def test_a_broken_rankup_toml_is_a_finding(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text("[job]\nacount = 'x'\n")
    done = rankup_here(["doctor", "--json"], env=clean_environment())
    [wrong] = of(found(done), codes.CONFIGURATION)
    assert (done.returncode, wrong["level"]) == (1, "error")
    assert "account" in wrong["message"]


def test_what_rankup_toml_lists_and_nobody_fetched(rankup_here: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text("[fetch]\nmodels = ['gpt2']\n")
    done = rankup_here(["doctor", "--json"], env=clean_environment())
    [unmet] = of(found(done), codes.NEEDS)
    assert (unmet["level"], unmet["todo"]) == ("error", "rankup fetch --model gpt2")
    assert "gpt2" in unmet["message"]


def test_a_check_that_fails_is_reported_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(facts: object) -> list[Finding]:
        raise ZeroDivisionError("a bug\nin two lines")

    def denied(facts: object) -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/secret")

    broken = (Check(codes.TORCH, "torch", fail), Check(codes.SPACE, "space", denied))
    monkeypatch.setattr(gather, "CHECKS", (*broken, gather.CHECKS[0]))
    monkeypatch.chdir(tmp_path)
    bug, no, machine = examine(None, ())[:3]
    assert (bug.code, bug.level, bug.place) == (codes.FAILED, "warning", "torch")
    assert "ZeroDivisionError: a bug in two lines" in bug.message
    assert (no.code, no.level) == (codes.SPACE, "warning")
    assert "/secret" in no.message
    assert machine.code == codes.MACHINE
