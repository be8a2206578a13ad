"""What 0.2 had and 0.3 has not, by what was typed: a sentence says what to do in its place."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import UserError

# A verb's option stands behind the verb, a key behind its file, an option of a recipe, a value of
# one or the code of a rule by itself.
GONE: dict[str, str] = {
    "--schedule step": "give cosine, wsd or constant; a script of your own has torch's StepLR",
    "--schedule one-cycle": "give cosine with --warmup; a script of your own has torch's OneCycleLR",
    "--gamma": "it was of --schedule step; give --schedule cosine, wsd or constant",
    "env create --kernel": "put ipykernel into requirements.txt and run: python -m ipykernel install --user --name NAME",
    "run --array": "start one run per task with a loop in the shell, each with its own report: docs/slurm.md",
    "run --lives": "it is called --max-attempts",
    "rankup.toml job.lives": "it is called max_attempts",
    "logs --task": "each run has its own log, since a run is no array any more: rankup logs RUN",
    "--no-reshard": "it is --zero 2; --zero 1 also adds gradients up once a step",
    "--pp-timeline": "--profile 20:25 traces steps by torch's profiler, a rank of each node",
    "--pp-schedule naive": "give gpipe, 1f1b or interleaved",
    "--pp-schedule LoopedBFS": "give gpipe, 1f1b or interleaved",
    "--pp-schedule InterleavedZeroBubble": "give gpipe, 1f1b or interleaved",
    "--pp-schedule ZBVZeroBubble": "give gpipe, 1f1b or interleaved",
    "--pp-schedule DualPipeV": "give gpipe, 1f1b or interleaved",
    "--compress int8": "give bf16 or powersgd; with --strategy local-sgd and diloco, which talk seldom, leave it away",
    "--compress topk": "give bf16 or powersgd; with --strategy local-sgd and diloco, which talk seldom, leave it away",
    "port --shard-eval": "the report of port says for each evaluation what stands in the way of sharding it",
    "--strategy async-sgd": "among equal GPUs --strategy ddp is nearly as fast, and exact; by-hand/async_sgd.py shows the method in one file, and `rankup demo --files .` writes it",
    "--max-staleness": "it went with async-sgd, of which by-hand/async_sgd.py shows the bound; `rankup demo --files .` writes it",
    "--damp-staleness": "it went with async-sgd; by-hand/async_sgd.py shows the method in one file, and `rankup demo --files .` writes it",
    "--look-ahead": "it went with async-sgd; by-hand/async_sgd.py shows the method in one file, and `rankup demo --files .` writes it",
    "--strategy gossip": "--strategy local-sgd and diloco talk as seldom; by-hand/gossip.py shows the method in one file, and `rankup demo --files .` writes it",
    "report --export": "the samples lie as CSV in the run's monitor/, docs/reading-the-report.md shows them in pandas; recipes take --log tensorboard,wandb",
    "port --vendor": "install rankup where the port runs: the runtime needs torch and nothing else",
    "run --stage-fraction": "a file is staged as a whole; leave the option away, or name the nodes' own disks with --stage-to",
    "stage --clean": "`rankup stage --list` says what lies on this node, and where; remove with rm -r what a dead job has left",
    "stage --broadcast": "`rankup run --stage-broadcast` has Slurm's sbcast send the file; by hand, sbcast does that for any file",
    "stage --fraction": "a file is staged as a whole; leave the option away, or name a disk of this node with --to",
    "summarization": "summarize.py trains a T5 on articles, a script for one GPU that `rankup port` takes to many; `rankup demo --files .` writes it",
    "image-classification": "classify.py trains a residual network on class folders or a pack, a script for one GPU that `rankup port` takes to many; `rankup demo --files .` writes it",
    "mesh": "`rankup plan --gpus N --explain TARGET` shows who holds what, of a recipe, a Hugging Face model and a model of your own",
    "plan --calibrate": "`rankup plan --measured RUN` takes the pace of this machine from the metrics.jsonl of a run on it",
    "RK108": "it fired on no script; Python itself says what setup() cannot be unpacked into",
    "RK109": "it fired on no script; Python itself says which names torch has not",
    "RK126": "RK121 finds what is of a rank's part",
    "RK136": "it fired on no script of others",
    "RK137": "it fired on no script of others",
    "RK171": "give --cpus-per-task where ranks have data workers; `rankup run` asks for a node's cores by itself",
    "RK172": "nothing is to be changed: `rankup port` keeps the whole batch's size, --batch per-gpu gives each rank as much",
    "RK173": "`rankup verify` tells whether a port with such batches is the same run",
    "RK178": "it fired on no script; torch itself warns of too many workers",
    "RK187": "it is part of RK186",
    "RK189": "it fired on no script; `rankup verify` compares the parameters of all ranks",
    "generate --beams": "only summarization searched by beams; summarize.py has --beams, and `rankup demo --files .` writes it",
}

# 0.2 took torch's names of schedules in any case.
_IN_ANY_CASE = {typed.lower(): typed for typed in GONE if typed.startswith("--pp-schedule ")}


def sentence(*words: str) -> str:
    """What to do in the place of what these words name, as they were typed; empty if it is here."""
    typed = " ".join(words)
    known = _IN_ANY_CASE.get(typed.lower(), typed)
    return f"{typed} is gone in 0.3: {GONE[known]}" if known in GONE else ""


def of_run(recipe: str, args: Sequence[str]) -> str:
    """The sentence of a recipe that is gone, or of the first of its options that is; else empty."""
    said = [sentence(recipe)]
    for word, after in zip(args, [*args[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        value = (value if equals else after).partition(":")[0]
        said += [sentence(option), sentence(option, value)]
    return next(filter(None, said), "")


def refuse(*words: str) -> None:
    """UserError where these words, as they were typed, name something that is gone."""
    if said := sentence(*words):
        raise UserError(said)
