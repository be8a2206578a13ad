"""`rankup run --stage`: copies on each node before the ranks start, gone however the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.data.pack.command import pack as make_pack
from rankup.data.pack.source import Request as PackRequest
from rankup.data.stage import staging as data
from rankup.launch import stage
from rankup.site import mounts
from rankup.site.jobspec import JobSpec
from tests.conftest import RunRankup
from tests.slurm.cluster import ENDED, Cluster

from .live import live, script
from .on_slurm import SECONDS, Site, log, until

# What a rank finds, all of it once it has its name. It imports no torch.
PROBE = """
import json, os, sys, time
from pathlib import Path
import rankup.data
samples = rankup.data.open(sys.argv[1])
mounts = os.environ.get("RANKUP_MOUNTS", "")
run = Path(os.environ["RANKUP_RUN_DIR"])
answer = run / ("part" + os.environ["RANK"])
answer.write_text(json.dumps({
    "node": os.environ.get("SLURMD_NODENAME"),
    "staged": samples.staged and str(samples.staged),
    "bytes": len(samples.read(0)),
    "mounted": [sorted(os.listdir(one)) for one in mounts.split(":") if one],
    "torch": "torch" in sys.modules,
}))
answer.rename(run / ("rank" + os.environ["RANK"]))
while "wait" in sys.argv:
    time.sleep(0.1)
if "fail" in sys.argv and os.environ["RANK"] == "1":
    sys.exit(3)
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Files in two classes."""
    for number in range(40):
        file = tmp_path / "photos" / f"class{number % 2}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(number.to_bytes(2, "little") * (5000 + 100 * number))
    return tmp_path / "photos"


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Path:
    """A pack of them."""
    out = tmp_path / "photos.h5"
    asked = PackRequest(source=str(photos), out=str(out), workers=1, as_json=True)
    assert make_pack(asked, lambda path: []) == 0
    return out


@pytest.fixture
def image(photos: Path, tmp_path: Path) -> Path:
    """They in a SquashFS image."""
    out = tmp_path / "photos.sqsh"
    words = ["mksquashfs", str(photos), str(out), "-noappend", "-no-progress"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return out


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    return script(tmp_path, PROBE, "probe.py")


def _answers(run: Path) -> list[dict[str, Any]]:
    files = sorted(run.glob("rank[0-9]*"), key=lambda file: int(file.name.removeprefix("rank")))
    return [json.loads(file.read_text()) for file in files]


def _left(folder: Path) -> list[str]:
    """Copies and mounts below a folder, finished or not."""
    root = folder / f"rankup-{os.getuid()}"
    mounted = Path("/proc/self/mounts").read_text()
    return [str(one) for one in root.rglob("*") if one.name != ".lock"] + [
        line for line in mounted.splitlines() if str(root) in line
    ]


# --- a cluster whose nodes have a memory of their own each


@contextmanager
def _nodes_apart(slurm: Cluster, folder: Path) -> Iterator[Path]:
    """The nodes of the cluster are one host: a prolog, as sites have one, gives each a folder.

    What gives back has the half minute that sites leave it: on a busy machine it needs more than
    the five seconds of the other tests.
    """
    memory = folder / "memory"
    for node in slurm.nodes:
        (memory / node.name).mkdir(parents=True)
    prolog = folder / "prolog.sh"
    prolog.write_text(
        f'#!/bin/bash\necho "export RANKUP_STAGE_DIR={memory}/$SLURMD_NODENAME"\n', "utf-8"
    )
    prolog.chmod(0o755)
    with slurm.configured(TaskProlog=str(prolog), KillWait="30"):
        yield memory


@pytest.fixture
def memory(slurm: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder with a folder for each node's copies."""
    with _nodes_apart(slurm, tmp_path) as found:
        yield found


@pytest.fixture
def site(slurm: Cluster, run_rankup: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, run_rankup, tmp_path)


def _nothing_left(memory: Path) -> None:
    for node in ("n1", "n2", "n3"):
        assert _left(memory / node) == []


@pytest.mark.slow
def test_three_nodes_stage_and_mount_and_give_all_back(
    site: Site, memory: Path, packed: Path, image: Path, probe: Path
) -> None:
    words: list[str | Path] = ["--nodes", "3", "--nproc", "1", "--allow-idle-gpus"]
    words += ["--stage", packed.name, "--mount", image.name]
    job, run = site.submit(*words, probe, packed)
    site.ended(job, "COMPLETED", run)
    answers = _answers(run)
    assert sorted(one["node"] for one in answers) == ["n1", "n2", "n3"]
    for one in answers:
        assert one["staged"].startswith(str(memory / one["node"]))
        assert one["mounted"] == [["class0", "class1"]]
        assert not one["torch"]
    said = log(run)
    for node in ("n1", "n2", "n3"):
        assert f"stage: node {node}: {packed}" in said
    _nothing_left(memory)
    launch = json.loads((run / "job.json").read_text())["launch"]
    assert launch["stage"] == [str(packed)]


@pytest.mark.slow
def test_sbcast_sends_a_file_to_the_memory_of_each_node(
    slurm: Cluster, site: Site, packed: Path, probe: Path
) -> None:
    with slurm.apart() as memory:
        words: list[str | Path] = ["--nodes", "3", "--nproc", "1", "--allow-idle-gpus"]
        words += ["--stage", packed, "--stage-broadcast", "--stage-to", memory]
        job, run = site.submit(*words, probe, packed)
        site.ended(job, "COMPLETED", run)
        for node in ("n1", "n2", "n3"):
            assert _left(slurm.seen_by(node, memory)) == []
    answers = _answers(run)
    assert sorted(one["node"] for one in answers) == ["n1", "n2", "n3"]
    assert all(one["staged"].startswith(str(memory)) for one in answers)
    said = log(run)
    assert said.count("each sample has the bytes that were packed") == 3, said
    assert "did not send" not in said, said


@pytest.mark.slow
def test_what_fits_not_on_one_node_ends_the_job_before_any_rank(
    site: Site, memory: Path, packed: Path, probe: Path
) -> None:
    small = memory / "n2"
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    subprocess.run(words, check=True, timeout=20)
    try:
        job, run = site.submit(
            "--nodes", "3", "--nproc", "1", "--allow-idle-gpus", "--stage", packed, probe, packed
        )
        site.ended(job, "FAILED", run)
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=20)
    said = log(run)
    refused = [line for line in said.splitlines() if line.startswith("stage: node n2:")]
    assert any("does not fit" in line for line in refused), said
    assert any(f"{small} has room for 262 kB" in line for line in refused), said
    assert "staging failed on the node named above; torch was not started anywhere" in said
    assert _answers(run) == []
    _nothing_left(memory)


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_no_node_full(
    site: Site, memory: Path, packed: Path, image: Path, probe: Path
) -> None:
    """Slurm starts no step of such a job any more, and kills it after KillWait."""
    words: list[str | Path] = ["--nodes", "2", "--nproc", "1", "--allow-idle-gpus"]
    words += ["--stage", packed, "--mount", image]
    job, run = site.submit(*words, probe, packed, "wait")
    until(lambda: len(_answers(run)) == 2, run)
    assert _left(memory / "n1")
    site.cluster.command("scancel", str(job))
    until(lambda: site.cluster.job(job)["JobState"] in ENDED, run)
    until(lambda: not _left(memory / "n1") and not _left(memory / "n2"), run, 60)


@pytest.mark.slow
def test_ranks_that_fail_leave_no_node_full(
    site: Site, memory: Path, packed: Path, image: Path, probe: Path
) -> None:
    job, run = site.submit(
        *("--nodes", "2", "--nproc", "1", "--allow-idle-gpus", "--stage", packed),
        *("--stage-reserve", "1GB", "--mount", image, probe, packed, "fail"),
    )
    site.ended(job, "FAILED", run)
    assert len(_answers(run)) == 2
    _nothing_left(memory)
    again = site.rankup("run", "--dry-run", "--resume", run, cwd=memory)
    assert f"stage=({packed})" in again.stdout
    assert "stage_options=(--reserve 1GB)" in again.stdout
    assert f"mounts=({image})" in again.stdout


# --- what is refused on the login node


def _sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def _checked(at: Path, **values: Any) -> JobSpec:
    return stage.checked(JobSpec(**values), at)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stage": ("none.h5",)}, "--stage none.h5: .*none.h5 does not exist"),
        ({"mount": ("none.sqsh",)}, "--mount none.sqsh: .* does not exist"),
        ({"mount": ("there.h5",)}, "there.h5 is no SquashFS image"),
        ({"mount": (".",)}, "is no SquashFS image"),
        ({"stage": ("there.h5",), "stage_to": "here"}, "--stage-to here: give an absolute path"),
        ({"stage_broadcast": True}, "--stage-broadcast says how .* add --stage FILE"),
        ({"stage_to": "/local"}, "--stage-to says how"),
        ({"stage_reserve": "1GB"}, "--stage-reserve says how"),
        ({"stage": ("there.h5",), "stage_reserve": "much"}, "--stage-reserve 'much' is no size"),
        ({"stage": ("",)}, "is no usable path"),
    ],
)
def test_what_cannot_be_staged_is_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    (tmp_path / "there.h5").write_bytes(b"something")
    with pytest.raises(UserError, match=message):
        _checked(tmp_path, **values)


def test_paths_are_those_of_the_folder_it_was_started_in(tmp_path: Path) -> None:
    (tmp_path / "a.h5").touch()
    found = _checked(tmp_path, stage=("a.h5",))
    assert found.stage == (str(tmp_path / "a.h5"),)
    assert JobSpec().over(found.said()) == found
    assert _checked(tmp_path) == JobSpec()


def test_what_is_said_now_wins_over_what_the_run_was_started_with() -> None:
    first = JobSpec(
        stage=("/a", "/b"),
        stage_to="/local",
        stage_broadcast=True,
        mount=("/c",),
        stage_reserve="3GB",
    )
    assert JobSpec().over(first.said()) == first
    assert JobSpec(stage=("/d",)).over(first.said()) == replace(first, stage=("/d",))
    assert stage.words(first) == ("--reserve", "3GB", "--sent")


def test_only_what_is_known_not_to_fit_is_refused(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    for number in range(3):
        _sparse(pack / f"{number}.tar", 1 << 30)
    staging = JobSpec(stage=(str(pack),))
    stage.require_room(staging, 3, "a node")
    stage.require_room(staging, None, "a node")
    stage.require_room(staging, 0, "a node")
    stage.require_room(JobSpec(stage=(str(pack),), stage_to="/local"), 1, "a node")
    with pytest.raises(UserError, match=r"3\.22 GB do not fit into the memory of a node"):
        stage.require_room(staging, 2, "a node")


# --- on this machine


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def _local(packed: Path, here: Path) -> tuple[list[str | Path], dict[str, str]]:
    return ["run", "--local", "--nproc", "1", "--stage", packed], {"RANKUP_STAGE_DIR": str(here)}


def test_a_local_run_stages_and_gives_back(
    run_rankup: RunRankup, tmp_path: Path, packed: Path, here: Path, probe: Path
) -> None:
    words, env = _local(packed, here)
    done = run_rankup([*words, "--out", "run", probe, packed], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    [answer] = _answers(tmp_path / "run")
    assert answer["staged"].startswith(str(here))
    assert _left(here) == []
    launch = json.loads((tmp_path / "run" / "job.json").read_text())["launch"]
    assert launch == {"nproc": 1, "stage": [str(packed)]}


def test_a_run_here_gives_back_what_is_its_own_alone(
    packed: Path, here: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one allocation there may be another run, or a copy that was made by hand."""
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(here))
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    data.stage(packed, reserve=0)
    with stage.staged(JobSpec(stage=(str(packed),), mount=(str(image),), stage_reserve="0")):
        assert len(data.listed()) == 2
    assert [copy["job"] for copy in data.listed()] == ["job 11 of Slurm"]
    assert not [line for line in _left(here) if "squash" in line]
    assert data.release()
    refused = pytest.raises(UserError, match=r"\(--stage-to DIR\)")
    monkeypatch.setattr(mounts, "IN_MEMORY", (mounts.kind_of(here),))
    with refused as raised, stage.staged(JobSpec(stage=(str(packed),), stage_reserve="900TB")):
        pass
    assert "keep less for the job's processes (--stage-reserve SIZE)" in str(raised.value)
    assert _left(here) == []


def test_who_asks_again_to_stop_does_not_end_the_giving_back(
    packed: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    release = data.release

    def asked_again() -> list[str]:
        assert {signal.getsignal(number) for number in ends} == {signal.SIG_IGN}
        for number in ends:
            os.kill(os.getpid(), number)
        return release()

    monkeypatch.setenv("RANKUP_STAGE_DIR", str(here))
    monkeypatch.setattr(data, "release", asked_again)
    before = [signal.getsignal(number) for number in ends]

    def stopped() -> None:
        with stage.staged(JobSpec(stage=(str(packed),), stage_reserve="0")):
            assert _left(here)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        stopped()
    assert ended.value.code == 128 + signal.SIGTERM
    assert _left(here) == []
    assert [signal.getsignal(number) for number in ends] == before


def test_damaged_data_starts_no_run_and_leaves_no_directory(
    rankup_here: RunRankup, tmp_path: Path, packed: Path, here: Path, probe: Path
) -> None:
    with packed.open("r+b") as file:
        file.seek(packed.stat().st_size // 2)
        file.write(b"damaged")
    words, env = _local(packed, here)
    done = rankup_here([*words, "--out", "run", probe, packed], cwd=tmp_path, env=env)
    assert done.returncode == 2, done.stderr
    assert "are not those that were packed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    assert _left(here) == []


@pytest.mark.slow
def test_a_local_run_that_fails_gives_back_and_a_resume_stages_again(
    run_rankup: RunRankup, tmp_path: Path, packed: Path, here: Path
) -> None:
    words, env = _local(packed, here)
    failing = script(tmp_path, PROBE + "sys.exit(4)", "failing.py")
    done = run_rankup([*words, "--out", "run", failing, packed], cwd=tmp_path, env=env)
    assert done.returncode == 4
    assert _left(here) == []
    for found in (tmp_path / "run").glob("rank0"):
        found.unlink()
    done = run_rankup(["run", "--local", "--resume", "run"], cwd=tmp_path, env=env)
    assert done.returncode == 4
    assert _answers(tmp_path / "run")[0]["staged"].startswith(str(here))
    assert _left(here) == []


@pytest.mark.slow
def test_a_run_that_is_stopped_gives_back(
    tmp_path: Path, packed: Path, here: Path, probe: Path
) -> None:
    words, env = _local(packed, here)
    run = tmp_path / "run"
    with live([*words, "--out", run, probe, packed, "wait"], tmp_path, env) as running:
        running.until(lambda: _answers(run))
        running.process.send_signal(signal.SIGINT)
        running.until(lambda: "once more ends them now" in running.err)
        running.process.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) != 0
        running.nobody_left()
    assert _left(here) == []
