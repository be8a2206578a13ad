"""Job scripts that stage, run by bash with fakes: what a node is told, and when it gives back."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.slurm.script import JobScript

from .jobscripts import ONE, Bash, in_folders
from .test_script_runs import HOSTILE

# Notes a line for each call, and does what `rankup stage` does as far as the script sees it.
_RANKUP = r"""
printf '%s\0' "$SLURMD_NODENAME" "$@" "" >>"$FAKES/told"
case " $* " in
*" --mount "*) [ -z "${FAKE_MOUNT:-}" ] && printf '/mounts/%s\n' 1 2 ;;
*" --release "*) touch "$FAKES/released-$SLURMD_NODENAME" ;;
*" stage "*) echo "what it says" >&2; [ "${FAKE_STAGE:-}" != "$SLURMD_NODENAME" ] ;;
*) echo "the cause" ;;
esac
"""


@pytest.fixture
def bash(tmp_path: Path) -> Bash:
    found = Bash(tmp_path)
    found.program("rankup", _RANKUP)
    return found


@pytest.fixture
def job(tmp_path: Path) -> JobScript:
    return replace(
        in_folders(tmp_path, replace(ONE, nodes=2)),
        stage=("/data/a b.h5", "/data/c"),
        stage_options=("--reserve", "5GB"),
        mounts=("/data/x.sqsh", "/data/y.sqsh"),
        monitor=False,
    )


def _told(bash: Bash) -> list[list[str]]:
    """The node and the words of each call of rankup, by node."""
    calls: list[list[str]] = [[]]
    for word in bash.words("told"):
        if word or not calls[-1]:
            calls[-1].append(word)
        else:
            calls.append([])
    return sorted((call for call in calls if call), key=lambda call: call[0])


def test_each_node_stages_mounts_runs_and_gives_back(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job)
    assert ran.code == 0, ran.output
    stage = ["stage", "--reserve", "5GB", "--", "/data/a b.h5", "/data/c"]
    mount = ["stage", "--mount", "--", "/data/x.sqsh", "/data/y.sqsh"]
    per_node = [stage, mount, ["stage", "--release"]]
    assert _told(bash) == [[node, *words] for node in ("n1", "n2") for words in per_node]
    assert "stage: node n1: what it says\n" in ran.output
    assert "stage: node n2: what it says\n" in ran.output
    assert [one["RANKUP_MOUNTS"] for one in ran.environment] == ["/mounts/1:/mounts/2"] * 2
    assert all("RANKUP_STAGE_DIR" not in one for one in ran.environment)
    jobs = {one["RANKUP_STAGE_JOB"] for one in ran.environment}
    assert re.fullmatch(r"job-\d+\.\d{10}", " ".join(jobs)), "of this attempt, on each node"
    ran = bash.run(job, RANKUP_INTERACTIVE="4711")
    jobs = {one["RANKUP_STAGE_JOB"] for one in ran.environment}
    assert re.fullmatch(r"job-\d+\.run-4711", " ".join(jobs)), "one of several in an allocation"


def test_whatever_the_files_are_called_arrives(bash: Bash, job: JobScript) -> None:
    names = tuple(f"/data/{name}" for name in HOSTILE)
    told = replace(job, nodes=1, stage=names, mounts=names, stage_options=())
    ran = bash.run(replace(told, stage_folder="/local/my disk"))
    assert [one["RANKUP_STAGE_DIR"] for one in ran.environment] == ["/local/my disk"]
    assert ran.code == 0, ran.output
    staged, mounted, _ = _told(bash)
    assert staged == ["n1", "stage", "--", *names]
    assert mounted == ["n1", "stage", "--mount", "--", *names]


def test_sbcast_sends_each_file_once_and_what_it_does_not_send_is_said(
    bash: Bash, job: JobScript, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()
    for name in ("a b.h5", "shards/1.tar", "shards/2.tar"):
        (tmp_path / name).touch()
    bash.program("sbcast", 'printf "%s\\0" "$@" >>"$FAKES/sent"; [[ $2 != *1.tar ]]')
    memory = tmp_path / "memory"
    memory.mkdir()
    files = (str(tmp_path / "a b.h5"), str(tmp_path / "shards"))
    ran = bash.run(replace(job, stage=files, stage_options=("--sent",), stage_folder=str(memory)))
    assert ran.code == 0, ran.output
    words = bash.words("sent")
    calls = [words[at : at + 3] for at in range(0, len(words), 3)]
    assert [one[:2] for one in calls] == [
        ["--force", str(tmp_path / name)] for name in ("a b.h5", "shards/1.tar", "shards/2.tar")
    ]
    to = {Path(one[2]).parent for one in calls}
    assert len(to) == 1
    assert [Path(one[2]).name for one in calls] == ["0-a b.h5", "1-1.tar", "1-2.tar"]
    (folder,) = to
    assert folder.parent.parent == memory / f"rankup-{os.getuid()}"
    assert folder.parent.name == ran.environment[0]["RANKUP_STAGE_JOB"]
    assert stat.S_IMODE(folder.parent.parent.stat().st_mode) == 0o700
    assert not folder.exists(), "it is given back with the copies"
    assert f"sbcast did not send {tmp_path}/shards/1.tar: each node reads it" in ran.output
    assert _told(bash)[0] == ["n1", "stage", "--sent", "--", *files]


def test_without_rankup_it_says_so_and_runs(bash: Bash, job: JobScript) -> None:
    bash.remove("rankup")
    ran = bash.run(replace(job, nodes=1))
    assert ran.code == 0, ran.output
    assert len(ran.torchrun) == 1
    assert "no rankup on PATH, so nothing is staged or mounted: /data/a b.h5 /data/c" in ran.output


def test_a_refusal_ends_the_job_before_any_rank(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job, FAKE_STAGE="n2")
    assert ran.code == 1
    assert ran.torchrun == ()
    assert "staging failed on the node named above; torch was not started anywhere" in ran.output
    for node in ("n1", "n2"):
        assert [node, "stage", "--release"] in _told(bash)


def test_an_image_that_cannot_be_mounted_ends_the_job(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job, FAKE_MOUNT="no")
    assert ran.code == 1
    assert ran.torchrun == ()
    assert "rankup: node n1 cannot mount /data/x.sqsh /data/y.sqsh" in ran.output
    assert ["n2", "stage", "--release"] in _told(bash)


@pytest.mark.parametrize("ranks", ["fail", "stop"])
def test_however_the_ranks_end_the_nodes_are_given_back(
    bash: Bash, job: JobScript, ranks: str
) -> None:
    code = 3 if ranks != "stop" else 0
    ran = bash.run(job, FAKE_CODE=str(code), FAKE_RANKS=ranks, RANKUP_INTERACTIVE="1")
    assert ran.code == code
    released = [call[0] for call in _told(bash) if "--release" in call]
    # Where they failed srun may have killed the first, and a step of its own does it again.
    assert released == (["n1", "n2"] if code == 0 else ["n1", "n1", "n2", "n2"])


def test_sigterm_while_it_copies_leaves_no_half_copy(bash: Bash, job: JobScript) -> None:
    kills = 'case " $* " in *" -- "*) kill -TERM $(ps -o ppid= -p $PPID) ;; esac'
    bash.program("rankup", f"{_RANKUP}\n{kills}\nexec sleep 0.1")
    ran = bash.run(replace(job, nodes=1, mounts=()))
    assert ran.torchrun == ()
    assert [call[2] for call in _told(bash)][:2] == ["--reserve", "--release"]
    assert "torch was not started anywhere" in ran.output


def test_sigterm_gives_back_at_once_and_leaves_the_ranks_to_their_end(
    bash: Bash, job: JobScript
) -> None:
    """Within KillWait, after which Slurm kills all: the ranks may use it up."""
    # Sent again: bash can miss a signal that comes in the moment in which it begins to wait.
    text = 'for ((i = 0; i < 600; i++)); do [ -e "$FAKES/released-$SLURMD_NODENAME" ] && exit 7;'
    bash.program("torchrun", f"{text} kill -TERM $PPID; sleep 0.1; done")
    ran = bash.run(replace(job, nodes=1))
    assert ran.code == 7, "it was given back while the ranks were still there"
