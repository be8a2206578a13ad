"""Job scripts that stage, run by bash with fakes: what a node is told, and when it gives back."""

from __future__ import annotations

import re
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
