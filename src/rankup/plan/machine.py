"""Machines: what a GPU, a node and a network can do, each number with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.errors import UserError, nearest
from ..site.profile import Profile

GB = 1e9
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """The constants of a machine.

    Attributes:
        gpu: its name, as in `MACHINES`.
        memory_gib: of one GPU, as the driver says.
        peak_flops: dense bf16 FLOP/s of one GPU, as the vendor says.
        fp8_speedup: of a large product in fp8 over bf16; 0 where the GPU has no fp8.
        matmul_efficiency: share of the peak that very large products reach in training.
        matmul_half: FLOPs of the product that reaches half of that.
        power: speed of products over the same GPU's at its full power limit.
        attention_efficiency: share of the peak of a fused attention kernel, of FLOPs really done.
        fp32_flops: the same of float32 without TF32; 0: as `peak_flops`.
        hbm: bytes/s of its memory.
        hbm_efficiency: share of `hbm` that element-wise kernels and the optimizer reach.
        launch: seconds of the processor per kernel.
        contention: what stays exposed of exchanges beside which the GPU computes: both use the
            same memory and multiprocessors [Galvatron, calculon].
        gpus_per_node: GPUs that `node_link` connects.
        node_link: bytes/s of one GPU to the others of its node, one direction.
        node_efficiency: share of it that collectives reach with large messages.
        node_latency: seconds per hop of a collective within a node.
        nic_per_node: bytes/s of a node to the others, all its adapters together.
        nic_efficiency: share of it that collectives reach with large messages.
        nic_latency: seconds per hop of a collective between nodes.
        congestion: by how much each node more slows an all-reduce between nodes down.
        core_hours_per_gpu_hour: what a GPU costs per hour, in `unit`.
        source: where the numbers come from.
        pace: measured over predicted seconds of a run, by which all times are multiplied; None
            where no run was measured (`rankup plan --measured`).
    """

    gpu: str
    memory_gib: float
    peak_flops: float
    hbm: float
    fp32_flops: float = 0.0
    fp8_speedup: float = 0.0
    matmul_efficiency: float = 0.756
    matmul_half: float = 15.7e9
    attention_efficiency: float = 0.332
    power: float = 1.0
    hbm_efficiency: float = 0.77
    launch: float = 9.24e-6
    contention: float = 0.262
    gpus_per_node: int = 8
    node_link: float = 300 * GB
    node_efficiency: float = 0.784
    node_latency: float = 5.08e-6
    nic_per_node: float = 200 * GB
    nic_efficiency: float = 0.809
    nic_latency: float = 10.4e-6
    congestion: float = 0.0
    core_hours_per_gpu_hour: float = 1.0
    unit: str = "GPU-h"
    source: str = ""
    pace: float | None = None

    def computing(self, precision: str) -> Machine:
        """Return the machine as it is for products in a precision: of another peak in float32,
        where small products take as long as ever."""
        if precision != "fp32" or not self.fp32_flops:
            return self
        slower = self.fp32_flops / self.peak_flops
        return replace(self, peak_flops=self.fp32_flops, matmul_half=self.matmul_half * slower)


# What the generations share. Efficiencies and latencies were fitted on measured runs, within the
# published ceilings (best products: A100 .87, H100 .80; all-reduce in a node .78 to .82).
_AMPERE = Machine("", 0, 312e12, 0, fp32_flops=19.5e12)
_VOLTA = replace(
    _AMPERE,
    peak_flops=125e12,  # fp16: it has no bf16
    fp32_flops=15.7e12,
    hbm=900 * GB,
    node_link=150 * GB,
    nic_per_node=50 * GB,
)
_HOPPER = replace(
    _AMPERE,
    peak_flops=989e12,
    fp32_flops=67e12,
    fp8_speedup=1.75,
    matmul_efficiency=0.627,
    matmul_half=13.2e9,
    attention_efficiency=0.183,
    contention=0.345,
    node_link=450 * GB,
    nic_per_node=400 * GB,
)
_VENDOR = "data sheets; stas00/ml-engineering (links); fitted efficiencies"
MEASURED = ("A100", "H100")  # what there were runs of; the others have their efficiencies

MACHINES = {
    card.gpu: replace(
        card,
        source=_VENDOR
        if card.gpu.startswith(MEASURED)
        else f"{_VENDOR} of {'H100' if card.fp8_speedup else 'A100'}, not measured here",
    )
    for card in (
        replace(_AMPERE, gpu="A100-40GB", memory_gib=39.6, hbm=1555 * GB),
        replace(_AMPERE, gpu="A100-80GB", memory_gib=79.3, hbm=2039 * GB),
        replace(_HOPPER, gpu="H100-80GB", memory_gib=79.6, hbm=3350 * GB),
        replace(_HOPPER, gpu="H100-94GB", memory_gib=93.6, hbm=2400 * GB),
        # 500 W instead of 700 W.
        replace(_HOPPER, gpu="H100-96GB", memory_gib=95.0, hbm=2400 * GB, power=0.86),
        replace(_HOPPER, gpu="H200", memory_gib=140.4, hbm=4800 * GB),
        replace(
            _HOPPER,
            gpu="GH200",
            memory_gib=95.6,
            hbm=4000 * GB,
            gpus_per_node=4,
            nic_per_node=100 * GB,
        ),
        replace(_VOLTA, gpu="V100-32GB", memory_gib=31.7),
        replace(_VOLTA, gpu="V100-16GB", memory_gib=15.8),
        replace(
            _AMPERE,
            gpu="MI250X",
            memory_gib=64.0,
            peak_flops=191.5e12,  # one GCD, half a card: what Slurm and torch call a GPU
            fp32_flops=47.9e12,
            hbm=1638 * GB,
            node_link=100 * GB,
            nic_per_node=100 * GB,
        ),
    )
}


def machine(gpu: str, gpus_per_node: int | None = None, nic: float | None = None) -> Machine:
    """Return the machine of that GPU; `nic` in bytes/s per node.

    Raises:
        UserError: nobody knows the GPU; names the nearest.
    """
    known = {name.lower(): name for name in MACHINES}
    begins = [name for name in known if name.startswith(f"{gpu.lower()}-")]
    found = known.get(gpu.lower()) or (known[begins[0]] if len(begins) == 1 else None)
    if len(begins) > 1 and found is None:
        raise UserError(
            f"--gpu {gpu} is one of {', '.join(known[name] for name in begins)}; say which"
        )
    if found is None:
        raise UserError(f"unknown GPU {gpu!r}; {nearest(gpu, set(MACHINES))}")
    made = MACHINES[found]
    if gpus_per_node is not None:
        made = replace(made, gpus_per_node=gpus_per_node)
    return made if nic is None else replace(made, nic_per_node=nic)


# Profile and partition ("" for the others) -> GPU, and bytes/s of a node's adapters.
_SITES: dict[tuple[str, str], tuple[str, float]] = {
    ("jureca-dc", ""): ("A100-40GB", 50 * GB),  # 2 x HDR200
    ("jureca-dc", "dc-h100"): ("H100-80GB", 50 * GB),
    ("jureca-dc", "dc-hwai"): ("H100-94GB", 100 * GB),
    ("juwels-booster", ""): ("A100-40GB", 100 * GB),  # 4 x HDR200
    ("jupiter", ""): ("GH200", 100 * GB),  # 4 x NDR200
    ("jedi", ""): ("GH200", 100 * GB),
    ("jusuf", ""): ("V100-16GB", 12.5 * GB),  # HDR100
    ("lumi-g", ""): ("MI250X", 100 * GB),  # 4 x Slingshot-11
    ("perlmutter", ""): ("A100-40GB", 100 * GB),
}


def of_site(profile: Profile, partition: str | None = None) -> Machine | None:
    """Return the machine of a site's partition; None where its GPU is not known."""
    name = partition or profile.partition or ""
    known = _SITES.get((profile.name, name)) or _SITES.get((profile.name, ""))
    nodes = profile.shape(partition)
    if known is None or nodes is None or not nodes.gpus:
        return None
    gpu, nic = known
    return replace(
        MACHINES[gpu],
        gpus_per_node=nodes.gpus,
        nic_per_node=nic,
        core_hours_per_gpu_hour=profile.node_hour(nodes) / nodes.gpus,
        unit=profile.billing.unit,
        source=f"profile {profile.name}; {MACHINES[gpu].source}",
    )
