"""Machines: what a GPU, a node and a network can do, each number with its source."""

from __future__ import annotations

from dataclasses import dataclass, field

GB = 1e9
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """The constants of a machine; a calibrated one is the same, read from a file.

    Attributes:
        gpu: its name, as in `MACHINES`.
        memory_gib: of one GPU, as the driver says.
        peak_flops: dense bf16 FLOP/s of one GPU, as the vendor says.
        fp8_speedup: of a large product in fp8 over bf16; 0 where the GPU has no fp8.
        matmul_efficiency: share of the peak that very large products reach in training.
        matmul_half: FLOPs of the product that reaches half of that.
        attention_efficiency: share of the peak of a fused attention kernel, of FLOPs really done.
        hbm: bytes/s of its memory.
        hbm_efficiency: share of `hbm` that element-wise kernels and the optimizer reach.
        launch: seconds of the processor per kernel.
        gpus_per_node: GPUs that `node_link` connects.
        node_link: bytes/s of one GPU to the others of its node, one direction.
        node_efficiency: share of it that collectives reach with large messages.
        node_latency: seconds per hop of a collective within a node.
        nic_per_node: bytes/s of a node to the others, all its adapters together.
        nic_efficiency: share of it that collectives reach with large messages.
        nic_latency: seconds per hop of a collective between nodes.
        host_to_device, file_system: bytes/s per node; 0 where not known.
        core_hours_per_gpu_hour: what a GPU costs per hour, in `unit`.
        source: where the numbers come from.
        calibrated: they were measured by `rankup plan --calibrate`.
    """

    gpu: str
    memory_gib: float
    peak_flops: float
    hbm: float
    fp8_speedup: float = 0.0
    matmul_efficiency: float = 0.75
    matmul_half: float = 10e9
    attention_efficiency: float = 0.4
    hbm_efficiency: float = 0.8
    launch: float = 6e-6
    gpus_per_node: int = 4
    node_link: float = 300 * GB
    node_efficiency: float = 0.78
    node_latency: float = 5e-6
    nic_per_node: float = 100 * GB
    nic_efficiency: float = 0.85
    nic_latency: float = 15e-6
    host_to_device: float = 0.0
    file_system: float = 0.0
    core_hours_per_gpu_hour: float = 1.0
    unit: str = "GPU-h"
    source: str = ""
    calibrated: bool = False
    notes: tuple[str, ...] = field(default=())
