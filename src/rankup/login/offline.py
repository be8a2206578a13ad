"""What tells programs that there is no network, so that they fail at once or take what is here."""

from __future__ import annotations

from collections.abc import Iterable

_HUB = {"HF_HUB_OFFLINE": "1"}
# Module -> its variables, from each project's own documentation. MLflow writes into a folder unless
# it is told otherwise; what it sends of its own accord is counted use.
_VARIABLES = {
    "huggingface_hub": _HUB,
    "datasets": {**_HUB, "HF_DATASETS_OFFLINE": "1"},
    "transformers": {**_HUB, "TRANSFORMERS_OFFLINE": "1"},
    "diffusers": {**_HUB, "DISABLE_TELEMETRY": "1"},
    "sentence_transformers": _HUB,
    "timm": _HUB,
    "evaluate": {**_HUB, "HF_EVALUATE_OFFLINE": "1"},
    "wandb": {"WANDB_MODE": "offline"},
    "comet_ml": {"COMET_START_ONLINE": "0"},
    "clearml": {"CLEARML_OFFLINE_MODE": "1"},
    "neptune": {"NEPTUNE_MODE": "offline"},
    "swanlab": {"SWANLAB_MODE": "offline"},
    "mlflow": {"MLFLOW_DISABLE_TELEMETRY": "true"},
    "albumentations": {"NO_ALBUMENTATIONS_UPDATE": "1"},
    "ultralytics": {"YOLO_OFFLINE": "true"},
}


def variables(modules: Iterable[str]) -> dict[str, str]:
    """The variables of the modules that a script has imported (`datasets.load` counts too)."""
    roots = {module.partition(".")[0] for module in modules}
    found: dict[str, str] = {}
    for module in sorted(roots & set(_VARIABLES)):
        found.update(_VARIABLES[module])
    return found


def known() -> tuple[str, ...]:
    """The modules that have such variables."""
    return tuple(_VARIABLES)
