"""What of torch is looked at where it may not be imported at all."""

from __future__ import annotations

import sys
from typing import Any


def in_worker() -> bool:
    """Whether this process is a worker of a DataLoader."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker._worker_info is not None
