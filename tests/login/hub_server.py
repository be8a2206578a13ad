"""An imitation of the Hugging Face hub on loopback, enough of it for its own libraries to load.

    hub.add("model", "org/tiny-model", {"config.json": b"…", "model.safetensors": b"…"})
    environment = hub.environment  # HF_ENDPOINT

It answers what huggingface_hub, datasets and transformers ask: repository info, file trees,
paths-info, and `resolve` with the headers that name commit, ETag and size. Large file types are
redirected to another host name with a signed query, as the real one does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import parse_qs, unquote

from .web import Answer, Asked, Web

Kind = Literal["model", "dataset"]
# Kept outside of git by the real hub.
_LARGE = {".safetensors", ".bin", ".parquet", ".h5", ".zip", ".gz"}
_DATE = "2026-11-02T08:00:00.000Z"
_API = re.compile(r"/api/(?P<kind>model|dataset)s/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?")
_RESOLVE = re.compile(
    r"/(?P<kind>datasets/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)


@dataclass(frozen=True)
class Repository:
    """One commit of a repository; `token` guards a gated one, `pinned` is its commit's name."""

    kind: Kind
    name: str
    files: Mapping[str, bytes]
    token: str | None = None
    pinned: str | None = None

    @property
    def commit(self) -> str:
        """40 hexadecimal digits that follow from the content, where none are pinned."""
        if self.pinned is not None:
            return self.pinned
        digest = hashlib.sha1(f"{self.kind} {self.name}".encode())
        for path in sorted(self.files):
            digest.update(path.encode() + b"\0" + _oid(self.files[path]).encode())
        return digest.hexdigest()


class Hub:
    """The repositories that a web server has."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self._repositories: dict[tuple[str, str], Repository] = {}
        web.otherwise(self._answer)

    @property
    def environment(self) -> dict[str, str]:
        """What makes the libraries use this hub."""
        return {"HF_ENDPOINT": self.web.url(), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def add(
        self,
        kind: Kind,
        name: str,
        files: Mapping[str, bytes],
        token: str | None = None,
        pinned: str | None = None,
    ) -> Repository:
        """Make a repository, or a new commit of it; with `token` it is gated."""
        repository = Repository(kind, name, dict(files), token, pinned)
        self._repositories[kind, name] = repository
        for path, data in files.items():
            if _large(path):
                self.web.put(self.large(data), data, etag=_sha256(data))
        return repository

    def commit(self, kind: Kind, name: str) -> str:
        """The commit that `main` of a repository is."""
        return self._repositories[kind, name].commit

    def file(self, kind: Kind, name: str, path: str) -> bytes:
        """A file of a repository."""
        return self._repositories[kind, name].files[path]

    @staticmethod
    def large(data: bytes) -> str:
        """The path on the web server behind the redirect of a large file, to put faults there."""
        return f"/cdn/{_sha256(data)}"

    def _answer(self, asked: Asked) -> Answer | None:
        api = _API.fullmatch(asked.path)
        if api is not None:
            repository = self._repositories.get((api["kind"], api["name"]))
            return _refused(repository, asked) or self._api(repository, api["rest"] or "", asked)
        file = _RESOLVE.fullmatch(asked.path)
        if file is not None:
            kind = "dataset" if file["kind"] else "model"
            repository = self._repositories.get((kind, file["name"]))
            # The real one tells a gated repository's name to everybody, but not its files.
            return _refused(repository, asked) or self._file(
                repository, file["revision"], file["path"]
            )
        return None

    def _api(self, repository: Repository | None, rest: str, asked: Asked) -> Answer:
        if repository is None:
            return _error(404, "RepoNotFound", "Repository not found")
        what, _, rest = rest.lstrip("/").partition("/")
        revision, _, below = rest.partition("/")
        if what and not _known(repository, revision):
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if what in ("", "revision"):
            return _json(_info(repository))
        if what == "tree":
            query = parse_qs(asked.query)
            return _tree(repository, below, query.get("recursive", [""])[0].lower() == "true")
        if what == "paths-info":
            return _json(_paths(repository, asked.body))
        return Answer(b"not imitated\n", 404)

    def _file(self, repository: Repository | None, revision: str, path: str) -> Answer:
        if repository is None:
            return _error(404, "RepoNotFound", "Repository not found")
        if not _known(repository, revision):
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        headers = {"X-Repo-Commit": repository.commit}
        if path not in repository.files:
            return _error(404, "EntryNotFound", "Entry not found", headers)
        data = repository.files[path]
        if not _large(path):
            return Answer(data, headers=headers, etag=_oid(data))
        there = self.web.url(self.large(data), host="localhost") + "?Signature=not-for-logs"
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{_sha256(data)}"'}
        return Answer(status=302, headers={**headers, **linked, "Location": there})


def _refused(repository: Repository | None, asked: Asked) -> Answer | None:
    if repository is None or repository.token is None:
        return None
    if asked.headers.get("authorization") == f"Bearer {repository.token}":
        return None
    if asked.path.startswith("/api/"):
        return None
    return _error(401, "GatedRepo", f"Access to {repository.name} is restricted.")


def _known(repository: Repository, revision: str) -> bool:
    return unquote(revision) in ("main", "HEAD", repository.commit)


def _info(repository: Repository) -> dict[str, object]:
    return {
        "_id": repository.commit[:24],
        "id": repository.name,
        "modelId": repository.name,
        "author": repository.name.split("/")[0],
        "sha": repository.commit,
        "lastModified": _DATE,
        "createdAt": _DATE,
        "private": False,
        "gated": "manual" if repository.token else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [{"rfilename": path} for path in sorted(repository.files)],
    }


def _tree(repository: Repository, below: str, recursive: bool) -> Answer:
    files = [p for p in sorted(repository.files) if not below or p.startswith(below + "/")]
    if not files and below:
        return _error(404, "EntryNotFound", f"{below} does not exist")
    depth = len(PurePosixPath(below).parts) + 1
    folders = sorted(
        {
            str(folder)
            for path in files
            for folder in PurePosixPath(path).parents
            if len(folder.parts) >= depth
        }
    )
    entries = [_folder(path) for path in folders] + [_entry(repository, path) for path in files]
    if not recursive:
        entries = [e for e in entries if len(PurePosixPath(str(e["path"])).parts) == depth]
    return _json(entries)


def _paths(repository: Repository, body: bytes) -> list[dict[str, object]]:
    """Of paths-info, whose body is a form or JSON, by version of the library."""
    try:
        wanted = json.loads(body)["paths"]
    except ValueError:
        wanted = parse_qs(body.decode()).get("paths", [])
    found = []
    for path in wanted:
        if path in repository.files:
            found.append(_entry(repository, path))
        elif any(file.startswith(path.rstrip("/") + "/") for file in repository.files):
            found.append(_folder(path.rstrip("/")))
    return found


def _entry(repository: Repository, path: str) -> dict[str, object]:
    data = repository.files[path]
    entry: dict[str, object] = {
        "type": "file",
        "path": path,
        "size": len(data),
        "oid": _oid(data),
        "lastCommit": {"id": repository.commit, "title": "files", "date": _DATE},
    }
    if _large(path):
        entry["lfs"] = {"oid": _sha256(data), "size": len(data), "pointerSize": 130}
    return entry


def _folder(path: str) -> dict[str, object]:
    return {"type": "directory", "path": path, "oid": _oid(path.encode()), "size": 0}


def _large(path: str) -> bool:
    return PurePosixPath(path).suffix in _LARGE


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _oid(data: bytes) -> str:
    """Git's name of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _json(value: object) -> Answer:
    body = json.dumps(value).encode()
    return Answer(body, headers={"Content-Type": "application/json"}, ranges=False)


def _error(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Answer:
    said = {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})}
    body = json.dumps({"error": message}).encode()
    return Answer(body, status, {"Content-Type": "application/json", **said}, ranges=False)
