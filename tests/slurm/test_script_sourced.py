"""What a job script sources, the environment and the values of --env, cannot change the job."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.site import rundir
from rankup.slurm.script import JobScript

from .jobscripts import ONE, Bash, Ran, in_folders

# All the names of the settings, and of what the script finds out itself.
_TAKEN = [
    *("words", "nodes", "ranks", "gpus", "minutes", "stop_after", "suffix", "srun_options"),
    *("needs", "programs", "rank", "threads", "head", "master_addr", "master_port", "code"),
    *("option", "address", "node", "path", "there"),
]


def _seen_environment(ran: Ran) -> list[tuple[str, str, str]]:
    names = ("RANKUP_RUN_DIR", "OMP_NUM_THREADS", "PWD")
    return [tuple(found[name] for name in names) for found in ran.environment]  # type: ignore[misc]


@pytest.mark.parametrize(
    "lines",
    [
        [
            "set -- other words",
            "shift",
            *(f"{name}=9" for name in _TAKEN),
            "words=(other) needs=(/no/such) programs=(nope) srun_options=(--bad)",
            "launch() { exit 9; }",
            "preflight() { exit 9; }",
            "on_every_node() { exit 9; }",
            "cd /",
            "SLURM_CPUS_PER_TASK=8 retries=0 attempts=1 resume=1",
        ],
        [*(f"export {name}=x" for name in _TAKEN), "set -e\nfalse"],
        ["set -euo pipefail"],
    ],
    ids=["set", "exported", "strict"],
)
def test_an_environment_cannot_change_the_job(bash: Bash, tmp_path: Path, lines: list[str]) -> None:
    job = in_folders(tmp_path, replace(ONE, retries=1))
    usual = bash.run(job)
    activate = tmp_path / "activate.sh"
    activate.write_text("\n".join(['export FOUND="$# $*"', *lines, ""]))
    ran = bash.run(replace(job, activate=str(activate)))
    assert (usual.code, ran.code) == (0, 0), ran.output
    assert ran.torchrun == usual.torchrun
    assert _seen_environment(ran) == _seen_environment(usual)
    assert [found["FOUND"] for found in ran.environment] == ["0 "]
    assert ("warning" in ran.output) == ("false" in lines[-1])


@pytest.mark.parametrize(("line", "code"), [("set -e; false", 1), ("return 3", 3)])
def test_an_environment_that_ends_badly_is_warned_of(
    bash: Bash, tmp_path: Path, line: str, code: int
) -> None:
    activate = tmp_path / "activate.sh"
    activate.write_text(f"export FOUND=yes\n{line}\n")
    ran = bash.run(replace(in_folders(tmp_path, ONE), activate=str(activate)))
    assert ran.code == 0, ran.output
    assert ran.environment[0]["FOUND"] == "yes"
    assert f"rankup: warning: exit code {code} from {activate}" in ran.output


@pytest.mark.parametrize("code", [0, 3])
def test_an_environment_that_calls_exit_fails_the_job_and_says_so(
    bash: Bash, tmp_path: Path, code: int
) -> None:
    activate = tmp_path / "activate.sh"
    activate.write_text(f"exit {code}\n")
    job = in_folders(tmp_path, ONE)
    ran = bash.run(replace(job, activate=str(activate)))
    assert (ran.code, ran.torchrun) == (1, ())
    assert "the environment file calls exit, which ends the job" in ran.output
    assert rundir.records(Path(job.run_dir))[-1]["code"] == 1


def test_an_environment_that_is_gone_stops_the_job(bash: Bash, tmp_path: Path) -> None:
    ran = bash.run(replace(in_folders(tmp_path, ONE), activate=str(tmp_path / "gone.sh")))
    assert (ran.code, ran.torchrun) == (1, ())
    assert f"cannot read {tmp_path / 'gone.sh'}" in ran.output


def _with_env(job: JobScript, text: str) -> JobScript:
    (Path(job.run_dir) / "env").write_text(text)
    return replace(job, private=True)


def test_variables_of_the_user_cannot_change_the_job(bash: Bash, tmp_path: Path) -> None:
    job = in_folders(tmp_path, replace(ONE, retries=1))
    usual = bash.run(job)
    ran = bash.run(_with_env(job, "".join(f"{name}=9\n" for name in _TAKEN)))
    assert ran.code == 0, ran.output
    assert ran.torchrun == usual.torchrun
    assert _seen_environment(ran) == _seen_environment(usual)


def test_variables_of_the_user_win_over_the_profiles_and_offline_ones(
    bash: Bash, tmp_path: Path
) -> None:
    job = replace(in_folders(tmp_path, ONE), variables={"NCCL_SOCKET_IFNAME": "ib0", "B": "site"})
    written = _with_env(job, "NCCL_SOCKET_IFNAME=eth0\nWANDB_MODE=online\n")
    ran = bash.run(written, HF_HUB_OFFLINE="0")  # exported before it was submitted
    found = ran.environment[0]
    assert (found["NCCL_SOCKET_IFNAME"], found["B"]) == ("eth0", "site")
    assert (found["WANDB_MODE"], found["HF_HUB_OFFLINE"]) == ("online", "0")
    assert found["TRANSFORMERS_OFFLINE"] == "1"


def test_how_torch_cuts_gpu_memory(bash: Bash, tmp_path: Path) -> None:
    """As suits most runs, where the user has not said how: before, in --env or by the old name."""
    job = replace(in_folders(tmp_path, ONE), gpus=4, retries=9)

    def found(script: JobScript | str, **given: str) -> str | None:
        ran = bash.run(script, **given)
        assert ran.code == 0, ran.output
        return ran.environment[0].get("PYTORCH_ALLOC_CONF")

    assert found(job) == "expandable_segments:True"
    assert found(job, PYTORCH_ALLOC_CONF="max_split_size_mb:64") == "max_split_size_mb:64"
    assert found(job, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64") is None
    assert found(_with_env(job, "PYTORCH_CUDA_ALLOC_CONF=backend:native\n")) is None
    assert found(replace(job, gpus=0)) is None


def test_an_env_file_that_is_gone_stops_the_job(bash: Bash, tmp_path: Path) -> None:
    ran = bash.run(replace(in_folders(tmp_path, ONE), private=True))
    assert (ran.code, ran.torchrun) == (1, ())
    assert "env is missing, or not your file" in ran.output


def test_an_env_file_of_somebody_else_is_not_sourced(bash: Bash, tmp_path: Path) -> None:
    job = _with_env(in_folders(tmp_path, ONE), 'touch "$FAKES/sourced"\n')
    assert bash.run(job).code == 0
    assert (bash.notes / "sourced").exists()
    file = Path(job.run_dir) / "env"
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
    else:  # a link to what belongs to root
        file.unlink()
        file.symlink_to("/etc/passwd")
    ran = bash.run(job, SLURM_JOB_ID="4243")
    assert (ran.code, ran.torchrun) == (1, ())
    assert f"{file} is missing, or not your file" in ran.output
    assert not (bash.notes / "sourced").exists()
