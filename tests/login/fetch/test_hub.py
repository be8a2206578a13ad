"""Models and data sets come from an imitated hub, and load by the hub's own libraries offline."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.login import record
from rankup.login.fetch import hub as hubs
from rankup.login.fetch.hub import Name
from rankup.login.fetch.hub_child import needed
from rankup.login.fetch.things import NAMED

from ...conftest import CHECKOUT
from .. import hub_server
from ..hub_server import Hub
from ..stage import Stage, until

NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9"}
TOKEN = "hf_abcdefghijklmnop"
TEXT = ["README.md", "config.json", "tokenizer.json", "vocab.txt"]
MODEL = {"config.json": b"{}", "model.safetensors": bytes(3000), "tf_model.h5": b"x" * 5000}


def _fetch(
    stage: Stage, hub: Hub, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {**stage.environment, **hub.environment, **environment}
    return stage.run_rankup(["fetch", *words], cwd=stage.project, env=env)


def _offline(stage: Stage, code: str, variables: Mapping[str, str]) -> str:
    """What a program of the user's prints, without a network."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=stage.project,
        env={**os.environ, **stage.environment, **NOWHERE, "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_are_read_and_what_is_none_is_refused() -> None:
    parse = hubs.parse
    assert parse("org/a.b-c", "model") == Name("model", "org/a.b-c")
    assert parse("gpt2@main", "model") == Name("model", "gpt2", None, "main")
    whole = parse("org/a:en.2@refs/convert/parquet", "dataset")
    assert whole == Name("dataset", "org/a", "en.2", "refs/convert/parquet")
    assert str(whole) == "org/a:en.2@refs/convert/parquet"
    for bad in ("", "../x", "/etc/passwd", "a/b/c", "org/..", "a b", "./data", "a@", "a:"):
        for kind in ("model", "dataset"):
            with pytest.raises(UserError, match="expected NAME"):
                parse(bad, kind)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"NAME\[@revision\]"):
        parse("org/a:config", "model")


def test_a_model_comes_without_doubles_and_without_showing_the_token(
    stage: Stage, hub: Hub
) -> None:
    commit = hub.add("model", "org/gated", MODEL, token=TOKEN).commit
    # Where `hf auth login` leaves it; the cache moves away from there, the token does not.
    usual = stage.home / ".cache" / "huggingface" / "token"
    usual.parent.mkdir(parents=True)
    usual.write_text(TOKEN)
    cache = stage.home / "moved"
    done = _fetch(stage, hub, "--model", "org/gated", RANKUP_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    assert "passed over, other formats of the same weights: tf_model.h5" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    files = [path for path in stage.home.parent.rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == [usual]
    found = record.find(stage.project, "model:org/gated")
    assert found is not None
    assert found.proof in ("namespace", "blocked")
    assert found.offline["HF_HUB_OFFLINE"] == "1"
    assert found.variables == {"HF_HOME": str(cache / "huggingface")}
    (item,) = found.items
    assert Path(item.path).is_relative_to(cache)
    assert (item.revision, item.bytes, item.files) == (commit, 3002, 2)
    assert item.source == f"{hub.web.url()}/org/gated"
    assert not hub.web.requests(hub.large(MODEL["tf_model.h5"]))
    code = "import huggingface_hub as h; print(h.hf_hub_download('org/gated', 'config.json'))"
    assert Path(_offline(stage, code, found.variables).strip()).parent == Path(item.path)


def test_where_there_is_no_network_namespace_connections_are_refused(
    stage: Stage, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "refusal", lambda: "not allowed")
    hub.add("model", "org/open", MODEL)
    done = _fetch(stage, hub, "--model", "org/open")
    assert "loads without a network (Python's connections blocked)" in done.stdout, done.stderr


def test_safetensors_are_preferred_to_the_same_weights_in_other_formats() -> None:
    same = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"]
    kept, skipped = needed([*TEXT, "model.safetensors", *same, "onnx/model.onnx", "64.tflite"])
    assert kept == sorted([*TEXT, "model.safetensors"])
    assert skipped == sorted([*same, "onnx/model.onnx", "64.tflite"])


def test_shards_and_their_indexes_go_together() -> None:
    kept, skipped = needed(
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "pytorch_model-00001-of-00001.bin",
            "pytorch_model.bin.index.json",
            "consolidated.safetensors",
            "original/consolidated.00.pth",
            "original/params.json",
        ]
    )
    assert kept == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "original/params.json",
    ]
    assert len(skipped) == 4


def test_without_safetensors_the_pickled_weights_are_needed() -> None:
    kept, skipped = needed(["config.json", "pytorch_model.bin", "tf_model.h5"])
    assert (kept, skipped) == (["config.json", "pytorch_model.bin"], ["tf_model.h5"])


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_in_plain_words(stage: Stage, hub: Hub) -> None:
    hub.add("model", "org/gated", MODEL, token=TOKEN)
    hub.add("model", "org/open", MODEL)
    names = ("org/gated", "org/none", "org/open@v9")
    done = _fetch(stage, hub, *(word for name in names for word in ("--model", name)))
    assert done.returncode == 1
    assert "it is gated: accept its terms on" in done.stderr
    assert "`hf auth login`" in done.stderr
    assert "nothing of that name" in done.stderr
    assert "has no revision 'v9'" in done.stderr
    assert "3 things are not here" in done.stderr
    assert "Traceback" not in done.stderr
    assert record.read(stage.project) == []
    done = _fetch(stage, hub, "--model", "org/open", **NOWHERE)
    assert done.returncode == 1
    assert "no connection to http://127.0.0.1:9/org/open" in done.stderr
    assert "run it again" in done.stderr


def test_without_the_extra_the_line_to_install_it_is_given(
    stage: Stage, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = importlib.util.find_spec
    hidden = ("datasets", "huggingface_hub")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in hidden else real(name, *a)
    )
    done = _fetch(stage, hub, "--dataset", "xsum")
    assert done.returncode == 2
    assert "pip install 'rankup[hf]'" in done.stderr


def _parquet(rows: Sequence[Mapping[str, object]]) -> bytes:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), file)
    return file.getvalue()


_WIKITEXT = b"""---
configs:
- config_name: wikitext-103-v1
  data_files:
  - split: train
    path: wikitext-103-v1/train-*
- config_name: wikitext-2-v1
  data_files:
  - split: test
    path: wikitext-2-v1/test-*
  - split: train
    path: wikitext-2-v1/train-*
  - split: validation
    path: wikitext-2-v1/validation-*
---
"""


def test_wikitext_2_comes_as_a_data_set_and_as_text(stage: Stage, hub: Hub) -> None:
    """Of the same data set a configuration that is none is refused."""
    known = NAMED["wikitext-2"]
    assert isinstance(known, Name)
    files = {"README.md": _WIKITEXT}
    files["wikitext-103-v1/train-00000-of-00001.parquet"] = _parquet([{"text": "long\n"}])
    for split in ("train", "validation", "test"):
        rows = [{"text": text} for text in ("", f" = {split} = \n", " the cat sat \n")]
        files[f"wikitext-2-v1/{split}-00000-of-00001.parquet"] = _parquet(rows)
    repo = known.repo
    hub.add("dataset", repo, files, pinned=known.revision)
    done = _fetch(stage, hub, "--dataset", "wikitext-2", "--dataset", f"{repo}:midi")
    assert done.returncode == 1, done.stderr
    assert "'midi' not found" in done.stderr
    assert "['wikitext-103-v1', 'wikitext-2-v1']" in done.stderr
    assert "Traceback" not in done.stderr
    folder = stage.home / ".cache" / "rankup" / "datasets" / "wikitext-2"
    assert (folder / "train.txt").read_text() == "\n = train = \n the cat sat \n"
    assert (folder / "valid.txt").read_text() == "\n = validation = \n the cat sat \n"
    words = " ".join(f"--{part} {folder / part}.txt" for part in ("train", "valid", "test"))
    assert f"rankup run language-model {words}" in done.stdout
    assert "rows: " in done.stdout
    [found] = record.read(stage.project)
    assert found.key == "dataset:wikitext-2"
    assert found.items[0].revision == known.revision
    assert len([item for item in found.items if item.path.endswith(".txt")]) == 3
    assert found.missing() == []
    # As the docs of the data set say, without a revision.
    code = (
        "import datasets; d = datasets.load_dataset('Salesforce/wikitext', 'wikitext-2-v1'); "
        "print(len(d['train']))"
    )
    assert _offline(stage, code, found.variables) == "3\n"


@pytest.mark.slow
def test_a_checksum_of_the_hub_that_is_a_path_leads_nowhere(
    stage: Stage, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., dict[str, Any]] = getattr(hub_server, "_entry")  # noqa: B009

    def entry(*words: Any) -> dict[str, Any]:
        found = real(*words)
        if "lfs" in found:
            found["lfs"]["oid"] = "../../../evil"
        return found

    monkeypatch.setattr(hub_server, "_entry", entry)
    hub.add("model", "org/big", {"config.json": b"{}", "model.safetensors": bytes(9 << 20)})
    done = _fetch(stage, hub, "--model", "org/big")
    assert done.returncode == 0, done.stderr
    assert list(stage.home.rglob("evil*")) == []


@pytest.mark.slow
def test_two_fetches_of_a_model_at_once_download_it_once(stage: Stage, hub: Hub) -> None:
    weights = os.urandom(9 << 20)
    hub.add("model", "org/big", {"config.json": b"{}", "model.safetensors": weights})
    path = hub.large(weights)
    hub.web.put(path, weights, per_second=4 << 20)
    processes = [_start(stage, hub, "--model", "org/big") for _ in range(2)]
    outputs = [process.communicate(timeout=500) for process in processes]
    assert [process.returncode for process in processes] == [0] * 2, outputs
    assert len(hub.web.requests(path, "GET")) == 1
    assert any("waiting for process" in errors for _, errors in outputs)


@pytest.mark.slow
def test_after_kill_9_the_next_fetch_of_a_model_goes_on_also_without_flock(
    stage: Stage, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still in the middle, and comes to itself once the first one is dead.

    Locks of the hub that are flocks leave files behind: without flock such a file is a lock held.
    """
    weights = os.urandom(16 << 20)
    hub.add("model", "org/big", {"config.json": b"{}", "model.safetensors": weights})
    path = hub.large(weights)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # known once it was asked for
    hub.web.put(path, weights, stall=3600)
    process = _start(stage, hub, "--model", "org/big")
    try:
        until(lambda: _came(stage) > 1 << 20)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    came = _at_rest(stage)  # the child ends with it
    assert 0 < came < len(weights)
    hub.web.put(path, weights)
    hub.web.forget()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import errno, fcntl\n"
        "def flock(*words):\n"
        "    raise OSError(errno.ENOLCK, 'No locks available')\n"
        "fcntl.flock = flock\n"
    )
    search = os.pathsep.join(p for p in (str(broken), os.environ.get("PYTHONPATH")) if p)
    done = _fetch(stage, hub, "--model", "org/big", PYTHONPATH=search)
    assert done.returncode == 0, done.stderr
    asked = hub.web.requests(path, "GET")
    assert [one.headers.get("range") for one in asked] == [f"bytes={came}-"]
    assert [path.name for path in stage.home.rglob("*.part*")] == []
    assert list(temporary.iterdir()) == []  # what the first one had there went as well


def _start(stage: Stage, hub: Hub, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rankup", "fetch", *words],
        cwd=stage.project,
        env={**os.environ, **stage.environment, **hub.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _came(stage: Stage) -> int:
    came = 0
    for path in (stage.home / ".cache" / "huggingface").rglob("blobs/*.part"):
        with suppress(FileNotFoundError):  # whole by now, and renamed
            came += path.stat().st_size
    return came


def _at_rest(stage: Stage) -> int:
    """What has come, once nothing comes any more: the server sends no second half."""
    looks: list[int] = []

    def still() -> bool:
        looks.append(_came(stage))
        return len(looks) > 20 and len(set(looks[-20:])) == 1

    until(still)
    return looks[-1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hand_written_loop_with_model_and_data_set_of_the_hub(
    stage: Stage, hub: Hub, tmp_path: Path
) -> None:
    """The weights are cut in the first fetch, and go on in the second."""
    made = tmp_path / "tiny-model"
    made.mkdir()
    command = [sys.executable, "-m", "tests.login.tiny_model", str(made)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=300)
    model = hub.add("model", "org/tiny-model", {p.name: p.read_bytes() for p in made.iterdir()})
    rows = [{"text": f"sample {i}", "label": i % 2} for i in range(40)]
    table = {"README.md": b"# tiny\n", "data/train-00000-of-00001.parquet": _parquet(rows)}
    hub.add("dataset", "org/tiny", table)
    weights = model.files["model.safetensors"]
    # More often than huggingface_hub tries again.
    hub.web.put(hub.large(weights), weights, cut=4000, times=50)
    script = stage.script("hub_loop.py")
    cut = stage.fetch(script, env=hub.environment)
    assert cut.code in (0, 1), cut.said
    hub.web.put(hub.large(weights), weights)
    got = stage.fetch(script, env=hub.environment)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.record is not None
    item = got.item("models--org--tiny-model")
    assert item.revision == model.commit
    assert item.bytes > 20_000
    assert "org/tiny-model" in item.name
    assert [i for i in got.record.items if "org--tiny" in i.path and "datasets--" in i.path]
    assert all(Path(one.path).exists() for one in got.record.items)
    assert got.record.offline["HF_HUB_OFFLINE"] == "1"
    assert got.record.offline["HF_DATASETS_OFFLINE"] == "1"
    assert "not-for-logs" not in got.said + repr(got.record)
    assert not (stage.project / "out").exists()
