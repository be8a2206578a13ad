"""How much room a pack takes, and what to say where there is none."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...base.amounts import size
from ...base.errors import UserError
from ..index import Index
from .summary import free
from .trees import allocated
from .work import Work
from .workers import Full


def within_limit(out: Path, largest: int) -> None:
    """Refuse a file that this process may not write: a library would say it in its own way.

    Raises:
        UserError: its size is more than `ulimit -f`.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and largest > limit:
        raise UserError(
            f"{out} needs a file of {size(largest)}, and this shell's limit for a file is "
            f"{size(limit)} (ulimit -f): raise it, or write a tar of smaller files (--shard-size)"
        )


@contextmanager
def missing_space(work: Work, needed: Callable[[], int]) -> Iterator[None]:
    """Say of an error that comes of a full disk where, and how much is missing.

    Args:
        needed: gives the bytes that the work folder will take, as far as that is known.

    Raises:
        Full: instead of that error.
    """
    try:
        yield
    except (Full, OSError) as error:
        if isinstance(error, Full) and error.said:
            raise
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        wanted = needed()
        missing = wanted - allocated(work.part) - free(work.part)
        more = f"about {size(missing)} more are needed" if missing > 0 else "it was full just now"
        more = more if wanted else "how much more is needed is not known yet"
        what = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise Full(f"{work.part}: {what}; {more}: make space there", said=True) from None


def sample_bytes(index: Index) -> int:
    """Bytes of all samples whose length is known."""
    return sum(int(field.length.clip(0).sum()) for field in index.fields)
