"""How a run is spread over GPUs: the sizes of the mesh and all that changes its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "selective:2", "full"]
Precision = Literal["fp32", "fp16", "bf16", "fp8"]


@dataclass(frozen=True)
class Layout:
    """One way to train a model on a number of GPUs.

    Attributes:
        strategy: rankup's word for it: ddp, fsdp, hsdp, tp, pp, 3d, local-sgd, diloco.
        dp_replicate, dp_shard, tp, pp, cp: sizes of the mesh; their product is `gpus`.
        schedule: of the pipeline: gpipe, 1f1b or interleaved.
        interleave: pipeline stages per rank.
        micro_batch: sequences per forward.
        global_batch: sequences per optimizer step, over all ranks.
        zero: 0 every rank holds all states, 1 the optimizer's are sharded over the data-parallel
            ranks, 2 gradients too, 3 parameters too (FSDP). rankup's 1 and 2 are FSDP that gathers
            weights once per step.
        sequence_parallel: norms and residuals are split over the tensor-parallel ranks.
        inner_steps: optimizer steps between two exchanges (local-sgd, diloco).
        framework: whose habits to predict; see `framework.FRAMEWORKS`.
    """

    gpus: int
    strategy: str = "ddp"
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    schedule: str = "1f1b"
    interleave: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    recompute: Recompute = "none"
    precision: Precision = "bf16"
    zero: int = 0
    sequence_parallel: bool = False
    inner_steps: int = 1
    framework: str = "rankup"

    @property
    def data(self) -> int:
        """Groups of ranks that compute different micro-batches."""
        return self.dp_replicate * self.dp_shard

    @property
    def micro_batches(self) -> int:
        """Micro-batches that each data-parallel rank computes in one step."""
        return max(1, math.ceil(self.global_batch / (self.data * self.micro_batch)))

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO or FSDP shards."""
        return self.cp * self.dp_shard

    @property
    def value_bytes(self) -> float:
        """Bytes of an activation, and of a weight that is gathered for use."""
        return 4.0 if self.precision == "fp32" else 2.0

    @property
    def needs_masks(self) -> bool:
        """True where attention within documents takes a mask: the kernel that is told where
        documents begin computes in 16 bits, on the tokens of whole sequences."""
        return self.precision == "fp32" or self.cp > 1

    @property
    def stages(self) -> int:
        return self.pp * self.interleave
