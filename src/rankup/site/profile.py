"""Facts of a machine, known before it is asked, `profiles/*.toml`, one file per site, and which
machine this is.

Everything here can be overridden in `rankup.toml`, table `[site]`, with the same keys.
docs/profiles.md says what each fact is used for and how to check it on the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..base.errors import UserError, nearest
from . import rules
from .rules import Each, setting, whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from .config import Config

Devices = Literal["cuda", "rocm", "cpu"]
Unit = Literal["core-h", "node-h", "GPU-h"]
_FOLDER = Path(__file__).with_name("profiles")
# JSC's machines write their name here.
SYSTEMNAME_FILE = Path("/etc/FZJ/systemname")


@dataclass(frozen=True)
class Partition:
    """The nodes of a partition and its limits; None where only Slurm knows.

    Attributes:
        gpus: per node.
        cores: per node, what `--cpus-per-task` gets with one task per node.
        memory_gb: per node.
        per_node_hour: units that one node costs per hour, where not what the site's billing says.
    """

    name: str
    max_minutes: int | None = setting(whole(1), None)
    gpus: int = setting(whole(0), 0)
    cores: int = setting(whole(1), 0)
    memory_gb: int | None = setting(whole(1), None)
    max_nodes: int | None = setting(whole(1), None)
    internet: bool | None = setting(rules.YES_OR_NO, None)
    per_node_hour: float | None = setting(rules.POSITIVE, None)


@dataclass(frozen=True)
class Billing:
    """The price of a job.

    Attributes:
        per_node_hour: units that one whole node costs per hour; None: by its GPUs or cores.
        per_gpu_hour: units per GPU and hour where the unit is GPU-h (LUMI: 0.5 per GCD).
    """

    unit: Unit = setting(rules.one_of("core-h", "node-h", "GPU-h"), "GPU-h")
    per_node_hour: float | None = setting(rules.POSITIVE, None)
    per_gpu_hour: float = setting(rules.POSITIVE, 1.0)


@dataclass(frozen=True)
class Detection:
    """The clues that give a site away.

    Attributes:
        systemname: values of `$SYSTEMNAME`, `/etc/FZJ/systemname` and `$LMOD_SYSTEM_NAME`.
        environment: values of variables of the site's own.
        clusters: Slurm's name of the cluster.
        hosts: regular expressions of node names, with or without their domain.
        login: those of login nodes; they do not give the site away, they may be common words.
    """

    systemname: tuple[str, ...] = setting(rules.TEXTS, ())
    environment: Mapping[str, tuple[str, ...]] = setting(Each(rules.VARIABLE, rules.TEXTS), dict)
    clusters: tuple[str, ...] = setting(rules.TEXTS, ())
    hosts: tuple[str, ...] = setting(rules.PATTERNS, ())
    login: tuple[str, ...] = setting(rules.PATTERNS, ())


@dataclass(frozen=True)
class Profile:
    """A site.

    Attributes:
        name: the stem of its file.
        host_suffix: with it a node's name is its InfiniBand name (jwb0001 -> jwb0001i).
        environment: exported in every job.
        list_gpus: a job has to name its GPUs in CUDA_VISIBLE_DEVICES before srun, which would
            else bind one to each task.
        srun: further words for srun.
        sbatch: further `#SBATCH` options.
        partition: the one taken when none is asked for; None: Slurm's default.
        qos: the same for `--qos`.
        node: what a node is like where no partition of `partitions` is meant.
        exclusive: a job is billed whole nodes; None: ask Slurm.
        mounts: path prefixes that compute nodes mount; empty: not known.
        not_mounted: path prefixes that they do not mount.
        project, scratch, data: templates of folders, the best first; see `first_folder`.
        purge_days: files in scratch are deleted when unused for so long.
        jutil: `jutil env activate -p PROJECT` sets the folders' variables.
        modules: what a user of the site's PyTorch loads.
        architecture: x86_64 or aarch64; empty where not known.
        internet: of compute nodes; a partition may say otherwise.
        monitoring: URL of the site's own job reports.
        unsure: keys, with dots, of facts that nobody has confirmed.
        values: the tables this was made from.
    """

    name: str
    values: Mapping[str, Any] = field(repr=False, compare=False)
    title: str = setting(rules.TEXT)
    host_suffix: str = setting(rules.TEXT_OR_NONE, "")
    environment: Mapping[str, str] = setting(Each(rules.VARIABLE, rules.TEXT_OR_NONE), dict)
    list_gpus: bool = setting(rules.YES_OR_NO, False)
    srun: tuple[str, ...] = setting(rules.OPTIONS, ())
    sbatch: tuple[str, ...] = setting(rules.OPTIONS, ())
    partition: str | None = setting(rules.TEXT_OR_NONE, None)
    qos: str | None = setting(rules.TEXT_OR_NONE, None)
    node: Partition | None = setting(rules.table(Partition), None)
    partitions: Mapping[str, Partition] = setting(Each(rules.WORD, rules.table(Partition)), dict)
    exclusive: bool | None = setting(rules.YES_OR_NO, None)
    account_required: bool = setting(rules.YES_OR_NO, False)
    mounts: tuple[str, ...] = setting(rules.FOLDERS, ())
    not_mounted: tuple[str, ...] = setting(rules.FOLDERS, ())
    project: tuple[str, ...] = setting(rules.TEXTS, ())
    scratch: tuple[str, ...] = setting(rules.TEXTS, ())
    data: tuple[str, ...] = setting(rules.TEXTS, ())
    purge_days: int | None = setting(whole(1), None)
    jutil: bool = setting(rules.YES_OR_NO, False)
    modules: tuple[str, ...] = setting(rules.TEXTS, ())
    architecture: str = setting(rules.TEXT_OR_NONE, "")
    internet: bool | None = setting(rules.YES_OR_NO, None)
    billing: Billing = setting(rules.table(Billing), Billing())
    monitoring: str | None = setting(rules.TEXT_OR_NONE, None)
    devices: Devices = setting(rules.one_of("cuda", "rocm", "cpu"), "cuda")
    detect: Detection = setting(rules.table(Detection), Detection())
    unsure: frozenset[str] = setting(rules.TEXTS, frozenset())

    def shape(self, partition: str | None) -> Partition | None:
        """The nodes that a job in `partition` gets; None: only Slurm knows."""
        name = partition if partition is not None else self.partition
        if name is None or not self.partitions:
            return self.node
        return self.partitions.get(name)

    def node_hour(self, nodes: Partition) -> float:
        """Units of `billing.unit` that one whole node costs per hour."""
        for said in (nodes.per_node_hour, self.billing.per_node_hour):
            if said is not None:
                return said
        if self.billing.unit == "node-h":
            return 1.0
        if self.billing.unit == "core-h":
            return float(nodes.cores)
        return nodes.gpus * self.billing.per_gpu_hour


TABLE = rules.table(Profile)


def names() -> list[str]:
    """The profiles there are, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UserError: there is none; the nearest is named.
    """
    if name not in names():
        raise UserError(f"no profile {name!r}; {nearest(name, names())}")
    path = _FOLDER / f"{name}.toml"
    return parse(tomllib.loads(path.read_text(encoding="utf-8")), name, str(path))


def override(profile: Profile, values: Mapping[str, Any], where: str = "[site]") -> Profile:
    """The profile with the tables of `values` laid over its own, key by key.

    A list replaces the list below it, and what `mounts` says here goes from `not_mounted` of the
    profile, and the other way round; an empty string takes a variable, the partition, the qos
    or the URL away. What is said here is no longer unsure.

    Raises:
        UserError: as `parse`; keys are named as they stand in `rankup.toml`, below `site`.
    """
    rules.check(values, TABLE, where, "site")
    merged = rules.merge(profile.values, values)
    for key, other in (("mounts", "not_mounted"), ("not_mounted", "mounts")):
        if key in values and other not in values:  # what is said here wins over its contrary
            here = {Path(one) for one in values[key]}
            merged[other] = [one for one in merged.get(other, ()) if Path(one) not in here]
    if "unsure" not in values:
        said = {key for key, value in rules.dotted(values) if not isinstance(value, Mapping)}
        merged["unsure"] = [key for key in merged.get("unsure", ()) if key not in said]
    return parse(merged, profile.name, where, "site")


def parse(values: Mapping[str, Any], name: str, where: str, key: str = "") -> Profile:
    """A profile from the tables of its file, which `where` names in messages.

    Raises:
        UserError: file and key, what was found, what was expected; or no title; or a partition
            whose GPUs or cores are said nowhere.
    """
    rules.check(values, TABLE, where, key)
    prefix = f"{key}." if key else ""
    if "title" not in values:
        raise UserError(f"{where}: {prefix}title is missing")
    usual = {"internet": values.get("internet"), **values.get("node", {})}

    def nodes(word: str, said: Mapping[str, Any], place: str) -> Partition:
        if lacking := next((one for one in ("gpus", "cores") if one not in said), None):
            raise UserError(
                f"{where}: {prefix}{place}.{lacking} is missing; say how many a node has, here or "
                "in [node]"
            )
        return rules.make(Partition, said, name=word)

    return rules.make(
        Profile,
        values,
        name=name,
        values=values,
        environment={k: v for k, v in values.get("environment", {}).items() if v},
        # An empty word takes away what a profile says.
        partition=values.get("partition") or None,
        qos=values.get("qos") or None,
        monitoring=values.get("monitoring") or None,
        node=nodes("", usual, "node") if values.get("node") else None,
        partitions={
            word: nodes(word, {**usual, **said}, f"partitions.{word}")
            for word, said in values.get("partitions", {}).items()
        },
        billing=rules.make(Billing, values.get("billing", {})),
        detect=rules.make(Detection, values.get("detect", {})),
        unsure=frozenset(values.get("unsure", ())),
    )


def first_folder(
    templates: tuple[str, ...], environment: Mapping[str, str], project: str | None
) -> Path | None:
    """The first of a profile's templates that can be filled in.

    In a template `$NAME` is a variable and `{project}` the project, also within a variable's name
    (`$SCRATCH_{project}`); what is not set, or is no absolute path then, passes to the next.
    """
    known = project if project and re.fullmatch(r"\w[\w.-]*", project) else None
    for template in templates:
        if "{project}" in template and known is None:
            continue
        # Split first: a project is text, never part of the syntax.
        parts = re.split(r"\$((?:\w|\{project\})+)", template)
        filled = [part.replace("{project}", known or "") for part in parts]
        filled[1::2] = [environment.get(name, "") for name in filled[1::2]]
        path = "".join(filled)
        if all(filled[1::2]) and path.startswith("/"):
            return Path(path)
    return None


def scratch_folder(
    profile: Profile, environment: Mapping[str, str], project: str | None = None
) -> Path | None:
    """The scratch folder of a project, or of the user; None where none is set."""
    return first_folder(profile.scratch, environment, project)


def seen_by_nodes(profile: Profile, path: Path) -> bool | None:
    """Return True if compute nodes see `path`, by its links and behind them; None: not known."""
    judged = {_mounted(profile, one) for one in (os.path.abspath(path), os.path.realpath(path))}
    return False if False in judged else (None if None in judged else True)


def _mounted(profile: Profile, path: str) -> bool | None:
    def longest(prefixes: tuple[str, ...]) -> int:
        return max((len(one) for one in prefixes if Path(path).is_relative_to(one)), default=0)

    yes, no = longest(profile.mounts), longest(profile.not_mounted)
    if yes or no:
        return yes > no
    # A list that nobody has confirmed to be complete says nothing of what it lacks.
    return None if not profile.mounts or "mounts" in profile.unsure else False


def detect(
    environment: Mapping[str, str],
    hostname: str,
    systemname_file: Path = SYSTEMNAME_FILE,
    cluster_name: Callable[[], str | None] | None = None,
) -> tuple[Profile, str]:
    """The profile of this machine, and the clue that gave it away (`$SYSTEMNAME=jurecadc`).

    Clues in order: `$SYSTEMNAME`, the file, variables of the site, Slurm's and Lmod's variables,
    the host name if it fits exactly one site, `cluster_name()` (slow: it asks the controller; None
    where no Slurm answers). Without a match `generic` where there is Slurm, else `local`.
    """
    sites = [load(name) for name in names()]
    for clue, fits in _quick_clues(sites, environment, hostname, systemname_file):
        found = [site for site in sites if fits(site)]
        # Two sites with nodes called nid001234: the name alone says nothing.
        if len(found) == 1:
            return found[0], clue
    cluster = cluster_name() if cluster_name else None
    for site in sites:
        if cluster and cluster in site.detect.clusters:
            return site, f"Slurm's ClusterName={cluster}"
    if cluster is not None:
        return load("generic"), f"Slurm is here (ClusterName={cluster or 'not set'})"
    for variable in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID"):
        if environment.get(variable):
            clue = f"Slurm is here (${variable}={environment[variable]})"
            return load("generic"), clue
    return load("local"), "no known site and no Slurm"


def choose(
    config: Config,
    environment: Mapping[str, str] = os.environ,
    hostname: str = "",
    systemname_file: Path = SYSTEMNAME_FILE,
    cluster_name: Callable[[], str | None] | None = None,
) -> tuple[Profile, str]:
    """The profile that `rankup.toml` names, else the detected one; with its `[site]` laid over it.

    Raises:
        UserError: what the file says does not fit the profile.
    """
    if config.profile is not None:
        found, clue = load(config.profile), f"{config.file}: profile"
    else:
        hostname = hostname or os.uname().nodename
        found, clue = detect(environment, hostname, systemname_file, cluster_name)
    if config.site:
        found = override(found, config.site, str(config.file or "[site]"))
    return found, clue


def on_login_node(
    environment: Mapping[str, str] | None = None,
    hostname: str = "",
    systemname_file: Path = SYSTEMNAME_FILE,
) -> bool:
    """True on a login node of a known site and outside any job: where there is a network.

    It goes by its name; GPUs are no sign: the login nodes of JURECA-DC and JUPITER have some.

    Args:
        environment: by default that of this process.
        hostname: by default that of this node.
        systemname_file: where a site's machines keep their name.
    """
    environment = os.environ if environment is None else environment
    hostname = hostname or os.uname().nodename
    if environment.get("SLURM_JOB_ID"):
        return False

    def slurm() -> str | None:
        return "" if shutil.which("sbatch", path=environment.get("PATH", "")) else None

    found, _ = detect(environment, hostname, systemname_file, slurm)
    return _named(found.detect.login, hostname)


def _quick_clues(
    sites: list[Profile], environment: Mapping[str, str], hostname: str, systemname_file: Path
) -> Iterator[tuple[str, Callable[[Profile], bool]]]:
    def variable(name: str) -> str:
        return environment.get(name, "").strip()

    def system(word: str) -> Callable[[Profile], bool]:
        return lambda site: word.lower() in site.detect.systemname

    def cluster(word: str) -> Callable[[Profile], bool]:
        return lambda site: word.lower() in site.detect.clusters

    def own(name: str) -> Callable[[Profile], bool]:
        return lambda site: variable(name) in site.detect.environment.get(name, ())

    yield f"$SYSTEMNAME={variable('SYSTEMNAME')}", system(variable("SYSTEMNAME"))
    written = _first_line(systemname_file)
    yield f"{systemname_file}: {written}", system(written)
    for name in sorted({name for site in sites for name in site.detect.environment}):
        yield f"${name}={variable(name)}", own(name)
    for name in ("CLUSTER", "SLURM_CLUSTER_NAME"):
        yield f"${name}={variable(name)}", cluster(variable(name))
    yield f"$LMOD_SYSTEM_NAME={variable('LMOD_SYSTEM_NAME')}", system(variable("LMOD_SYSTEM_NAME"))
    yield f"host name {hostname}", lambda site: _named(site.detect.hosts, hostname)


def _named(patterns: tuple[str, ...], hostname: str) -> bool:
    both = (hostname, hostname.partition(".")[0])
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in both)


def _first_line(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.strip().partition("\n")[0].strip()
