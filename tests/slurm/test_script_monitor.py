"""Job scripts that sample their nodes, run by bash with fakes: what starts, and what is said."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.slurm.script import JobScript, render

from .jobscripts import ONE, Bash, in_folders

# Notes its words; a sampler makes its folder, and leaves the ranks to themselves.
_RANKUP = r"""
printf '%s\0' "${SLURMD_NODENAME:-batch}" "$@" "" >>"$FAKES/told-$1-${SLURMD_NODENAME:-batch}"
if [ "$1" = monitor ]; then mkdir -p "$2/monitor"; fi
if [ "$1" = report ]; then echo "what it was worth"; fi
if [ "$1" = logs ]; then echo "the cause"; fi
exit "${FAKE_RANKUP:-0}"
"""


@pytest.fixture
def bash(tmp_path: Path) -> Bash:
    found = Bash(tmp_path)
    found.program("rankup", _RANKUP)
    return found


@pytest.fixture
def job(tmp_path: Path) -> JobScript:
    found = in_folders(tmp_path, replace(ONE, nodes=2))
    # These ranks end at once: on a busy machine that is before the first sampler has made it.
    (Path(found.run_dir) / "monitor").mkdir(parents=True)
    return found


def test_each_node_is_sampled_and_the_job_reports_at_its_end(bash: Bash, job: JobScript) -> None:
    bash.program(
        "rankup",
        f'[ "$1" = report ] && cp {job.run_dir}/attempts.jsonl "$FAKES/lives"\n' + _RANKUP,
    )
    ran = bash.run(replace(job, whole_nodes=True))
    assert ran.code == 0, ran.output
    for node in ("n1", "n2"):
        told = bash.words(f"told-monitor-{node}")
        assert told[:4] == [node, "monitor", job.run_dir, "--parent"]
        assert told[4].isdigit()
        assert told[5:] == ["--ranks", "2", "--whole-node", ""], "which is billed whole"
    told = ["batch", "report", "--formats", "text", "--ended", "0", job.run_dir, ""]
    assert bash.words("told-report-batch") == told
    assert ran.output.count("what it was worth\n") == 1
    before = (bash.notes / "lives").read_text()
    assert '"end":' in before, "the end is written down before the report, and once"
    assert (Path(job.run_dir) / "attempts.jsonl").read_text() == before


def test_without_time_for_the_report_it_says_how_to_get_one(bash: Bash, job: JobScript) -> None:
    ran = bash.run(replace(job, nodes=1), SLURM_JOB_END_TIME=str(int(time.time()) + 25))
    assert ran.code == 0
    assert "no time is left for the report; it is made by: rankup report " in ran.output
    assert not (bash.notes / "told-report-batch").exists()


def test_a_sampler_or_a_report_that_fails_does_not_fail_the_job(bash: Bash, job: JobScript) -> None:
    assert bash.run(replace(job, nodes=1), FAKE_RANKUP="3").code == 0


def test_the_cause_of_a_failure_follows_the_report(bash: Bash, job: JobScript) -> None:
    ran = bash.run(replace(job, nodes=1), FAKE_CODE="9")
    assert ran.code != 0
    assert ran.output.rstrip().splitlines()[-2:] == ["what it was worth", "the cause"]
    assert bash.words("told-report-batch")[4:6] == ["--ended", str(ran.code)]


def test_without_rankup_a_node_is_not_sampled_and_says_so(bash: Bash, job: JobScript) -> None:
    bash.remove("rankup")
    ran = bash.run(replace(job, nodes=1))
    assert ran.code == 0, ran.output
    assert "rankup: note: node n1 is not sampled: no rankup on PATH\n" in ran.output


def test_who_does_not_want_it_has_no_word_of_it_in_the_script(job: JobScript) -> None:
    text = render(replace(job, monitor=False))
    assert "monitor" not in text
    assert "rankup report" not in text
