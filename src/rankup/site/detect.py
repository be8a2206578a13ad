"""Which machine this is, and whether this is one of its login nodes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from . import profile as profiles
from .config import Config
from .profile import Profile

# JSC's machines write their name here.
SYSTEMNAME_FILE = Path("/etc/FZJ/systemname")


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
    sites = [profiles.load(name) for name in profiles.names()]
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
        return profiles.load("generic"), f"Slurm is here (ClusterName={cluster or 'not set'})"
    for variable in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID"):
        if environment.get(variable):
            clue = f"Slurm is here (${variable}={environment[variable]})"
            return profiles.load("generic"), clue
    return profiles.load("local"), "no known site and no Slurm"


def choose(
    config: Config,
    environment: Mapping[str, str],
    hostname: str,
    systemname_file: Path = SYSTEMNAME_FILE,
    cluster_name: Callable[[], str | None] | None = None,
) -> tuple[Profile, str]:
    """The profile that `rankup.toml` names, else the detected one; with its `[site]` laid over it.

    Raises:
        UserError: what the file says does not fit the profile.
    """
    if config.profile is not None:
        found, clue = profiles.load(config.profile), f"{config.file}: profile"
    else:
        found, clue = detect(environment, hostname, systemname_file, cluster_name)
    if config.site:
        found = profiles.override(found, config.site, str(config.file or "[site]"))
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
