"""A script and its batch file for one GPU, both ported, on two nodes of the tests' Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.rewrite.ported import port as port_script
from rankup.port.sbatch import port
from tests.examples.samples import EXAMPLES, SIZES, made_up
from tests.port.running import same_output
from tests.slurm.cluster import Cluster

WORDS = ("--data", "text", *SIZES["language"])
JOB = """#!/bin/bash
#SBATCH --job-name=lm
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --output=%x.out

export PATH="{bin}:$PATH" OMP_NUM_THREADS=1
python train.py {words}
echo "the last line"
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_nodes_print_what_one_process_prints(slurm: Cluster, tmp_path: Path) -> None:
    script, job = tmp_path / "train.py", tmp_path / "job.sbatch"
    script.write_bytes((EXAMPLES / "language.py").read_bytes())
    made_up("language", tmp_path / "text")
    words = [sys.executable, str(script), *WORDS]
    alone = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    (tmp_path / "language_final.pt").unlink()
    (tmp_path / "train_dist.py").write_text(port_script(script).text)
    job.write_text(JOB.format(bin=Path(sys.executable).parent, words=" ".join(WORDS)))
    text = port(job, nodes=2, gpus=2).text
    # The GPUs of the tests' nodes are device files, of which torch counts none.
    assert text.count("ranks=gpu ") == 1
    number = slurm.submit(text.replace("ranks=gpu ", "ranks=2 "), tmp_path)
    found = slurm.wait(number, timeout=240)
    printed = (tmp_path / "lm.out").read_text()
    assert found["JobState"] == "COMPLETED", printed
    assert found["NumNodes"] == "2"
    epochs = re.findall(r"^epoch \d.*$", printed, re.MULTILINE)
    expected = re.findall(r"^epoch \d.*$", alone.stdout, re.MULTILINE)
    # With other numbers of ranks and threads sums are made in another order.
    assert not same_output("\n".join(epochs), "\n".join(expected))
    assert len(epochs) == 2
    assert printed.rstrip().endswith("the last line")
    assert (tmp_path / "language_final.pt").exists()


def test_the_slurm_that_answers_knows_its_partitions(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`booster` is a name of JUWELS and JUPITER as well, whose nodes have four GPUs."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    job = tmp_path / "job.sbatch"
    job.write_text(JOB.replace("--job-name=lm", "--partition=booster"))
    done = port(job)
    assert "#SBATCH --gres=gpu:2\n" in done.text
    assert "#SBATCH --cpus-per-task=8\n" in done.text
    assert not any("taken for" in note for note in done.notes)
    job.write_text(JOB.replace("--job-name=lm", "--partition=gpus"))
    with pytest.raises(UserError, match="gpus: this cluster has none of that name"):
        port(job)
