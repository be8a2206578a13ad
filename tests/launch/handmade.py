"""Run directories made by hand, and small jobs of plain bash that behave like job scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankup.site import rundir
from rankup.site.rundir import Job
from rankup.slurm.client import Client

from ..slurm.cluster import Cluster

RECORDED = Path(__file__).with_name("recorded")

# The beginning and the end of a job script, as far as the records go.
_SCRIPT = """#!/bin/bash
#SBATCH --output={log} --open-mode=append --requeue
run={run}
attempt=${{SLURM_RESTART_COUNT:-0}}
record() {{ printf '{{"job": "%s", "restart": %d, %s}}\\n' \
"$SLURM_JOB_ID" "$attempt" "$1" >>"$run/attempts.jsonl"; }}
finish() {{ record "\\"end\\": $(date +%s), \\"code\\": $1"; exit "$1"; }}
record "\\"start\\": $(date +%s), \\"nodes\\": \\"$SLURM_JOB_NODELIST\\""
{body}
finish $?
"""


def make_run(runs: Path, name: str = "20261120-120000-abcd", **changes: Any) -> Path:
    """A run directory of the script `train.py` that has not been started."""
    path = runs / "train" / name
    rundir.create(path)
    values: dict[str, Any] = {
        "id": name,
        "kind": "script",
        "target": "/home/user/train.py",
        "args": ["--lr", "0.1"],
        "cwd": str(runs),
        "versions": {},
        "git": {},
    }
    rundir.write(path, Job(**{**values, **changes}))
    return path


def asked(path: Path, job_id: str) -> None:
    """Write down that a Slurm job was submitted for the run."""
    job = rundir.read(path)
    attempt = {"started": "2026-11-20T12:00:00+0000", "job": job_id}
    rundir.write(path, Job(**{**vars(job), "attempts": [*job.attempts, attempt]}))


def record(path: Path, **fields: Any) -> None:
    """Append a line to the run's `attempts.jsonl`."""
    line = {"job": "12", "restart": 0, **fields}
    with (path / rundir.ATTEMPTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def submit(slurm: Cluster, path: Path, body: str, *options: str) -> str:
    """Submit `body` as an attempt of the run; the job's id."""
    log = path / "log" / "%j.out"
    script = path / "job.sh"
    script.write_text(_SCRIPT.format(log=log, run=path, body=body))
    job_id = client(slurm).submit(script, "--chdir", str(path), *options)
    asked(path, job_id)
    return job_id


def client(slurm: Cluster) -> Client:
    """A client of the test's cluster."""
    import os

    return Client(timeout=10, environment={**os.environ, **slurm.environment})
