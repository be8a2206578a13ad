"""The environment of a watched script: its caches in their places, nothing reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..site.caches import Caches
from .inside.spec import STATE

# What a job or torchrun says of itself, left over in a shell, would make the script one rank of
# many; a launch of rankup's is not this one.
_DROPPED = (
    *("SLURM_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_"),
    *("RANKUP_RUN_DIR", "RANKUP_RESUME", "RANKUP_END_TIME", "RANKUP_PARENT", "RANKUP_INTERACTIVE"),
)
_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "RAYON_NUM_THREADS", "NUMEXPR_MAX_THREADS"),
)

# What huggingface_hub, datasets and torch.hub make in their homes.
_BELOW = ("hub", "datasets", "xet")


def child(
    environment: Mapping[str, str],
    caches: Caches,
    state: Path,
    temporary: Path,
    threads: int,
    home: Path,
    quiet: Mapping[str, str],
) -> dict[str, str]:
    """Return the child's environment, made of the user's; of a token only its place is looked at.

    Args:
        quiet: variables with which no library reports to anybody.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_DROPPED) and name not in _RANK
    }
    moved = caches.variables()
    return {
        **kept,
        **quiet,
        **moved,
        **_token(kept, moved, home),
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
    environment: Mapping[str, str], caches: Caches, home: Path, roots: Iterable[Path] = ()
) -> tuple[Path, ...]:
    """Return the folders of downloads, those that rankup does not move included.

    Args:
        roots: the user's folders. Of a cache that holds one of them (`HF_HOME=.`) only the folders
            that the libraries make count: the rest is the user's.
    """
    usual = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    named = [cache.path for cache in caches.entries]
    refined = [Path(value) for value in caches.refining.values()]
    everything = [caches.own, usual, *named, *refined]
    found = dict.fromkeys(path.expanduser().resolve() for path in everything)
    holds = {path: any(root.is_relative_to(path) for root in roots) for path in found}
    own = ([path / name for name in _BELOW] if holds[path] else [path] for path in found)
    return tuple(dict.fromkeys(path for some in own for path in some))


def _token(environment: Mapping[str, str], moved: Mapping[str, str], home: Path) -> dict[str, str]:
    """The variable for the hub's token, which stays when its cache moves; it is not read."""
    if "HF_HOME" not in moved or {"HF_HOME", "HF_TOKEN_PATH"} & set(environment):
        return {}
    usual = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    token = usual / "huggingface" / "token"
    return {"HF_TOKEN_PATH": str(token)} if token.is_file() else {}
