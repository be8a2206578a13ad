"""Habits of the frameworks that published runs are of, as their sources and papers say.

Numbers in `traffic`, `launches`, `messages_per_layer` and what is kept of activations were fitted
on measured runs (docs/plan/how-far-to-trust-it.md).
"""

from __future__ import annotations

from dataclasses import replace

from rankup.plan.framework import COMPILED, FRAMEWORKS, FSDP, Framework

FUSED = 0.511  # `traffic` of kernels fused by hand
# Amazon's network, in place of InfiniBand's: as Hugging Face's cluster measured it with 256 MB on 1
# to 64 nodes, all-gather 250 to 11 GB/s, all-reduce 436 to 33 GB/s.
EFA = {"nic_latency": 50.6e-6, "congestion": 0.035}

# Narayanan 2021, Korthikanti 2022: no FlashAttention, gradients exchanged after the last backward.
_MEGATRON = Framework("megatron", fused_attention=False, traffic=FUSED, overlap=False, bucket=1e9)

_PUBLISHED = (
    _MEGATRON,
    # vTrain's runs: gradients in float16, in buckets.
    replace(
        _MEGATRON, name="megatron-deepspeed", launches=1.97, gradient_bytes=2.0, bucket=25 * 2**20
    ),
    # Megatron with FlashAttention and fused norms, nothing else new: also who is not known.
    replace(
        _MEGATRON,
        name="megatron-flash",
        fused_attention=True,
        gradient_bytes=2.0,
        states=(2.0, 2.0, 12.0),
    ),
    # Megatron-Core of 2024: cuDNN's attention, bf16 gradients, all exchanges overlapped.
    Framework(
        "megatron-core",
        attention=1.6,
        traffic=FUSED,
        gradient_bytes=2.0,
        overlap_gather=True,
        overlap_tensor=0.89,
        bucket=160e6,
        sequence_parallel=True,
    ),
    # A bf16 gradient beside its float32 sum; stages cut by cost; 1F1B's messages block.
    Framework(
        "nanotron",
        launches=1.26,
        accumulation=10.0,
        messages_per_layer=1.49,
        stall=0.316e-3,
        balanced=True,
        sequence_parallel=True,
        states=(2.0, 6.0, 12.0),
        logits=6.0,
        activation_hidden=20.6,
        activation_ffn=11.0,
    ),
    # Selective recomputation keeps every second product; head and tail as in plain PyTorch.
    replace(FSDP, name="torchtitan", selective=0.5, sequence_parallel=True),
    replace(
        FSDP,
        name="torchtitan-compiled",
        selective=0.5,
        sequence_parallel=True,
        traffic=COMPILED,
        launches=0.5,
        compiled=True,
    ),
    replace(FSDP, name="llm-foundry", gradient_bytes=2.0),
    replace(
        FSDP,
        name="fms-fsdp",
        traffic=COMPILED,
        gradient_bytes=2.0,
        launches=0.5,
        compiled=True,
    ),
)
FRAMEWORKS.update({habits.name: habits for habits in _PUBLISHED})
