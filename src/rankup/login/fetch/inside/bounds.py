"""A login node is shared: few threads, low priority, bounded memory."""

from __future__ import annotations

import os
import resource
import secrets
from contextlib import suppress

from .journal import Journal
from .spec import Spec

_NICE = 10
_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "RAYON_NUM_THREADS", "NUMEXPR_MAX_THREADS"),
)


def set_bounds(spec: Spec, journal: Journal) -> None:
    """Bound this process and all that it starts."""
    for name in _THREADS:
        given = os.environ.get(name, "")
        kept = min(int(given), spec.threads) if given.isdigit() and int(given) else spec.threads
        os.environ[name] = str(kept)
    with suppress(OSError):
        os.nice(_NICE)
    _stay_on_few_cores(spec.threads)
    if spec.data_limit is not None:
        try:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            limit = (
                spec.data_limit if hard == resource.RLIM_INFINITY else min(spec.data_limit, hard)
            )
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        except (OSError, ValueError) as error:
            journal.problem("the limit of memory", error)


def _stay_on_few_cores(threads: int) -> None:
    """Libraries that know no variable count the cores that they may use, or just fill them."""
    with suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > threads:
            # Neighbours, but not the same ones for every user of the node.
            first = secrets.randbelow(len(cores) - threads + 1)
            os.sched_setaffinity(0, cores[first : first + threads])
