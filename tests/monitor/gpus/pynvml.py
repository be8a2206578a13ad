"""nvidia-ml-py whose GPUs play the script in `NVML_SCRIPT`; its folder stands in `PYTHONPATH`."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).parent
_spec = PathFinder.find_spec("pynvml", [one for one in sys.path if Path(one) != _HERE])
assert _spec is not None
assert _spec.loader is not None
_real = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_real)
globals().update({name: what for name, what in vars(_real).items() if name[:2] != "__"})

sys.path.append(str(_HERE))
from nvml_script import functions  # noqa: E402

globals().update(functions(_real, json.loads(Path(os.environ["NVML_SCRIPT"]).read_text())))
