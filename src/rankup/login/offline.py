"""Variables by which programs know that there is no network, and take what is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
    "albumentations": {"NO_ALBUMENTATIONS_UPDATE": "1"},
    "ultralytics": {"YOLO_OFFLINE": "true"},
}


class _Tracker(NamedTuple):
    """The variables of a program that keeps lists of runs.

    Attributes:
        offline: it keeps a run on disk, to be sent later.
        silent: it keeps nothing: a start that is no run belongs into nobody's list.
    """

    offline: Mapping[str, str]
    silent: Mapping[str, str]


_TRACKERS = {
    "wandb": _Tracker({"WANDB_MODE": "offline"}, {"WANDB_MODE": "disabled"}),
    "comet_ml": _Tracker({"COMET_START_ONLINE": "0"}, {"COMET_START_ONLINE": "0"}),
    "clearml": _Tracker({"CLEARML_OFFLINE_MODE": "1"}, {"CLEARML_OFFLINE_MODE": "1"}),
    "neptune": _Tracker({"NEPTUNE_MODE": "offline"}, {"NEPTUNE_MODE": "debug"}),
    "swanlab": _Tracker({"SWANLAB_MODE": "offline"}, {"SWANLAB_MODE": "disabled"}),
    "mlflow": _Tracker({"MLFLOW_DISABLE_TELEMETRY": "true"}, {"MLFLOW_DISABLE_TELEMETRY": "true"}),
}


def variables(modules: Iterable[str]) -> dict[str, str]:
    """The variables of the modules that a script has imported (`datasets.load` counts too)."""
    roots = {module.partition(".")[0] for module in modules}
    found: dict[str, str] = {}
    for module in sorted(roots & set(known())):
        found.update(_TRACKERS[module].offline if module in _TRACKERS else _VARIABLES[module])
    return found


def silent() -> dict[str, str]:
    """The variables with which nothing is reported to anybody."""
    found = {"HF_HUB_DISABLE_TELEMETRY": "1"}
    for tracker in _TRACKERS.values():
        found.update(tracker.silent)
    return found


def known() -> tuple[str, ...]:
    """The modules that have such variables."""
    return (*_VARIABLES, *_TRACKERS)
