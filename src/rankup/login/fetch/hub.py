"""Models and data sets of the Hugging Face hub, as its own libraries will look for them offline."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base import lock
from ...base.errors import UserError
from ...sandbox import namespace
from ...site.caches import Caches
from .. import offline
from ..record import Item, Proof
from . import progress
from .hub_name import Kind, Name
from .hub_run import MODULES, Child, Task, files_in, size_of
from .result import FetchFailed, FetchResult

_NEEDED: dict[Kind, tuple[str, ...]] = {
    "model": ("huggingface_hub",),
    "dataset": ("huggingface_hub", "datasets"),
}
_CACHE_VARIABLES = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")


def check_installed(kind: Kind) -> None:
    """Raises UserError where the libraries of the extra `hf` are not here."""
    missing = [name for name in _NEEDED[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"--{kind} needs {' and '.join(missing)}, not installed for {sys.executable}: "
            "pip install 'rankup[hf]'"
        )


def fetch(
    name: Name,
    caches: Caches,
    *,
    texts: Path | None = None,
    say: Callable[[str], None] = progress.say,
) -> FetchResult:
    """Bring a repository into the hub's own cache, and load it once more without a network.

    Args:
        texts: as in `Task`.

    Raises:
        FetchFailed: it did not come. Where it came and cannot be loaded, `proof` says so.
    """
    child = Child(name, caches)
    child.cache.mkdir(parents=True, exist_ok=True)
    task = Task(name.kind, name.repo, name.config, name.revision, str(child.cache))
    if texts is not None:
        task = replace(task, texts=str(texts))
    # One at a time for a repository: the libraries' own locks are flocks, which many parallel
    # file systems do not have.
    with lock.held(child.cache / child.folder, say, doing="fetching") as held:
        done = child.run(task, held.check, online=True)
        files = tuple(done.get("files", ()))
        refusal = namespace.refusal()
        proof = replace(task, prove=True, block=bool(refusal), files=files, texts=None)
        try:
            child.run(proof, held.check, online=False, namespace=not refusal)
            proved: Proof = "blocked" if refusal else "namespace"
            note = ""
        except FetchFailed as failure:
            held.check()  # else it is no word on what is here
            proved, note = "failed", str(failure)
    items = _model_items(name, done) if name.kind == "model" else _dataset_items(name, done, child)
    moved = caches.variables()
    return FetchResult(
        items,
        {key: value for key, value in moved.items() if key.startswith(_CACHE_VARIABLES)},
        offline.variables(MODULES[name.kind]),
        proved,
        note,
        _advice(name, done),
    )


def _model_items(name: Name, done: Mapping[str, Any]) -> tuple[Item, ...]:
    folder = Path(done["folder"])
    files = [folder / file for file in done["files"]]
    size = sum(file.stat().st_size for file in files)
    return (Item(name.repo, name.page, str(folder), size, len(files), revision=done["revision"]),)


def _dataset_items(name: Name, done: Mapping[str, Any], child: Child) -> tuple[Item, ...]:
    raw = child.cache / child.folder / "snapshots" / done["revision"]
    folders = [Path(folder) for folder in done["folders"]]
    if raw.is_dir():  # what was loaded may point to files in it (images, sound)
        folders.append(raw)
    return tuple(
        Item(
            str(name),
            name.page,
            str(folder),
            size_of(folder),
            len(files_in(folder)),
            "",
            done["revision"],
        )
        for folder in folders
    )


def _advice(name: Name, done: Mapping[str, Any]) -> tuple[str, ...]:
    lines = []
    if skipped := done.get("skipped"):
        more = f" and {len(skipped) - 4} more" if len(skipped) > 4 else ""
        some = ", ".join(skipped[:4]) + more
        lines.append(f"passed over, other formats of the same weights: {some}")
    if splits := done.get("splits"):
        lines.append("rows: " + ", ".join(f"{split} {rows}" for split, rows in splits.items()))
    if name.kind == "dataset":
        config = f", {name.config!r}" if name.config else ""
        lines.append(f"load_dataset({name.repo!r}{config}) finds it without a network")
    elif name.revision:
        lines.append(f"from_pretrained({name.repo!r}, revision={name.revision!r}) finds it")
    return tuple(lines)
