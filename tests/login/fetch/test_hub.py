"""Models and data sets come from an imitated hub, and load by the hub's own libraries offline."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.login import record
from rankup.login.fetch import hub_name, named
from rankup.login.fetch.hub_name import Name
from rankup.login.fetch.named import OnHub

from ...conftest import RunRankup
from ..hub_server import Hub, Repository

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


class Project:
    """An empty project of a user with an empty home, who fetches from the imitated hub."""

    def __init__(self, folder: Path, hub: Hub, run_rankup: RunRankup) -> None:
        self.folder, self.home = folder / "project", folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        self.environment = {**hub.environment, "HOME": str(self.home)}
        self._run = run_rankup

    def fetch(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`rankup fetch WORDS`."""
        return self._run(
            ["fetch", *words], cwd=self.folder, env={**self.environment, **(env or {})}
        )

    def offline(self, code: str, *words: str) -> str:
        """What a program of the user's prints, without a network."""
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=self.folder,
            env={**os.environ, **self.environment, **OFFLINE},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self) -> list[Path]:
        """All files of the user's."""
        return [p for p in (*self.folder.rglob("*"), *self.home.rglob("*")) if p.is_file()]


@pytest.fixture
def project(tmp_path: Path, hub: Hub, run_rankup: RunRankup) -> Project:
    return Project(tmp_path, hub, run_rankup)


def test_names_are_read_and_what_is_none_is_refused() -> None:
    parse = hub_name.parse
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


def test_a_model_comes_without_doubles_and_is_recorded(project: Project, hub: Hub) -> None:
    files = {**hub._repositories["model", "org/tiny-model"].files, "tf_model.h5": b"x" * 5000}
    commit = hub.add("model", "org/tiny-model", files).commit
    done = project.fetch("--model", "org/tiny-model")
    assert done.returncode == 0, done.stderr
    assert "passed over" in done.stdout
    assert "tf_model.h5" in done.stdout
    found = record.find(project.folder, "model:org/tiny-model")
    assert found is not None
    assert found.proof in ("namespace", "blocked")
    assert found.offline["HF_HUB_OFFLINE"] == "1"
    (item,) = found.items
    assert item.revision == commit
    assert item.bytes == sum(len(data) for name, data in files.items() if name != "tf_model.h5")
    assert item.files == len(files) - 1
    assert item.source == f"{hub.web.url()}/org/tiny-model"
    assert not hub.web.requests(hub.large(files["tf_model.h5"]))
    code = "import huggingface_hub as h; print(h.hf_hub_download('org/tiny-model', 'config.json'))"
    assert Path(project.offline(code).strip()).parent == Path(item.path)
    large = len(hub.web.requests(hub.large(files["model.safetensors"]), "GET"))
    assert project.fetch("--model", "org/tiny-model").returncode == 0
    assert len(hub.web.requests(hub.large(files["model.safetensors"]), "GET")) == large


@pytest.mark.slow
def test_a_data_set_loads_offline_by_the_same_call(project: Project, hub: Hub) -> None:
    cache = project.home / "moved"
    done = project.fetch("--dataset", "org/words:small", env={"RANKUP_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    assert "rows: train 2, test 1" in done.stdout
    found = record.find(project.folder, "dataset:org/words:small")
    assert found is not None
    assert found.variables == {"HF_HOME": str(cache / "huggingface")}
    assert {Path(item.path).is_relative_to(cache) for item in found.items} == {True}
    assert found.missing() == []
    project.environment.update(found.variables)
    code = "import datasets; print(datasets.load_dataset('org/words', 'small')['train']['text'][:])"
    assert project.offline(code) == "['a', 'b']\n"
    assert not (project.home / ".cache" / "huggingface").exists()


def test_what_the_hub_refuses_is_said_in_plain_words(project: Project, hub: Hub) -> None:
    hub.add("model", "org/gated", {"config.json": b"{}"}, token="hf_abcdefghijklmnop")
    done = project.fetch(
        *("--dataset", "org/words"),
        *("--dataset", "org/words:midi"),
        *("--model", "org/gated"),
        *("--model", "org/none"),
        *("--model", "org/tiny-model@v9"),
        "--json",
    )
    assert done.returncode == 1
    failed = json.loads(done.stdout)["failed"]
    assert (
        "['small', 'large']; give one of them: --dataset org/words:CONFIG"
        in failed["dataset:org/words"]
    )
    assert "'midi' not found" in failed["dataset:org/words:midi"]
    assert "['small', 'large']" in failed["dataset:org/words:midi"]
    assert "is gated: accept its terms on" in failed["model:org/gated"]
    assert "`hf auth login`" in failed["model:org/gated"]
    assert "nothing of that name" in failed["model:org/none"]
    assert "has no revision 'v9'" in failed["model:org/tiny-model@v9"]
    assert "5 things are not here" in done.stderr
    assert "Traceback" not in done.stderr
    assert record.read(project.folder) == []


def test_a_token_is_used_and_neither_shown_nor_kept(project: Project, hub: Hub) -> None:
    token = "hf_abcdefghijklmnop"
    hub.add("model", "org/gated", {"config.json": b"{}"}, token=token)
    # Where `hf auth login` leaves it; the cache moves away from there, the token does not.
    usual = project.home / ".cache" / "huggingface" / "token"
    usual.parent.mkdir(parents=True)
    usual.write_text(token)
    done = project.fetch("--model", "org/gated", env={"RANKUP_CACHE": str(project.home / "moved")})
    assert done.returncode == 0, done.stderr
    assert token not in done.stdout + done.stderr
    with_token = [p for p in project.files() if token.encode() in p.read_bytes()]
    assert with_token == [usual]


def test_no_hub_is_said_with_what_to_do(project: Project) -> None:
    done = project.fetch("--model", "org/tiny-model", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 1
    assert "no connection to http://127.0.0.1:9/org/tiny-model" in done.stderr
    assert "run it again" in done.stderr


def test_without_the_extra_the_line_to_install_it_is_given(
    project: Project, tmp_path: Path
) -> None:
    # A Python that sees rankup and its own requirements, but not the hub's libraries.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: "
        "None if name in ('datasets', 'huggingface_hub') else real(name, *rest)\n"
    )
    done = project.fetch("--dataset", "xsum", env={"PYTHONPATH": str(hidden)})
    assert done.returncode == 2
    assert "pip install 'rankup[hf]'" in done.stderr


def _pin(hub: Hub, name: Name, files: Mapping[str, bytes]) -> None:
    """Serve a data set at the commit that rankup knows."""
    commit = name.revision

    class Pinned(Repository):
        @property
        def commit(self) -> str:
            assert commit is not None
            return commit

    hub.add("dataset", name.repo, files)
    hub._repositories["dataset", name.repo] = Pinned("dataset", name.repo, dict(files))


def _parquet(rows: Sequence[Mapping[str, str]]) -> bytes:
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


def test_wikitext_2_comes_as_a_data_set_and_as_text(project: Project, hub: Hub) -> None:
    known = named.NAMED["wikitext-2"]
    assert isinstance(known, OnHub)
    files = {"README.md": _WIKITEXT}
    files["wikitext-103-v1/train-00000-of-00001.parquet"] = _parquet([{"text": "long\n"}])
    for split in ("train", "validation", "test"):
        rows = [{"text": text} for text in ("", f" = {split} = \n", " the cat sat \n")]
        files[f"wikitext-2-v1/{split}-00000-of-00001.parquet"] = _parquet(rows)
    _pin(hub, known.name, files)
    done = project.fetch("--dataset", "wikitext-2")
    assert done.returncode == 0, done.stderr
    folder = project.home / ".cache" / "rankup" / "datasets" / "wikitext-2"
    assert (folder / "train.txt").read_text() == "\n = train = \n the cat sat \n"
    assert (folder / "valid.txt").read_text() == "\n = validation = \n the cat sat \n"
    words = " ".join(f"--{part} {folder / part}.txt" for part in ("train", "valid", "test"))
    assert f"rankup run language-model {words}" in done.stdout
    found = record.find(project.folder, "dataset:wikitext-2")
    assert found is not None
    assert found.items[0].revision == known.name.revision
    assert len([item for item in found.items if item.path.endswith(".txt")]) == 3
    # As the docs of the data set say, without a revision.
    code = (
        "import datasets; d = datasets.load_dataset('Salesforce/wikitext', 'wikitext-2-v1'); "
        "print(len(d['train']))"
    )
    assert project.offline(code) == "3\n"


@pytest.mark.slow
def test_xsum_comes_at_its_pinned_commit(project: Project, hub: Hub) -> None:
    known = named.NAMED["xsum"]
    assert isinstance(known, OnHub)
    rows = [{"document": "long", "summary": "short", "id": "1"}]
    splits = ("train", "validation", "test")
    files = {f"data/{split}-00000-of-00001.parquet": _parquet(rows) for split in splits}
    _pin(hub, known.name, {"README.md": b"# xsum\n", **files})
    done = project.fetch("--dataset", "xsum")
    assert done.returncode == 0, done.stderr
    code = (
        "import datasets; print(datasets.load_dataset('EdinburghNLP/xsum')['test'][0]['summary'])"
    )
    assert project.offline(code) == "short\n"


@pytest.mark.slow
def test_two_fetches_of_a_model_at_once_download_it_once(project: Project, hub: Hub) -> None:
    weights = os.urandom(9 << 20)
    hub.add("model", "org/big", {"config.json": b"{}", "model.safetensors": weights})
    path = hub.large(weights)
    hub.web.put(path, weights, per_second=4 << 20)
    processes = [_start(project, "--model", "org/big") for _ in range(3)]
    outputs = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, outputs
    assert len(hub.web.requests(path, "GET")) == 1
    assert any("waiting for process" in errors for _, errors in outputs)


@pytest.mark.slow
def test_after_kill_9_the_next_fetch_of_a_model_goes_on(project: Project, hub: Hub) -> None:
    weights = os.urandom(16 << 20)
    hub.add("model", "org/big", {"config.json": b"{}", "model.safetensors": weights})
    path = hub.large(weights)
    hub.web.put(path, weights, per_second=4 << 20)
    process = _start(project, "--model", "org/big")
    try:
        _until(lambda: _came(project) > 1 << 20)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
    came = _at_rest(project)  # the child ends with it
    assert 0 < came < len(weights)
    hub.web.put(path, weights)
    hub.web.forget()
    done = project.fetch("--model", "org/big")
    assert done.returncode == 0, done.stderr
    asked = hub.web.requests(path, "GET")
    assert [one.headers.get("range") for one in asked] == [f"bytes={came}-"]
    left = [path.name for path in project.home.rglob("*.part*")]
    assert left == []


@pytest.mark.slow
def test_where_there_is_no_flock_the_hubs_own_locks_are_not_in_the_way(
    project: Project, tmp_path: Path
) -> None:
    words = ("--model", "org/tiny-model", "--dataset", "org/tiny")
    assert project.fetch(*words).returncode == 0
    # Locks that are flocks leave their files behind; without flock such a file is a lock held.
    for folder in ("models--org--tiny-model", "datasets--org--tiny"):
        shutil.rmtree(project.home / ".cache" / "huggingface" / "hub" / folder)
    shutil.rmtree(project.home / ".cache" / "huggingface" / "datasets" / "org___tiny")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import errno, fcntl\n"
        "def flock(*words):\n"
        "    raise OSError(errno.ENOLCK, 'No locks available')\n"
        "fcntl.flock = flock\n"
    )
    path = os.pathsep.join(p for p in (str(broken), os.environ.get("PYTHONPATH")) if p)
    done = project.fetch(*words, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr


def _start(project: Project, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rankup", "fetch", *words],
        cwd=project.folder,
        env={**os.environ, **project.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _came(project: Project) -> int:
    came = 0
    for path in (project.home / ".cache" / "huggingface").rglob("blobs/*.part"):
        with suppress(FileNotFoundError):  # whole by now, and renamed
            came += path.stat().st_size
    return came


def _at_rest(project: Project, seconds: float = 40) -> int:
    """What has come, once nothing comes any more: three looks in a row see the same."""
    looks = [_came(project)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        looks.append(_came(project))
        if len(set(looks[-3:])) == 1 and len(looks) > 2:
            return looks[-1]
    pytest.fail(f"it goes on to come: {looks}")


def _until(condition: Callable[[], bool], seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come to pass")
