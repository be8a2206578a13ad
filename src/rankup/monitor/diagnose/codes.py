"""The codes of the report's findings. They are stable; `docs/findings/CODE.md` explains each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

UNUSED = "RK701"
IDLE = "RK702"
LOW = "RK703"
STARVED = "RK704"
IMBALANCE = "RK705"
SPINNING = "RK706"
MEMORY_FAR = "RK707"
MEMORY_NEAR = "RK708"
OVERSUBSCRIBED = "RK709"
FEW_CORES = "RK710"
POWER = "RK711"
HEAT = "RK712"
SWAP = "RK713"
HOST_MEMORY = "RK714"
CHECKPOINTS = "RK715"
LIMIT_LONG = "RK716"
LIMIT_HIT = "RK717"
SHORT = "RK718"
FILE_SYSTEM = "RK719"
LOSS_NAN = "RK720"
LOSS_FLAT = "RK721"
GAPS = "RK722"
GPU_LOST = "RK723"
FAILED = "RK724"
WAITING = "RK725"
STALLED = "RK726"

TITLES: Mapping[str, str] = MappingProxyType(
    {
        UNUSED: "unused GPU",
        IDLE: "idle GPU",
        LOW: "low utilisation",
        STARVED: "starved by data",
        IMBALANCE: "imbalance between ranks or nodes",
        SPINNING: "spinning in a collective",
        MEMORY_FAR: "GPU memory far from full",
        MEMORY_NEAR: "GPU memory nearly full",
        OVERSUBSCRIBED: "CPU oversubscribed",
        FEW_CORES: "ranks share few cores",
        POWER: "slowed down by the power limit",
        HEAT: "slowed down by heat or hardware",
        SWAP: "swap is used",
        HOST_MEMORY: "memory of the node nearly full",
        CHECKPOINTS: "training waits for checkpoints",
        LIMIT_LONG: "time limit far too long",
        LIMIT_HIT: "time limit hit",
        SHORT: "short run",
        FILE_SYSTEM: "slow file system",
        LOSS_NAN: "loss is not a number",
        LOSS_FLAT: "loss does not fall",
        GAPS: "the record has gaps",
        GPU_LOST: "GPU lost or unreadable",
        FAILED: "the run failed",
        WAITING: "busy without computing",
        STALLED: "no step for a long time",
    }
)
