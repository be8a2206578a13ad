"""Variables by which programs know that there is no network, and take what is here."""

from __future__ import annotations

from collections.abc import Iterable

_HUB = {"HF_HUB_OFFLINE": "1"}
# Module -> its variables, from each project's own documentation. Those that keep lists of runs keep
# one on disk then, to be sent later. MLflow writes into a folder unless it is told otherwise; what
# it sends of its own accord is counted use.
_VARIABLES = {
    "huggingface_hub": _HUB,
    "datasets": {**_HUB, "HF_DATASETS_OFFLINE": "1"},
    "transformers": {**_HUB, "TRANSFORMERS_OFFLINE": "1"},
    "diffusers": {**_HUB, "DISABLE_TELEMETRY": "1"},
    "sentence_transformers": _HUB,
    "timm": _HUB,
    "evaluate": {**_HUB, "HF_EVALUATE_OFFLINE": "1"},
    "albumentations": {"NO_ALBUMENTATIONS_UPDATE": "1"},
    "ultralytics": {"YOLO_OFFLINE": "true"},
    "wandb": {"WANDB_MODE": "offline"},
    "comet_ml": {"COMET_START_ONLINE": "0"},
    "clearml": {"CLEARML_OFFLINE_MODE": "1"},
    "neptune": {"NEPTUNE_MODE": "offline"},
    "swanlab": {"SWANLAB_MODE": "offline"},
    "mlflow": {"MLFLOW_DISABLE_TELEMETRY": "true"},
}
# With these nothing is kept either: a start that is no run belongs into nobody's list.
_SILENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "COMET_START_ONLINE": "0",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def variables(modules: Iterable[str]) -> dict[str, str]:
    """The variables of the modules that a script has imported (`datasets.load` counts too)."""
    found: dict[str, str] = {}
    for module in sorted({module.partition(".")[0] for module in modules}):
        found.update(_VARIABLES.get(module, {}))
    return found


def silent() -> dict[str, str]:
    """The variables with which nothing is reported to anybody."""
    return dict(_SILENT)


def known() -> tuple[str, ...]:
    """The modules that have such variables."""
    return tuple(_VARIABLES)
