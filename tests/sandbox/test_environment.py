"""The child's environment: caches in their places, no job's and no tracker's business."""

from __future__ import annotations

from pathlib import Path

from rankup.login import offline
from rankup.sandbox.watch import cache_folders, child_environment
from rankup.site import profile
from rankup.site.caches import caches
from rankup.site.config import Config


def _child(given: dict[str, str], home: Path, site: str = "local") -> dict[str, str]:
    own = caches(Config(), profile.load(site), given, home)
    return child_environment(given, own, Path("/state"), Path("/tmp/t"), 3, home, offline.silent())


def test_what_a_job_or_torchrun_left_behind_is_dropped(tmp_path: Path) -> None:
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
    got = _child(given, tmp_path)
    kept = {name: got[name] for name in given if name in got}
    assert kept == {"RANKUP_CACHE": "/cache", "HTTPS_PROXY": "http://proxy", "MY_DATA": "/d"}


def test_no_gpu_no_tracker_and_few_threads(tmp_path: Path) -> None:
    got = _child({"CUDA_VISIBLE_DEVICES": "0,1", "WANDB_MODE": "online"}, tmp_path)
    assert (got["CUDA_VISIBLE_DEVICES"], got["WANDB_MODE"]) == ("", "disabled")
    assert (got["OMP_NUM_THREADS"], got["RANKUP_SANDBOX"]) == ("3", "/state")
    assert got["MLFLOW_TRACKING_URI"].startswith("file:///tmp/t/")
    assert got["TMPDIR"] == "/tmp/t"


def test_the_hubs_token_stays_where_it_is_when_the_cache_moves(tmp_path: Path) -> None:
    given = {"PROJECT": "/p/x"}
    assert "HF_TOKEN_PATH" not in _child(given, tmp_path, "jureca-dc")
    token = tmp_path / ".cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_secret")
    got = _child(given, tmp_path, "jureca-dc")
    assert got["HF_HOME"].startswith("/p/x/")
    assert got["HF_TOKEN_PATH"] == str(token)
    assert "hf_secret" not in got.values()
    # Where nothing moves, or the user has said it, nothing is said.
    assert "HF_TOKEN_PATH" not in _child({}, tmp_path)
    assert "HF_TOKEN_PATH" not in _child({**given, "HF_HOME": "/hf"}, tmp_path, "jureca-dc")
    said = {**given, "HF_TOKEN_PATH": "/mine"}
    assert _child(said, tmp_path, "jureca-dc")["HF_TOKEN_PATH"] == "/mine"


def test_of_a_cache_that_holds_the_project_the_users_own_files_are_no_cache(tmp_path: Path) -> None:
    project = tmp_path / "work" / "project"
    given = {"HF_HOME": str(project), "XDG_CACHE_HOME": str(tmp_path / "work")}
    own = caches(Config(), profile.load("local"), given, tmp_path)
    found = cache_folders(given, own, tmp_path, [project])
    assert {project / "hub", project / "datasets"} <= set(found)
    assert not [path for path in found if project.is_relative_to(path)]
