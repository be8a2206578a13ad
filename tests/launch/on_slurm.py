"""Runs on the tests' Slurm cluster: started as a user would, and watched to their end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import RunRankup
from tests.slurm.cluster import ENDED, Cluster

# Long enough for a machine that is busy with other things.
SECONDS = 300.0
# One rank on a node, which has two GPUs; on two nodes.
ONE = ("--nproc", "1", "--allow-idle-gpus")
ONE_EACH = ("--nodes", "2", *ONE)
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")


class Site:
    """A user in front of the cluster, in a folder of their own.

    Attributes:
        env: what the `rankup` command has in its environment there.
    """

    def __init__(self, cluster: Cluster, run_rankup: RunRankup, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._run_rankup = run_rankup
        programs = Path(sys.executable).parent
        path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
        self.env = {**cluster.environment, "PATH": path}

    def rankup(
        self,
        *words: str | Path,
        code: int = 0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `rankup WORDS`; it has to end with exit code `code`."""
        done = self._run_rankup(
            words, cwd=cwd or self.folder, timeout=SECONDS, env={**self.env, **(env or {})}
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, *words: str | Path, cwd: Path | None = None) -> tuple[int, Path]:
        """`rankup run WORDS`: the id of its Slurm job, and the run directory."""
        said = self.rankup("run", "--time", "10m", *ONE_THREAD, *words, cwd=cwd).stderr
        found = re.search(r"^run \S+ in (.+)$", said, re.MULTILINE)
        assert found, said
        run = Path(found[1])
        return int(asked(run)[-1]), run

    def ended(self, job: int, state: str, run: Path, timeout: float = SECONDS) -> None:
        """Wait for the job's end, which has to be in `state`."""
        found = self.cluster.wait(job, ENDED, timeout)
        assert found["JobState"] == state, f"{found}\n{log(run)}"

    def allocate(self, nodes: int) -> int:
        """The id of an allocation of some nodes, without a shell in it."""
        done = self.cluster.run("salloc", f"--nodes={nodes}", "--time=10", "--no-shell")
        granted = re.search(r"Granted job allocation (\d+)", done.stderr)
        assert granted, done.stderr
        return int(granted[1])

    def queue(self) -> list[str]:
        """Ids of the jobs that Slurm has."""
        return self.cluster.command("squeue", "--noheader", "--format=%A").split()


def log(run: Path) -> str:
    """What the jobs of a run have printed, but for what any Slurm and torch always say."""
    text = "".join(file.read_text() for file in sorted((run / "log").glob("*.out")))
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if "lacks support for cpu binding" not in line
    )


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return text.rstrip().splitlines()[-1]


def until(condition: Callable[[], Any], run: Path, timeout: float = SECONDS) -> Any:
    """Wait until `condition()` holds; what it returned. The run's log goes into the failure."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in {timeout:g} s\n{log(run)}"
        time.sleep(0.05)
    return found


def attempts(run: Path) -> list[dict[str, Any]]:
    """What the job scripts wrote down about their beginnings, ends and successors."""
    path = run / "attempts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def asked(run: Path) -> list[str]:
    """Ids of the jobs that were submitted for a run by its user, in order."""
    return [attempt["job"] for attempt in json.loads((run / "job.json").read_text())["attempts"]]


def starts(run: Path) -> int:
    """How many attempts have begun."""
    return sum("start" in record for record in attempts(run))
