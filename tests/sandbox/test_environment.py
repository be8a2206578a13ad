"""The child's environment: caches in their places, no job's and no tracker's business."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.sandbox.environment import cache_folders, child_environment, offline
from rankup.site import profile
from rankup.site.caches import caches
from rankup.site.config import Config


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one."""
    monkeypatch.setenv("HOME", str(tmp_path))


def _child(given: dict[str, str], site: str = "local") -> dict[str, str]:
    own = caches(Config(), profile.load(site), given)
    return child_environment(given, own, Path("/state"), Path("/tmp/t"), 3)


def test_what_a_job_or_torchrun_left_behind_is_dropped() -> None:
    given = {
        "SLURM_JOB_ID": "1",
        "SLURM_CONF": "/x",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "n1",
        "RANKUP_RUN_DIR": "/r",
        "RANKUP_CACHE": "/cache",
        "HTTPS_PROXY": "http://proxy",
        "MY_DATA": "/d",
    }
    got = _child(given)
    kept = {name: got[name] for name in given if name in got}
    assert kept == {"RANKUP_CACHE": "/cache", "HTTPS_PROXY": "http://proxy", "MY_DATA": "/d"}


def test_no_gpu_no_tracker_and_few_threads() -> None:
    got = _child({"CUDA_VISIBLE_DEVICES": "0,1", "WANDB_MODE": "online"})
    assert (got["CUDA_VISIBLE_DEVICES"], got["WANDB_MODE"]) == ("", "disabled")
    assert (got["OMP_NUM_THREADS"], got["RANKUP_SANDBOX"]) == ("3", "/state")
    assert got["MLFLOW_TRACKING_URI"].startswith("file:///tmp/t/")
    assert got["TMPDIR"] == "/tmp/t"


def test_the_hubs_token_stays_where_it_is_when_the_cache_moves(tmp_path: Path) -> None:
    given = {"PROJECT": "/p/x"}
    assert "HF_TOKEN_PATH" not in _child(given, "jureca-dc")
    token = tmp_path / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_secret")
    got = _child(given, "jureca-dc")
    assert got["HF_HOME"].startswith("/p/x/")
    assert got["HF_TOKEN_PATH"] == str(token)
    assert "hf_secret" not in got.values()
    # Where nothing moves, or the user has said it, nothing is said.
    assert "HF_TOKEN_PATH" not in _child({})
    assert "HF_TOKEN_PATH" not in _child({**given, "HF_HOME": "/hf"}, "jureca-dc")
    said = {**given, "HF_TOKEN_PATH": "/mine"}
    assert _child(said, "jureca-dc")["HF_TOKEN_PATH"] == "/mine"


def test_of_a_cache_that_holds_the_project_the_users_own_files_are_no_cache(tmp_path: Path) -> None:
    project = tmp_path / "work" / "project"
    given = {"HF_HOME": str(project), "XDG_CACHE_HOME": str(tmp_path / "work")}
    own = caches(Config(), profile.load("local"), given)
    found = cache_folders(given, own, [project])
    assert {project / "hub", project / "datasets"} <= set(found)
    assert not [path for path in found if project.is_relative_to(path)]


def test_each_module_brings_its_own_word_that_there_is_no_network() -> None:
    hub = {"HF_HUB_OFFLINE": "1"}
    assert offline(["transformers"]) == {**hub, "TRANSFORMERS_OFFLINE": "1"}
    several = offline(["datasets.load", "wandb", "torch", "my_datasets", "wandbx.y"])
    assert several == {**hub, "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}
    assert offline([]) == {}


def test_trackers_are_silent_in_a_start_that_is_no_run_and_offline_in_a_job() -> None:
    for module in ("wandb", "comet_ml", "clearml", "neptune", "swanlab", "mlflow"):
        told = offline([module])
        assert told
        got = _child(told)
        assert {got[name] for name in told} <= {"0", "1", "disabled", "debug", "true"}, module
