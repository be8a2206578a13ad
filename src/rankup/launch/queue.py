"""A run under Slurm: submitted, or started at once inside an allocation."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.files import write_atomic
from ..site import config as configuration
from ..site import detect, rundir
from ..site.config import Config
from ..site.jobspec import OPTIONS, JobSpec, of_record, refuse_secrets, variables
from ..site.profile import Partition as Shape
from ..site.profile import Profile
from ..site.rundir import Job
from ..slurm import script
from ..slurm.client import Client, SlurmError
from ..slurm.limits import Grant
from ..slurm.times import time_text
from . import attempts, environment, local, ready, stage, status, submit
from .logfile import OUTPUT, size_of
from .request import (
    created,
    new,
    resumed,
    split_notes,
    typed,
    wanted,
    without_values,
)
from .submit import Plan, bill, job_script, write_script

_PER_TASK = re.compile(r"SLURM_(\w+_PER_(TASK|GPU)|CPU_BIND\w*|GPU_BIND\w*)$")


def run(spec: JobSpec, client: Client, inside: bool) -> int:
    """Check, write the job script, and submit it, or run it when this is `inside` a job.

    Returns 0 once it is submitted; with --follow, and inside a job, the job's exit code.

    Raises:
        UserError: the job cannot run as asked; nothing was submitted or left behind.
    """
    config = configuration.load(Path.cwd())
    job, resume = None, spec.resume is not None
    if resume:
        directory, job = resumed(spec, config.runs)
        _refuse_second(client, directory, job)
        _refuse_finished(directory, job, spec)
    options = stage.checked(_options(spec, config, job), Path(job.cwd) if job else Path.cwd())
    if spec.follow and options.array:
        raise UserError("--follow follows one job, not an array; use `rankup logs -f --task N`")
    plan = (_plan_inside if inside else submit.plan)(client, config, options)
    project = config.project(Path.cwd())
    if not plan.options.container:
        chosen, notes = environment.of_job(plan.options.environment, project)
        options = replace(plan.options, environment=chosen)
        plan = replace(plan, options=options, notes=(*plan.notes, *notes))
    node = plan.granted.node
    stage.require_room(options, node.memory_gb, f"a node of {node.name or 'this allocation'}")
    link = None
    if job is None:
        runs, link = submit.runs_folder(config, plan)
        directory, job = new(spec, runs, strict=True)
    if options.array and job.kind == "recipe":
        raise UserError(
            "every task of an array would be the same run of the recipe; --array is for scripts "
            "that read SLURM_ARRAY_TASK_ID"
        )
    shown = (*without_values(sys.argv[1:]), *job.args, *options.sbatch, str(directory))
    refuse_secrets(shown, {**os.environ, **plan.variables})
    internet = plan.granted.node.internet
    notes = ready.require(config, job, internet, allow_missing=spec.allow_missing)
    found = ready.fetched(project, job, with_network=internet is True)
    notes += ready.elsewhere(found.variables, os.environ, plan.variables)
    notes += split_notes(job, plan.granted.nodes, plan.granted.ranks)
    notes += _doubts(job, plan)
    notes += ready.before_submit(
        job.kind, job.target, plan.granted.nodes * plan.granted.ranks, spec.check
    )
    ready.refuse_arguments(job, spec.check)
    plan = replace(plan, fetched=found, notes=(*plan.notes, *notes))
    job = replace(job, launch=options.said())
    submit.refuse_unmounted(plan, _places(job, directory, plan))
    monitor = wanted(spec.monitor)
    text = script.render(job_script(plan, job, directory, resume, monitor=monitor))
    for note in plan.notes:
        print(note, file=sys.stderr)
    if spec.dry_run:
        print(text, end="")
        if plan.cost:
            print(f"not submitted; it would cost {plan.cost}", file=sys.stderr)
        return 0
    if link is not None:
        link_runs(config.runs, link)
    if inside:
        with _restored(directory) if resume else created(directory, job, config.runs):
            pass
        return _start_inside(client, plan, job, directory, text)
    number = _submit(client, plan, job, directory, text, None if resume else config.runs)
    _say(plan, job, directory, number)
    if not spec.follow:
        return 0
    from .logs import follow

    return follow(directory)


def _doubts(job: Job, plan: Plan) -> list[str]:
    """Return what `rankup plan` has against a recipe's run in the partition it gets."""
    if job.kind != "recipe":
        return []
    from ..plan import command

    granted = plan.granted
    asked = command.Job(granted.nodes, granted.ranks, granted.minutes)
    return command.doubts(job.target, job.args, plan.profile, granted.partition or None, asked)


def _submit(
    client: Client, plan: Plan, job: Job, directory: Path, text: str, runs: Path | None
) -> str:
    """Write what the job needs and submit it; if it is refused, all is as it was.

    Args:
        runs: the folder of all runs; None: the run is there already, and is resumed.
    """
    with _restored(directory) if runs is None else created(directory, job, runs):
        if runs is None:  # somebody else may have resumed it since it was looked at
            _refuse_second(client, directory, rundir.read(directory))
            rundir.write(directory, job)
        write_script(plan, directory, text)
        try:
            return submit.send(client, plan, job, directory)
        except SlurmError as error:
            if not error.unreachable:
                raise
            uncertain: BaseException = error
        except UserError:
            raise
        except BaseException as error:  # a job in the queue would look for what is here
            uncertain = error
    raise uncertain


def link_runs(runs: Path, target: Path) -> None:
    """Make the folder on scratch, and `./runs` a link to it."""
    target.mkdir(parents=True, exist_ok=True)
    if target.stat().st_uid != os.getuid():
        raise UserError(f"{target} belongs to somebody else; set `runs` in rankup.toml")
    try:
        runs.symlink_to(target)
    except FileExistsError:  # another first submission was quicker
        return
    print(f"runs go to {target}, linked as {runs}", file=sys.stderr)


def _say(plan: Plan, job: Job, directory: Path, number: str) -> None:
    """To people what there is to know; to standard output the job's number alone."""
    print(f"run {job.id} in {directory}", file=sys.stderr)
    limit = time_text(plan.granted.minutes)
    print(f"job {number}, time limit {limit}, {plan.cost}", file=sys.stderr)
    print(f"script {directory / 'job.sh'}", file=sys.stderr)
    print(f"next: rankup logs -f {job.id} · status · cancel", file=sys.stderr)
    print(number)


def _options(spec: JobSpec, config: Config, job: Job | None) -> JobSpec:
    """What was said now, else when the run was started, else in `rankup.toml`."""
    options = spec.over(of_record(job.launch) if job else {}).over(config.job)
    # `jutil env activate -A` sets these; our sbatch sees none of them, so that they cannot override
    # what the job script says.
    account = os.environ.get("SBATCH_ACCOUNT") or os.environ.get("SLURM_ACCOUNT")
    return options.over({"account": account} if account else {})


def _refuse_second(client: Client, directory: Path, job: Job) -> None:
    """UserError while an attempt waits or runs: two would write one checkpoint folder."""
    for row in attempts.live(directory, job, client):
        raise UserError(
            f"{directory} is going on already: job {row.job_id} is {row.state}; wait for it, or "
            f"`rankup cancel {job.id}` first"
        )


def _refuse_finished(directory: Path, job: Job, spec: JobSpec) -> None:
    """UserError for a recipe's run that is through: another job would cost and change nothing."""
    final = job.kind == "recipe" and status.last_metrics(directory).get("final")
    if final and not spec.args and (directory / "model-final.pt").exists():
        raise UserError(
            f"{directory} is through, with its final model written. To train longer: "
            f"rankup run --resume {job.id} {job.target} --steps N"
        )


def _places(job: Job, directory: Path, plan: Plan) -> dict[str, Path]:
    """What compute nodes have to see."""
    options = plan.options
    found = {"the working directory": Path(job.cwd), "the run directory": directory}
    if job.kind == "script":
        found["the script"] = Path(job.target)
    for option in ("environment", "container"):
        value = getattr(options, option)
        if value is not None and "://" not in value:
            found[f"--{option}"] = Path(value)
    if not options.environment and not options.container:
        found["the Python environment"] = environment.active_environment()[0] or Path(sys.prefix)
    found |= {f"what was fetched as {name}": path for name, path in plan.fetched.places.items()}
    found |= {f"--stage {name}": Path(name) for name in options.stage}
    found |= {f"--mount {name}": Path(name) for name in options.mount}
    found |= {f"the argument {path}": path for path in submit.argument_paths(job)}
    return found


@contextmanager
def _restored(directory: Path) -> Iterator[None]:
    """Remove what was written for an attempt that could not be submitted."""
    names = [rundir.JOB, "job.sh", "env"]
    with rundir.locked(directory):
        # Read under the lock: what somebody else submits meanwhile is not to be taken back.
        before = {name: _read(directory / name) for name in names}
        try:
            yield
        except BaseException:
            for name, data in before.items():
                if data is None:
                    (directory / name).unlink(missing_ok=True)
                elif _read(directory / name) != data:
                    write_atomic(directory / name, data, private=True)
            raise


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _plan_inside(client: Client, config: Config, options: JobSpec) -> Plan:
    """Return what the allocation that this process is in can give.

    Raises:
        UserError: more nodes or ranks are asked for than it has.
    """
    number = os.environ["SLURM_JOB_ID"]
    profile, _ = detect.choose(
        config, os.environ, os.uname().nodename, cluster_name=client.cluster_name
    )
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
        replace(options, array=None, dependency=None),
        variables(options.env, os.environ),
        cost="",
        notes=tuple(notes if left_out else ()),
        # A step runs here already: ours would wait for its end.
        srun=("--overlap",) if os.environ.get("SLURM_STEP_ID") else (),
    )


def _start_inside(client: Client, plan: Plan, job: Job, directory: Path, text: str) -> int:
    """Run the job script `text` here and wait for it; its exit code.

    The first Ctrl-C (or SIGTERM) asks the ranks to save and stop, the second ends them.
    """
    path = write_script(plan, directory, text)
    attempt = {
        "started": rundir.now(),
        "nodes": plan.granted.nodes,
        "nproc": plan.granted.ranks,
        "allocation": os.environ["SLURM_JOB_ID"],
        "bill": bill(plan),
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
    ended: dict[str, Any] = {"code": code, "ended": rundir.now()}
    if (directory / "requeue").exists():
        ended["stopped"] = True
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
