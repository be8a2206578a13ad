"""Names of the Hugging Face hub, as a user writes them, and what is wrong with one."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...base.errors import UserError
from ...base.secrets import redacted
from ...base.urls import public

Kind = Literal["model", "dataset"]
_WORD = r"\w[\w.-]*"
_NAME = re.compile(rf"(?P<repo>{_WORD}(?:/{_WORD})?)(?::(?P<config>[^:@]+))?(?:@(?P<rev>[^\s@]+))?")


@dataclass(frozen=True)
class Name:
    """A repository of the hub.

    Attributes:
        config: of a data set; None: its only or default one.
        revision: branch, tag or commit; None: the newest of the main branch.
    """

    kind: Kind
    repo: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        return f"{self.repo}{config}" + (f"@{self.revision}" if self.revision else "")

    @property
    def page(self) -> str:
        """Where a person reads about it."""
        endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        below = "datasets/" if self.kind == "dataset" else ""
        return public(f"{endpoint.rstrip('/')}/{below}{self.repo}")


def parse(text: str, kind: Kind) -> Name:
    """`NAME[:config][@revision]` of a data set, `NAME[@revision]` of a model.

    Raises:
        UserError: it is neither.
    """
    match = _NAME.fullmatch(text)
    if match is None or ".." in match["repo"] or (kind == "model" and match["config"]):
        form = "NAME[:config][@revision]" if kind == "dataset" else "NAME[@revision]"
        raise UserError(
            f"--{kind} {text!r}: expected {form} with a name as on the hub: org/name; "
            "files and folders need no fetch"
        )
    return Name(kind, match["repo"], match["config"], match["rev"])


def explain(name: Name, said: Mapping[str, Any], cache: str) -> str:
    """What a user is told of the child's error (`hub_child.py`); `cache` is where it wrote."""
    kinds: Sequence[str] = said["error"]
    number, status = said.get("errno"), said.get("status")
    text = redacted(str(said["message"]), os.environ).strip()
    if kinds[0] == "FetchFailed":
        return f"{name}: {text}"
    token = "give your token: `hf auth login` on this machine, or HF_TOKEN in the environment"  # noqa: S105
    again = "run it again: what came is kept"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"{name}: no room in {cache} ({os.strerror(number)}); make room, and {again}"
    if "GatedRepoError" in kinds or "is a gated" in text:
        return f"{name} is gated: accept its terms on {name.page}, and {token}"
    if "RevisionNotFoundError" in kinds:
        return f"{name}: {name.page} has no revision {name.revision!r}"
    if status == 404 or {"RepositoryNotFoundError", "DatasetNotFoundError"} & set(kinds):
        return f"{name}: nothing of that name on {name.page}, or it is private: then {token}"
    if status in (401, 403):
        return f"{name}: the hub refuses it (HTTP status {status}); {token}"
    if status is not None and (status == 429 or status >= 500):
        return f"{name}: the hub is busy (HTTP status {status}); {again}"
    if "config" in text.lower() and "ValueError" in kinds:
        first = " ".join(text.splitlines()[:2])
        return f"{name}: {first}; give one of them: --dataset {name.repo}:CONFIG"
    if "scripts are no longer supported" in text:
        return (
            f"{name} is a Python script, which `datasets` does not run any more; the hub's own "
            f"Parquet copy may be there: --dataset {name.repo}@refs/convert/parquet"
        )
    if _is_network(kinds):
        return f"{name}: no connection to {name.page} ({kinds[0]}); {again}"
    return f"{name}: {kinds[0]}: {' '.join(text.splitlines()[:3])}"


def _is_network(kinds: Sequence[str]) -> bool:
    words = ("ConnectionError", "TransportError", "Timeout", "LocalEntryNotFoundError")
    return any(word in kind for kind in kinds for word in words)
