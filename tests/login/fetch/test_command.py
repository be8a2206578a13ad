"""The verb: each thing is fetched and recorded for itself; the exit code says if all are here."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.login import record
from rankup.login.fetch.command import fetch
from rankup.login.fetch.request import Request
from rankup.login.record import unmet
from rankup.site import config

from ..stage import Stage, until

DATA = b"some bytes" * 1000
SUM = hashlib.sha256(DATA).hexdigest()
SCRIPT = """
import argparse, urllib.request
from datasets import load_dataset
from torchvision.datasets import CIFAR10
from transformers import AutoModel, AutoTokenizer
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="gpt2")
args = parser.parse_args()
AutoTokenizer.from_pretrained(args.model)
AutoModel.from_pretrained(args.model)
load_dataset("wikitext", "wikitext-2-raw-v1", revision="b08601e")
urllib.request.urlretrieve("https://example.org/it's a.zip", "data/it's a.zip")
CIFAR10("data", download=True)
load_dataset(input())
"""


def _fetch(
    stage: Stage, *words: str, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return stage.run_rankup(
        ["fetch", *words], cwd=cwd or stage.project, env={**stage.environment, **env}
    )


def test_a_file_is_fetched_recorded_and_found_again(stage: Stage) -> None:
    url = stage.web.put("/set/a.bin", DATA)
    secret = url.replace("http://", "http://me:hunter2@") + "?key=hunter2"
    done = _fetch(stage, "--url", secret, "--sha256", SUM)
    assert done.returncode == 0, done.stderr
    (found,) = record.read(stage.project)
    (item,) = found.items
    assert Path(item.path).read_bytes() == DATA
    assert Path(item.path).is_relative_to(stage.home / ".cache" / "rankup" / "files")
    assert (item.sha256, item.bytes, item.source) == (SUM, len(DATA), url)
    assert found.key.startswith(f"url:{url}#")
    everything = [path for path in stage.project.rglob("*") if path.is_file()]
    everything += [path for path in stage.home.rglob("*") if path.is_file()]
    assert not [path for path in everything if b"hunter2" in path.read_bytes()]
    assert "hunter2" not in done.stdout + done.stderr
    again = _fetch(stage, "--url", secret)
    assert again.returncode == 0
    assert len(stage.web.requests("/set/a.bin")) == 1
    assert record.read(stage.project)[0].items == found.items  # with the checksum of then


def test_a_file_of_ones_own_in_the_place_is_taken_and_that_is_said(stage: Stage) -> None:
    url = stage.web.put("/a.bin", DATA)
    (stage.project / "x").write_text("mine")
    done = _fetch(stage, "--url", url, "--to", "x")
    assert done.returncode == 0
    assert "was there already, and is taken as it is" in done.stdout
    assert (stage.project / "x").read_text() == "mine"
    (stage.project / "x").unlink()
    for _ in range(2):  # it comes, and is known by its checksum from then on
        done = _fetch(stage, "--url", url, "--to", "x")
        assert "already" not in done.stdout
    assert (stage.project / "x").read_bytes() == DATA


def test_what_fails_does_not_stop_the_rest(stage: Stage) -> None:
    good, bad = stage.web.put("/good", DATA), stage.web.put("/bad", status=404)
    words = ("--url", bad, "--url", good, "--url", bad + "2", "--to", "a", "--to", "d/b")
    done = _fetch(stage, *words, "--to", "c", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    [came] = [one["items"][0]["path"] for one in told["records"]]
    assert (came, Path(came).read_bytes()) == (str(stage.project / "d" / "b"), DATA)
    assert len(told["failed"]) == 2
    assert f"rankup: {bad}: HTTP status 404" in done.stderr
    assert "2 things are not here" in done.stderr
    assert len(record.read(stage.project)) == 1


def test_nothing_to_fetch_is_said_with_what_to_give(stage: Stage) -> None:
    done = _fetch(stage)
    assert done.returncode == 2
    assert "nothing to fetch: no rankup.toml here; give a script" in done.stderr
    (stage.project / "rankup.toml").write_text("[job]\nnodes = 1\n")
    assert "rankup.toml lists nothing" in _fetch(stage).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sha256", SUM, "--sha256", SUM), "--sha256 belongs to a --url"),
        (("--dataset", "../x"), "expected NAME"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(
    stage: Stage, words: tuple[str, ...], said: str
) -> None:
    url = stage.web.put("/a.bin", DATA)
    done = _fetch(stage, "--url", url, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert stage.web.requests() == []


def test_two_urls_never_become_one_file(stage: Stage) -> None:
    """However the file is written: the second would be said to be there, and is another one."""
    one, two = stage.web.put("/a.bin", DATA), stage.web.put("/b.bin", DATA[:10])
    for other in ("x", "./x", str(stage.project / "x")):
        done = _fetch(stage, "--url", one, "--to", "x", "--url", two, "--to", other)
        assert done.returncode == 2, done.stderr
        assert f"{one} and {two} would both be {stage.project}" in done.stderr
    assert stage.web.requests() == []


def test_rankup_toml_lists_what_a_project_needs(stage: Stage) -> None:
    url = stage.web.put("/a.bin", DATA)
    (stage.project / "rankup.toml").write_text(
        f'[fetch]\ncache = "cache"\n\n[[fetch.urls]]\nurl = "{url}"\nsha256 = "{SUM}"\n'
        f'\n[[fetch.urls]]\nurl = "{url}2"\nto = "data/b.bin"\n'
    )
    stage.web.put("/a.bin2", DATA[:10])
    assert len(unmet(config.load(stage.project))) == 2
    below = stage.project / "src" / "deep"
    below.mkdir(parents=True)
    done = _fetch(stage, cwd=below)
    assert done.returncode == 0, done.stderr
    assert (stage.project / "data" / "b.bin").read_bytes() == DATA[:10]
    files = [path for path in (stage.project / "cache").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["a.bin"]
    assert unmet(config.load(stage.project)) == []
    files[0].unlink()
    (line,) = unmet(config.load(stage.project))
    assert (line.what, line.why) == (url, f"{files[0]} is gone")


def test_a_project_that_cannot_be_written_to_is_said(stage: Stage) -> None:
    """A file where the records' folder belongs stands for a folder without permission: root."""
    (stage.project / ".rankup").write_text("")
    url = stage.web.put("/a.bin", DATA)
    done = _fetch(stage, "--url", url)
    assert done.returncode == 1
    assert "is here, but" in done.stderr
    assert "cannot be written to" in done.stderr
    assert list(stage.home.rglob("a.bin"))


def test_in_a_job_on_nodes_without_internet_nothing_is_tried(stage: Stage) -> None:
    url = stage.web.put("/a.bin", DATA)
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_PARTITION": "booster", "SYSTEMNAME": "juwelsbooster"}
    done = _fetch(stage, "--url", url, **job)
    assert done.returncode == 2, done.stderr
    assert "this is job 77 on a compute node of" in done.stderr
    assert "run rankup fetch on a login node" in done.stderr
    assert stage.web.requests() == []


def test_folders_that_jobs_do_not_see_are_refused_and_home_is_warned_of(stage: Stage) -> None:
    url = stage.web.put("/a.bin", DATA)
    (stage.project / "rankup.toml").write_text(
        'profile = "juwels-booster"\n[site]\nunsure = []\n'
        f'mounts = ["{stage.home}"]\nnot_mounted = ["{stage.project}/local"]\n'
    )
    done = _fetch(stage, "--url", url, "--to", "local/a.bin")
    assert done.returncode == 2
    assert f"do not see {stage.project}/local: name another folder" in done.stderr
    done = _fetch(stage, "--url", url)
    assert done.returncode == 0, done.stderr
    assert "is in $HOME, whose quota is small" in done.stderr
    moved = _fetch(stage, "--url", url, RANKUP_CACHE=str(stage.home.parent / "elsewhere"))
    assert moved.returncode == 2  # not among the mounts
    assert "--to, by `cache` in [fetch] of rankup.toml, or by $RANKUP_CACHE" in moved.stderr


def test_ctrl_c_ends_it_and_what_came_is_kept(stage: Stage) -> None:
    """In a process of its own, as a user runs it; the server stands still in the middle."""
    url = stage.web.put("/a.bin", DATA * 100, stall=600)
    process = subprocess.Popen(
        [sys.executable, "-m", "rankup", "fetch", "--url", url],
        cwd=stage.project,
        env={**os.environ, **stage.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: list(stage.home.rglob("a.bin.part.json")))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert "interrupted; run it again: what came is kept" in errors
    assert "Traceback" not in errors
    left = {path.name for path in stage.home.rglob("*") if path.is_file()}
    assert left == {"a.bin.part", "a.bin.part.json"}  # and no lock


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that fetches several things, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(SCRIPT)
    return path


def test_what_is_found_is_ready_to_be_typed(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(Request(str(script), ("--model", "t5"), no_run=True)) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("by name: ")]
    assert shlex.split(line)[4:] == [
        *("--model", "t5"),
        *("--dataset", "wikitext:wikitext-2-raw-v1@b08601e"),
        *("--url", "https://example.org/it's a.zip", "--to", "data/it's a.zip"),
    ]
    [line] = [line for line in out.splitlines() if "CIFAR10" in line]
    assert line.endswith("train.py:13 (only this call puts it where it looks for it)")
    [line] = [line for line in out.splitlines() if "it is computed" in line]
    assert line.endswith("load_dataset, train.py:14")
    assert out.endswith("calls: rankup fetch train.py --model t5\n")


def test_all_of_it_is_there_as_json(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch(Request(str(script), no_run=True, as_json=True)) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["command"].startswith("rankup fetch --model gpt2 --dataset ")
    assert {one["what"] for one in said["downloads"]} == {"model", "dataset", "url", "torchvision"}
    assert said["args"] == []


def test_a_script_that_fetches_nothing_says_so(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("print(1)\n")
    assert fetch(Request(str(script), no_run=True)) == 0
    out = capsys.readouterr().out
    assert out == (
        "reading train.py finds no call that fetches something; to be sure: rankup fetch train.py\n"
    )


def test_names_cannot_move_the_cursor(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("import nltk\nnltk.download('a\\x1b[2Jb\\nc')\n")
    assert fetch(Request(str(script), no_run=True)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[2Jb\\x0ac" in out
