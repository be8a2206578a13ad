"""The keys of a profile file, and of `[site]` in `rankup.toml`, and what each may hold."""

from __future__ import annotations

from . import rules
from .rules import Each, Table, whole

_NODES = Table(
    {
        "max_minutes": whole(1),
        "gpus": whole(0),
        "cores": whole(1),
        "memory_gb": whole(1),
        "max_nodes": whole(1),
        "internet": rules.YES_OR_NO,
        "per_node_hour": rules.POSITIVE,
    }
)
PROFILE = Table(
    {
        "title": rules.TEXT,
        "host_suffix": rules.TEXT_OR_NONE,
        "environment": Each(rules.VARIABLE, rules.TEXT_OR_NONE),
        "list_gpus": rules.YES_OR_NO,
        "srun": rules.OPTIONS,
        "sbatch": rules.OPTIONS,
        "partition": rules.TEXT_OR_NONE,
        "qos": rules.TEXT_OR_NONE,
        "node": _NODES,
        "partitions": Each(rules.WORD, _NODES),
        "exclusive": rules.YES_OR_NO,
        "account_required": rules.YES_OR_NO,
        "mounts": rules.FOLDERS,
        "not_mounted": rules.FOLDERS,
        "project": rules.TEXTS,
        "scratch": rules.TEXTS,
        "data": rules.TEXTS,
        "purge_days": whole(1),
        "jutil": rules.YES_OR_NO,
        "modules": rules.TEXTS,
        "architecture": rules.TEXT_OR_NONE,
        "internet": rules.YES_OR_NO,
        "billing": Table(
            {
                "unit": rules.one_of("core-h", "node-h", "GPU-h"),
                "per_node_hour": rules.POSITIVE,
                "per_gpu_hour": rules.POSITIVE,
            }
        ),
        "monitoring": rules.TEXT_OR_NONE,
        "devices": rules.one_of("cuda", "rocm", "cpu"),
        "detect": Table(
            {
                "systemname": rules.TEXTS,
                "environment": Each(rules.VARIABLE, rules.TEXTS),
                "clusters": rules.TEXTS,
                "hosts": rules.PATTERNS,
                "login": rules.PATTERNS,
            }
        ),
        "unsure": rules.TEXTS,
    }
)
