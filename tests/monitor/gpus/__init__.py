"""GPUs that play a script, on machines without any: NVML's functions replaced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def played(path: Path, *gpus: dict[str, Any], **more: Any) -> dict[str, str]:
    """Write a script of GPUs (see `nvml_script`); the environment of a process that has them."""
    path.write_text(json.dumps({"gpus": gpus, **more}))
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "NVML_SCRIPT": str(path)}
