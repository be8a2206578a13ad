"""What cannot run is refused where there is Slurm, by the command, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankup.login import record
from rankup.login.record import Item, Proof, Record
from rankup.site import rundir
from tests.conftest import RunRankup
from tests.slurm.fake import FakeSlurm, recorded

from .handmade import asked, make_run
from .live import script as write_script

PROBE = """
import json, os
from pathlib import Path
names = ("HF_HOME", "TORCH_HOME", "HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE")
found = {name: os.environ[name] for name in names if name in os.environ}
Path(os.environ["RANKUP_RUN_DIR"], "found").write_text(json.dumps(found))
"""
WORDS = ("--time", "10m", "--nproc", "1", "--allow-idle-gpus")


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """The recorded Slurm: nodes of two GPUs, and no job."""
    (tmp_path / "site").mkdir()
    fake = FakeSlurm(tmp_path / "site")
    fake.answers("scontrol show partition", out=recorded("22.05.8/partitions.txt"))
    fake.answers("sinfo", out=recorded("22.05.8/sinfo.txt"))
    fake.answers("scontrol show config", out=recorded("22.05.8/config.txt"))
    fake.answers(
        "sacctmgr", err="You are not running a supported accounting_storage plugin", code=1
    )
    fake.answers("squeue")
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The current folder of the user, with a script."""
    write_script(tmp_path / "work", PROBE, "train.py")
    return tmp_path / "work"


REFUSED: dict[str, tuple[list[str], str]] = {
    "idle GPUs": (["--nproc", "1", "train.py"], "you pay for 2"),
    "more ranks than GPUs": (["--nproc", "3", "train.py"], "give --nproc 2 or less"),
    "time": (["--time", "25h", "train.py"], "--time 1-01:00:00 is over the limit of booster"),
    "time in no form": (["--time", "soon", "train.py"], "--time 'soon' is not a time limit"),
    "nodes": (["--nodes", "4", "train.py"], "--nodes 4 is more than booster gives a job, which is"),
    "partition": (["--partition", "boster", "train.py"], "did you mean booster"),
    "line break": (["--name", "a\nb", "train.py"], "cannot hold a line break"),
    "backslash": (["--out", "a\\b", "train.py"], "has a backslash"),
    "token": (["train.py", f"--token=hf_{'x' * 30}"], "one of the arguments holds a token"),
    "an array": (["--sbatch=--array=0-1", "train.py"], "run --array is gone in 0.3"),
    "resume of nothing": (["--resume", "999999"], "no run '999999'"),
    "a split": (
        ["--nodes", "2", "--nproc", "2", "language-model", "--tp", "3"],
        "tp 3 is 3 ranks, and there are 4",
    ),
    "a split, dry": (
        ["--nodes", "2", "--nproc", "2", "--dry-run", "language-model", "--tp", "3"],
        "--tp 4",
    ),
    "sbatch says no": (["language-model"], "No node of the partition"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_and_leaves_nothing(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path, name: str
) -> None:
    said = "Batch job submission failed: Requested node configuration is not available"
    slurm.answers("sbatch", err=f"sbatch: error: {said}\n", code=1)
    slurm.answers("scontrol show job", err="Invalid job id specified", code=1)
    words, message = REFUSED[name]
    before = sorted(folder.rglob("*"))
    done = rankup_here(["run", *words], cwd=folder, env=slurm.environment)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "hf_x" not in done.stderr
    assert "#SBATCH" not in done.stdout
    assert sorted(folder.rglob("*")) == before
    assert len(slurm.calls("sbatch")) == (name == "sbatch says no")


def test_a_dry_run_prints_the_script_and_does_nothing(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path
) -> None:
    before = sorted(folder.rglob("*"))
    words = ["run", "--dry-run", "--nodes", "2", "train.py"]
    done = rankup_here(words, cwd=folder, env=slurm.environment)
    assert "#SBATCH --nodes=2" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    assert sorted(folder.rglob("*")) == before
    assert slurm.calls("sbatch") == []


def test_a_run_that_waits_or_runs_is_not_started_again(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path
) -> None:
    run = make_run(folder / "runs", target=str(folder / "train.py"), cwd=str(folder))
    asked(run, "12")
    slurm.answers("squeue", out=f"12|PENDING|N/A||Priority|{os.getuid()}|{run}\n")
    before = (run / rundir.JOB).read_bytes()
    for name in ("12", str(run), "last"):
        done = rankup_here(["run", "--resume", name], cwd=folder, env=slurm.environment)
        assert done.returncode == 2
        assert "going on already: job 12 is PENDING" in done.stderr
    assert (run / rundir.JOB).read_bytes() == before
    assert slurm.calls("sbatch") == []


# --- what a job needs and is not here; every case of it is in test_ready.py


def _fetched(script: Path, proof: Proof = "namespace") -> Path:
    """Keep a record of `script`; the one file that it has fetched."""
    file = script.parent / "hub" / "weights"
    file.parent.mkdir()
    file.write_bytes(b"12345")
    one = Record(
        record.script_key(script, ()),
        "2026-01-01T00:00:00Z",
        (Item("weights", "https://example.org/weights", str(file), 5),),
        {"HF_HOME": str(file.parent), "TORCH_HOME": "/record"},
        {"HF_EVALUATE_OFFLINE": "1"},
        proof,
        "weights were not there" if proof == "failed" else "",
    )
    record.write(script.parent, one)
    return file


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_job_that_would_miss_something_is_refused_and_leaves_nothing(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path, more: tuple[str, ...]
) -> None:
    _fetched(folder / "train.py").unlink()
    before = sorted(folder.rglob("*"))
    words = ["run", *WORDS, *more, "train.py"]
    done = rankup_here(words, cwd=folder, env=slurm.environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hub/weights, which fetching train.py brought, is gone" in done.stderr
    assert "rankup fetch train.py" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(folder.rglob("*")) == before


def test_what_rankup_toml_lists_and_is_not_here_is_refused_unless_allowed(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path
) -> None:
    (folder / "rankup.toml").write_text('[fetch]\nmodels = ["gpt2"]\n')
    for words, code, said in (
        (["train.py"], 2, "model gpt2: not fetched; rankup fetch --model gpt2"),
        (["--dry-run", "--allow-missing", "train.py"], 0, "warning: model gpt2: not fetched"),
        (["train.py", "--allow-missing"], 2, "--allow-missing stands after TARGET"),
    ):
        done = rankup_here(["run", *WORDS, *words], cwd=folder, env=slurm.environment)
        assert done.returncode == code
        assert said in done.stderr


@pytest.mark.parametrize("internet", [True, False])
def test_what_the_job_is_told_of_the_network(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path, internet: bool
) -> None:
    (folder / "rankup.toml").write_text(f"[site]\ninternet = {str(internet).lower()}\n")
    script = folder / "train.py"
    if internet:
        _fetched(script, "failed")
    else:
        script.write_text("from datasets import load_dataset\nload_dataset('xsum')\n")
    words = ["run", *WORDS, "--dry-run", script, "--lr", "1"]
    words = words[: -2 if internet else None]
    done = rankup_here(words, cwd=folder, env=slurm.environment)
    assert ("OFFLINE" in done.stdout) != internet
    if internet:
        assert f"export HF_HOME={folder}/hub" in done.stdout
        return
    assert "the nodes have no internet. It wants:\n  xsum (load_dataset, train.py:2)\n" in (
        done.stderr
    )
    assert "rankup fetch train.py --lr 1" in done.stderr


def test_an_environment_older_than_its_requirements_is_warned_of(
    slurm: FakeSlurm, rankup_here: RunRankup, folder: Path
) -> None:
    made = folder / "env"
    programs = made / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (made / "activate.sh").touch()
    (made / "requirements.txt").write_text("numpy\n")
    text = f"path={made}/venv\nmachine={platform.machine()}\nkind=wheels\n"
    (made / "venv" / ".made").write_text(text)
    (made / "venv" / ".installed").write_text("requirements=of another day\nlock=-\n")
    (folder / "rankup.toml").write_text('[job]\nenvironment = "env/activate.sh"\n')
    words = ["run", *WORDS, "--dry-run", "train.py"]
    said = rankup_here(words, cwd=folder, env=slurm.environment).stderr
    assert f"warning: {made} is older than its requirements.txt; run: rankup env create" in said


@pytest.mark.slow
def test_on_this_machine_the_ranks_find_what_was_fetched(
    run_rankup: RunRankup, rankup_here: RunRankup, folder: Path
) -> None:
    file = _fetched(folder / "train.py")
    none: Mapping[str, str] = {"HF_HUB_OFFLINE": "", "HF_HOME": "/now"}
    words = ["run", "--local", "--nproc", "1", "--out", folder / "run", "train.py"]
    done = run_rankup(words, cwd=folder, env=none)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "run" / "found").read_text())
    assert (found["HF_HOME"], found["TORCH_HOME"]) == (str(file.parent), "/record")
    assert "HF_EVALUATE_OFFLINE" not in found
    assert f"note: HF_HOME is /now here; what was fetched lies in {file.parent}" in done.stderr
    file.unlink()
    words = ["run", "--local", "--dry-run", "--nproc", "1", "train.py"]
    done = rankup_here(words, cwd=folder, env=none)
    assert done.returncode == 0, "nothing is refused here: it may fetch"
    assert done.stdout.startswith(f"HF_HOME={file.parent} TORCH_HOME=/record torchrun ")
