"""Names of PyTorch and its surroundings, by what they do."""

from __future__ import annotations

import re


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
# Calls that print, log or draw what they are given.
SHOWING = words(
    "print print0 log info debug warning error write writelines writerow set_postfix "
    "set_postfix_str set_description set_description_str add_scalar add_scalars log_metrics "
    "log_metric"
)
METRIC_METHODS = frozenset({"update", "add", "append", "extend", "add_batch"})

# Losses that are means over samples of one shape, or sums, by their `reduction`.
LOSSES = words(
    "CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss "
    "KLDivLoss PoissonNLLLoss SoftMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss "
    "MarginRankingLoss HingeEmbeddingLoss CosineEmbeddingLoss TripletMarginLoss"
)
LOSS_FUNCTIONS = words(
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div poisson_nll_loss soft_margin_loss "
    "multilabel_soft_margin_loss multi_margin_loss margin_ranking_loss hinge_embedding_loss "
    "cosine_embedding_loss triplet_margin_loss"
)
# Further ones that are means over the samples, of whatever shape.
OTHER_MEANS = words(
    "CTCLoss GaussianNLLLoss MultiLabelMarginLoss TripletMarginWithDistanceLoss ctc_loss "
    "gaussian_nll_loss multilabel_margin_loss triplet_margin_with_distance_loss"
)
# Those that divide by the weights of the targets' classes, and which argument has these.
CLASS_WEIGHTS = {"CrossEntropyLoss": 0, "NLLLoss": 0, "cross_entropy": 2, "nll_loss": 2}

# Calls to which all ranks have to come: of torch.distributed, and of rankup.
COLLECTIVES = words(
    "barrier monitored_barrier broadcast broadcast_object_list all_reduce all_gather "
    "all_gather_object all_gather_into_tensor reduce reduce_scatter gather gather_object scatter"
)
OUR_COLLECTIVES = words(
    "barrier broadcast all_reduce all_gather reduce_scatter batch_mean batch_sum mean total gather "
    "rank0_first save_full_model save_sharded_model"
)

# Random draws: functions of torch, and methods of a tensor or of a list.
DRAWS = words(
    "torch.rand torch.randn torch.randint torch.randperm torch.normal torch.bernoulli "
    "torch.multinomial torch.rand_like torch.randn_like torch.randint_like"
)
DRAWING_METHODS = words("normal_ uniform_ random_ bernoulli_ rsample shuffle")
SPLITS = ("random_split", "train_test_split", "random_splitter")
# Calls that seed a random state, and those that make or hand over one: they draw nothing.
SEEDS = words("manual_seed seed manual_seed_all seed_everything set_seed fix_seed")
SEEDING = words(
    "seed Random RandomState default_rng Generator getstate setstate get_state set_state"
)
# Calls that end a process.
EXITS = words("exit _exit abort quit")
# What a reinforcement learner draws its data from.
ENVIRONMENTS = words("gym gymnasium pettingzoo procgen dm_control stable_baselines3 envpool")

# Frameworks: the packages that they are, and what is called (or imported) where they train.
_FITS = words("fit train run boost")
FRAMEWORKS = {
    "fastai": (
        words("fastai fastcore"),
        words("fit fine_tune fit_one_cycle fit_flat_cos fit_sgdr"),
    ),
    "lightning": (
        words("lightning pytorch_lightning lightning_fabric"),
        words("Trainer Fabric LightningCLI"),
    ),
    "accelerate": (words("accelerate"), words("Accelerator")),
    "keras": (words("keras"), _FITS),
    "ignite": (words("ignite"), words("ignite.distributed create_supervised_trainer")),
    "composer": (words("composer"), _FITS),
    "deepspeed": (words("deepspeed"), words("deepspeed.initialize")),
    "colossalai": (words("colossalai"), _FITS),
    "ray": (words("ray"), words("ray.train")),
    "mmengine": (words("mmengine mmcv"), _FITS),
    "sb3": (words("stable_baselines3"), words("learn")),
    "hf-trainer": (
        words("transformers trl sentence_transformers"),
        words(
            "Trainer Seq2SeqTrainer SFTTrainer DPOTrainer ORPOTrainer PPOTrainer RewardTrainer "
            "SentenceTransformerTrainer GRPOTrainer"
        ),
    ),
}
# The calls that join ranks, by their full names, or by the name alone where that is not known.
RUNTIMES = {
    "torch": re.compile(r"(.*\.)?init_process_group|.*distributed\.init_device_mesh"),
    "rankup": re.compile(r"rankup\.(setup|parallelize)"),
    "course": re.compile(r"distributed_utils\.setup"),
    "horovod": re.compile(r"horovod\..*\binit"),
    "deepspeed": re.compile(r"deepspeed\.(initialize|init_distributed)"),
    "accelerate": re.compile(r"accelerate\.(.*\.)?Accelerator"),
    "ignite": re.compile(r"idist\..*|ignite\.distributed\.Parallel"),
    "fastai": re.compile(r"(.*\.)?distrib_ctx"),
}


def is_draw(dotted: str) -> bool:
    """True of the full name of a function that draws at random."""
    return dotted in DRAWS or dotted.startswith(("random.", "numpy.random."))


def last(dotted: str) -> str:
    """`Adam` of `torch.optim.Adam`."""
    return dotted.rsplit(".", 1)[-1]


def root(dotted: str) -> str:
    """`torch` of `torch.optim.Adam`."""
    return dotted.split(".", 1)[0]
