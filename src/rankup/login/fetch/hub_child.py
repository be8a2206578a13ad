"""The process that works for `hub.py` with the libraries of the Hugging Face hub.

They read their variables when they are imported, and torch comes with some of them. The task
(`fetch` in hub.py) and the answer are JSON files in the folder that is the only argument.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ...base.files import no_space, write_atomic, write_json
from ...base.secrets import redacted
from .download import download
from .hub import ANSWER, TASK, Name
from .request import FetchFailed

_LARGE = 8 << 20  # bytes; below this a new start costs nothing
_TOO_LARGE = 50 * 10**9  # bytes; the hub gives larger files only to its own library
_CONNECTING = frozenset(
    f"socket.{call}" for call in ("connect", "sendto", "sendmsg", "getaddrinfo", "gethostbyname")
)
# Weights of other frameworks and runtimes.
_FOREIGN = re.compile(
    r"(onnx|openvino|coreml|tflite|flax|metal)/.*|(.*/)?model\.ckpt\.(index|meta|data.*)"
    r"|.*\.(h5|msgpack|ot|onnx|onnx_data|tflite|mlmodel|gguf|llamafile)"
)
# How pickled weights are called; other .bin files may be anything.
_PICKLED = re.compile(
    r"(pytorch_model|diffusion_pytorch_model|adapter_model|model)[.-].*bin(\.index\.json)?"
)
_SHARDED = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_SAFE = re.compile(r".*\.safetensors")
# A maker's own format of what is there as safetensors too.
_ORIGINAL = re.compile(r"original/.*\.(pth|safetensors)")


def main() -> None:
    """Do one request; the answer of one that failed says why."""
    own = Path(sys.argv[1])
    request = json.loads((own / TASK).read_text(encoding="utf-8"))
    if request["prove"]:  # its errors are in the answer
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    cache = Path(request["folder"]).parent
    try:
        if request.get("block"):
            _refuse_connections()
        _replace_flocks(cache)
        done = {"model": _model, "dataset": _dataset}[request["kind"]](request)
    except Exception as error:
        name = Name(*(request[part] for part in ("kind", "repo", "config", "revision")))
        done = {"failed": f"{name}: {_explain(name, error, cache)}"}
    write_json(own / ANSWER, done, private=True)


def _explain(name: Name, error: Exception, cache: Path) -> str:
    """Return an error of the hub's libraries in plain words."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = redacted(str(error), os.environ).strip()
    if isinstance(error, FetchFailed):
        return text
    token = "give your token: `hf auth login` on this machine, or HF_TOKEN in the environment"  # noqa: S105
    again = "run it again: what came is kept"
    if isinstance(error, OSError) and no_space(error):
        return f"no room in {cache} ({error.strerror}); make room, and {again}"
    if "GatedRepoError" in kinds or "is a gated" in text:
        return f"it is gated: accept its terms on {name.page}, and {token}"
    if "RevisionNotFoundError" in kinds:
        return f"{name.page} has no revision {name.revision!r}"
    if status == 404 or {"RepositoryNotFoundError", "DatasetNotFoundError"} & set(kinds):
        return f"nothing of that name on {name.page}, or it is private: then {token}"
    if status in (401, 403):
        return f"the hub refuses it (HTTP status {status}); {token}"
    if status is not None and (status == 429 or status >= 500):
        return f"the hub is busy (HTTP status {status}); {again}"
    if "config" in text.lower() and "ValueError" in kinds:
        first = " ".join(text.splitlines()[:2])
        return f"{first}; give one of them: --dataset {name.repo}:CONFIG"
    if "scripts are no longer supported" in text:
        return (
            "it is a Python script, which `datasets` does not run any more; the hub's own Parquet "
            f"copy may be there: --dataset {name.repo}@refs/convert/parquet"
        )
    network = ("ConnectionError", "TransportError", "Timeout", "LocalEntryNotFoundError")
    if any(word in kind for kind in kinds for word in network):
        return f"no connection to {name.page} ({kinds[0]}); {again}"
    return f"{kinds[0]}: {' '.join(text.splitlines()[:3])}"


def _model(request: Mapping[str, Any]) -> dict[str, Any]:
    import huggingface_hub as hub

    name, revision = request["repo"], request["revision"]
    if request["prove"]:
        for file in request["files"]:
            with open(hub.hf_hub_download(name, file, revision=revision), "rb") as stream:
                stream.read(1)
        return {}
    info = hub.HfApi().model_info(name, revision=revision)
    kept, skipped = needed(entry.rfilename for entry in info.siblings or ())
    _bring_large(request, info.sha, kept)
    # By the user's word, not by the commit: only then is `main` known to be it, offline.
    folder = hub.snapshot_download(
        name, revision=revision, allow_patterns=[*map(glob.escape, kept)]
    )
    return {"revision": Path(folder).name, "files": kept, "skipped": skipped}


def needed(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the files of a model that a PyTorch job needs, and those to pass over, sorted.

    Pickled weights are passed over where safetensors lie beside them, so are the checkpoints of a
    maker's own format. A repository that has only weights of other frameworks is needed as it is.
    """
    paths = [PurePosixPath(name) for name in sorted(set(names))]

    def folders(pattern: re.Pattern[str]) -> set[PurePosixPath]:
        return {path.parent for path in paths if pattern.fullmatch(path.name)}

    safe, pickled, sharded = folders(_SAFE), folders(_PICKLED), folders(_SHARDED)
    kept: list[str] = []
    skipped: list[str] = []
    for path in paths:
        over = (
            (path.parent in safe and _PICKLED.fullmatch(path.name))
            or (path.parent in sharded and path.name.startswith("consolidated"))
            or (safe and _ORIGINAL.fullmatch(str(path)))
            or ((safe or pickled) and _FOREIGN.fullmatch(str(path)))
        )
        (skipped if over else kept).append(str(path))
    return kept, skipped


def _dataset(request: Mapping[str, Any]) -> dict[str, Any]:
    import datasets
    import huggingface_hub as hub

    name, config, revision = request["repo"], request["config"], request["revision"]
    if request["prove"]:
        _read_first_rows(datasets.load_dataset(name, config, revision=revision))
        return {}
    info = hub.HfApi().dataset_info(name, revision=revision)
    builder = datasets.load_dataset_builder(name, config, revision=info.sha)
    _bring_large(request, info.sha, _files_of(builder, f"hf://datasets/{name}@{info.sha}/"))
    loaded = datasets.load_dataset(name, config, revision=info.sha)
    _read_first_rows(loaded)
    folders = {
        str(Path(file["filename"]).parent)
        for split in loaded.values()
        for file in split.cache_files
    }
    return {
        "revision": info.sha,
        "texts": _write_texts(loaded, Path(request["texts"])) if request["texts"] else [],
        "folders": sorted(folders),
        "splits": {split: len(rows) for split, rows in loaded.items()},
    }


def _files_of(builder: Any, start: str) -> list[str]:
    """Return the repository's files that a data set is made of, as far as it says so."""
    by_split = getattr(builder.config, "data_files", None) or {}
    urls = [str(url) for files in by_split.values() for url in files]
    return [url.removeprefix(start) for url in urls if url.startswith(start)]


def _bring_large(request: Mapping[str, Any], commit: str | None, wanted: Iterable[str]) -> None:
    """Put large files where the hub's library looks for them before it downloads.

    What the library has of a file is lost when it is interrupted; what `download` has is not. The
    name of a large file's blob is its sha256.
    """
    import huggingface_hub as hub

    name, kind, names = request["repo"], request["kind"], set(wanted)
    blobs = Path(request["folder"]) / "blobs"
    tree = hub.HfApi().list_repo_tree(name, repo_type=kind, revision=commit, recursive=True)
    token = hub.get_token()
    for entry in tree:
        if not isinstance(entry, hub.RepoFile) or entry.lfs is None or entry.path not in names:
            continue
        sha256 = entry.lfs.sha256  # what a server says, so perhaps a path
        if not re.fullmatch("[0-9a-f]{64}", sha256) or not _LARGE <= entry.size <= _TOO_LARGE:
            continue
        if (blobs / sha256).exists():
            continue
        url = hub.hf_hub_url(name, entry.path, repo_type=kind, revision=commit)
        hub.get_hf_file_metadata(url)  # says in the hub's own words why it may not be had
        download(
            url,
            blobs / sha256,
            sha256=sha256,
            authorization=f"Bearer {token}" if token else "",
            name=f"{name}: {entry.path}",
        )


def _read_first_rows(loaded: Any) -> None:
    for rows in loaded.values():
        if len(rows):
            rows[0]


def _write_texts(loaded: Any, folder: Path) -> list[str]:
    """Write lines of text as plain files, each one whole or not there; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "train.txt", folder / "valid.txt", folder / "test.txt"]
    for split, file in zip(("train", "validation", "test"), files, strict=True):
        lines = loaded[split]["text"]
        write_atomic(file, "".join(line if line.endswith("\n") else f"{line}\n" for line in lines))
    return [str(file) for file in files]


def _refuse_connections() -> None:
    def refuse(event: str, _: object) -> None:
        if event in _CONNECTING:
            raise OSError(errno.ENETUNREACH, "this is the proof: there is no network")

    sys.addaudithook(refuse)


def _replace_flocks(cache: Path) -> None:
    """Let flock do nothing where the file system has none.

    The libraries would raise an error, or use files that a kill leaves behind for good; rankup's
    lock is held around all this.
    """
    try:
        with tempfile.TemporaryFile(dir=cache) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        setattr(fcntl, "flock", lambda *words: None)  # noqa: B010 - mypy takes it for a constant
