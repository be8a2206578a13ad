"""The nodes meet in the preflight: who is silent is named, who is slow fails nobody else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.slurm.script import JobScript, render

from .jobscripts import ONE, Bash, in_folders

HEAD = r"127\.0\.0\.11"
PORT = r"142\d\d"  # the job's own, or the next one that is free


def test_a_slow_tool_on_the_first_node_fails_no_healthy_node(bash: Bash, tmp_path: Path) -> None:
    # On the first node it waits for the second one to have come past its report.
    waits = 'for _ in {1..200}; do [ -e "$FAKES/second" ] && break; sleep 0.1; done'
    bash.program(
        "nvidia-smi",
        f'if [ "$SLURM_NODEID" = 1 ]; then touch "$FAKES/second"; else {waits}; fi\n'
        '[ -e "$FAKES/second" ] && printf "GPU %d: A100\\n" 0 1',
    )
    ran = bash.run(in_folders(tmp_path, replace(ONE, nodes=2)))
    assert ran.code == 0, ran.output
    assert len(ran.torchrun) == 2


def _impatient(job: JobScript, tries: int) -> str:
    """The script whose nodes try so often, not 120 times, and listen for 6 s instead of 90."""
    text = render(job)
    for waits, shorter in (
        ("{1..120}", f"{{1..{tries}}}"),
        ("time.monotonic() + 90", "time.monotonic() + 6"),
    ):
        assert text.count(waits) == 1
        text = text.replace(waits, shorter)
    return text


@pytest.mark.slow
def test_a_node_that_is_not_heard_of_is_named(bash: Bash, tmp_path: Path) -> None:
    # The third node has to come through, however late the first one listens.
    ran = bash.run(_impatient(in_folders(tmp_path, replace(ONE, nodes=3)), 20), FAKE_SILENT="1")
    assert (ran.code, ran.torchrun) == (1, ())
    assert re.search(rf"preflight: n1 at {HEAD}:{PORT} has not heard from: n2\n", ran.output)


def test_a_first_node_that_does_not_listen_is_named_by_the_others(
    bash: Bash, tmp_path: Path
) -> None:
    ran = bash.run(_impatient(in_folders(tmp_path, replace(ONE, nodes=3)), 1), FAKE_SILENT="0")
    assert (ran.code, ran.torchrun) == (1, ())
    for node in ("n2", "n3"):
        words = rf"node {node}: cannot reach port {PORT} of the first node at {HEAD}"
        assert re.search(words, ran.output)


def test_a_fault_of_the_first_node_is_no_fault_of_the_others(bash: Bash, tmp_path: Path) -> None:
    bash.program("nvidia-smi", '[ "$SLURM_NODEID" = 1 ] && printf "GPU %d: A100\\n" 0 1')
    ran = bash.run(in_folders(tmp_path, replace(ONE, nodes=2)))
    assert (ran.code, ran.torchrun) == (1, ())
    faults = [line for line in ran.output.splitlines() if line.startswith("preflight:")]
    assert faults == ["preflight: node n1: nvidia-smi sees 0 GPU(s), the job needs 2"]
