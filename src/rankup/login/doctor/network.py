"""Networks: what compute nodes reach outside, and whether their names lead to them."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...base.findings import Finding
from ...site.profile import Profile
from ...slurm.client import Client
from ...slurm.hostlist import expand
from . import codes
from .asking import Clock, Late, Question

_SAMPLE = 2
_SECONDS = 0.6


@dataclass(frozen=True)
class Resolved:
    """What became of a node's name. Addresses are IPv4; empty: none, None: no answer in time.

    Attributes:
        suffixed: of the name with the profile's `host_suffix`; empty where that is empty.
        plain: of the name itself.
        slurm: `NodeAddr`, as Slurm has it.
    """

    node: str
    suffixed: str | None
    plain: str | None
    slurm: str


def check_internet(profile: Profile, internet: bool | None) -> list[Finding]:
    """Whether compute nodes reach the outside, where jobs go by default and elsewhere."""
    others = sorted(
        name for name, one in profile.partitions.items() if one.internet and not internet
    )
    besides = f"; {', '.join(others)} have some" if others else ""
    if internet is None:
        return [
            Finding(
                codes.INTERNET,
                "warning",
                "internet",
                f"whether compute nodes have any is not known{besides}",
                "`srun -N1 -n1 curl -sI -m 5 https://example.org`: an answer is a yes; say it in "
                "rankup.toml: [site] internet = true or false",
            )
        ]
    if internet:
        return [Finding(codes.INTERNET, "ok", "internet", "compute nodes have some")]
    return [
        Finding(
            codes.INTERNET,
            "ok",
            "internet",
            f"compute nodes have none{besides}: `rankup fetch SCRIPT` brings here what is needed",
        )
    ]


def sample(client: Client, partition: str | None) -> list[str]:
    """The first and the last node of a partition, else of the first that Slurm lists.

    Raises:
        SlurmError: Slurm does not say.
    """
    text = client.run("sinfo", "-a", "-h", "-o", "%R|%N")
    rows = [line.strip().split("|", 1) for line in text.splitlines() if "|" in line]
    lists = [nodes for name, nodes in rows if name == partition] or [row[1] for row in rows]
    for nodes in lists:
        try:
            names = expand(nodes)
        except ValueError:
            continue
        if names:
            return list(dict.fromkeys((names[0], names[-1])))[:_SAMPLE]
    return []


def addresses_in_slurm(client: Client, nodes: Sequence[str]) -> Mapping[str, str]:
    """`NodeAddr` of nodes.

    Raises:
        SlurmError: Slurm does not say.
    """
    text = client.run("scontrol", "show", "node", "-o", ",".join(nodes)) if nodes else ""
    rows = re.findall(r"NodeName=(\S+).*? NodeAddr=(\S+)", text)
    return dict(rows)


def resolve(nodes: Sequence[str], suffix: str, slurm: Mapping[str, str]) -> list[Resolved]:
    """Resolve each name with and without the suffix, all at once; bounded in time."""
    clock = Clock(_SECONDS)

    def ask(name: str) -> Question[str]:
        return Question(name, clock, lambda: _ipv4(name))

    asked = [(node, ask(node + suffix) if suffix else None, ask(node)) for node in nodes]
    return [
        Resolved(node, "" if long is None else _answer(long), _answer(short), slurm.get(node, ""))
        for node, long, short in asked
    ]


def check_names(profile: Profile, resolved: Sequence[Resolved]) -> list[Finding]:
    """Whether the job script finds an address of its first node that other nodes can reach."""
    return [_name(profile.host_suffix, one) for one in resolved]


def _name(suffix: str, one: Resolved) -> Finding:
    place = f"node {one.node}"
    if one.suffixed:
        message = f"{one.node}{suffix} is {one.suffixed}"
        return Finding(codes.NODE_NAMES, "ok", place, message)
    if None in (one.suffixed, one.plain):
        return Finding(
            codes.NODE_NAMES,
            "warning",
            place,
            f"the resolver did not answer within {_SECONDS:g} s",
            f"`getent ahostsv4 {one.node}`: where it hangs, jobs on several nodes start slowly",
        )
    if one.plain and suffix:
        return Finding(
            codes.NODE_NAMES,
            "warning",
            place,
            f"{one.node}{suffix} does not resolve here; {one.node} is {one.plain}",
            f"`getent ahostsv4 {one.node}{suffix}` in a job; where that finds nothing either: "
            '[site] host_suffix = "" in rankup.toml',
        )
    if one.plain:
        return Finding(codes.NODE_NAMES, "ok", place, f"{one.node} is {one.plain}")
    if re.fullmatch(r"[0-9.]+", one.slurm):
        message = f"the name does not resolve; Slurm's NodeAddr is {one.slurm}, which jobs take"
        return Finding(codes.NODE_NAMES, "ok", place, message)
    return Finding(
        codes.NODE_NAMES,
        "warning",
        place,
        "the name resolves to no IPv4 address that other nodes could reach",
        f"`getent ahostsv4 {one.node}` in a job: where it finds nothing, a job on several nodes "
        "cannot start; ask the site's support",
    )


def _ipv4(name: str) -> str:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    addresses = [str(entry[4][0]) for entry in found]
    # As in the job script: a node's own name often leads to loopback, where nobody else is.
    return next((one for one in addresses if not one.startswith("127.")), "")


def _answer(question: Question[str]) -> str | None:
    try:
        return question.answer()
    except Late:
        return None
