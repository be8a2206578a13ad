"""Names of PyTorch and its surroundings, by what they do."""

from __future__ import annotations

import re

# Where a script puts a model into its evaluation mode: `model.eval()`, `model.train(training)`.
EVALUATES = re.compile(r"\.eval\(\)|\.train\(\s*[^)\s]")


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Methods that return what they are called on, or it in another form.
RETURNS_SELF = words(
    "to cuda cpu float half double bfloat16 train eval requires_grad_ type apply share_memory "
    "to_empty compile xpu"
)
# Calls whose value is their first argument with something around it.
MODEL_WRAPPERS = {
    "DataParallel": "dp",
    "DistributedDataParallel": "ddp",
    "DDP": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "FSDP": "fsdp",
    "fully_shard": "fsdp",
    "convert_sync_batchnorm": "sync-bn",
    "BalancedDataParallel": "dp",
}
# Calls of an iterable that return its items, perhaps with more beside them.
LOADER_WRAPPERS = words(
    "enumerate tqdm trange iter list reversed progress_bar Bar track cycle islice chain shard zip "
    "log_every DeviceLoader prefetch"
)
LOADERS = ("DataLoader", "BucketIterator", "StatefulDataLoader", "GeometricDataLoader")
OPTIMIZERS = words(
    "Adam AdamW SGD RMSprop Adagrad Adadelta Adamax NAdam RAdam LBFGS Rprop ASGD SparseAdam Lion "
    "Adafactor AdamW8bit Adam8bit Muon LARS LAMB BertAdam RAdamScheduleFree AdamWScheduleFree "
    "ScheduledOptim"
)
SCHEDULES = words(
    "StepLR MultiStepLR ExponentialLR CosineAnnealingLR CosineAnnealingWarmRestarts OneCycleLR "
    "ReduceLROnPlateau LambdaLR CyclicLR LinearLR SequentialLR PolynomialLR ConstantLR "
    "ChainedScheduler MultiplicativeLR get_scheduler get_linear_schedule_with_warmup "
    "get_cosine_schedule_with_warmup get_constant_schedule_with_warmup"
)
# Those that are made for a number of optimizer steps, where others count epochs.
STEP_SCHEDULES = words(
    "OneCycleLR get_scheduler get_linear_schedule_with_warmup get_cosine_schedule_with_warmup "
    "get_constant_schedule_with_warmup get_polynomial_decay_schedule_with_warmup"
)
METRIC_METHODS = frozenset({"update", "add", "append", "extend", "add_batch"})

FRAMEWORKS = {
    "fastai": ("fastai", "fastcore"),
    "lightning": ("lightning", "pytorch_lightning", "lightning_fabric"),
    "accelerate": ("accelerate",),
    "keras": ("keras",),
    "ignite": ("ignite",),
    "composer": ("composer",),
    "deepspeed": ("deepspeed",),
    "colossalai": ("colossalai",),
    "ray": ("ray",),
    "mmengine": ("mmengine", "mmcv"),
    "sb3": ("stable_baselines3",),
}
HF_TRAINERS = words(
    "Trainer Seq2SeqTrainer SFTTrainer DPOTrainer ORPOTrainer PPOTrainer RewardTrainer "
    "SentenceTransformerTrainer GRPOTrainer"
)


def last(dotted: str) -> str:
    """`Adam` of `torch.optim.Adam`."""
    return dotted.rsplit(".", 1)[-1]


def root(dotted: str) -> str:
    """`torch` of `torch.optim.Adam`."""
    return dotted.split(".", 1)[0]
