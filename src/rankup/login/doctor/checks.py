"""Each check with the facts that it asks for; what is made of them is judged elsewhere."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ...base.errors import UserError
from ...base.findings import Finding
from ...script.downloads import read
from ...script.modules import imports
from ...script.source import read as read_script
from ...site import places
from .. import record
from ..needs import unmet
from . import (
    builds,
    cache,
    codes,
    machine,
    network,
    purge,
    python,
    queue,
    quota,
    quotas,
    script,
    space,
    torch_checks,
)
from .asking import Late, Question
from .facts import Facts

RankCheck: TypeAlias = Callable[[Path], Sequence[Finding]]


@dataclass(frozen=True)
class Check:
    """A part of the report.

    Attributes:
        code, place: of the finding that says why the check itself could not be made.
    """

    code: str
    place: str
    findings: Callable[[Facts], list[Finding]]


def _partitions(facts: Facts) -> list[Finding]:
    if not facts.slurm_answers():
        return []
    partitions = facts.partitions.answer()
    wanted = facts.config.job.get("partition")
    lines = queue.check_partitions(facts.profile, wanted, partitions)
    return [*lines, *queue.check_differences(facts.profile, partitions)]


def _account(facts: Facts) -> list[Finding]:
    if facts.profile.name == "local":
        return []
    account, said_by = facts.account()
    known = facts.client.accounts(getpass.getuser()) if facts.slurm_answers() else None
    return queue.check_account(facts.profile, account, said_by, known)


def _internet(facts: Facts) -> list[Finding]:
    if facts.profile.name == "local":
        return []
    return network.check_internet(facts.profile, facts.internet())


def _names(facts: Facts) -> list[Finding]:
    if not facts.slurm_answers():
        return []
    nodes = network.sample(facts.client, facts.partition())
    slurm = network.addresses_in_slurm(facts.client, nodes)
    found = network.resolve(nodes, facts.profile.host_suffix, slurm)
    return network.check_names(facts.profile, found)


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
    needed = [
        one
        for one in facts.folders()
        if one.name == "this folder"
        # Caches that are not mounted are a finding of `cache.check_caches`.
        or (one.name == "caches" and places.mounted(facts.profile, one.path) is not False)
        or (one.name == "runs" and not one.path.is_relative_to(facts.here))
    ]
    needed.append(space.Folder("Python", facts.python.prefix))
    return space.check_mounted(facts.profile, needed)


def _purge(facts: Facts) -> list[Finding]:
    days, scratch = facts.profile.purge_days, facts.scratch()
    if scratch is None or days is None:
        return []
    fetched = [Path(item.path) for one in record.read(facts.project) for item in one.items]
    written = [*fetched, facts.config.runs, facts.caches().own]
    found = purge.sample(written, scratch, facts.clock, purge.today())
    return purge.check_purge(found, scratch, days)


def _environment(facts: Facts) -> list[Finding]:
    from ..env import staleness

    return [
        *python.check_environment(facts.project, facts.python, staleness),
        *python.check_job(facts.config.job),
    ]


def _torch_files(facts: Facts) -> list[Finding]:
    folders = [facts.project, facts.project / "env"]
    if facts.python.venv:
        folders.append(facts.python.prefix.parent)
    return torch_checks.check_files(torch_checks.read_files(folders), facts.project)


def _build(facts: Facts) -> list[Finding]:
    gpus, cuda = torch_checks.gpus_and_cuda(facts.environment)
    here = torch_checks.Here(platform.machine(), gpus, cuda, _queue_has_gpus(facts))
    return torch_checks.check_build(builds.find(builds.this_path()), facts.profile, here)


def _queue_has_gpus(facts: Facts) -> bool:
    try:
        return any(one.gpus for one in facts.partitions.answer(facts.clock.left() / 2).values())
    except (Late, UserError):
        return False


def _needs(facts: Facts) -> list[Finding]:
    return script.check_needs(unmet(facts.config)) if facts.config.fetch else []


def of_script(path: Path, args: tuple[str, ...], ranks: RankCheck | None) -> tuple[Check, ...]:
    """The checks of a script: it can be read, its imports and its data are there.

    Args:
        ranks: what `rankup check` finds in a script, for one line about it.
    """
    name = path.name or str(path)
    checks = [
        Check(codes.SCRIPT, name, partial(_imports, path)),
        Check(codes.MOUNTED, name, partial(_script_mounted, path)),
        Check(codes.DATA, name, partial(_data, path, args)),
    ]
    if ranks is not None:
        checks.append(Check(codes.PORTED, name, partial(_ported, path, ranks)))
    return tuple(checks)


def _imports(path: Path, facts: Facts) -> list[Finding]:
    if why := script.unreadable(path):
        return [Finding(codes.SCRIPT, "error", path.name or str(path), why)]
    try:
        found = imports(path)
    except UserError as error:
        return [Finding(codes.SCRIPT, "error", path.name, str(error))]
    folder = path.resolve().parent
    return [
        Finding(codes.SCRIPT, "ok", path.name, str(path.resolve())),
        *script.check_imports(path, found, partial(script.is_here, folder=folder)),
    ]


def _script_mounted(path: Path, facts: Facts) -> list[Finding]:
    folder = path.resolve().parent
    if folder.is_relative_to(facts.here.resolve()):
        return []  # said already
    script_folder = space.Folder("the script's folder", folder)
    return space.check_mounted(facts.profile, [script_folder])


def _data(path: Path, args: tuple[str, ...], facts: Facts) -> list[Finding]:
    # Where it cannot be read, the check of its imports says why.
    if script.unreadable(path):
        return []
    try:
        downloads = read(path, args).downloads
    except UserError:
        return []
    fetched = record.of_script(facts.project, path, args)
    command = script.Command(path, args)
    return script.check_data(command, facts.profile, facts.internet(), fetched, downloads)


def _ported(path: Path, ranks: RankCheck, facts: Facts) -> list[Finding]:
    """Nothing is said of a script that trains nothing; the check of imports names its syntax."""
    if script.unreadable(path) or path.suffix != ".py":
        return []
    file = read_script(path)
    if not file.concerns_training or file.error is not None:
        return []
    return script.check_ported(path, ranks(path))


def _configuration(facts: Facts) -> list[Finding]:
    problem = facts.problem or facts.machine.answer().problem
    return machine.check_configuration(facts.config, problem)


def _project(facts: Facts) -> list[Finding]:
    account = facts.config.job.get("account")
    return space.check_project(facts.profile, facts.environment, account)


CHECKS: tuple[Check, ...] = (
    Check(codes.MACHINE, "machine", lambda facts: machine.check_machine(facts.machine.answer())),
    Check(codes.CONFIGURATION, "rankup.toml", _configuration),
    Check(
        codes.SLURM,
        "Slurm",
        lambda facts: queue.check_presence(facts.profile, facts.presence.answer()),
    ),
    Check(codes.PARTITION, "partitions", _partitions),
    Check(codes.ACCOUNT, "account", _account),
    Check(codes.INTERNET, "internet", _internet),
    Check(codes.NODE_NAMES, "node names", _names),
    Check(codes.PROJECT_FOLDERS, "folders", _project),
    Check(codes.SPACE, "space", _space),
    Check(codes.QUOTA, "quota", _quota),
    Check(codes.MOUNTED, "mounts", _mounted),
    Check(
        codes.CACHES,
        "caches",
        lambda facts: cache.check_caches(facts.profile, facts.caches(), Path.home()),
    ),
    Check(codes.PURGE, "scratch", _purge),
    Check(
        codes.SHARED_MEMORY,
        "shared memory",
        lambda _: space.check_shared_memory(space.shared_memory()),
    ),
    Check(codes.PYTHON, "Python", lambda facts: python.check_python(facts.python)),
    Check(codes.ENVIRONMENT, "environment", _environment),
    Check(
        codes.TORCH, "torch", lambda _: torch_checks.check_torch(builds.find(builds.this_path()))
    ),
    Check(codes.TORCH_DEVICE, "torch", _build),
    Check(codes.TORCH_TWICE, "requirements", _torch_files),
    Check(codes.NEEDS, "[fetch]", _needs),
)
