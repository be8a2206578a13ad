"""The variables that tell programs that there is no network."""

from __future__ import annotations

from rankup.login.offline import silent, variables


def test_each_module_brings_its_own() -> None:
    assert variables(["transformers"]) == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    assert variables(["datasets.load", "wandb"]) == {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }


def test_what_is_not_known_brings_none() -> None:
    assert variables([]) == {}
    assert variables(["torch", "my_datasets", "wandbx.y"]) == {}


def test_trackers_are_silent_in_a_start_that_is_no_run_and_offline_in_a_job() -> None:
    quiet = silent()
    assert quiet["WANDB_MODE"] == "disabled"
    for module in ("wandb", "comet_ml", "clearml", "neptune", "swanlab", "mlflow"):
        assert set(variables([module])) <= set(quiet)
