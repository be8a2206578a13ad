"""Facts that doctor reads of the project, the machine, Slurm and this Python; judged elsewhere."""

from __future__ import annotations

import getpass
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from ...base.errors import UserError
from ...site import caches as cache_places
from ...site import config as configuration
from ...site import profile as sites
from ...site.config import Config
from ...site.profile import Profile, first_folder, scratch_folder
from ...slurm.client import Client
from ...slurm.parse import Partition
from ..record import Unmet, unmet
from . import quota
from .deadline import Deadline, Readings, reading, start

# A controller that is silent must not keep the profile, and all that hangs on it, from being known.
_CONTROLLER_SHARE = 0.57  # of the time there is
_SETS = re.compile(r"^(__version__|cuda|hip|rocm)\b[^=\n]*=\s*['\"]([^'\"]+)", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    """The machine that this is taken for.

    Attributes:
        clue: what gave it away.
        login: it has the name of a login node.
        job: id of the Slurm job that this runs in, else empty.
        problem: why `[site]` of rankup.toml was not used, else empty.
    """

    profile: Profile
    clue: str
    hostname: str
    login: bool
    job: str
    problem: str = ""


@dataclass(frozen=True)
class Folder:
    """A folder that matters.

    Attributes:
        name: what a user calls it.
        made: it is made when needed; until then its nearest parent counts.
    """

    name: str
    path: Path
    made: bool = False


@dataclass(frozen=True)
class Space:
    """The room left on the file system of a folder; bytes and files.

    Attributes:
        names: of all folders that lie on it.
        free, files_free: for this user, without what is kept for root; quotas are not in it, but
            where the file system itself counts them in.
        files: 0 where it does not say.
        problem: why nothing can be said, else empty.
    """

    names: tuple[str, ...]
    path: Path
    total: int = 0
    free: int = 0
    files: int = 0
    files_free: int = 0
    read_only: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Python:
    """The Python that runs this.

    Attributes:
        prefix: the folder of its environment.
        venv: it is a virtual environment.
        active: `$VIRTUAL_ENV` or `$CONDA_PREFIX`, else None.
    """

    version: str
    executable: Path
    prefix: Path
    venv: bool
    active: Path | None


@dataclass(frozen=True)
class Torch:
    """A torch on Python's path.

    Attributes:
        folder: what holds it: a `site-packages`.
    """

    folder: Path
    version: str


class Facts(Readings):
    """Facts of this project on this machine; what takes time is read when it is first asked for.

    Args:
        deadline: a little ahead of that of the answers, so that one can still say what was late.
        script: a script to look at, with its arguments.
    """

    def __init__(
        self,
        deadline: Deadline,
        client: Client,
        script: Path | None = None,
        args: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.deadline = deadline
        self.client = client
        self.environment: Mapping[str, str] = client.environment or {}
        self.script = script or Path()
        self.args = args
        self.here = Path.cwd()
        self.home = Path.home()
        self.config, self.problem = configuration.for_views(self.here)
        self.project = self.config.project(self.here)
        self.python = this_python(self.environment)
        self.architecture = platform.machine()

    @property
    def profile(self) -> Profile:
        """The profile of this machine."""
        return self.machine.profile

    @property
    def account(self) -> tuple[str | None, str]:
        """The account of jobs and where it is set, as `rankup run` takes it."""
        if account := self.config.job.get("account"):
            return account, str(self.config.file)
        for name in ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"):
            if account := self.environment.get(name):
                return account, f"${name}"
        return None, ""

    @property
    def internet(self) -> bool | None:
        """True where compute nodes have any, in the partition that a job goes to; None: unknown."""
        shape = self.profile.shape(self._partition())
        return self.profile.internet if shape is None else shape.internet

    @property
    def caches(self) -> cache_places.Caches:
        """The folders of caches."""
        return cache_places.caches(self.config, self.profile, self.environment)

    @property
    def folders(self) -> list[Folder]:
        """The folders that matter, home first; one path may have several names."""
        account = self.config.job.get("account")
        found = [Folder("$HOME", self.home)]
        for name in ("project", "scratch", "data"):
            path = first_folder(getattr(self.profile, name), self.environment, account)
            if path is not None:
                found.append(Folder(name, path))
        # As `rankup run` chooses: what is set or there, else scratch, else ./runs.
        runs, scratch = self.config.runs, self.scratch
        if scratch is not None and not self.config.runs_set and not os.path.lexists(runs):
            runs = scratch
        found.append(Folder("runs", runs, made=True))
        found.append(Folder("caches", self.caches.own, made=True))
        found.append(Folder("this folder", self.here))
        return found

    @property
    def scratch(self) -> Path | None:
        """The scratch folder of the project."""
        return scratch_folder(self.profile, self.environment, self.config.job.get("account"))

    @reading
    def presence(self) -> Literal["answers", "silent", "absent"]:
        """Slurm is here and answers, or does not."""
        return self.client.presence()

    @reading
    def cluster(self) -> str | None:
        """The name of the cluster."""
        return self.client.cluster_name() if self.presence == "answers" else None

    @reading
    def partitions(self) -> dict[str, Partition]:
        """All partitions; none without a Slurm that answers."""
        return self.client.partitions() if self.presence == "answers" else {}

    @reading
    def accounts(self) -> frozenset[str] | None:
        """The user's accounts; None where that is not known."""
        return self.client.accounts(getpass.getuser()) if self.presence == "answers" else None

    @reading
    def machine(self) -> Machine:
        """The machine, without Slurm's word where Slurm is silent."""
        silent = []
        deadline = Deadline(_CONTROLLER_SHARE * self.deadline.left())

        def cluster_name() -> str | None:
            """None without a Slurm; empty where one is silent."""
            with suppress(UserError):
                presence = deadline.wait(Facts.presence.future(self), "silent")
                if presence == "absent":
                    return None
                if presence == "answers":
                    name = deadline.wait(Facts.cluster.future(self), None)
                    if name is not None:
                        return name
            silent.append(True)
            return ""

        found = find_machine(self.config, self.environment, os.uname().nodename, cluster_name)
        return replace(found, clue="Slurm is here, and does not say its name") if silent else found

    @reading
    def spaces(self) -> list[Space]:
        """The space on each folder; one that hangs does not hide the others."""
        asked = [(one, start(partial(measure, one))) for one in self.folders]
        late = "its file system did not answer in time"
        return [
            self.deadline.wait(future, Space((folder.name,), folder.path, problem=late))
            for folder, future in asked
        ]

    @reading
    def quotas(self) -> tuple[list[quota.Quota], list[str]]:
        """Quotas, and the commands that did not answer in time."""
        named = next((one.path.name for one in self.folders if one.name == "project"), None)
        project = self.config.job.get("account") or named
        paths = [one.path for one in self.folders]
        return quota.known(paths, project, self.environment, self.deadline)

    @reading
    def torches(self) -> list[Torch]:
        """The torches on Python's path; the first is imported."""
        return torches()

    @reading
    def unmet(self) -> list[Unmet] | None:
        """The things that rankup.toml lists and that are not there; None where it lists none."""
        return unmet(self.config) if self.config.fetch else None

    def _partition(self) -> str | None:
        """The partition that a job goes to, where rankup.toml or the profile names one."""
        return self.config.job.get("partition") or self.profile.partition


def this_python(environment: Mapping[str, str]) -> Python:
    """Return the Python that runs this."""
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    return Python(
        version=platform.python_version(),
        executable=Path(sys.executable),
        prefix=Path(sys.prefix),
        venv=sys.prefix != sys.base_prefix,
        active=Path(active) if active else None,
    )


def find_machine(
    config: Config,
    environment: Mapping[str, str],
    hostname: str,
    cluster_name: Callable[[], str | None],
) -> Machine:
    """Return the machine; a mistake in `[site]` is its `problem`, with the detected profile."""
    problem = ""
    try:
        profile, clue = sites.choose(config, environment, hostname, cluster_name=cluster_name)
    except UserError as error:
        problem = str(error)
        config = replace(config, site={})
        profile, clue = sites.choose(config, environment, hostname, cluster_name=cluster_name)
    job = environment.get("SLURM_JOB_ID", "")
    login = sites.on_login_node(environment, hostname)
    return Machine(profile, clue, hostname, login, job, problem)


def measure(folder: Folder) -> Space:
    """Return what the file system of a folder says of itself."""
    path = folder.path
    try:
        while folder.made and not path.exists() and path != path.parent:
            path = path.parent
        said = os.statvfs(path)
    except OSError as error:
        return Space((folder.name,), folder.path, problem=error.strerror or str(error))
    return Space(
        names=(folder.name,),
        path=path,
        total=said.f_blocks * said.f_frsize,
        free=said.f_bavail * said.f_frsize,
        files=said.f_files,
        files_free=said.f_favail,
        read_only=bool(said.f_flag & os.ST_RDONLY),
    )


def torches() -> list[Torch]:
    """Return the torches on Python's path, the one that is imported first, without importing it."""
    folders = [one.locate_file("") for one in metadata.distributions(name="torch")]
    found = [_torch(one) for one in dict.fromkeys(os.path.realpath(str(one)) for one in folders)]
    if not any(found):  # of a source tree only a finder knows where it lies
        with suppress(ImportError, ValueError):
            if (spec := util.find_spec("torch")) and spec.origin:
                found = [_torch(os.path.dirname(os.path.dirname(spec.origin)))]
    return [one for one in found if one is not None]


def _torch(folder: str) -> Torch | None:
    module = Path(folder, "torch")
    try:
        text = (module / "version.py").read_text(errors="replace")
        (module / "__init__.py").stat()  # a pip that was killed leaves half of it
    except OSError:
        return None
    said = dict(_SETS.findall(text))
    return Torch(Path(folder), said.get("__version__", ""))
