"""Options of the recipes, and what they prepare before a rank is started. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..base.errors import UserError, nearest
from ..base.files import user_path
from ..base.flags import flag
from ..login import record
from ..login.record import Record
from ..parallel.choices import stages_per_rank
from ..parallel.layout import Layout
from ..site import config
from ..train.options import TrainOptions
from . import llama, tokenized
from .llama import SIZES, LlamaShape, shape_of
from .model_config import refuse_sizes
from .text import BPE_SIZE, TokenFile, open_tokens, tokenize
from .tokenized import SPLITS

TOKENS = "tokens"
# Of the eager loss, in float32 at a time; `rankup plan` counts with it.
LOGITS_AT_ONCE = 1 << 25
_NAMED = re.compile(r"[A-Za-z0-9_-]{1,40}:.")
# The flags of a model's sizes, by the name that these have elsewhere.
SIZE_FLAGS = {
    "layers": "--layers",
    "hidden": "--dim",
    "heads": "--heads",
    "kv_heads": "--kv-heads",
    "ffn": "--ffn",
    "seq": "--seq-len",
}
# The linear maps of a Llama's block.
ADAPTABLE = ("query", "key", "value", "output", "gate", "up", "down")


@dataclass(frozen=True)
class LanguageModelOptions(TrainOptions):
    """`language-model`: text, vocabulary and size of the transformer."""

    train: str | None = flag(
        None, "training text, or a folder of `rankup tokenize`; default Python's help topics"
    )
    valid: str | None = flag(
        None, "validation text, or NAME:FILE,NAME:FILE; default the end of the training text"
    )
    test: str | None = flag(None, "test text; default the end of the training text")
    mix: str | None = flag(
        None, "web:0.7,code:0.3: token folders in --train FOLDER by weight; needs --steps"
    )
    documents: Literal["join", "mask"] = flag(
        "join", "mask: attention stays within a document of a token folder"
    )
    dataset: str | None = flag(None, "texts that `rankup fetch --dataset` has brought: wikitext-2")
    vocab: Literal["word", "byte", "bpe"] = flag(
        "word", "lowercased words of the training text, bytes, or byte-pair encoding trained on it"
    )
    vocab_size: int | None = flag(None, f"tokens of --vocab bpe (default {BPE_SIZE})", least=257)
    tokenizer: str | None = flag(None, "a file of the package tokenizers, in place of --vocab")
    seq_len: int = flag(64, "tokens per sample", least=1)
    model: str = flag(
        "gpt", f"gpt, {', '.join(SIZES)}, or a Llama's config.json; sizes below that are not given"
    )
    init: str | None = flag(
        None, "begin with the weights of this Hugging Face folder of a Llama (safetensors)"
    )
    layers: int = flag(4, "transformer blocks", least=1)
    dim: int = flag(256, "width of the model", least=1)
    heads: int = flag(4, "attention heads", least=1)
    kv_heads: int | None = flag(None, "heads of keys and values of a Llama", least=1)
    ffn: int | None = flag(None, "width inside a Llama's feed-forward", least=1)
    dropout: float = flag(0.1, "part of the activations dropped in training (gpt)", least=0)
    prior: bool = flag(False, "begin with the tokens' frequencies, as a bias of the output")
    lora: int | None = flag(
        None, "train adapters of this rank beside the weights of --init, which stay", least=1
    )
    lora_alpha: float = flag(16.0, "adapters of --lora count by this over their rank", least=0)
    lora_on: str = flag("query,key,value,output", f"maps with adapters: {', '.join(ADAPTABLE)}")
    config: Mapping[str, Any] | None = field(default=None, repr=False)  # of `llama.kept`

    TINY: ClassVar[Mapping[str, Any]] = {
        **{"steps": 30, "valid_every": 30, "global_batch": 16, "micro_batch": 8},
        **{"seq_len": 32, "layers": 2, "dim": 64, "heads": 2},
    }

    @classmethod
    def preset(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sizes of the model that is named; small ones for --tiny."""
        found = super().preset(values)
        config = values.get("config")
        sizes = _sizes(values["init"], values["model"], config)
        if sizes is None:
            return found
        own = {name: getattr(sizes, name) for name in ("layers", "dim", "heads", "kv_heads", "ffn")}
        if values["init"] is not None:
            pieces = user_path(values["init"], "--init") / "tokenizer.json"
            if values["vocab"] == "word":
                if config is not None and config["named"] == values["init"]:
                    own["tokenizer"] = config["tokenizer"]
                elif pieces.is_file():
                    own["tokenizer"] = str(pieces)
            return {**found, **own}
        if values["tiny"]:
            own |= {"kv_heads": 1, "ffn": 192}
        return {**own, **found}

    @cached_property
    def llama(self) -> LlamaShape | None:
        """The Llama's sizes; None for the transformer of GPT-2's kind."""
        sizes = _sizes(self.init, self.model, self.config)
        if sizes is None:
            return None
        return replace(
            sizes,
            layers=self.layers,
            dim=self.dim,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            ffn=self.ffn or 4 * self.dim,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_contradictions()
        _ = self.valids  # to be refused now
        self._refuse_mix()
        self._refuse_sizes()
        self._refuse_adapters()
        if self.dropout >= 1:
            raise UserError(f"--dropout {self.dropout} would drop everything; give less than 1")

    def _refuse_adapters(self) -> None:
        if self.lora is not None and self.init is None:
            raise UserError(
                f"--lora {self.lora} trains adapters of weights that stay; give these by --init "
                "FOLDER (a run of rankup becomes one by `rankup export RUN --to hf`)"
            )
        if self.lora_alpha == 0:
            raise UserError("--lora-alpha 0 would leave the adapters out; give 16, for example")
        for name in self.adapted:
            if name not in ADAPTABLE:
                raise UserError(
                    f"--lora-on {name!r} is no linear map of a Llama's block; "
                    f"{nearest(name, ADAPTABLE)}"
                )

    @property
    def lora_scale(self) -> float:
        """The factor of what the adapters add."""
        return self.lora_alpha / (self.lora or 1)

    @property
    def adapted(self) -> list[str]:
        """The maps that --lora gives adapters."""
        return [name.strip() for name in self.lora_on.split(",")]

    def _refuse_sizes(self) -> None:
        fields = {"hidden": "dim", "seq": "seq_len"}
        sizes = {name: getattr(self, fields.get(name, name)) for name in SIZE_FLAGS}
        refuse_sizes({n: size for n, size in sizes.items() if size is not None}, SIZE_FLAGS)
        llama = self.llama
        if llama is None:
            given = [name for name in ("kv_heads", "ffn") if getattr(self, name) is not None]
            if given:
                flag_name = given[0].replace("_", "-")
                raise UserError(f"--{flag_name} is of a Llama; give --model llama-160m as well")
            return
        if llama.dim // llama.heads % 2:
            raise UserError(
                f"heads of {llama.dim // llama.heads} numbers (--dim {llama.dim} / --heads "
                f"{llama.heads}) cannot be turned in pairs; give an even width"
            )
        if self.prior:
            raise UserError("--prior is a bias of the output, which a Llama does not have")
        if self.init is not None:
            self._refuse_other_than_init(self.init)

    def _refuse_other_than_init(self, init: str) -> None:
        if self.model != "gpt":
            raise UserError(f"--init {init} and --model {self.model} both name a model; give one")
        if self.llama != _sizes(init, self.model, self.config):
            raise UserError(
                f"--init {init} has sizes of its own; leave --layers, --dim, --heads, --kv-heads "
                "and --ffn away"
            )
        if self.tokenizer is None and self.vocab != "byte":
            raise UserError(
                f"--init {init} has no tokenizer.json, and its weights are of its own tokens; give "
                "that file by --tokenizer (or --vocab byte for a model of bytes)"
            )

    def _refuse_contradictions(self) -> None:
        given = [n for n in ("train", "valid", "test") if getattr(self, n) is not None]
        if self.dataset is not None and given:
            raise UserError(
                f"--dataset {self.dataset} and --{given[0]} both name the text; give one of them"
            )
        if self.tokenizer is not None and self.vocab != "word":
            raise UserError(
                f"--tokenizer {self.tokenizer} and --vocab {self.vocab} both say what tokens are; "
                "give one of them"
            )
        if self.vocab_size is not None and (self.vocab != "bpe" or self.tokenizer is not None):
            raise UserError(
                f"--vocab-size {self.vocab_size} is the size of --vocab bpe; the words of a text, "
                "bytes and a --tokenizer have their own"
            )

    def _refuse_mix(self) -> None:
        if self.mix is None:
            return
        tokenized.counts(self.mix)
        if self.train is None:
            raise UserError(f"--mix {self.mix} weighs folders in --train FOLDER; give that as well")
        if self.steps is None:
            raise UserError(
                "--mix goes through its sources at several paces, so that there are no "
                "epochs; give --steps"
            )
        by_epoch = {
            "--prior": self.prior,
            "--sync-every epoch": self.sync_every == "epoch",
        }
        for option, given in by_epoch.items():
            if given:
                raise UserError(
                    f"{option} is of one text or its epochs, and --mix has neither; leave it away"
                )

    def fits(self, layout: Layout) -> bool:
        return self._objection(layout) is None

    def layout(self, world_size: int, per_node: int) -> Layout:
        found = super().layout(world_size, per_node)
        if (objection := self._objection(found)) is not None:
            raise UserError(objection)
        return found

    def _objection(self, layout: Layout) -> str | None:
        """Why the model cannot be split so, and what to do; None where it can."""
        if layout.pp > 1 and self.documents == "mask":
            return (
                "--documents mask reads the ends of documents from the tokens, which the first "
                f"stage alone of --pp {layout.pp} sees; give --documents join, or another strategy"
            )
        if self.heads % layout.tp:
            fitting = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            return (
                f"tensor parallel over {layout.tp} ranks cannot share --heads {self.heads} "
                f"equally; --tp that fits: {', '.join(map(str, fitting))}"
            )
        if self.llama is not None and self.llama.kv_heads % layout.tp:
            return (
                f"tensor parallel over {layout.tp} ranks cannot share --kv-heads "
                f"{self.llama.kv_heads} equally; give a --tp that divides them"
            )
        parts = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
        if self.seq_len % parts:
            how = (
                f"tensor parallel over {layout.tp} ranks cuts the sequence between the layers"
                if layout.cp == 1
                else f"{layout} cuts a sequence into {parts} parts, two of each rank"
            )
            return (
                f"{how}, and --seq-len {self.seq_len} is no multiple of {parts}; give "
                f"--seq-len {-(-self.seq_len // parts) * parts}"
            )
        # A model has as many parts as it has layers, and its two ends.
        stages = layout.pp * stages_per_rank(self.pp_schedule) if layout.pp > 1 else 1
        if stages > self.layers + 2:
            return (
                f"--pp {layout.pp} under {self.pp_schedule} makes {stages} pipeline stages, more "
                f"than the {self.layers + 2} parts of a model of --layers {self.layers}; give a "
                "smaller --pp or more --layers"
            )
        return None

    @property
    def identity(self) -> dict[str, Any]:
        text = {name: getattr(self, name) for name in ("train", "valid", "test", "vocab")}
        # Only where they are said: a run from before there were these goes on.
        more = {name: getattr(self, name) for name in ("dataset", "vocab_size", "tokenizer")}
        said = {name: value for name, value in more.items() if value is not None}
        said |= {"prior": True} if self.prior else {}
        said |= {"mix": self.mix} if self.mix is not None else {}
        said |= {"documents": self.documents} if self.documents != "join" else {}
        return {**super().identity, **text, **said, "seq_len": self.seq_len}

    @property
    def fixed(self) -> dict[str, Any]:
        """The identity, and the options that its checkpoint would not fit, by field name."""
        sizes: dict[str, Any] = {"dim": self.dim, "layers": self.layers, "heads": self.heads}
        if self.llama is not None:
            sizes |= asdict(self.llama)
            del sizes["longest"]  # it computes nothing
        sizes["lora"] = self.lora
        if self.lora is not None:
            sizes |= {"lora_alpha": self.lora_alpha, "lora_on": self.lora_on}
        return {**self.identity, **sizes}

    @property
    def kept(self) -> dict[str, Any]:
        """Return what the run directory keeps of files that may be gone at a resume."""
        if self.init is not None:
            return {"config": llama.kept(self.init, "--init", self.tokenizer)}
        if self.model == "gpt" or self.model in SIZES:
            return {}
        return {"config": llama.kept(self.model, "--model", self.tokenizer)}

    def refuse_changed(self) -> None:
        """UserError where a file of which the run directory keeps something says another thing."""
        if self.config is not None:
            llama.refuse_changed(self.config)

    def prepare(self, directory: Path) -> None:
        """Tokenise the text into the run directory, on the login node rather than on 64 ranks.

        Raises:
            UserError: a text is missing, empty, or shorter than one sample; or it was not fetched.
        """
        self.check(self.tokenized(self.sources(), directory / TOKENS))

    def samples(self, directory: Path) -> int:
        """Return how many samples an epoch has, of what was prepared."""
        train = open_tokens(directory / TOKENS).splits["train"]
        texts = train.parts if isinstance(train, tokenized.Joined) else (train,)
        return sum(-(-(len(text) - 1) // self.seq_len) for text in texts)

    def sources(self) -> dict[str, Path | None]:
        """The three texts; None where the training text serves, or Python's.

        Raises:
            UserError: a name that is no path, or a data set that was not fetched.
        """
        if self.dataset is not None:
            found = {item.name: Path(item.path) for item in fetched(self.dataset).items}
            for name in SPLITS:
                if f"{name}.txt" not in found:
                    raise UserError(
                        f"--dataset {self.dataset} has no {name}.txt; fetch it again: "
                        f"rankup fetch --dataset {self.dataset}"
                    )
            return {name: found[f"{name}.txt"] for name in SPLITS}
        given: dict[str, str | None] = {"train": self.train}
        given |= {f"valid.{name}": path for name, path in self.valids.items()}
        given |= {} if self.valids else {"valid": self.valid}
        given["test"] = self.test
        return {
            name: None if path is None else user_path(path, f"--{name.partition('.')[0]}")
            for name, path in given.items()
        }

    @property
    def valids(self) -> dict[str, str]:
        """The files of `--valid NAME:FILE,…` by their names; empty where it names one file.

        Raises:
            UserError: a part has no name, or one has the name of another.
        """
        if self.valid is None or not _NAMED.match(self.valid):
            return {}
        found: dict[str, str] = {}
        for part in self.valid.split(","):
            name, _, path = part.strip().partition(":")
            if not _NAMED.match(part.strip()) or name in found or name.endswith("ema"):
                raise UserError(
                    f"--valid: {part!r} is no NAME:FILE with a name of its own (letters, digits, "
                    "- and _, not ending with ema); give web:web.txt,code:code.txt, for example"
                )
            found[name] = path
        return found

    def tokenized(self, sources: dict[str, Path | None], directory: Path) -> TokenFile:
        """`sources` as tokens in a directory."""
        file = None if self.tokenizer is None else user_path(self.tokenizer, "--tokenizer")
        if file is not None and not file.is_file():
            raise UserError(f"--tokenizer {file} is no file; give the tokenizer.json of a model")
        train = sources["train"]
        if train is not None and (train.is_dir() or self.mix is not None):
            return self._of_folders(sources, file, directory)
        if self.documents == "mask":
            raise UserError(
                "--documents mask needs the ends of documents, which a plain text does not have; "
                "give --train FOLDER, made by rankup tokenize"
            )
        return tokenize(sources, self.vocab, directory, self.vocab_size or BPE_SIZE, file)

    def _of_folders(
        self, sources: dict[str, Path | None], tokenizer: Path | None, directory: Path
    ) -> TokenFile:
        """The tokens of `--train FOLDER`, which lie where they are."""
        if self.vocab != "word" or self.vocab_size is not None:
            raise UserError(
                f"--train {sources['train']} is tokens already; leave --vocab and --vocab-size away"
            )
        tokenized.prepare(sources, self.mix, tokenizer, directory)
        found = open_tokens(directory)
        if self.mix is not None:
            samples = (self.steps or 0) * self.global_batch
            tokenized.say_passes(self.mix, samples, found.splits["train"], self.seq_len)
        return found

    def check(self, tokens: TokenFile) -> None:
        """UserError when a split is too short to hold one sample, or has tokens that the model's
        vocabulary does not have."""
        known = 0 if self.llama is None else self.llama.vocab_size
        if known and tokens.vocab_size > known:
            raise UserError(
                f"the text has {tokens.vocab_size:,} different tokens, and the model of "
                f"{self.init or self.model} knows {known:,}; give its --tokenizer"
            )
        lengths = {
            name: min(map(len, text.parts)) if isinstance(text, tokenized.Joined) else len(text)
            for name, text in tokens.splits.items()
        }
        name = min(lengths, key=lengths.__getitem__)
        if (most := lengths[name]) <= self.seq_len:
            raise UserError(
                f"--seq-len {self.seq_len} is longer than the {name} text, which has {most} "
                "tokens; give a longer text"
                + (f" or --seq-len {most - 1} or less" if most > 1 else "")
            )


def _sizes(
    init: str | None, model: str, config: Mapping[str, Any] | None = None
) -> LlamaShape | None:
    """Sizes of the Llama that is named; None where none is."""
    if config is not None and config["named"] == (init or model):
        return llama.shape_of_kept(config)
    if init is not None:
        return shape_of(init, "--init")
    return None if model == "gpt" else shape_of(model)


def fetched(name: str) -> Record:
    """Return the record of a fetched data set whose files are all here.

    Raises:
        UserError: it was not fetched for this project, or is no longer here; what fetches it.
    """
    project = config.load(Path.cwd()).project(Path.cwd())
    found = record.find(project, f"dataset:{name}")
    command = f"rankup fetch --dataset {name}"
    if found is None:
        raise UserError(
            f"--dataset {name} was not fetched for {project}; on a machine with a network: "
            f"{command}; or give files of your own"
        )
    if gone := found.missing():
        raise UserError(f"--dataset {name}: {gone[0]}; fetch it again: {command}")
    return found
