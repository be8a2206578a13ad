"""Questions about the machine, its Slurm and its network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...base.amounts import some
from ...base.errors import nearest
from ...base.findings import Finding
from ...slurm.limits import clock, differences
from ...slurm.parse import Partition
from ..question import error, ok, question, warning
from .facts import Facts

# A wrong one of these makes a job fail or wait; the others cost a word in a message, or Slurm
# knows better.
_MATTER = ("devices", "mounts", "internet", "environment", "host_suffix", "exclusive")
_MATTER_OF_NODES = ("gpus", "cores", "internet")
_MOST_PARTITIONS = 6


@question("RK501", "machine and profile", "machine")
def machine(facts: Facts) -> Iterator[Finding]:
    """The machine that this is taken for, and the clue that gave it away: a variable of the site,
    a file, the host name, or Slurm's name of the cluster. Everything else follows from the
    profile: the default partition, what is mounted, how a job is billed. Also the facts of the
    profile that nobody has confirmed on the machine, as far as a wrong one keeps a job from
    running, and whether this node has the name of a login node.

    ```text
    ok    machine    JURECA-DC: profile jureca-dc ($SYSTEMNAME=jurecadc)
    ok    profile    nobody has confirmed: mounts
          -> docs/profiles.md says how to check a fact, and how to say it in rankup.toml
    ok    this node  jrlogin05.jureca is a login node: shared, so nothing is trained here
    ```

    Where it is wrong, name the profile in `rankup.toml`: `profile = "jusuf"`.
    [profiles.md](../profiles.md) says which clue counts before which, and has a command for each
    [fact](../profiles.md#check-a-fact-on-the-machine); what you say in `[site]` counts as sure.
    Fetch data and make environments on a login node; start training with `rankup run`.
    """
    found, profile = facts.machine, facts.machine.profile
    yield ok(f"{profile.title}: profile {profile.name} ({found.clue})")
    if keys := sorted(key for key in profile.unsure if _matters(key, profile.partition)):
        todo = "docs/profiles.md says how to check a fact, and how to say it in rankup.toml"
        yield ok(f"nobody has confirmed: {', '.join(keys)}", todo, "profile")
    if found.job:
        yield ok(f"{found.hostname} is a node of job {found.job}", place="this node")
    elif found.login:
        message = f"{found.hostname} is a login node: shared, so nothing is trained here"
        yield ok(message, place="this node")


@question("RK504", "rankup.toml", "rankup.toml")
def configuration(facts: Facts) -> Iterator[Finding]:
    """The nearest `rankup.toml`: it can be read, has known keys only, and fits the profile.
    `rankup run` does not start with a file that it does not understand.

    ```text
    ERROR rankup.toml  /p/project1/x/rankup.toml: unknown key 'job.acount'; did you mean account? [RK504]
          -> correct the file: `rankup run` does not start with it
    ```

    The message names the file, the key, what was found and what was expected.
    [profiles.md](../profiles.md#say-it-differently) lists the keys.
    """  # noqa: E501
    if problem := facts.problem or facts.machine.problem:
        yield error(problem, "correct the file: `rankup run` does not start with it")
    elif facts.config.file is not None:
        yield ok(str(facts.config.file))


@question("RK505", "Slurm answers", "Slurm")
def slurm(facts: Facts) -> Iterator[Finding]:
    """A Slurm with a configuration, and its controller's answer to `scontrol ping`. Without one
    nothing can be submitted, and nothing is known of partitions and free nodes.

    ```text
    ERROR Slurm  its controller does not answer (`scontrol ping`) [RK505]
          -> try again in some minutes; until then nothing can be submitted
    ```

    Wait, and look at the site's status page. Where there is no `sbatch` at all on a known site, you
    are not on a login node, or Slurm's commands are not on `PATH`.
    """
    if facts.presence == "answers":
        yield ok("its controller answers")
    elif facts.presence == "silent":
        todo = "try again in some minutes; until then nothing can be submitted"
        yield error("its controller does not answer (`scontrol ping`)", todo)
    elif facts.profile.name == "local":
        yield ok("none here: `rankup run` starts on this machine")
    else:
        yield warning(
            f"this is taken for {facts.profile.title}, and there is no `sbatch` with a "
            "configuration",
            "log in to a login node, or see that Slurm's commands are on PATH",
        )


@question("RK506", "partitions: limits, and what is free", "partitions")
def partitions(facts: Facts) -> Iterator[Finding]:
    """The partitions, as Slurm describes them now: free nodes, GPUs, CPUs (hardware threads count)
    and memory of a node, the time limit, and how many nodes a job may have. The partition that jobs
    go to by default comes first. Where the profile says something else, Slurm's word is taken: your
    jobs are right, and the profile is out of date.

    `sbatch` takes jobs that never start, and a job waits for nodes that are not free.

    ```text
    ok    booster (default)  3 of 3 nodes free now, 2 GPUs, 8 CPUs and 7 GB a node; 2:00 h at most, 3 nodes a job; whole nodes
    ERROR rankup.toml        [job] partition boster: this cluster has none of that name [RK506]
          -> did you mean booster?
    WARN  profile            partition booster: gpus is 4 in the profile, 2 says Slurm [RK506]
          -> Slurm's word is taken; say it in rankup.toml, [site], and please report it
    ```

    Choose with `--partition`, or `[job] partition` in `rankup.toml`. `sinfo -s` shows all
    partitions in short.
    """  # noqa: E501
    known = facts.partitions
    if facts.presence != "answers":
        return
    if not known:
        todo = "ask the site's support whether your account may use this machine"
        yield error("Slurm shows you none", todo)
        return
    asked = facts.config.job.get("partition")
    first = asked.split(",")[0] if asked else None
    if first is not None and first not in known:
        message = f"[job] partition {asked}: this cluster has none of that name"
        yield error(message, nearest(asked or "", known), "rankup.toml")
    usual = next((one.name for one in known.values() if one.default), "")
    # The partition that a job goes to that names none.
    taken = next((one for one in (first, facts.profile.partition) if one in known), None) or usual
    order = sorted(known.values(), key=lambda one: (one.name != taken, -one.total_nodes))
    for one in order[:_MOST_PARTITIONS]:
        yield _partition(one, one.name == taken)
    if rest := [one.name for one in order[_MOST_PARTITIONS:]]:
        yield ok(f"also: {some(rest, 12)}", "`sinfo -s` shows all")
    said = facts.profile.partitions
    there = replace(facts.profile, partitions={name: said[name] for name in said if name in known})
    wrong = differences(there, known)
    if gone := [name for name in said if name not in known]:
        wrong.append(f"not on this machine, and in the profile: {some(gone, 12)}")
    for text in wrong:
        todo = "Slurm's word is taken; say it in rankup.toml, [site], and please report it"
        yield warning(text, todo, "profile")


@question("RK508", "account", "account")
def account(facts: Facts) -> Iterator[Finding]:
    """The account that jobs are charged to: `[job] account` in `rankup.toml`, `$SBATCH_ACCOUNT`,
    `$SLURM_ACCOUNT`; and whether Slurm's accounting lists it as yours. On many sites a job without
    an account is refused, and one with an account that is not yours, too.

    ```text
    WARN  account  JURECA-DC bills an account, and none is set (not known to Slurm; `jutil user projects` lists yours) [RK508]
          -> in rankup.toml: [job] account = "ACCOUNT"; or --account with every run
    ```

    Set it in `rankup.toml`. `sacctmgr -nP show assoc user=$USER format=account` lists yours, at JSC
    `jutil user projects`.
    """  # noqa: E501
    profile, (name, set_in) = facts.profile, facts.account
    if profile.name == "local":
        return
    accounts = facts.accounts
    yours = some(sorted(accounts), 8) if accounts else ""
    if name is None and not profile.account_required:
        if yours:
            yield ok(f"yours: {yours}")
    elif name is None:
        known = f"one of: {yours}" if yours else "not known to Slurm"
        if profile.jutil:
            known += "; `jutil user projects` lists yours"
        todo = 'in rankup.toml: [job] account = "ACCOUNT"; or --account with every run'
        yield warning(f"{profile.title} bills an account, and none is set ({known})", todo)
    elif accounts is None:
        yield ok(f"{name} ({set_in}); whether it is yours Slurm does not say here")
    elif name.lower() in {one.lower() for one in accounts}:
        yield ok(f"{name} ({set_in})")
    else:
        yield error(f"{name} ({set_in}) is not one of yours", nearest(name, accounts))


@question("RK509", "internet of compute nodes", "internet")
def internet(facts: Facts) -> Iterator[Finding]:
    """The internet of compute nodes: what the profile says of the partition that jobs go to, and
    which other partitions have a network. A script that downloads its data or model in the job
    hangs or fails where there is none.

    ```text
    ok    internet  compute nodes have none; dc-gpu-devel have some: `rankup fetch SCRIPT` brings here what is needed
    WARN  internet  whether compute nodes have any is not known [RK509]
    ```

    Run `rankup fetch SCRIPT` on the login node. Where it is not known, ask a node:
    `srun -N1 -n1 curl -sI -m 5 https://example.org`, and write `[site] internet = true` or `false`
    into `rankup.toml`.
    """  # noqa: E501
    if facts.profile.name == "local":
        return
    if facts.internet:
        yield ok("compute nodes have some")
        return
    others = sorted(name for name, one in facts.profile.partitions.items() if one.internet)
    besides = f"; {', '.join(others)} have some" if others else ""
    if facts.internet is None:
        yield warning(
            f"whether compute nodes have any is not known{besides}",
            "`srun -N1 -n1 curl -sI -m 5 https://example.org`: an answer is a yes; say it in "
            "rankup.toml: [site] internet = true or false",
        )
    else:
        brings = "`rankup fetch SCRIPT` brings here what is needed"
        yield ok(f"compute nodes have none{besides}: {brings}")


def _matters(key: str, partition: str | None) -> bool:
    """True for a fact whose being wrong makes a job fail or wait; of partitions, jobs' own."""
    first, *rest = key.split(".")
    if first == "node" or (first == "partitions" and rest[:1] == [partition]):
        return rest in ([], [partition]) or rest[-1] in _MATTER_OF_NODES
    return first in _MATTER


def _partition(one: Partition, taken: bool) -> Finding:
    place = f"{one.name} (default)" if taken else one.name
    limit = "no time limit" if one.max_minutes is None else f"{clock(one.max_minutes)} h at most"
    nodes = min(filter(None, (one.max_nodes, one.total_nodes)), default=one.total_nodes)
    gpus = f"{one.gpus} GPUs, " if one.gpus else ""
    facts = (
        f"{one.idle_nodes} of {one.total_nodes} nodes free now, {gpus}{one.cores} CPUs and "
        f"{one.memory_mb // 1024} GB a node; {limit}, {nodes} nodes a job"
    )
    if one.exclusive:
        facts += "; whole nodes"
    if one.takes_jobs and one.up:
        return ok(facts, place=place)
    facts = f"{'starts no jobs now' if one.takes_jobs else 'takes no jobs now'}; {facts}"
    if not taken:
        return ok(facts, place=place)
    return warning(facts, "`sinfo -s` shows which partitions are up; --partition NAME", place)
