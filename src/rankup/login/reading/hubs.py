"""Calls that fetch from a hub: Hugging Face's libraries, and those of others by name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .found import Download, What
from .use import ABSENT, Rule, Use, texts
from .worth import Known, Unknown, Value

# `load_dataset` reads files with these; nothing is fetched unless the files are URLs.
_READERS = {
    *("json", "csv", "text", "parquet", "arrow", "pandas", "sql", "xml", "webdataset", "lance"),
    *("imagefolder", "audiofolder", "videofolder", "pdffolder", "generator", "hdf5", "nifti"),
}
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def load_dataset(use: Use) -> Iterator[Download]:
    """`datasets.load_dataset(path, name, ..., revision=)`."""
    for name in _each(use, use.argument(0, "path")):
        if isinstance(name, str) and name in _READERS:
            files = use.argument(3, "data_files")
            urls = [one for one in texts(files) if isinstance(one, str) and "://" in one]
            if urls:
                yield from use.download("dataset", Known(tuple(urls)))
            continue
        config = use.argument(1, "name")
        if isinstance(config, Unknown) or len(config.values) > 1:
            why = config.why if isinstance(config, Unknown) else "it has several"
            yield from use.download("dataset", name, why=f"its configuration: {why}")
            continue
        special = use.given("data_files", "data_dir") or use.argument(2) != ABSENT
        yield from _from_hub(
            use, "dataset", name, by_name=not special, config=_text(config.values[0])
        )


def from_pretrained(use: Use) -> Iterator[Download]:
    """`Class.from_pretrained(name)` of transformers, diffusers, peft and their like."""
    if use.true(None, "local_files_only"):
        return
    place = 1 if re.search(r"\bPeft\w+\.from_pretrained$", use.dotted) else 0
    name = use.argument(place, "pretrained_model_name_or_path", "model_id", "repo_id", "model_name")
    for one in _each(use, name):
        yield from _from_hub(use, "model", one, by_name=True)


def pipeline(use: Use) -> Iterator[Download]:
    """`transformers.pipeline(task, model=)`."""
    name = use.argument(1, "model")
    if name == ABSENT:
        task = use.text(0, "task")
        what = f"the model that it takes for {task}" if task else "the model that it takes"
        yield from use.download("model", Unknown(f"no model is named: {what} may change"))
        return
    for one in _each(use, name):
        if isinstance(one, str | Unknown):  # else a model that is loaded already
            yield from _from_hub(use, "model", one, by_name=True)


def sentence_transformer(use: Use) -> Iterator[Download]:
    """`SentenceTransformer(name)`, whose short names are of one organization."""
    for one in _each(use, use.argument(0, "model_name_or_path", "model_name")):
        if isinstance(one, str) and "/" not in one:
            one = f"sentence-transformers/{one}"
        yield from _from_hub(use, "model", one, by_name=True)


def snapshot(use: Use) -> Iterator[Download]:
    """`snapshot_download`, `hf_hub_download`: a repository, or files of one."""
    kind = use.text(None, "repo_type")
    what: What = "dataset" if kind == "dataset" else "model"
    # By name a model is fetched as a library needs it; which files these calls want is theirs.
    for one in _each(use, use.argument(0, "repo_id")):
        yield from _from_hub(use, what, one, by_name=False)


def timm(use: Use) -> Iterator[Download]:
    """`timm.create_model(name, pretrained=True)`."""
    pretrained = use.true(1, "pretrained")
    name = use.argument(0, "model_name")
    if pretrained is None:
        yield from use.download("model", name, why="whether it is pretrained")
    elif pretrained:
        yield from use.download("model", name)


def named(what: What, place: int | None, *names: str) -> Rule:
    """A rule for a call whose argument says what it fetches."""

    def rule(use: Use) -> Iterator[Download]:
        yield from use.download(what, use.argument(place, *names))

    return rule


def itself(what: What, part: int = -1) -> Rule:
    """A rule for a call whose own name says what it fetches."""

    def rule(use: Use) -> Iterator[Download]:
        yield from use.download(what, use.dotted.replace("()", "").split(".")[part])

    return rule


def _from_hub(
    use: Use, what: What, name: str | Unknown, *, by_name: bool, config: str = ""
) -> Iterator[Download]:
    # What is here is taken from here; what looks like a path is never asked of a hub.
    if isinstance(name, str) and (use.values.exists(name) or not _HUB_NAME.fullmatch(name)):
        return
    revision = use.argument(None, "revision")
    if isinstance(revision, Unknown) or len(revision.values) > 1:
        why = revision.why if isinstance(revision, Unknown) else "it has several"
        yield from use.download(what, _value(name), why=f"its revision: {why}")
        return
    yield from use.download(
        what,
        _value(name),
        by_name=by_name,
        config=config,
        revision=_text(revision.values[0]),
    )


def _each(use: Use, value: Value) -> Iterator[str | Unknown]:
    if isinstance(value, Unknown):
        yield value
        return
    for one in value.values:
        yield one if isinstance(one, str) else Unknown("no name is given")


def _value(name: str | Unknown) -> Value:
    return name if isinstance(name, Unknown) else Known((name,))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
