"""Habits of training frameworks that change time and memory.

rankup's own are `rankup`, its recipes, of which `counted.py` knows the kernels, and `script`, a
user's model and loss under `rankup.parallelize`. Those of published runs, on which constants were
fitted, stand in `bench/_plan_frameworks.py` (docs/plan/how-far-to-trust-it.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Framework:
    """The habits of a framework that a layout does not say.

    Attributes:
        fused_attention: attention never writes its s x s matrix (FlashAttention, SDPA).
        attention: speed of its attention kernel on Hopper, over FlashAttention-2.
        traffic: bytes that element-wise kernels of a layer move, over those of unfused kernels.
        launches: operations per layer, over those of eager PyTorch.
        gradient_bytes: of a gradient when it is exchanged.
        accumulation: bytes per parameter that adding a micro-batch's gradient to the sum moves.
        overlap: gradients are exchanged during the last backward.
        overlap_gather: ZeRO-1 gathers weights during the next forward.
        overlap_tensor: share of the tensor-parallel exchange that products hide.
        messages_per_layer: collectives that one layer's gradients make; 0: buckets of `bucket`.
        bucket: bytes of a bucket of gradients.
        stall: seconds that each hop of a tensor-parallel exchange waits more where its group fills
            a node and the model is a pipeline.
        gathers_context: ranks that share a sequence gather keys and values, and keep all of them;
            others send them round in parts, beside the computing.
        balanced: pipeline stages are cut by cost, the head included.
        sequence_parallel: tensor parallelism splits norms and residuals too.
        autocast: where weights are not sharded, autocast keeps half-precision copies of them.
        shards_weights: stage of ZeRO from which float32 weights lie in shards: 1 where all of it is
            FSDP, which beside them keeps what it has gathered until the end of a step.
        states: bytes per parameter of weights, gradients, and what ZeRO-1 shards: the optimizer's
            states and a float32 copy of the weights.
        logits: bytes per logit at the peak: bf16, float32, its log-softmax, its gradient.
        recipe: layers and loss are those of rankup's recipes.
        compiled: layers, and a recipe's loss, are compiled.
        selective: share of the outputs of matrix products that selective recomputation keeps;
            None: it only drops the attention's s x s matrix, as in Megatron.
        activation_hidden, activation_ffn: bytes kept per token and layer, per unit of `hidden` and
            of `ffn`, without recomputation and with fused attention.
    """

    name: str
    fused_attention: bool = True
    attention: float = 1.0
    traffic: float = 1.0
    launches: float = 1.0
    gradient_bytes: float = 4.0
    accumulation: float = 0.0
    overlap: bool = True
    overlap_gather: bool = False
    overlap_tensor: float = 0.0
    messages_per_layer: float = 0.0
    bucket: float = 25 * 2**20
    stall: float = 0.0
    gathers_context: bool = False
    balanced: bool = False
    sequence_parallel: bool = False
    autocast: bool = False
    shards_weights: int = 3
    states: tuple[float, float, float] = (2.0, 4.0, 12.0)
    logits: float = 14.0
    recipe: bool = False
    compiled: bool = False
    selective: float | None = None
    activation_hidden: float = 18.0
    activation_ffn: float = 8.0


COMPILED = 0.386  # `traffic` of kernels that torch.compile makes

# torch's FSDP: float32 weights and states, weights gathered in bf16; eager kernels.
FSDP = Framework("fsdp", accumulation=12.0, selective=1.0, states=(4.0, 4.0, 8.0))

_SCRIPT = replace(
    FSDP,
    name="script",
    sequence_parallel=True,
    autocast=True,
    gathers_context=True,
    shards_weights=1,
)
_RECIPE = replace(_SCRIPT, name="rankup", recipe=True)

# An eager framework -> the same, compiled.
COMPILES = {"rankup": "rankup-compiled", "script": "script-compiled"}

FRAMEWORKS = {
    habits.name: habits
    for eager in (_RECIPE, _SCRIPT)
    for habits in (
        eager,
        replace(eager, name=COMPILES[eager.name], traffic=COMPILED, launches=0.5, compiled=True),
    )
}
