"""A project with fetched parts, and a user in front of Slurm, or on a machine without."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from rankup.login import record
from rankup.login.record import Item, Proof, Record
from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster

from .on_slurm import ONE_THREAD, Site

PROBE = """
import json, os
from pathlib import Path
names = ("HF_HOME", "TORCH_HOME", "HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE")
found = {name: os.environ[name] for name in names if name in os.environ}
Path(os.environ["RANKUP_RUN_DIR"], "found").write_text(json.dumps(found))
"""
WORDS = ("--time", "10m", "--nproc", "1", "--allow-idle-gpus", *ONE_THREAD)


@pytest.fixture
def site(slurm: Cluster, rankup_here: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, rankup_here, tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script whose rank writes down what it was told."""
    path = tmp_path / "train.py"
    path.write_text(PROBE)
    return path


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
    site: Site, script: Path, more: tuple[str, ...]
) -> None:
    _fetched(script).unlink()
    before = sorted(site.folder.rglob("*"))
    done = site.rankup("run", *WORDS, *more, script, code=2)
    assert "hub/weights, which fetching train.py brought, is gone" in done.stderr
    assert "rankup fetch train.py" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(site.folder.rglob("*")) == before
    assert site.queue() == []


def test_what_rankup_toml_lists_and_is_not_here_is_refused_unless_allowed(
    site: Site, script: Path
) -> None:
    (site.folder / "rankup.toml").write_text('[fetch]\nmodels = ["gpt2"]\n')
    done = site.rankup("run", *WORDS, script, code=2)
    assert "model gpt2: not fetched; rankup fetch --model gpt2" in done.stderr
    done = site.rankup("run", *WORDS, "--dry-run", "--allow-missing", script)
    assert "warning: model gpt2: not fetched" in done.stderr
    done = site.rankup("run", *WORDS, script, "--allow-missing", code=2)
    assert "--allow-missing stands after TARGET" in done.stderr


def test_the_rank_gets_the_caches_and_the_offline_variables(site: Site, script: Path) -> None:
    file = _fetched(script)
    job, run = site.submit(*WORDS, "--env", "TORCH_HOME=/asked", script)
    site.ended(job, "COMPLETED", run)
    assert json.loads((run / "found").read_text()) == {
        "HF_HOME": str(file.parent),
        "TORCH_HOME": "/asked",
        "HF_HUB_OFFLINE": "1",
        "HF_EVALUATE_OFFLINE": "1",
    }
    assert str(file) in (run / "job.sh").read_text(), "every node has to see it"


def test_with_internet_the_rank_may_fetch_unless_it_was_proved_not_to_need_it(
    site: Site, script: Path
) -> None:
    (site.folder / "rankup.toml").write_text("[site]\ninternet = true\n")
    _fetched(script, "failed")
    text = site.rankup("run", *WORDS, "--dry-run", script).stdout
    assert "OFFLINE" not in text
    assert f"export HF_HOME={script.parent}/hub" in text


def test_without_internet_a_script_that_was_never_fetched_is_warned_of(
    site: Site, script: Path
) -> None:
    (site.folder / "rankup.toml").write_text("[site]\ninternet = false\n")
    script.write_text("from datasets import load_dataset\nload_dataset('xsum')\n")
    said = site.rankup("run", *WORDS, "--dry-run", script, "--lr", "1").stderr
    assert "the nodes have no internet. It wants:\n  xsum (load_dataset, train.py:2)\n" in said
    assert "rankup fetch train.py --lr 1" in said


def test_inside_an_allocation_it_is_the_same(site: Site, script: Path) -> None:
    file = _fetched(script)
    number = site.allocate(1)
    inside = {"SLURM_JOB_ID": str(number)}
    run = site.folder / "run"
    words = ("run", "--nproc", "1", "--allow-idle-gpus", *ONE_THREAD, "--out", run, script)
    site.rankup(*words, env=inside)
    assert json.loads((run / "found").read_text())["HF_HOME"] == str(file.parent)
    file.unlink()
    run = site.folder / "another"
    done = site.rankup(*words[:-2], run, script, env=inside, code=2)
    assert "hub/weights, which fetching train.py brought, is gone" in done.stderr
    assert not run.exists()


def test_an_environment_older_than_its_requirements_is_warned_of(site: Site, script: Path) -> None:
    folder = site.folder / "env"
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (folder / "activate.sh").touch()
    (folder / "requirements.txt").write_text("numpy\n")
    made = f"path={folder}/venv\nmachine={platform.machine()}\nkind=wheels\n"
    (folder / "venv" / ".made").write_text(made)
    (folder / "venv" / ".installed").write_text("requirements=of another day\nlock=-\n")
    (site.folder / "rankup.toml").write_text('[job]\nenvironment = "env/activate.sh"\n')
    said = site.rankup("run", *WORDS, "--dry-run", script).stderr
    assert f"warning: {folder} is older than its requirements.txt; run: rankup env create" in said


def test_on_this_machine_the_ranks_find_what_was_fetched(
    run_rankup: RunRankup, script: Path
) -> None:
    file = _fetched(script)
    folder = script.parent
    none = {"HF_HUB_OFFLINE": "", "HF_HOME": "/now"}
    words = ["run", "--local", "--nproc", "1", "--out", folder / "run", script]
    done = run_rankup(words, cwd=folder, env=none, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "run" / "found").read_text())
    assert (found["HF_HOME"], found["TORCH_HOME"]) == (str(file.parent), "/record")
    assert "HF_EVALUATE_OFFLINE" not in found
    assert f"note: HF_HOME is /now here; what was fetched lies in {file.parent}" in done.stderr
    file.unlink()
    words = ["run", "--local", "--dry-run", "--nproc", "1", script]
    done = run_rankup(words, cwd=folder, env=none, timeout=120)
    assert done.returncode == 0, "nothing is refused here: it may fetch"
    assert done.stdout.startswith(f"HF_HOME={file.parent} TORCH_HOME=/record torchrun ")
