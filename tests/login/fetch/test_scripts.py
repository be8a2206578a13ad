"""`rankup fetch SCRIPT` on scripts that load from a web, from the command to the record."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.launch import ready
from rankup.site import config
from rankup.site.rundir import Job

from .. import payloads
from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web

ONLY_PROOF = ("--only-proof",)


def _refused(script: Path) -> list[str]:
    """What `rankup run` says of a fetched script; UserError where it refuses."""
    job = Job("id", "script", str(script), [], str(script.parent), {}, {})
    return ready.require(config.load(script.parent), job, internet=False, allow_missing=False)


def _line(script: Path, text: str) -> int:
    """The number of the line in a script that has the text."""
    lines = script.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


@pytest.mark.slow
def test_a_script_that_starts_only_once_is_proved_and_leaves_nothing_of_its_run(
    stage: Stage, web: Web
) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("unique_run.py")
    results = stage.project / "results.csv"
    results.write_text("of last week\n")
    results.chmod(0o644)
    with sqlite3.connect(stage.project / "study.db") as study:
        study.execute("create table runs (name)")
        study.execute("insert into runs values ('of last week')")
    study.close()
    before = stage.files()

    got = stage.fetch(script)

    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.record is not None
    item = got.item("train.bin")
    assert (item.source, item.bytes) == (url, 256)
    # The proof asked for nothing.
    assert len(web.requests("/train.bin")) == 1
    # Neither a run of its own, nor a change of the user's database, logs or permissions.
    assert stage.files() == {**before, "train.bin": SAMPLES}
    assert stat.S_IMODE(results.stat().st_mode) == 0o644
    assert sorted(path.name for path in stage.project.iterdir() if path.is_dir()) == [".rankup"]
    assert [item.name for item in got.record.items] == ["train.bin"]
    assert _refused(script) == []
    # What comes after the first step was not reached.
    place = f"unique_run.py:{_line(script, 'https://example.test')}"
    assert f"not reached by this start, and not here: {place}" in got.err
    assert "https://example.test/valid.bin" in got.err
    assert got.err.startswith("rankup: running unique_run.py here, in a copy and without a GPU")


def test_a_script_that_never_trains_and_a_proof_alone_say_what_is_missing(
    stage: Stage, web: Web
) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("never_trains.py")
    failed = stage.fetch(script, options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert url in failed.said
    assert f"never_trains.py:{_line(script, 'urlretrieve')}" in failed.said
    assert web.requests() == []
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert "prepared" in got.out
    assert "never trains" in got.err
    assert not got.proved
    # What it has loaded is recorded all the same.
    assert got.item("train.bin").bytes == 256


def test_a_script_that_crashes_shows_its_own_traceback(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("crashes.py")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    alone = subprocess.run(
        [sys.executable, script.name],
        cwd=stage.project,
        env={**os.environ, **stage.environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert alone.stderr.endswith("IndexError: list index out of range\n")
    assert alone.stderr in got.err
    assert got.item("train.bin").bytes == 256


@pytest.mark.slow
def test_a_flat_scripts_outputs_stay_as_they_were_also_where_a_proof_fails(
    stage: Stage, web: Web
) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("flat.py")
    before = {"flat.py": script.read_bytes(), "results.csv": b"of last week\n"}
    before |= {"train.log": b"line 1\nline 2", "model.pt": b"trained for days"}
    for name, content in before.items():
        (stage.project / name).write_bytes(content)
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert stage.files() == {**before, "data/train.bin": SAMPLES}
    for shown in ("train.bin", url, "256"):
        assert shown in got.said

    (stage.project / "data" / "train.bin").unlink()
    web.forget()
    failed = stage.fetch(script, options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert failed.record is not None
    assert failed.record.proof == "failed"
    assert url in failed.record.note
    assert f"flat.py:{_line(script, 'urlretrieve')}" in failed.said
    # The server was there to be asked, and was not.
    assert web.requests() == []
    assert stage.files() == before


@pytest.mark.slow
def test_a_distributed_script_with_a_gpu_in_it_is_a_world_of_one(stage: Stage, web: Web) -> None:
    url = web.put("/weights.pt", payloads.weights(8, 2))
    got = stage.fetch(stage.script("distributed.py"))
    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("checkpoints/weights.pt")
    assert item.source == url
    assert Path(item.path).is_relative_to(stage.home / ".cache" / "torch")
    # torch.hub says the whole URL; the rest is ours.
    said = "".join(line for line in got.said.splitlines() if not line.startswith("Downloading"))
    assert "not-for-logs" not in said + repr(got.record)


@pytest.mark.slow
def test_a_script_that_refuses_to_start_without_a_gpu_is_told_of_one(
    stage: Stage, web: Web
) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("needs_gpu.py")
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert "once more, telling it that there is a GPU" in got.err
    assert "Traceback" not in got.said, "the second start has shown that it was no error"
    got.item("train.bin")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_function_with_arguments_and_spawned_workers_goes_on_after_a_cut(
    stage: Stage, web: Web
) -> None:
    """The connection breaks in the first fetch; behind a redirect all comes in the second."""
    there = web.put("/mirror/train.bin", SAMPLES * 64, cut=5000, times=1)
    url = web.put("/train.bin", redirect=there.replace("127.0.0.1", "localhost"))
    script = stage.script("function.py")
    arguments = ["--data", str(stage.project / "far" / "away")]
    arguments += ["--workers", "2", "--start", "spawn"]
    cut = stage.fetch(script, *arguments)
    assert cut.code == 1, cut.said
    assert "ChunkedEncodingError" in cut.err
    got = stage.fetch(script, *arguments)
    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("far/away/train.bin")
    assert item.source in (url, there.replace("127.0.0.1", "localhost"))
    assert item.bytes == 256 * 64
    assert set(stage.files()) == {"function.py", "far/away/train.bin"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_samples_that_come_one_by_one_are_said_to_be_missing(stage: Stage, web: Web) -> None:
    for i in range(12):
        web.put(f"/{i}.bin", bytes([i] * 8))
    script = stage.script("lazy.py")
    got = stage.fetch(script, "0")
    assert got.code == 1, got.said
    assert not got.proved
    assert f"(lazy.py:{_line(script, 'urlretrieve')} in __getitem__)" in got.err
    assert "downloaded one by one while batches are drawn" in got.said
    for i in range(12):
        (stage.project / "data").mkdir(exist_ok=True)
        (stage.project / "data" / f"{i}.bin").write_bytes(bytes([i] * 8))
    assert stage.fetch(script, "0").proved
    for path in (stage.project / "data").iterdir():
        path.unlink()
    failed = stage.fetch(script, "2", options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert f"lazy.py:{_line(script, 'urlretrieve')}" in failed.said, failed.said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_archive_whose_connection_was_cut_comes_with_the_second_fetch(
    stage: Stage, web: Web
) -> None:
    archive = payloads.archive({f"pictures/{i}.raw": bytes(16) for i in range(6)})
    url = web.put("/pictures.tar.gz", archive, cut=100, times=1)
    script = stage.script("archive_dataset.py")
    env = {"PICTURES_MD5": hashlib.md5(archive).hexdigest()}

    cut = stage.fetch(script, env=env)
    assert cut.code == 1, cut.said
    # The script did not notice, and could not unpack what there was.
    assert "EOFError" in cut.err
    assert f"the connection broke before all of {url} had come" in cut.err
    assert not cut.proved
    # Neither the part of an archive nor what was unpacked of it stays.
    assert set(stage.files()) == {"archive_dataset.py"}

    got = stage.fetch(script, env=env)
    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("data/pictures.tar.gz")
    assert (item.source, item.bytes) == (url, len(archive))
    assert len(list((stage.project / "data" / "pictures").iterdir())) == 6


@pytest.mark.slow
def test_a_script_that_keeps_nothing_cannot_be_proved(stage: Stage, web: Web) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("streaming.py")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert got.record is not None
    assert got.record.proof == "failed"
    assert url in got.said
    assert f"streaming.py:{_line(script, 'urlopen')}" in got.said


@pytest.mark.slow
def test_a_script_that_waits_for_ever_is_stopped_in_time(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("sleeps.py")
    (stage.project / "results.csv").write_bytes(b"of last week\n")
    got = stage.fetch(script, options=("--time", "20s"))
    assert got.code == 1, got.said
    assert "stopped after 20 s" in got.err
    assert f"sleeps.py:{len(script.read_text().splitlines())}" in got.err
    assert not got.proved
    assert (stage.project / "results.csv").read_bytes() == b"of last week\n"
    assert set(stage.files()) == {"sleeps.py", "results.csv", "train.bin"}


@pytest.mark.slow
def test_what_a_script_renames_or_replaces_is_as_before(stage: Stage, web: Web) -> None:
    urls = [web.put(f"/{i}.bin", bytes([i] * 8), per_second=40) for i in range(6)]
    script = stage.script("replaces.py")
    rotate = (
        'os.rename("old", "old_1")\nos.makedirs("old")\nopen("old/x.txt", "w").close()\n'
        'shutil.rmtree("res")\nos.makedirs("res")\nopen("res/args.txt", "w").close()\n'
    )
    text = script.read_text().replace("\nrotating = ", f"\n{rotate}rotating = ", 1)
    script.write_text(text)
    outputs = ("last.pt", "train.log", "train.log.1", "train.log.2", "loss.png", "loss-before.png")
    before = {name: f"{name} of last week".encode() for name in outputs}
    before |= {"replaces.py": text.encode(), "old/run.txt": b"a week", "res/log.txt": b"a month"}
    for name, content in before.items():
        (stage.project / name).parent.mkdir(exist_ok=True)
        (stage.project / name).write_bytes(content)
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    # Threads that download at once do not mix up what came from where.
    assert [got.item(f"/{i}.bin").source for i in range(6)] == urls
    came = {f"{i}.bin": bytes([i] * 8) for i in range(6)}
    assert stage.files() == {**before, **came}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_later_start_that_fails_takes_no_proof_away(
    stage: Stage, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.put("/train.bin", SAMPLES)
    (stage.project / "model.py").write_text("import torch\nnet = torch.nn.Linear(4, 2)\n")
    script = stage.project / "train.py"
    script.write_text(
        "import os, torch\nfrom model import net\n"
        "if os.environ.get('FAIL'):\n    raise ValueError('asked to')\n"
        "net(torch.ones(1, 4)).sum().backward()\n"
    )
    monkeypatch.chdir(stage.project)
    first = stage.fetch(script)
    assert first.proved, first.said
    assert first.record is not None
    assert {Path(path).name for path in first.record.code} == {"train.py", "model.py"}
    again = stage.fetch(script, env={"FAIL": "1"})
    assert again.code == 1, again.said
    assert again.record == first.record
    assert "still counts" in again.err
    (stage.project / "model.py").write_text("import torch\nnet = torch.nn.Linear(4, 1)\n")
    [line] = _refused(script)
    assert "changed since it was fetched: model.py" in line
    again = stage.fetch(script, env={"FAIL": "1"})
    assert again.record is not None
    assert again.record.proof == "none"
    assert "ValueError" in again.record.note
    assert "was not proved (the script ended with ValueError" in _refused(script)[0]


@pytest.mark.slow
def test_what_a_script_makes_of_what_came_moves_in_where_it_needs_that(
    stage: Stage, web: Web
) -> None:
    """It downloads into memory, and looks for both of its files at the next start."""
    web.put("/train.bin", SAMPLES)
    script = stage.project / "train.py"
    script.write_text(
        "import os, time, torch, urllib.request\n"
        "from pathlib import Path\n"
        "x, y = Path('x.bin'), Path('y.bin')\n"
        "if not (x.exists() and y.exists()):\n"
        "    data = urllib.request.urlopen(os.environ['DATA_SERVER'] + '/train.bin').read()\n"
        "    x.write_bytes(data[:8])\n"
        "    y.write_bytes(data[8:])\n"
        "Path('log.txt').write_text(str(time.time()))\n"
        "torch.nn.Linear(4, 2)(torch.ones(1, 4)).sum().backward()\n"
    )
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert "once more, with what the script has made of what came" in got.err
    assert set(stage.files()) == {"train.py", "x.bin", "y.bin"}
    assert {item.name for item in got.record.items} == {"x.bin", "y.bin"} if got.record else False


@pytest.mark.parametrize("once_more", [False, True])
def test_links_that_a_script_makes_once_are_there_for_its_next_start(
    stage: Stage, web: Web, once_more: bool
) -> None:
    """A link moves in with what it leads to, else as what a script makes of what came."""
    web.put("/train.bin", SAMPLES)
    (stage.home / "elsewhere").mkdir()
    beside = stage.project.parent / "beside"  # another program removes it meanwhile
    beside.mkdir()
    other = "ready" if once_more else "v1/train.bin"
    script = stage.project / "train.py"
    script.write_text(
        "import os, torch, urllib.request\n"
        "if not os.path.exists('v1'):\n"
        "    os.makedirs('v1')\n"
        "    url = os.environ['DATA_SERVER'] + '/train.bin'\n"
        "    urllib.request.urlretrieve(url, 'v1/train.part')\n"
        "    os.link('v1/train.part', 'v1/train.bin')\n"
        "    os.remove('v1/train.part')\n"
        "    os.symlink('v1', 'data')\n"
        f"    import subprocess\n    subprocess.run(['rmdir', {str(beside)!r}])\n"
        f"    if {once_more}:\n"
        "        open('ready', 'w').close()\n"
        f"        os.symlink({str(stage.home / 'elsewhere')!r}, 'other')\n"
        f"    os.symlink(os.path.abspath({other!r}), 'here')\n"
        "open('data/train.bin')\n"
        "open('here')\n"
        "torch.nn.Linear(4, 2)(torch.ones(1, 4)).sum().backward()\n"
    )
    got = stage.fetch(script)
    assert got.proved, got.said
    assert ("once more, with what" in got.err) == once_more
    links = {path.name: os.readlink(path) for path in stage.project.iterdir() if path.is_symlink()}
    more = {"other": str(stage.home / "elsewhere")} if once_more else {}
    assert links == {"data": "v1", "here": str(stage.project / other), **more}
    assert (stage.project / "data" / "train.bin").read_bytes() == SAMPLES
    assert not os.path.lexists(beside)


@pytest.mark.slow
def test_what_a_script_removes_and_downloads_anew_stays_and_is_named(
    stage: Stage, web: Web
) -> None:
    url = web.put("/train.bin", SAMPLES)
    (stage.project / "train.bin").write_bytes(b"broken")
    script = stage.project / "train.py"
    script.write_text(
        "import os, torch, urllib.request\n"
        "path = os.path.join(os.environ['PWD'], 'train.bin')\n"
        "if os.path.getsize(path) < 8:\n"
        "    os.remove(path)\n"
        f"    urllib.request.urlretrieve({url!r}, path)\n"
        "torch.nn.Linear(4, 2)(torch.ones(1, 4)).sum().backward()\n"
    )
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert "train.bin was downloaded anew" in got.err
    assert got.record is None or not got.record.items
    assert (stage.project / "train.bin").read_bytes() == b"broken"


def test_a_file_outside_of_the_project_is_not_overwritten_and_that_is_said(stage: Stage) -> None:
    results = stage.home / "results.csv"
    results.write_text("of last week")
    script = stage.project / "train.py"
    script.write_text(f"open({str(results)!r}, 'w').write('new')\n")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert f"writing {results} was refused (train.py:1)" in got.err
    assert results.read_text() == "of last week"


def test_what_a_start_makes_by_an_absolute_path_the_next_one_may_write_again(stage: Stage) -> None:
    results, folder = stage.home / "results.csv", stage.home / "run"
    script = stage.project / "train.py"
    script.write_text(
        f"import os, torch\nopen({str(results)!r}, 'w').close()\n"
        f"os.makedirs({str(folder)!r}, exist_ok=True)\nos.chdir({str(folder)!r})\n"
        "open('new', 'w').close()\nos.replace('new', 'last')\n"
        "torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()\n"
    )
    got = stage.fetch(script)
    assert got.proved, got.said
    assert "refused" not in got.err


def test_a_large_file_that_is_changed_past_python_is_named(stage: Stage) -> None:
    large = stage.project / "large.bin"
    large.write_bytes(bytes(2 << 20))
    script = stage.project / "train.py"
    script.write_text(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "file = libc.open(b'large.bin', os.O_WRONLY | os.O_APPEND)\nlibc.write(file, b'new', 3)\n"
    )
    got = stage.fetch(script)
    assert large.stat().st_size == (2 << 20) + 3
    assert f"{large} was changed while the script ran" in got.err


@pytest.mark.slow
def test_what_is_begun_outside_of_the_project_stays_and_is_named(stage: Stage) -> None:
    log = stage.home / "log.txt"
    script = stage.project / "train.py"
    script.write_text(
        f"import torch\nlog = open({str(log)!r}, 'w')\nown = open('own.txt', 'w')\n"
        "torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()\n"
    )
    got = stage.fetch(script)
    assert f"{log} was not finished, and stays where it is: look at it" in got.err
    assert got.err.count("was not finished") == 1
    assert log.exists()
    assert set(stage.files()) == {"train.py"}


def test_options_behind_the_script_are_said_to_be_the_scripts(stage: Stage) -> None:
    """And so is what could not be watched; here the script writes that by itself."""
    script = stage.project / "s.py"
    script.write_text(
        "import argparse, os\n"
        "events = open(os.path.join(os.environ['RANKUP_SANDBOX'], 'events.jsonl'), 'a')\n"
        'events.write(\'{"event": "problem", "time": 1, "pid": 1, "what": "x"}\\n\')\n'
        "events.close()\n"
        "argparse.ArgumentParser().parse_args()\n"
    )
    got = stage.fetch(script, "--dataset", "xsum")
    assert got.code == 1, got.said
    assert "rankup: not watched: x: " in got.err
    assert "options of rankup stand before the script: rankup fetch --dataset" in got.err
