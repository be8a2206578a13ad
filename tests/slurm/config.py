"""The configuration of a private Slurm cluster, as text: three nodes on one host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPUS = 8
MEMORY_MB = 8000
GPUS = 2
# A requeued job waits as long as a credential lives, by default 120 s.
REQUEUE_WAIT = 5
# A job's number fixes a port of its first node, and all clusters have their nodes on one machine:
# each process that tests has numbers of its own, below the ports that `free_port` gives out.
_JOBS, _PROCESSES = 240, 40


@dataclass(frozen=True)
class Node:
    """A node of the cluster: its name, and the address and port its slurmd answers at."""

    name: str
    address: str
    port: int


def node_list(ports: Sequence[int]) -> tuple[Node, ...]:
    """n1, n2, … with a loopback address of their own each."""
    return tuple(
        Node(f"n{number}", f"127.0.0.{10 + number}", port)
        for number, port in enumerate(ports, start=1)
    )


def slurm_conf(
    folder: Path, host: str, port: int, nodes: Sequence[Node], options: Mapping[str, str]
) -> str:
    """The text of slurm.conf: no cgroups, no systemd, no accounting, root for everything.

    Args:
        folder: holds all files of the cluster.
        host: name of this machine, as `hostname` prints it.
        port: where slurmctld listens.
        options: settings that replace or extend those written here.
    """
    settings = {
        "ClusterName": "rankup",
        "FirstJobId": str(1 + _JOBS * (os.getpid() % _PROCESSES)),
        # With the address beside it the name need not resolve.
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/munge.socket,cred_expire={REQUEUE_WAIT}",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "SlurmdSpoolDir": f"{folder}/spool-%n",
        "SlurmdParameters": "config_overrides",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/jobcomp.txt",
        "MailProg": "/bin/true",
        "GresTypes": "gpu",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/builtin",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1",
        "ReturnToService": "2",
        # A dead node is noticed after some two of these and two of those.
        "SlurmdTimeout": "10",
        "MessageTimeout": "5",
        "KillWait": "5",
        "MinJobAge": "300",
        "JobRequeue": "1",
        **options,
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [
        f"NodeName={node.name} NodeHostname={host} NodeAddr={node.address} Port={node.port}"
        f" CPUs={CPUS} RealMemory={MEMORY_MB} Gres=gpu:{GPUS}"
        for node in nodes
    ]
    names = ",".join(node.name for node in nodes)
    lines += [
        f"PartitionName=booster Nodes={names} Default=YES MaxTime=2:00:00 OverSubscribe=EXCLUSIVE",
        f"PartitionName=devel Nodes={nodes[0].name} MaxNodes=1 MaxTime=0:30:00 OverSubscribe=NO",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(folder: Path, nodes: Sequence[Node]) -> str:
    """The text of gres.conf: every node has the same device files for GPUs."""
    names = ",".join(node.name for node in nodes)
    return f"NodeName={names} Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n"
