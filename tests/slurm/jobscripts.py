"""Job scripts as `rankup run` would write them, and a bash that runs them without Slurm.

The real text runs from end to end; srun, scontrol and the like are fakes on PATH that play the
nodes n1, n2, … and write down what torchrun was told, word for word.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankup.launch.submit import Plan, job_script
from rankup.site import profile as profiles
from rankup.site.jobspec import JobSpec, variables
from rankup.site.rundir import Job
from rankup.slurm.client import Client
from rankup.slurm.limits import Grant
from rankup.slurm.parse import Partition, Queued
from rankup.slurm.script import JobScript, render

# Nothing from outside but these: what the machine has installed must not matter.
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
ONE = JobScript(
    run_dir="/scratch/runs/train/20260101-120000-abcd",
    work_dir="/home/me/project",
    words=("/home/me/project/train.py", "--lr", "0.1"),
    recipe=False,
    name="train",
    nodes=1,
    ranks=2,
    gpus=2,
    cpus=8,
    minutes=60,
)


def of_profile(name: str, nodes: int = 2, options: JobSpec | None = None) -> JobScript:
    """The script of a run of `train.py` on whole nodes of a site, the same on every machine."""
    profile = profiles.load(name)
    node = profile.shape(None) or profiles.Partition("gpu", 1440, 2, 8, 8, 3, None)
    grant = Grant(
        partition=node.name or "gpu",
        nodes=nodes,
        ranks=max(1, node.gpus),
        gpus=node.gpus,
        cpus=node.cores,
        minutes=120,
        exclusive=True,
        node=node,
    )
    options = options or JobSpec(account="abc" if profile.account_required else None)
    options = replace(options, partition=options.partition or node.name or None, qos=profile.qos)
    plan = Plan(profile, grant, options, variables(options.env, {}), "", ())
    job = Job(
        id="20260101-120000-abcd",
        kind="script",
        target="/p/project/train.py",
        args=["--lr", "0.1", "two words"],
        cwd="/p/project",
        versions={},
        git={},
    )
    found = job_script(plan, job, Path("/p/scratch/runs/train") / job.id, resume=False)
    made = ("rankup", "run", "--nodes", str(nodes), "train.py", "--lr", "0.1", "two words")
    return replace(found, made_by=made, version="", activate="/p/project/activate.sh", path=None)


def in_folders(tmp_path: Path, job: JobScript, run: str = "run", work: str = "work") -> JobScript:
    """The job in folders that are there."""
    run_dir, work_dir = tmp_path / "runs" / run, tmp_path / "projects" / work
    run_dir.mkdir(parents=True)
    work_dir.mkdir(parents=True)
    return replace(
        job, run_dir=str(run_dir), work_dir=str(work_dir), needs=(str(work_dir),), activate=None
    )


def partition(**values: object) -> Partition:
    """A partition of three nodes with two GPUs and eight cores each."""
    usual = Partition(
        name="booster",
        default=True,
        up=True,
        max_minutes=1440,
        default_minutes=None,
        max_nodes=None,
        min_nodes=0,
        total_nodes=3,
        exclusive=True,
        allow_accounts=None,
        deny_accounts=frozenset(),
        allow_qos=None,
        gpus=2,
        cores=8,
        memory_mb=8000,
        idle_nodes=3,
    )
    return replace(usual, **values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Site(Client):
    """A cluster with an idle partition, as far as a submission asks it.

    Attributes:
        job: what becomes of a job: its id, what sbatch raises, or a function of the script's path.
    """

    job: str | BaseException | Callable[[Path], str] = "4242"
    live: Mapping[str, Partition] = field(default_factory=lambda: {"booster": partition()})

    def partitions(self) -> dict[str, Partition]:
        return dict(self.live)

    def accounts(self, user: str) -> frozenset[str] | None:
        return None

    def cluster_name(self) -> str | None:
        return None

    def mine(self) -> list[Queued]:
        return []

    def submit(self, script: Path, *options: str) -> str:
        if isinstance(self.job, BaseException):
            raise self.job
        return self.job if isinstance(self.job, str) else self.job(script)


# --- the fakes, in bash: a Python would take longer to start than the script takes

_SRUN = r"""
printf '%s\0' "$@" >"$FAKES/srun.$(ls "$FAKES" | grep -c '^srun\.')"
nodes=1
while [[ $1 == -* ]]; do
    [[ $1 == --nodes=* ]] && nodes=${1#--nodes=}
    shift
done
# bash -c TEXT bash FUNCTION WORD...
if [ -n "${FAKE_NO_PREFLIGHT:-}" ] && [ "$5" = preflight ]; then exit 0; fi
pids=() code=0
for ((node = 0; node < nodes; node++)); do
    if [ "$node" = "${FAKE_SILENT:-}" ]; then continue; fi
    SLURM_NODEID=$node SLURMD_NODENAME=n$((node + 1)) SLURM_STEP_NODELIST="n[1-$nodes]" "$@" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "$code"
"""
_SCONTROL = r"""
echo "$*" >>"$FAKES/scontrol"
case "$1 $2" in
"show hostnames") last=${3##*-} && seq -f 'n%.0f' "${last%?}" ;;
"show node") echo "NodeName=n1 Arch=x86_64 NodeAddr=${FAKE_NODEADDR:-127.0.0.11} NodeHostName=n1" ;;
"requeue "*)
    if [ -e "$FAKES/controller-is-away" ]; then exit 1; fi
    exit "${FAKE_REQUEUE:-0}"
    ;;
"ping ")
    if [ -e "$FAKES/controller-is-away" ]; then state=DOWN; else state=UP; fi
    echo "Slurmctld(primary) at c1 is $state"
    ;;
*) exit 1 ;;
esac
"""
_GETENT = r"""
[ "$1" = ahostsv4 ] || exit 1
echo "$2" >>"$FAKES/getent"
line=$(grep -F "$2=" <<<"${FAKE_HOSTS:-}") || exit 2
for address in ${line#*=}; do printf '%s STREAM %s\n%s DGRAM\n' "$address" "$2" "$address"; done
"""
_TORCHRUN = r"""
printf '%s\0' "$@" >"$FAKES/torchrun.$SLURM_NODEID"
env -0 >"$FAKES/environment.$SLURM_NODEID"
kill -USR1 $$ # the agent must have been told not to mind
case ${FAKE_RANKS:-} in
stop) touch "$RANKUP_RUN_DIR/requeue" ;;
away) touch "$RANKUP_RUN_DIR/requeue" "$FAKES/controller-is-away" ;;
fail) touch "$RANKUP_RUN_DIR/log/failure-rank1.json" ;;
esac
exit "${FAKE_CODE:-0}"
"""
_SBATCH = r"""
printf '%s\0' "$@" >"$FAKES/sbatch"
echo "${SLURM_RESTART_COUNT-none}" >"$FAKES/restart-of-sbatch"
[ -z "${FAKE_NO_SBATCH:-}" ] && echo 4243
"""
_PROGRAMS = {
    "srun": _SRUN,
    "scontrol": _SCONTROL,
    "getent": _GETENT,
    "torchrun": _TORCHRUN,
    "squeue": 'echo "$*" >>"$FAKES/squeue"; echo "${FAKE_END-2030-01-02T03:04:05}"',
    "sbatch": _SBATCH,
    "rankup-rank": 'case ${1-} in "") echo "[--agent]" ;; --agent) exec torchrun "${@:2}" ;; esac',
    "apptainer": 'printf "%s\\0" "$@" >"$FAKES/apptainer"',
    "rankup": 'echo "$*" >>"$FAKES/rankup"; echo "the cause"',
    # The wait for Slurm to end the shell is left out, one for another node is a short one.
    "sleep": '[ "$1" = 120 ] || PATH=/usr/bin:/bin exec sleep 0.1',
    "nvidia-smi": 'for ((i = 0; i < ${FAKE_GPUS:-8}; i++)); do echo "GPU $i: A100"; done',
}


@dataclass(frozen=True)
class Ran:
    """What came of a job script.

    Attributes:
        torchrun: by node, the words it was started with; empty where it was not.
        environment: by node, what it found set.
    """

    code: int
    output: str
    torchrun: tuple[tuple[str, ...], ...]
    environment: tuple[Mapping[str, str], ...]

    @property
    def ranks(self) -> tuple[str, ...]:
        """The words behind torchrun's own, on the first node: how a rank is started."""
        words = self.torchrun[0]
        return words[words.index("--") + 1 :]


class Bash:
    """Runs job scripts; one folder of fakes, whose notes lie in `notes`."""

    def __init__(self, folder: Path) -> None:
        self._programs, self.notes = folder / "fake-bin", folder / "notes"
        self._programs.mkdir()
        for name, text in _PROGRAMS.items():
            self.program(name, text)

    def program(self, name: str, text: str) -> None:
        """Put another program on the job's PATH."""
        path = self._programs / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def remove(self, name: str) -> None:
        """Take a program off the job's PATH."""
        (self._programs / name).unlink()

    def words(self, note: str) -> list[str]:
        """What a fake wrote down of its words."""
        return (self.notes / note).read_bytes().decode(errors="surrogateescape").split("\0")[:-1]

    def run(self, job: JobScript | str, **settings: str) -> Ran:
        """Run a script as job 4242 with `settings` in the environment (`FAKE_…`, `SLURM_…`)."""
        self.notes.mkdir(exist_ok=True)
        for note in self.notes.iterdir():
            note.unlink()
        path = self.notes.parent / "job.sh"
        path.write_text(job if isinstance(job, str) else render(job))
        environment = {
            "PATH": f"{self._programs}:{_SYSTEM_PATH}",
            "HOME": str(self.notes.parent),
            "LC_ALL": "C.UTF-8",
            "FAKES": str(self.notes),
            "SLURM_JOB_ID": "4242",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_GPUS_ON_NODE": "8",
            **{name: os.environ[name] for name in ("RANKUP_TEST_SESSION",) if name in os.environ},
            **settings,
        }
        done = subprocess.run(
            ["bash", str(path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        nodes = sorted(self.notes.glob("torchrun.*"))
        return Ran(
            done.returncode,
            done.stdout.decode(errors="replace"),
            tuple(tuple(self.words(node.name)) for node in nodes),
            tuple(
                dict(entry.split("=", 1) for entry in self.words(f"environment{node.suffix}"))
                for node in nodes
            ),
        )
