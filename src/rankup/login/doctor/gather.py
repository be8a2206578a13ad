"""Each check with the facts it asks for; here is what takes time, the judging is elsewhere."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...base.errors import UserError
from ...base.findings import Finding
from ...site import places
from .. import record
from . import (
    builds,
    cache,
    codes,
    driver,
    machine,
    memory,
    network,
    purge,
    python,
    queue,
    quota,
    quotas,
    space,
    torch_checks,
)
from .asking import Late, Question
from .facts import Facts


@dataclass(frozen=True)
class Check:
    """A part of the report.

    Attributes:
        code, place: of the finding that says why the check itself could not be made.
    """

    code: str
    place: str
    findings: Callable[[Facts], list[Finding]]


def _machine(facts: Facts) -> list[Finding]:
    return machine.check_machine(facts.machine.answer())


def _configuration(facts: Facts) -> list[Finding]:
    problem = facts.problem or facts.machine.answer().problem
    return machine.check_configuration(facts.config, problem)


def _presence(facts: Facts) -> list[Finding]:
    return queue.check_presence(facts.machine.answer().profile, facts.presence.answer())


def _partitions(facts: Facts) -> list[Finding]:
    profile = facts.machine.answer().profile
    if not facts.slurm_answers():
        return []
    partitions = facts.partitions.answer()
    lines = queue.check_partitions(profile, facts.config.job.get("partition"), partitions)
    return [*lines, *queue.check_differences(profile, partitions)]


def _account(facts: Facts) -> list[Finding]:
    profile = facts.machine.answer().profile
    if profile.name == "local":
        return []
    account, said_by = facts.account()
    known = facts.client.accounts(getpass.getuser()) if facts.slurm_answers() else None
    return queue.check_account(profile, account, said_by, known)


def _internet(facts: Facts) -> list[Finding]:
    profile = facts.machine.answer().profile
    if profile.name == "local":
        return []
    return network.check_internet(profile, facts.internet())


def _names(facts: Facts) -> list[Finding]:
    if not facts.slurm_answers():
        return []
    nodes = network.sample(facts.client, facts.partition())
    slurm = network.addresses_in_slurm(facts.client, nodes)
    profile = facts.machine.answer().profile
    return network.check_names(profile, network.resolve(nodes, profile.host_suffix, slurm))


def _project(facts: Facts) -> list[Finding]:
    account = facts.config.job.get("account")
    return space.check_project(facts.machine.answer().profile, facts.environment, account)


def _space(facts: Facts) -> list[Finding]:
    # A thread for each: a file system that hangs does not hide the others.
    asked = [
        (folder, Question(str(folder.path), facts.clock, partial(space.measure, folder)))
        for folder in facts.folders()
    ]
    spaces = [_measured(folder, question) for folder, question in asked]
    return space.check_space(space.grouped(spaces))


def _measured(folder: space.Folder, question: Question[space.Space]) -> space.Space:
    try:
        return question.answer()
    except Late:
        why = "its file system did not answer in time"
        return space.Space((folder.name,), folder.path, problem=why)


def _quota(facts: Facts) -> list[Finding]:
    project = facts.config.job.get("account")
    named = next((one.path.name for one in facts.folders() if one.name == "project"), None)
    found, late = quotas.known(facts.folders(), project or named, facts.environment, facts.clock)
    return quota.check_quota(found, late)


def _mounted(facts: Facts) -> list[Finding]:
    profile = facts.machine.answer().profile
    needed = [
        one
        for one in facts.folders()
        if one.name == "this folder"
        # Caches that are not mounted are a finding of `cache.check_caches`.
        or (one.name == "caches" and places.mounted(profile, one.path) is not False)
        or (one.name == "runs" and not one.path.is_relative_to(facts.here))
    ]
    needed.append(space.Folder("Python", facts.python.prefix))
    return space.check_mounted(profile, needed)


def _caches(facts: Facts) -> list[Finding]:
    return cache.check_caches(facts.machine.answer().profile, facts.caches(), Path.home())


def _purge(facts: Facts) -> list[Finding]:
    days = facts.machine.answer().profile.purge_days
    scratch = facts.scratch()
    if scratch is None or days is None:
        return []
    fetched = [Path(item.path) for one in record.read(facts.project) for item in one.items]
    written = [*fetched, facts.config.runs, facts.caches().own]
    found = purge.sample(written, scratch, facts.clock, purge.today())
    return purge.check_purge(found, scratch, days)


def _memory(facts: Facts) -> list[Finding]:
    return memory.check_memory(memory.left())


def _python(facts: Facts) -> list[Finding]:
    return python.check_python(facts.python)


def _environment(facts: Facts) -> list[Finding]:
    def staleness(folder: Path) -> str:
        from ..env import staleness

        return staleness(folder)

    return [
        *python.check_environment(facts.project, facts.python, staleness),
        *python.check_job(facts.config.job),
    ]


def _torch(facts: Facts) -> list[Finding]:
    return torch_checks.check_torch(builds.find(builds.this_path()))


def _torch_files(facts: Facts) -> list[Finding]:
    folders = [facts.project, facts.project / "env"]
    if facts.python.venv:
        folders.append(facts.python.prefix.parent)
    return torch_checks.check_files(torch_checks.read_files(folders), facts.project)


def _build(facts: Facts) -> list[Finding]:
    found = builds.find(builds.this_path())
    gpus, cuda = driver.gpus_and_cuda(facts.environment)
    profile = facts.machine.answer().profile
    here = torch_checks.Here(platform.machine(), gpus, cuda, _queue_has_gpus(facts))
    return torch_checks.check_build(found, profile, here)


def _queue_has_gpus(facts: Facts) -> bool:
    try:
        return any(one.gpus for one in facts.partitions.answer(facts.clock.left() / 2).values())
    except (Late, UserError):
        return False


def _needs(facts: Facts) -> list[Finding]:
    from ..killed import killed
    from ..needs import unmet
    from .script import check_killed, check_needs

    listed = check_needs(unmet(facts.config)) if facts.config.fetch else []
    return [*listed, *check_killed(killed(facts.project))]


CHECKS: tuple[Check, ...] = (
    Check(codes.MACHINE, "machine", _machine),
    Check(codes.CONFIGURATION, "rankup.toml", _configuration),
    Check(codes.SLURM, "Slurm", _presence),
    Check(codes.PARTITION, "partitions", _partitions),
    Check(codes.ACCOUNT, "account", _account),
    Check(codes.INTERNET, "internet", _internet),
    Check(codes.NODE_NAMES, "node names", _names),
    Check(codes.PROJECT_FOLDERS, "folders", _project),
    Check(codes.SPACE, "space", _space),
    Check(codes.QUOTA, "quota", _quota),
    Check(codes.MOUNTED, "mounts", _mounted),
    Check(codes.CACHES, "caches", _caches),
    Check(codes.PURGE, "scratch", _purge),
    Check(codes.SHARED_MEMORY, "shared memory", _memory),
    Check(codes.PYTHON, "Python", _python),
    Check(codes.ENVIRONMENT, "environment", _environment),
    Check(codes.TORCH, "torch", _torch),
    Check(codes.TORCH_DEVICE, "torch", _build),
    Check(codes.TORCH_TWICE, "requirements", _torch_files),
    Check(codes.NEEDS, "[fetch]", _needs),
)
