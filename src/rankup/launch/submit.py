"""A run as a Slurm job: checked against this machine, its script, submitted."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..base.errors import UserError
from ..base.files import user_path, write_atomic
from ..site import config as configuration
from ..site import profile as sites
from ..site import rundir
from ..site.config import Config
from ..site.jobspec import JobSpec, of_record, refuse_own_directives, refuse_secrets, variables
from ..site.profile import Profile, scratch_folder, seen_by_nodes
from ..site.rundir import Job
from ..slurm import limits, script
from ..slurm.client import Client, SlurmError
from ..slurm.limits import Grant
from ..slurm.parse import Partition, parse_seconds, time_text
from . import attempts, ready, stage, status
from .ready import Fetched
from .request import created, new, resumed, split_notes, typed, wanted, without_values

# Every node has its own; a run directory there is seen by nobody else.
_LOCAL_TO_A_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108


@dataclass(frozen=True)
class Plan:
    """A job that can be submitted: what it asks for, checked against this machine."""

    profile: Profile
    granted: Grant
    options: JobSpec
    variables: Mapping[str, str]
    cost: str
    notes: tuple[str, ...]
    srun: tuple[str, ...] = ()  # options beside the profile's
    fetched: Fetched = field(default_factory=Fetched)


@dataclass(frozen=True)
class Prepared:
    """A run that can be started, with its job script as text.

    Attributes:
        runs: the folder of all runs; None: the run is there already, and is resumed.
    """

    plan: Plan
    job: Job
    directory: Path
    text: str
    runs: Path | None

    def made(self) -> AbstractContextManager[None]:
        """Make its run directory, or hold the resumed one; a failure leaves all as it was."""
        if self.runs is None:
            return _restored(self.directory)
        return created(self.directory, self.job, self.runs)


def run(spec: JobSpec, client: Client) -> int:
    """Check, write the job script, and submit it.

    Returns 0 once it is submitted; with --follow the job's exit code.

    Raises:
        UserError: the job cannot run as asked; nothing was submitted or left behind.
    """
    found = prepare(spec, client, plan)
    if found is None:
        return 0
    number = _submit(client, found)
    _say(found.plan, found.job, found.directory, number)
    if not spec.follow:
        return 0
    from .follow import follow

    return follow(found.directory)


def prepare(
    spec: JobSpec, client: Client, planned: Callable[[Client, Config, JobSpec], Plan]
) -> Prepared | None:
    """Check all there is to check, and write the job script in memory; --dry-run prints that.

    Args:
        planned: checks what is asked for against what there is: `plan`, or that of an allocation.

    Raises:
        UserError: the job cannot run as asked; nothing was left behind.
    """
    config = configuration.load(Path.cwd())
    job, resume = None, spec.resume is not None
    if resume:
        directory, job = resumed(spec, config.runs)
        _refuse_second(client, directory, job)
        _refuse_finished(directory, job, spec)
    options = _options(spec, config, job)
    if options.stages:
        options = stage.checked(options, Path(job.cwd) if job else Path.cwd())
    plan = planned(client, config, options)
    project = config.project(Path.cwd())
    if not plan.options.container and not plan.options.loads:
        chosen, notes = ready.environment_of_job(plan.options.environment, project)
        options = replace(plan.options, environment=chosen)
        plan = replace(plan, options=options, notes=(*plan.notes, *notes))
    node = plan.granted.node
    if options.stages:
        where = f"a node of {node.name or 'this allocation'}"
        stage.require_room(options, node.memory_gb, where)
    link = None
    if job is None:
        runs, link = runs_folder(config, plan)
        directory, job = new(spec, runs, strict=True)
    shown = (*without_values(sys.argv[1:]), *job.args, *options.sbatch, str(directory))
    shown += options.setup
    refuse_secrets(shown, {**os.environ, **plan.variables})
    internet = plan.granted.node.internet
    notes = ready.require(config, job, internet, allow_missing=spec.allow_missing)
    found = ready.fetched(project, job, with_network=internet is True)
    notes += ready.elsewhere(found.variables, os.environ, plan.variables)
    notes += split_notes(job, plan.granted.nodes, plan.granted.ranks)
    notes += [*_doubts(job, plan), *(_over(directory, job) if resume else ())]
    notes += ready.before_submit(
        job.kind, job.target, plan.granted.nodes * plan.granted.ranks, spec.check
    )
    ready.refuse_arguments(job, spec.check)
    plan = replace(plan, fetched=found, notes=(*plan.notes, *notes))
    job = replace(job, launch=options.said())
    refuse_unmounted(plan, _places(job, directory, plan))
    monitor = wanted(spec.monitor)
    text = script.render(job_script(plan, job, directory, resume, monitor=monitor))
    for note in plan.notes:
        print(note, file=sys.stderr)
    if spec.dry_run:
        print(text, end="")
        if plan.cost:
            print(f"not submitted; it would cost {plan.cost}", file=sys.stderr)
        return None
    if link is not None:
        link_runs(config.runs, link)
    return Prepared(plan, job, directory, text, None if resume else config.runs)


def _doubts(job: Job, plan: Plan) -> list[str]:
    """Return what `rankup plan` has against a recipe's run in the partition it gets."""
    if job.kind != "recipe":
        return []
    from ..plan import command

    granted = plan.granted
    asked = command.Job(granted.nodes, granted.ranks, granted.minutes)
    return command.doubts(job.target, job.args, plan.profile, granted.partition or None, asked)


def _submit(client: Client, found: Prepared) -> str:
    """Write what the job needs and submit it; if it is refused, all is as it was."""
    with found.made():
        if found.runs is None:  # somebody else may have resumed it since it was looked at
            _refuse_second(client, found.directory, rundir.read(found.directory))
            rundir.write(found.directory, found.job)
        write_script(found.plan, found.directory, found.text)
        try:
            return send(client, found.plan, found.job, found.directory)
        except SlurmError as error:
            if not error.unreachable:
                raise
            uncertain: BaseException = error
        except UserError:
            raise
        except BaseException as error:  # a job in the queue would look for what is here
            uncertain = error
    raise uncertain


def _say(plan: Plan, job: Job, directory: Path, number: str) -> None:
    """To people what there is to know; to standard output the job's number alone."""
    print(f"run {job.id} in {directory}", file=sys.stderr)
    limit = time_text(plan.granted.minutes)
    print(f"job {number}, time limit {limit}, {plan.cost}", file=sys.stderr)
    print(f"script {directory / 'job.sh'}", file=sys.stderr)
    print(f"next: rankup logs -f {job.id} · status · cancel", file=sys.stderr)
    print(number)


def _options(spec: JobSpec, config: Config, job: Job | None) -> JobSpec:
    """The option as given now, else at the run's start, else in `rankup.toml`."""
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
    if final and not spec.args and rundir.has_final_model(directory):
        raise UserError(
            f"{directory} is through, with its final model written. To train longer: "
            f"rankup run --resume {job.id} {job.target} --steps N"
        )


def _over(directory: Path, job: Job) -> Iterator[str]:
    """Say of a script that it has ended well: it may have more to do, or be resumed by mistake."""
    ends = [record for record in rundir.records(directory) if "end" in record]
    if job.kind == "script" and ends and ends[-1].get("code") == 0 and "stopped" not in ends[-1]:
        yield f"note: job {ends[-1]['job']} of this run ended as it should; it starts once more"


def _places(job: Job, directory: Path, plan: Plan) -> dict[str, Path]:
    """Folders that compute nodes have to see."""
    options = plan.options
    found = {"the working directory": Path(job.cwd), "the run directory": directory}
    if job.kind == "script":
        found["the script"] = Path(job.target)
    for option in ("environment", "container"):
        value = getattr(options, option)
        if value is not None and "://" not in value:
            found[f"--{option}"] = Path(value)
    if not options.environment and not options.container and not options.loads:
        found["the Python environment"] = ready.active_environment()[0] or Path(sys.prefix)
    found |= {f"what was fetched as {name}": path for name, path in plan.fetched.places.items()}
    found |= {f"--stage {name}": Path(name) for name in options.stage}
    found |= {f"--mount {name}": Path(name) for name in options.mount}
    found |= {f"the argument {path}": path for path in argument_paths(job)}
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


def plan(client: Client, config: Config, options: JobSpec) -> Plan:
    """Check what a job asks for against the profile and what Slurm says now.

    Raises:
        UserError: it would be refused, wait for ever, or waste what is paid for.
    """
    profile, _ = sites.choose(config, cluster_name=client.cluster_name)
    partitions = client.partitions()
    partition = limits.choose_partition(options.partition, profile, partitions)
    # Where nobody names one Slurm chooses: by constraint and qos at some sites.
    named = options.partition or (partition.name if profile.partition == partition.name else None)
    if named is None and (profile.sbatch or profile.qos):
        partition = limits.without_limits(partition)
    options = replace(options, partition=named, qos=options.qos or profile.qos)
    accounts = None
    if options.account is not None or profile.account_required:
        accounts = client.accounts(getpass.getuser())
    granted = limits.grant(options, profile, partition, accounts)
    refuse_own_directives(options.sbatch)
    return Plan(
        profile,
        granted,
        options,
        variables(options.env, os.environ),
        limits.cost(granted, profile),
        tuple(_notes(options, partition, profile, limits.differences(profile, partitions))),
    )


def bill(plan: Plan) -> dict[str, Any]:
    """Return the part of `job.json` about an attempt's machine and its price, for the report."""
    granted, price = plan.granted, limits.price(plan.granted, plan.profile)
    return {
        "site": plan.profile.title,
        "partition": granted.partition,
        "account": plan.options.account or "",
        "gpus": granted.gpus,
        "minutes": granted.minutes or None,
        "unit": price.unit,
        "per_node_hour": price.per_node_hour,
    }


def _notes(
    options: JobSpec, partition: Partition, profile: Profile, differences: list[str]
) -> Iterator[str]:
    for difference in differences:
        if difference.split(":")[0] in (
            f"partition {partition.name}",
            f"partition {profile.partition}",
        ):
            yield f"note: {difference}; Slurm's word is taken"
    if not partition.up:
        yield f"note: partition {partition.name} takes jobs and starts none now (see `sinfo`)"
    if partition.idle_nodes < (options.nodes or 1) and partition.up:
        idle, name = partition.idle_nodes, partition.name
        are = "node is" if idle == 1 else "nodes are"
        yield f"note: {idle} {are} idle in {name} now, so the job will wait"
    if options.time is None:
        minutes = limits.default_minutes(partition)
        yield f"note: time limit {time_text(minutes)} by default; --time sets it"
    elif re.fullmatch(r"\d+:\d+", options.time.strip()):
        yield f"note: Slurm reads --time {options.time} as minutes and seconds; hours are 3h30m"


def runs_folder(config: Config, plan: Plan) -> tuple[Path, Path | None]:
    """Return the folder of run directories, and the one to be linked as `./runs`, if any.

    What `rankup.toml` says, or a `./runs` that is there; else the site's scratch: checkpoints are
    large, and home is not.
    """
    scratch = scratch_folder(plan.profile, os.environ, plan.options.account)
    if config.runs_set or os.path.lexists(config.runs) or scratch is None:
        return config.runs, None
    # One folder per project: `last` means the last run of this one.
    here = config.runs.parent.resolve()
    name = f"{here.name}-{hashlib.sha256(os.fsencode(here)).hexdigest()[:6]}"
    folder = scratch / getpass.getuser() / "rankup-runs" / name
    if profile_days := plan.profile.purge_days:
        print(
            f"note: {scratch} deletes files unused for {profile_days} days; keep results elsewhere",
            file=sys.stderr,
        )
    return folder, folder


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


def refuse_unmounted(plan: Plan, paths: Mapping[str, Path]) -> None:
    """Refuse paths that compute nodes do not see; warn of those they hardly do.

    Raises:
        UserError: one lies where the site mounts nothing: the job would die without a log.
    """
    doubtful = []
    for what, path in paths.items():
        seen = seen_by_nodes(plan.profile, path)
        if seen is False:
            where = ", ".join(plan.profile.mounts) or "not known"
            raise UserError(
                f"{what} {path} is not mounted on the compute nodes of {plan.profile.title} "
                f"(mounted: {where}); the job would die there without a log. Move it, or if it "
                "is mounted, say so in rankup.toml: [site] mounts"
            )
        if seen is None and any(path.is_relative_to(local) for local in _LOCAL_TO_A_NODE):
            doubtful.append(what)
    if doubtful:
        print(
            f"warning: {', '.join(doubtful)}: in a folder that most sites have on each node apart; "
            "if compute nodes see it, say so in rankup.toml: [site] mounts",
            file=sys.stderr,
        )


def send(client: Client, plan: Plan, job: Job, directory: Path) -> str:
    """Submit the job script that lies in the run directory; the job's id, also in `job.json`.

    Raises:
        SlurmError: Slurm refused it, or (`unreachable`) it is not known whether it did.
        OSError: it is submitted and `job.json` could not be written.
    """
    for name in ("retries", "requeues", "short", "cancelled"):
        (directory / "log" / name).unlink(missing_ok=True)
    (directory / "requeue").unlink(missing_ok=True)
    number = client.submit(directory / "job.sh")
    attempt = {
        "submitted": rundir.now(),
        "nodes": plan.granted.nodes,
        "nproc": plan.granted.ranks,
        "job": number,
        "bill": bill(plan),
        "command": typed(),
    }
    try:
        rundir.write(directory, replace(job, attempts=[*job.attempts, attempt]))
    except OSError as error:
        raise OSError(
            f"job {number} is submitted, but {directory / rundir.JOB} could not be written "
            f"({error.strerror}); to end it: scancel {number}"
        ) from None
    return number


def job_script(
    plan: Plan, job: Job, directory: Path, resume: bool, *, monitor: bool = True
) -> script.JobScript:
    """Return what the job script says."""
    options, granted, profile = plan.options, plan.granted, plan.profile
    environment = (
        None if options.environment is None else user_path(options.environment, "--environment")
    )
    if environment is not None and not environment.is_file():
        raise UserError(f"--environment {environment} is no file; name a script to source")
    activate, path = ready.own_environment()
    if environment or options.loads:
        activate, path = str(environment.resolve()) if environment else None, None
    exported = {**profile.environment, **plan.fetched.variables}
    if profile.list_gpus and granted.gpus:
        exported["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(granted.gpus)))
    inside = [str(directory), job.cwd, *profile.mounts]
    if job.kind == "script":
        inside.append(str(Path(job.target).parent))
    inside += plan.fetched.folders()
    inside += [str(Path(name).parent) for name in (*options.stage, *options.mount)]
    inside += [options.stage_to] if options.stage_to else []
    container = in_container(options.container, profile, inside)
    needs = [job.cwd, *([job.target] if job.kind == "script" else [])]
    needs += [str(path) for path in (*argument_paths(job), *plan.fetched.places.values())]
    needs += [*options.stage, *options.mount]
    # A resume finds what an earlier attempt was given in the run's own file.
    given = {*plan.variables, *_earlier(directory / "env")}
    return script.JobScript(
        run_dir=str(directory),
        work_dir=job.cwd,
        words=job.words,
        recipe=job.kind == "recipe",
        name=options.name or job.name,
        nodes=granted.nodes,
        ranks=granted.ranks,
        gpus=granted.gpus,
        cpus=granted.cpus,
        minutes=granted.minutes,
        made_by=tuple(typed()),
        version=__version__,
        resume=resume,
        stop_after=None
        if options.deadline is None
        else parse_seconds(options.deadline, "--deadline"),
        retries=options.retries or 0,
        **({"max_attempts": options.max_attempts} if options.max_attempts else {}),
        options=options.directives(),
        lines=(*profile.sbatch, *options.sbatch),
        srun_options=(*profile.srun, *plan.srun),
        activate=None if container else activate,
        path=None if container else path,
        variables={k: v for k, v in exported.items() if k not in plan.variables},
        offline=granted.node.internet is not True,
        fetched=plan.fetched.offline,
        setup=options.setup,
        threads="OMP_NUM_THREADS" not in given
        and not any("OMP_NUM_THREADS=" in line for line in options.setup),
        private=bool(given),
        container=container,
        host_suffix=profile.host_suffix,
        needs=tuple(needs),
        stage=options.stage,
        stage_options=stage.words(options) if options.stage else (),
        stage_folder=options.stage_to,
        mounts=options.mount,
        monitor=monitor,
        whole_nodes=granted.exclusive and granted.gpus > 0,
    )


def write_script(plan: Plan, directory: Path, text: str) -> Path:
    """`job.sh`, and the variables of `--env` beside it, for their owner alone."""
    if plan.variables:
        values = {**_earlier(directory / "env"), **plan.variables}
        lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
        write_atomic(directory / "env", "\n".join(lines) + "\n", private=True)
    path = directory / "job.sh"
    write_atomic(path, text, private=True)
    return path


def _earlier(path: Path) -> dict[str, str]:
    """Return what an earlier `--env` left in the run's file."""
    if not path.is_file():
        return {}
    try:
        entries = shlex.split(path.read_text(encoding="utf-8"))  # an entry may span lines
    except ValueError as error:
        raise UserError(f"{path} is not as rankup wrote it ({error}); mend or remove it") from None
    pairs = (word.partition("=") for word in entries)
    return {name: value for name, _, value in pairs}


def argument_paths(job: Job) -> list[Path]:
    """Arguments of a script that are paths of something that is there."""
    found = []
    for word in job.args if job.kind == "script" else ():
        text = word.partition("=")[2] if word.startswith("-") else word
        if "/" in text and len(text) < 4096 and "\0" not in text:
            path = Path(job.cwd) / text
            if os.path.exists(path):
                found.append(path)
    return found


def in_container(image: str | None, profile: Profile, inside: list[str]) -> tuple[str, ...]:
    """The words that start a program in an Apptainer image; none without one.

    Args:
        inside: folders to be seen in it, the run directory first.

    Raises:
        UserError: there is no such image, or a folder cannot be handed to Apptainer.
    """
    if image is None:
        return ()
    if "://" not in image:
        path = user_path(image, "--container")
        if not path.exists():
            raise UserError(
                f"--container {image} does not exist; compute nodes have no network, so pull it "
                "here first: apptainer pull IMAGE.sif docker://..."
            )
        image = str(path.resolve())
    gpus = {"cuda": ("--nv",), "rocm": ("--rocm",), "cpu": ()}[profile.devices]
    # Apptainer brings home and the working directory along, and nothing of scratch.
    binds = [folder for folder in dict.fromkeys(inside) if os.path.isdir(folder)]
    for folder in (*inside[:1], *binds):
        if any(c in folder for c in ":,"):
            raise UserError(f"{folder} cannot be seen in a container: its name has a ':' or ','")
    binds = list(dict.fromkeys((*inside[:1], *binds)))
    return ("apptainer", "exec", *gpus, "--bind", ",".join(binds), image)
