"""A run inside an allocation: its job script is started here, at once, and waited for."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace

from ..base.errors import UserError
from ..site import profile as sites
from ..site import rundir
from ..site.config import Config
from ..site.jobspec import OPTIONS, JobSpec, variables
from ..site.profile import Partition as Shape
from ..site.profile import Profile
from ..slurm.client import Client
from ..slurm.limits import Grant
from . import local, submit
from .logfile import OUTPUT, size_of
from .request import typed
from .submit import Plan, Prepared

_PER_TASK = re.compile(r"SLURM_(\w+_PER_(TASK|GPU)|CPU_BIND\w*|GPU_BIND\w*)$")


def run(spec: JobSpec, client: Client) -> int:
    """Check, write the job script and run it; its exit code.

    Raises:
        UserError: it cannot run as asked; nothing was started or left behind.
    """
    found = submit.prepare(spec, client, _plan)
    if found is None:
        return 0
    with found.made():
        pass
    return _start(client, found)


def _plan(client: Client, config: Config, options: JobSpec) -> Plan:
    """Return what the allocation that this process is in can give.

    Raises:
        UserError: more nodes or ranks are asked for than it has.
    """
    number = os.environ["SLURM_JOB_ID"]
    profile, _ = sites.choose(config, cluster_name=client.cluster_name)
    shown = client.show(number)
    if not shown:
        raise UserError(
            f"SLURM_JOB_ID={number} is set, but Slurm knows no such job (any more); leave that "
            "shell, or unset SLURM_JOB_ID"
        )
    fields = shown[0]
    text = fields.get("NumNodes", "1").partition("-")[0]
    there = int(text) if text.isdigit() else 1
    nodes = options.nodes or there
    if nodes > there:
        raise UserError(f"--nodes {nodes}: allocation {number} has {there}; ask salloc for more")
    granted = _grant(fields, profile, there, nodes, options.nproc)
    if granted.ranks < granted.gpus and not options.allow_idle_gpus:
        raise UserError(
            f"--nproc {granted.ranks} leaves {granted.gpus - granted.ranks} of the {granted.gpus} "
            f"GPUs that allocation {number} has per node unused, and you pay for {granted.gpus}; "
            "leave --nproc away, or give --allow-idle-gpus"
        )
    left_out = [name for name in options.said() if OPTIONS[name].queue]
    notes = [f"note: inside allocation {number}; it decides on {', '.join(left_out)}"]
    return Plan(
        profile,
        granted,
        replace(options, dependency=None),
        variables(options.env, os.environ),
        cost="",
        notes=tuple(notes if left_out else ()),
        # A step runs here already: ours would wait for its end.
        srun=("--overlap",) if os.environ.get("SLURM_STEP_ID") else (),
    )


def _start(client: Client, found: Prepared) -> int:
    """Run the job script here and wait for it; its exit code.

    The first Ctrl-C (or SIGTERM) asks the ranks to save and stop, the second ends them.
    """
    plan, job, directory = found.plan, found.job, found.directory
    path = submit.write_script(plan, directory, found.text)
    attempt = {
        "started": rundir.now(),
        "nodes": plan.granted.nodes,
        "nproc": plan.granted.ranks,
        "allocation": os.environ["SLURM_JOB_ID"],
        "bill": submit.bill(plan),
        "command": typed(),
        "offset": size_of(directory / OUTPUT),
    }
    (directory / "requeue").unlink(missing_ok=True)
    (directory / "log" / "cancelled").unlink(missing_ok=True)
    rundir.write(directory, replace(job, attempts=[*job.attempts, attempt]))
    print(f"run {job.id} in {directory}", file=sys.stderr)
    granted = plan.granted
    print(
        f"allocation {attempt['allocation']}: {granted.nodes} x {granted.ranks} ranks, "
        f"{granted.gpus} GPU(s) and {granted.cpus} CPUs per node",
        file=sys.stderr,
    )
    code = local.wait(
        ["bash", str(path)],
        {**_allocated(client, plan), "RANKUP_INTERACTIVE": str(os.getpid())},
        _act,
        log=directory / OUTPUT,
        last=lambda shell: _tell(shell, signal.SIGTERM),
        numbers=(signal.SIGINT, signal.SIGTERM),
    )
    ended = local.ended(directory, code)
    rundir.write(directory, replace(job, attempts=[*job.attempts, attempt | ended]))
    if "stopped" in ended or (code and (directory / "checkpoints").is_dir()):
        print(f"go on with: rankup run --resume {directory}", file=sys.stderr)
    return code


def _allocated(client: Client, plan: Plan) -> dict[str, str]:
    """The environment of this shell, with what the job script reads about the allocation.

    A shell may have its number alone (`salloc --no-shell`); inside a step, as an attached shell is
    one, SLURM_JOB_NODELIST names the step's nodes, and srun then gives no others.
    """
    shown = client.show(os.environ["SLURM_JOB_ID"])
    nodes = shown[0].get("NodeList") if shown else None
    # What salloc was asked for per task or GPU is not meant for our one task per node.
    kept = {name: value for name, value in os.environ.items() if not _PER_TASK.match(name)}
    return {
        **kept,
        "SLURM_CPUS_PER_TASK": str(plan.granted.cpus or 1),
        **({"SLURM_JOB_NODELIST": nodes} if nodes else {}),
    }


def _grant(
    fields: Mapping[str, str], profile: Profile, there: int, nodes: int, nproc: int | None
) -> Grant:
    gpus = _gpus(fields, there)
    cpus = int(re.match(r"\d*", fields.get("NumCPUs", ""))[0] or 0) // there  # type: ignore[index]
    ranks = nproc or max(1, gpus)
    if 0 < gpus < ranks:
        raise UserError(
            f"--nproc {ranks} asks for more ranks than the {gpus} GPU(s) per node of allocation "
            f"{fields.get('JobId', '')}; give --nproc {gpus} or less"
        )
    node = Shape(fields.get("Partition", ""), None, gpus, cpus, None, None, profile.internet)
    return Grant(node.name, nodes, ranks, gpus, cpus or None, 0, False, node)


def _gpus(fields: Mapping[str, str], nodes: int) -> int:
    """GPUs per node. Slurm counts them among the resources only where it was told to track them."""
    for key in ("AllocTRES", "TRES"):
        if match := re.search(r"gres/gpu(?::[^=,]+)?=(\d+)", fields.get(key, "")):
            return int(match[1]) // nodes
    for key in ("TresPerNode", "TresPerTask", "TresPerJob"):
        counts = re.findall(
            r"(?:gres[:/])?gpu(?:[:=][A-Za-z][^:=,]*)?(?:[:=](\d+))?", fields.get(key, "")
        )
        if counts:
            total = sum(int(count or 1) for count in counts)
            return total // nodes if key == "TresPerJob" else total
    text = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return int(text) if text.isdigit() else 0


def _act(shell: int, number: int, again: bool) -> bool:
    _tell(shell, signal.SIGTERM if again else signal.SIGUSR1)
    return not again


def _tell(shell: int, number: signal.Signals) -> None:
    """Send a signal to the srun of the job script, which hands it to the ranks of all nodes."""
    import psutil

    try:
        children = psutil.Process(shell).children(recursive=True)
        steps = [child for child in children if child.name() == "srun"]
        for step in steps:
            step.send_signal(number)
        if not steps and number != signal.SIGUSR1:
            os.kill(shell, number)
    except (psutil.NoSuchProcess, ProcessLookupError):
        pass
