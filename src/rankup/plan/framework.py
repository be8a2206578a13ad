"""Habits of training frameworks that change time and memory, as their sources and papers say.

Published runs are of many frameworks; rankup's own runs are the row `rankup`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """What a framework does that a layout does not say.

    Attributes:
        fused_attention: attention never writes its s x s matrix (FlashAttention, SDPA).
        traffic: bytes that element-wise kernels of a layer move, over those of unfused kernels.
        gradient_bytes: of a gradient when it is exchanged and accumulated.
        overlap: gradients are exchanged during the last backward.
        messages_per_layer: collectives that one layer's gradients make; 0: buckets of `bucket`.
        bucket: bytes of a bucket of gradients.
        balanced: pipeline stages are cut by cost, the head included.
        sequence_parallel: tensor parallelism splits norms and residuals too.
        full_head: the head's output is kept in float32 (log-softmax needs it twice).
        states: bytes per parameter of weights, gradients and optimizer: (weights, gradients,
            optimizer), the last two of them what ZeRO shards.
        activation_hidden, activation_ffn: bytes kept per token and layer, per unit of `hidden` and
            of `ffn`, without recomputation and with fused attention.
    """

    name: str
    fused_attention: bool = True
    traffic: float = 1.0
    gradient_bytes: int = 4
    overlap: bool = True
    messages_per_layer: int = 0
    bucket: float = 25 * 2**20
    balanced: bool = False
    sequence_parallel: bool = False
    states: tuple[float, float, float] = (2.0, 4.0, 12.0)
    activation_hidden: float = 18.0
    activation_ffn: float = 8.0


_KNOWN = (
    # torch's DDP and FSDP2: float32 weights and states, gathered in bf16; eager kernels.
    Framework("rankup", states=(4.0, 4.0, 8.0)),
    # Narayanan 2021, Korthikanti 2022: no FlashAttention, exchange after the step.
    Framework("megatron", fused_attention=False, traffic=0.7, overlap=False, bucket=1e9),
    # Megatron-Core (2024 on): fused attention, overlapped exchange in buckets of 40 M, SP.
    Framework("megatron-core", traffic=0.6, bucket=160e6, sequence_parallel=True),
    # vTrain's measurements: float16 gradients, one message per tensor, none overlapped.
    Framework(
        "megatron-deepspeed", fused_attention=False, traffic=0.7, overlap=False, gradient_bytes=2
    ),
    Framework(
        "nanotron",
        messages_per_layer=4,
        balanced=True,
        sequence_parallel=True,
        activation_hidden=20.6,
        activation_ffn=12.5,
    ),
    Framework("torchtitan", states=(4.0, 4.0, 8.0)),
    Framework("torchtitan-compiled", traffic=0.5, states=(4.0, 4.0, 8.0)),
    Framework("llm-foundry", traffic=1.0, gradient_bytes=2, states=(4.0, 4.0, 8.0)),
    Framework("fms-fsdp", traffic=0.5, gradient_bytes=2, states=(4.0, 4.0, 8.0)),
)
FRAMEWORKS = {one.name: one for one in _KNOWN}
