"""The environment of a child: the user's, without what a job left there and without trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..site.caches import Caches
from .inside.spec import STATE

# What a job or torchrun says of itself, left over in a shell, would make the script one rank of
# many; a launch of rankup's is not this one.
_DROPPED = (
    "SLURM_",
    "SBATCH_",
    "SALLOC_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "TORCHELASTIC_",
    "RANKUP_RUN_DIR",
    "RANKUP_RESUME",
    "RANKUP_END_TIME",
    "RANKUP_PARENT",
    "RANKUP_INTERACTIVE",
)
_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
)
# What huggingface_hub, datasets and torch.hub make in their homes.
_BELOW = ("hub", "datasets", "xet")
# Variables by which programs know that there is no network, and take what is here.
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


def child_environment(
    environment: Mapping[str, str],
    caches: Caches,
    state: Path,
    temporary: Path,
    threads: int,
) -> dict[str, str]:
    """Return the child's environment, made of the user's; no token in it is looked at."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_DROPPED) and name not in _RANK
    }
    moved = caches.variables()
    return {
        **kept,
        **_SILENT,
        **moved,
        **_token(kept, moved),
        **dict.fromkeys(_THREADS, str(threads)),
        "TOKENIZERS_PARALLELISM": "false",
        # Login nodes may have GPUs: they are not there for this.
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "TMPDIR": str(temporary),
        "MLFLOW_TRACKING_URI": (temporary / "mlruns").as_uri(),
        "COMET_OFFLINE_DIRECTORY": str(temporary / "comet"),
        STATE: str(state),
    }


def cache_folders(
    environment: Mapping[str, str], caches: Caches, roots: Iterable[Path] = ()
) -> tuple[Path, ...]:
    """Return the folders of downloads, those that rankup does not move included.

    Args:
        roots: the user's folders. Of a cache that holds one of them (`HF_HOME=.`) only the folders
            that the libraries make count: the rest is the user's.
    """
    named = [cache.path for cache in caches.entries]
    refined = [Path(value) for value in caches.refining.values()]
    everything = [caches.own, _usual(environment), *named, *refined]
    found = dict.fromkeys(path.expanduser().resolve() for path in everything)
    holds = {path: any(root.is_relative_to(path) for root in roots) for path in found}
    own = ([path / name for name in _BELOW] if holds[path] else [path] for path in found)
    return tuple(dict.fromkeys(path for some in own for path in some))


def offline(modules: Iterable[str] | None = None) -> dict[str, str]:
    """The variables of the modules that a script has imported (`datasets.load` counts too).

    Args:
        modules: None: all that have any.
    """
    found: dict[str, str] = {}
    names = _VARIABLES if modules is None else modules
    for module in sorted({one.partition(".")[0] for one in names}):
        found.update(_VARIABLES.get(module, {}))
    return found


def _token(environment: Mapping[str, str], moved: Mapping[str, str]) -> dict[str, str]:
    """The variable for the hub's token, which stays when its cache moves; it is not read."""
    if "HF_HOME" not in moved or {"HF_HOME", "HF_TOKEN_PATH"} & set(environment):
        return {}
    token = _usual(environment) / "huggingface" / "token"
    return {"HF_TOKEN_PATH": str(token)} if token.is_file() else {}


def _usual(environment: Mapping[str, str]) -> Path:
    """The folder of caches that nothing moves."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
