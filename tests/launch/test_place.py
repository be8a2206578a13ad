"""Where a run goes: to Slurm, into the allocation this is in, onto this machine, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import run as module
from rankup.launch.run import place
from rankup.slurm import client
from rankup.slurm.client import Client
from tests.conftest import RunRankup

from .live import script

UP, DOWN = "echo Slurmctld is UP", "echo Slurmctld is DOWN"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PING_TIMEOUTS", (0.3, 0.3))


def _site(folder: Path, ping: str | None) -> dict[str, str]:
    """The environment in front of a Slurm whose `scontrol ping` does this; None: no Slurm."""
    programs = folder / "bin"
    programs.mkdir()
    texts = {} if ping is None else {"sbatch": "exit 1", "srun": "exit 1", "scontrol": ping}
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return {"PATH": str(programs)}


def _place(environment: Mapping[str, str], local: bool = False, **more: str) -> module.Place:
    found = {**environment, **more}
    return place(Client(environment=found), found, local)


def test_where_slurm_answers_it_goes_there(tmp_path: Path) -> None:
    assert _place(_site(tmp_path, UP)) == "slurm"


def test_where_there_is_no_slurm_it_goes_onto_this_machine(tmp_path: Path) -> None:
    assert _place(_site(tmp_path, None)) == "local"


@pytest.mark.parametrize("ping", [DOWN, "exec /bin/sleep 20", "exit 1"])
def test_where_slurm_is_silent_it_goes_nowhere_by_itself(tmp_path: Path, ping: str) -> None:
    environment = _site(tmp_path, ping)
    with pytest.raises(UserError, match=r"its controller does not answer .* or --local"):
        _place(environment)
    assert _place(environment, local=True) == "local"


@pytest.mark.parametrize("tasks", [{}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}])
def test_inside_a_job_it_goes_into_the_allocation(tmp_path: Path, tasks: dict[str, str]) -> None:
    environment = _site(tmp_path, DOWN)
    assert _place(environment, SLURM_JOB_ID="42", **tasks) == "allocation"
    assert _place(environment, local=True, SLURM_JOB_ID="42", **tasks) == "local"


@pytest.mark.parametrize("tasks", ["2", "64", "2(x3)"])
def test_one_of_several_tasks_starts_nothing(tmp_path: Path, tasks: str) -> None:
    with pytest.raises(UserError, match="once per task here; run it once inside the allocation"):
        _place(_site(tmp_path, UP), SLURM_JOB_ID="42", SLURM_STEP_NUM_TASKS=tasks)


def test_a_job_number_without_srun_is_no_allocation(tmp_path: Path) -> None:
    """As inside a container that has the job's variables and none of Slurm's commands."""
    assert _place(_site(tmp_path, None), SLURM_JOB_ID="42") == "local"


def test_the_command_says_so_and_leaves_nothing_behind(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    path = script(tmp_path / "work", "raise SystemExit(9)")
    before = sorted((tmp_path / "work").rglob("*"))
    env = _site(tmp_path, DOWN)
    done = rankup_here(["run", path], cwd=tmp_path / "work", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "its controller does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted((tmp_path / "work").rglob("*")) == before
