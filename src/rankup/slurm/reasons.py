"""Slurm's reasons, ends of jobs and refusals in plain words.

Unknown reasons stay as Slurm gives them.
"""

from __future__ import annotations

import re
import signal

# ExitCode 0:53 of a batch job: slurmstepd could not begin it. No signal of that number was sent.
NEVER_BEGAN = 53

_WAIT = "Nothing to do but wait; fewer nodes or a shorter --time may start sooner."
_ANOTHER = "Submit it again with another --account, --qos or --partition."
# Reasons, and what they mean; one that is not here stays as Slurm gives it.
_PENDING: dict[str, str] = {
    reason: words
    for reasons, words in (
        (("none",), "The scheduler has not looked at it yet. Nothing to do."),
        (("priority",), f"Other jobs come first. {_WAIT}"),
        (("resources",), f"It is next in line and waits until enough nodes are free. {_WAIT}"),
        (("dependency",), "It waits for another job to end, as --dependency asks."),
        (
            ("dependencyneversatisfied",),
            "The job that it depends on ended in another way than --dependency asks, so this one "
            "never starts. Cancel it and submit it without the dependency.",
        ),
        (
            ("begintime",),
            "Its start time has not come: that of --begin, or the pause of some two minutes after "
            "a requeue. Nothing to do.",
        ),
        (
            ("partitiontimelimit", "partitionnodelimit", "partitionconfig"),
            "Its time or number of nodes is outside the partition's limits, so it never starts. "
            "`scontrol show partition` shows them. Cancel it and submit it again within them.",
        ),
        (
            ("partitiondown", "partitioninactive"),
            "The partition is down: it starts no jobs. Wait, or choose another --partition.",
        ),
        (
            ("reservation", "reservationdeleted"),
            "Its reservation has not begun, or is gone. `scontrol show reservation` shows it.",
        ),
        (
            ("jobhelduser", "job requeued in held state"),
            "It is held. `scontrol release JOBID` lets it go.",
        ),
        (("jobheldadmin",), "An administrator holds it. Ask the site's support why."),
        (
            ("jobholdmaxrequeue",),
            "It was put back into the queue as often as the site allows, and is held. Read its log "
            "(`rankup logs JOBID`), and ask the site's support.",
        ),
        (
            ("launch failed requeued held",),
            "It could not be started on its nodes and is held. Most often a node is broken; "
            "`scontrol release JOBID` lets it go.",
        ),
        (
            ("invalidaccount", "accountnotallowed"),
            f"Its account is not valid here, or may not use this partition. {_ANOTHER}",
        ),
        (
            ("invalidqos", "qosnotallowed"),
            f"Its quality of service (QOS) is not open to the account or partition. {_ANOTHER}",
        ),
        (
            ("associationtimelimit",),
            "The account's compute time is used up, or --time is over what it may ask for. Ask "
            "for less, or the site for more.",
        ),
        (
            ("licenses",),
            "It waits for a licence (on some sites: a file system) that is used up or switched "
            "off at present.",
        ),
        (
            ("badconstraints",),
            "No node has all that it asks for together, so it never starts. Change --constraint, "
            "GPUs, cores or memory.",
        ),
        (
            (
                "reqnodenotavail",
                "nodedown",
                "nodes required for job are down, drained or reserved for jobs in higher priority "
                "partitions",
            ),
            "Nodes that it needs are down, being repaired or reserved. Wait, or leave out "
            "--nodelist.",
        ),
    )
    for reason in reasons
}

_RESOURCES = (
    (r"submitjobs", "jobs in the queue"),
    (r"jobs", "running jobs"),
    (r"nodes?", "nodes"),
    (r"cpus?", "cores"),
    (r"gres", "GPUs"),
    (r"mem(ory)?", "memory"),
    (r"billing", "billing units"),
    (r"wall", "wall time"),
)


def pending(reason: str) -> str:
    """Return the meaning of Slurm's reason for a pending job, and what its owner can do."""
    text = _spaced(reason)
    key = text.lower()
    if key in _PENDING:
        return _PENDING[key]
    if "reserved for maintenance" in key or key.startswith("reqnodenotavail, may be reserved"):
        return (
            "Its nodes are reserved, as a rule for maintenance, before it could end. It starts "
            "afterwards; a shorter --time may fit in before."
        )
    if match := re.fullmatch(r"reqnodenotavail, *unavailablenodes:(.*)", text, re.IGNORECASE):
        nodes = f": {match[1]}" if match[1] else ""
        return f"Nodes that it needs are down or being repaired{nodes}. Wait, or leave them out."
    if key.startswith("reqnodenotavail"):
        return _PENDING["reqnodenotavail"]
    if "account" in key and "use this partition" in key:
        return f"Its account may not use this partition ({text}). Submit it again with another one."
    return _limit(text) or f"Slurm's reason: {text or 'none given'}."


def _limit(reason: str) -> str | None:
    """The families AssocGrp…, AssocMax…, QOSGrp…, QOSMax…, Max…PerAccount, QOSMin…."""
    match = re.match(r"(Assoc|QOS|Max)(Grp|Max|Min|Usage)?(\w*)", reason)
    if match is None or (match[1] == "Max" and "PerAccount" not in reason):
        return None
    rest = match[3].lower()
    whose = "the account" if match[1] == "Assoc" else "its quality of service (QOS)"
    what = next((words for name, words in _RESOURCES if re.match(name, rest)), "")
    if match[2] == "Usage" or (match[2] == "Grp" and "min" in rest and "run" not in rest):
        return (
            f"The compute time of {whose} is used up ({reason}). It starts when new budget comes; "
            "ask the site, or submit it with another --account."
        )
    if match[2] == "Min":
        return f"It asks for less than {whose} requires ({reason}). Ask for more, or change --qos."
    thing = what or "resources"
    if match[2] == "Grp":
        return (
            f"All jobs of {whose} together have reached its limit on {thing} ({reason}). "
            "It starts when some of them end."
        )
    if rest.endswith(("peruser", "peraccount", "limit")) and "perjob" not in rest:
        return (
            f"It would bring you or your account over the limit of {whose} on {thing} ({reason}). "
            "It starts when other jobs end; if it alone is over the limit, ask for less."
        )
    return f"It asks for more {thing} than {whose} allows a job ({reason}). Ask for less."


def ended(state: str, code: int, number: int, reason: str, nodes: str = "") -> str:
    """Return a job's end in words. `code` and `number` are the halves of Slurm's ExitCode."""
    text = _spaced(reason)
    where = f" on {nodes}" if nodes else ""
    if number == NEVER_BEGAN:
        return (
            "It died before its first line: the working directory or the log's folder is not there "
            f"or not mounted on the compute nodes{where}."
        )
    if state == "COMPLETED":
        return "It ended as it should."
    if state == "CANCELLED":
        if nodes or text in ("", "None"):  # with nodes, the reason is left over from the queue
            return f"It was cancelled{f' while it ran{where}' if nodes else ''}."
        return f"It was cancelled before it ran (Slurm's reason until then: {text})."
    if state == "NODE_FAIL" or text == "NodeDown":
        return f"A node died{where}; that is the site's matter. Submit it again, or use --resume."
    if state == "TIMEOUT":
        return (
            "It ran into its time limit. Give more --time, or let it save before and go on in a "
            "next attempt (docs/time-limit.md)."
        )
    if state == "OUT_OF_MEMORY" or text == "OutOfMemory":
        return f"It ran out of main memory{where}. Use fewer data workers or more --mem."
    if state in _ENDED:
        return _ENDED[state]
    known = {"BadConstraints": _PENDING["badconstraints"]}.get(text)
    said = f": {how(code, number)}" if code or number else f" (Slurm's state: {state})"
    return known or f"It failed{said}{_cause(text)}."


_ENDED = {
    "PREEMPTED": "A job that comes first took its nodes. Submit it again, or use --resume.",
    "DEADLINE": "It could not end before its --deadline.",
    "BOOT_FAIL": "Its nodes did not start up; that is the site's matter. Submit it again.",
}

_LIVE = {
    "RUNNING": "It runs",
    "CONFIGURING": "Its nodes are being started up",
    "COMPLETING": "It is ending",
    "SUSPENDED": "It is suspended; the site lets it go on",
    "STOPPED": "It is stopped; `scancel --signal=CONT JOBID` lets it go on",
    "REQUEUED": "It is being put back into the queue",
    "REQUEUE_HOLD": "It was put back and is held; `scontrol release JOBID` lets it go",
    "SPECIAL_EXIT": "It asked to be held; `scontrol release JOBID` lets it go",
}
_ALSO_LIVE = ("STAGE_OUT", "RESIZING", "SIGNALING", "REQUEUE_FED", "RESV_DEL_HOLD", "EXPEDITING")


def is_live(state: str) -> bool:
    """Return True for a state of a job that has not ended."""
    return state == "PENDING" or state in _LIVE or state in _ALSO_LIVE


def living(state: str, reason: str, nodes: str = "") -> str:
    """Return what a job that has not ended is doing."""
    if state == "PENDING":
        return pending(reason)
    text = _LIVE.get(state, f"Slurm's state: {state}")
    return f"{text}{f' on {nodes}' if nodes else ''}."


def how(code: int, number: int) -> str:
    """Exit code and signal, the latter by its name: "exit code 3", "killed by SIGKILL"."""
    if not number and 128 < code < 128 + 65:
        number = code - 128  # as a shell reports it
    if not number:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


def _cause(text: str) -> str:
    if text in ("", "None", "NonZeroExitCode", "RaisedSignal", "JobLaunchFailure"):
        return ""
    return f"; {'it ran into its time limit' if text == 'TimeLimit' else f'reason: {text}'}"


def _spaced(reason: str) -> str:
    """`scontrol` writes underscores where squeue writes spaces."""
    return " ".join(reason.replace("_", " ").strip().strip("()").split())


_UNREACHABLE = (
    r"unable to contact slurm controller|socket timed out|connection refused"
    r"|zero bytes were transmitted|controller .*not responding"
)

# Looked for in this order in what the command said: (pattern, what it means and what to do).
_REFUSALS: tuple[tuple[str, str], ...] = (
    (
        r"invalid account or account/partition",
        "The account does not exist, you are no member of it, or it may not use this partition. "
        "Name another with --account or --partition; `sacctmgr show assoc user=$USER` lists yours.",
    ),
    (
        r"(requested time limit is invalid|invalid --time|time limit .*exceed)",
        "The time is longer than the partition or your quality of service (QOS) allows, or is "
        "missing. Give a shorter --time; `sinfo -o '%P %l'` lists the limits.",
    ),
    (
        r"requested node configuration is not available",
        "No node of the partition has what the job asks for together: nodes, GPUs, cores or "
        "memory. Ask for less per node, or for another --partition.",
    ),
    (
        r"invalid partition( name)? specified",
        "There is no such partition here, or it is hidden from you. `sinfo -s` lists them.",
    ),
    (
        _UNREACHABLE,
        "Slurm's controller does not answer: it is overloaded, in maintenance, or not reachable "
        "from this machine. Try again in some minutes; `scontrol ping` tells whether it is back.",
    ),
    (
        r"node count specification invalid|more nodes than permitted|requested partition .*nodes",
        "The partition allows fewer or more nodes per job. Change --nodes or --partition.",
    ),
    (
        r"invalid qos",
        "This quality of service (QOS) does not exist or is not open to your account. "
        "Change or leave out --qos.",
    ),
    (
        r"violates accounting/qos policy|job submit limit|max.*submit|accounting_policy",
        "A limit of your account or QOS is reached: jobs in the queue, size or time of one job, or "
        "the compute budget. Wait for jobs to end, ask for less, or ask the site.",
    ),
    (
        r"reservation is invalid|access denied to requested reservation|invalid reservation",
        "There is no such reservation, it is over, or you may not use it. "
        "`scontrol show reservation` lists them.",
    ),
    (
        r"job dependency problem|dependency specification",
        "A job named in --dependency does not exist any more, or the form is wrong: "
        "afterok:ID, afterany:ID.",
    ),
    (
        r"invalid generic resource|invalid gres|invalid tres",
        "The partition has no GPUs under this name. `sinfo -o '%P %G'` shows how they are called.",
    ),
    (
        r"(user|group) .*not permitted|access/permission denied|permission denied",
        "Slurm does not allow you this. The job may be another user's, or the partition closed "
        "to your groups.",
    ),
    (
        r"munge|protocol authentication|invalid authentication|credential",
        "This machine cannot prove who you are to Slurm (munge). The site has to repair that.",
    ),
    (
        r"cannot stat file|could not establish a configuration source|dns srv lookup failed",
        "Slurm's commands are here, but not their configuration: this may be no login node.",
    ),
)

_NOISE = re.compile(r"^(?:\w+: )?(?:error: |fatal: )?")


def advice(said: str) -> str:
    """Return what a refusal means and what to do about it; empty for one that is not known."""
    for pattern, words in _REFUSALS:
        if re.search(pattern, said, re.IGNORECASE):
            return words
    return ""


def is_unreachable(said: str) -> bool:
    """Return whether the controller did not answer, rather than refused."""
    return bool(re.search(_UNREACHABLE, said, re.IGNORECASE))


def tidy(said: str) -> str:
    """Return what a command said, without "sbatch: error:" before lines; the last ones of many."""
    lines = [_NOISE.sub("", line.strip(), count=1) for line in said.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines[-4:]))
