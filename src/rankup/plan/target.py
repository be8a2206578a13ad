"""TARGET of `rankup plan`, or sizes by flags, as the `Shape` of a model. No torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .. import recipes
from ..base import gone
from ..base.amounts import number, size
from ..base.errors import UserError, nearest
from ..base.files import user_path
from ..base.processes import python
from ..base.text import clean
from ..recipes.model_config import CONFIG, ModelConfig, is_whole, refuse_sizes
from ..recipes.options import SIZE_FLAGS, LanguageModelOptions
from ..site import caches
from ..site import config as settings
from ..site import profile as sites
from .shape import Shape

RECIPE = "language-model"
_LONGEST = 4096  # tokens per sequence that are assumed, where a model could take more
_MOST_BYTES = 1_000_000  # of a config.json that comes from the network
_HEAD = 64  # width of a head that is assumed
_NEEDED = ("layers", "hidden", "heads", "vocab", "seq")

# Sizes in a config.json of Hugging Face: the keys of each, tried in turn.
_LLAMA = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "ffn": ("intermediate_size",),
    "vocab": ("vocab_size",),
    "seq": ("max_position_embeddings",),
}
_GPT2 = {
    "layers": ("n_layer", "num_hidden_layers"),
    "hidden": ("n_embd", "hidden_size"),
    "heads": ("n_head", "num_attention_heads"),
    "vocab": ("vocab_size",),
    "seq": ("n_positions", "n_ctx", "max_position_embeddings"),
}
_OPT = {**_LLAMA, "ffn": ("ffn_dim",)}


@dataclass(frozen=True)
class _Family:
    """How models of a `model_type` are built, as far as their config does not say.

    Attributes:
        keys: of each size.
        tied: the head shares the embedding's weights, where `tie_word_embeddings` is not given.
        learned: positions have embeddings.
    """

    keys: Mapping[str, tuple[str, ...]]
    gated: bool
    tied: bool
    learned: bool


_FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "qwen2"), _Family(_LLAMA, True, False, False)),
    "gpt2": _Family(_GPT2, False, True, True),
    "gpt_neox": _Family(_LLAMA, False, False, False),
    "opt": _Family(_OPT, False, True, True),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes by flags; None where nothing was said. They go before what TARGET says."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq: int | None = None
    gated: bool | None = None
    tied: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return what was said, by the names of `Shape`."""
        return {name: value for name, value in vars(self).items() if value is not None}


def whole(text: str | None, option: str) -> int | None:
    """Return the number that was typed.

    Raises:
        UserError: it is no whole number from 1 on.
    """
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,11}", text):
        raise UserError(f"{option} {text!r} is no whole number from 1 on")
    return int(text)


@dataclass(frozen=True)
class Target:
    """A model, and what is known of its run.

    Attributes:
        words: the words behind `rankup run` and its options; empty where there is no script yet.
        recipe: the options of `language-model`, where TARGET is that.
        notes: what is assumed.
    """

    shape: Shape
    words: tuple[str, ...] = ()
    recipe: LanguageModelOptions | None = None
    notes: tuple[str, ...] = ()

    def said(self, option: str) -> bool:
        """Return True if the recipe was given an option."""
        return any(word.partition("=")[0] == option for word in self.words)


def find(
    target: str | None, args: Sequence[str], sizes: Sizes, kept: Mapping[str, Any] | None = None
) -> Target:
    """Return the model that TARGET, the words behind it and sizes by flags mean.

    Args:
        kept: `Job.kept` of a run of the recipe that has begun.

    Raises:
        UserError: it is not known, cannot be read, or has sizes that do not go together.
    """
    if target is None:
        return _by_flags(sizes)
    if target.startswith("-"):
        raise UserError(f"{target}: no option of `rankup plan`; see rankup plan --help")
    if target in recipes.RECIPES:
        return _recipe(target, args, sizes, kept)
    if not Path(target).exists():
        gone.refuse(target)
    if args:
        raise UserError(
            f"{args[0]}: no option of `rankup plan`, and only a recipe has options of its own, "
            f"which {target} is not; see rankup plan --help"
        )
    if ":" in target and not Path(target).exists():
        return _function(target, sizes)
    if target.endswith(".py"):
        raise UserError(
            f"{target} is a script; name the function in it that builds the model: "
            f"{target}:build_model"
        )
    return _config(target, sizes)


def checked(shape: Shape, names: Mapping[str, str] | None = None, where: str = "") -> Shape:
    """Return the shape itself; arguments and errors as of `refuse_sizes`, by default of flags."""
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "positions")
    known = {name: getattr(shape, name) for name in sizes}
    if shape.positions == 0:
        del known["positions"]
    refuse_sizes(known, names or {name: _flag(name) for name in sizes}, where)
    return shape


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _by_flags(sizes: Sizes) -> Target:
    """A shape by flags alone."""
    missing = [_flag(name) for name in _NEEDED if getattr(sizes, name) is None]
    if missing:
        known = ", ".join(recipes.RECIPES)
        what = "a TARGET" if not sizes.given() else f"{' '.join(missing)} to complete the shape"
        raise UserError(
            f"nothing to plan: give {what}; TARGET is a recipe ({known}), the name or folder of a "
            "Hugging Face model, script.py:build_model, or "
            f"{' '.join(f'{_flag(name)} N' for name in _NEEDED)}"
        )
    given = sizes.given()
    gated = given.setdefault("gated", False)
    hidden, notes = given["hidden"], []
    if "ffn" not in given:
        given["ffn"] = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
        notes.append(f"--ffn {given['ffn']} is assumed")
    given.setdefault("kv_heads", given["heads"])
    given.setdefault("tied", False)
    shape = checked(Shape(**given, name="a transformer"))
    return Target(shape, notes=tuple(notes))


def _recipe(name: str, args: Sequence[str], sizes: Sizes, kept: Mapping[str, Any] | None) -> Target:
    options = recipes.find(name).parse(args, kept)
    if given := sizes.given():
        raise UserError(
            f"{_flag(next(iter(given)))} is no option of {name}; its sizes are "
            + ", ".join(SIZE_FLAGS.values())
        )
    if not isinstance(options, LanguageModelOptions):
        raise UserError(
            f"{name} is no decoder-only transformer, and only such are predicted ({RECIPE}, "
            f"Hugging Face's {', '.join(_FAMILIES)}); `rankup scale` measures it"
        )
    from ..recipes.outline import vocabulary

    vocab, note = vocabulary(options)
    llama = options.llama
    names = {**SIZE_FLAGS, "vocab": "--vocab-size", "positions": "--seq-len"}
    shape = Shape(
        layers=options.layers,
        hidden=options.dim,
        heads=options.heads,
        kv_heads=llama.kv_heads if llama else options.heads,
        ffn=llama.ffn if llama else 4 * options.dim,
        vocab=vocab,
        seq=options.seq_len,
        gated=llama is not None,
        tied=llama is not None and llama.tied,
        positions=0 if llama else options.seq_len,
        vectors=2 if llama else 4,  # maps have no bias, a layer norm has one
        last=options.dim if llama else 2 * options.dim + (vocab if options.prior else 0),
        name=name,
        dropout=llama is None and options.dropout > 0,
    )
    shape = _with_training(checked(shape, names), options)
    notes = [note]
    if shape.masked:
        notes.append(
            "--documents mask: counted as if documents were joined, for which FlashAttention takes "
            "no mask from Ampere on; in float32 and under --cp with a mask, at half of its speed, "
            "which is not measured"
        )
    if options.optimizer == "muon":
        notes.append(
            "--optimizer muon is counted as adamw: with two states of each parameter, and without "
            "the time to orthogonalise matrices"
        )
    return Target(shape, (name, *args), options, tuple(notes))


def _with_training(shape: Shape, options: LanguageModelOptions) -> Shape:
    """Return a shape with what the recipe trains of it, and what it keeps beside."""
    shape = replace(shape, averaged=options.ema is not None, masked=options.documents == "mask")
    if options.lora is not None:
        pairs: list[tuple[int, int]] = []
        for name, (inputs, outputs) in shape.maps.items():
            if name.partition(".")[2] in options.adapted:
                pairs += [(inputs, options.lora), (options.lora, outputs)]
        return replace(_frozen(shape, ["*"]), adapters=tuple(pairs), still=0.0)
    return shape if options.freeze is None else _frozen(shape, options.freeze.split(","))


def _frozen(shape: Shape, patterns: Sequence[str]) -> Shape:
    """Return a shape of which the parameters that a pattern matches are not trained."""

    def matched(name: str) -> bool:
        return any(fnmatchcase(name, pattern.strip()) for pattern in patterns)

    sizes = {f"{name}.weight": a * b for name, (a, b) in shape.maps.items()}
    sizes |= {f"{name}.weight": shape.hidden for name in ("attention_norm", "feed_forward_norm")}
    if not shape.gated:
        sizes |= {f"{name}.bias": shape.hidden for name in ("attention_norm", "feed_forward_norm")}
    shares = [
        sum(size for name, size in sizes.items() if matched(f"blocks.{layer}.{name}"))
        / sum(sizes.values())
        for layer in range(shape.layers)
    ]
    embedding, head = matched("tokens.weight"), matched("head.weight")
    if shape.tied:
        embedding = head = embedding or head
    first = next((layer for layer, share in enumerate(shares) if share < 1), shape.layers)
    below = embedding and (not shape.positions or matched("positions.weight"))
    return replace(
        shape,
        frozen_layer=sum(shares) / shape.layers,
        frozen_embedding=embedding,
        frozen_head=head,
        still=first / shape.layers if below else 0.0,
    )


def _config(target: str, sizes: Sizes) -> Target:
    """A model of Hugging Face, by its `config.json`."""
    config = _read(target)
    if config.kind not in _FAMILIES:
        kind = config.values.get("model_type")
        said = f"model_type {kind!r}" if kind else "no model_type"
        raise UserError(
            f"{config.where} has {said}; {nearest(str(kind), _FAMILIES)}; another decoder-only "
            f"transformer is given by {' '.join(f'{_flag(name)} N' for name in _NEEDED)}"
        )
    shape, notes = _of_family(_FAMILIES[config.kind], config, sizes)
    own = config.values.get("_name_or_path") or config.kind
    name = own if Path(target).exists() else target
    return Target(replace(shape, name=clean(str(name))), notes=tuple(notes))


def _of_family(family: _Family, config: ModelConfig, sizes: Sizes) -> tuple[Shape, list[str]]:
    given, notes, values = sizes.given(), [], config.values
    found: dict[str, Any] = {}
    missing = []
    for word, keys in family.keys.items():
        key = next((key for key in keys if values.get(key) is not None), None)
        if key is not None:
            found[word] = values[key]
        elif word not in given and (word != "seq" or family.learned):
            missing.append(" or ".join(keys))
    if missing:
        raise UserError(
            f"{config.where} lacks {', '.join(missing)}, which say how large the model is"
        )
    hidden: Any = found.get("hidden")
    found["kv_heads"] = values.get("num_key_value_heads") or found.get("heads")
    found.setdefault("ffn", values.get("n_inner") or (4 * hidden if is_whole(hidden) else None))
    found["gated"] = family.gated
    found["tied"] = config.flag("tie_word_embeddings", family.tied)
    positions: Any = found.get("seq")
    if "seq" not in given:
        longest = positions if is_whole(positions) else _LONGEST
        found["seq"] = min(longest, _LONGEST)
        if found["seq"] != positions:
            of = f", of {positions:,} that it can take" if is_whole(positions) else ""
            notes.append(f"--seq {found['seq']} is assumed{of}")
    names = {size: keys[0] for size, keys in family.keys.items()}
    names |= {"kv_heads": "num_key_value_heads", "ffn": names.get("ffn", "n_inner")}
    names["positions"] = names["seq"]
    names |= {name: _flag(name) for name in given}
    positions = positions if family.learned else 0
    shape = checked(Shape(**{**found, **given}, positions=positions), names, config.where)
    width = config.whole("head_dim", shape.hidden // shape.heads)
    if width * shape.heads != shape.hidden:
        notes.append(
            f"head_dim {width} is not hidden_size / heads, so attention's matrices are counted as "
            f"{shape.hidden / (width * shape.heads):.3g} times theirs"
        )
    return shape, notes


def _read(target: str) -> ModelConfig:
    """The config.json that is meant: of a file, a folder, the cache, or the network."""
    path = user_path(target, "TARGET")
    if path.is_dir():
        path = path / CONFIG
    if path.is_file():
        return ModelConfig.of_file(path)
    match = re.fullmatch(r"([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?", target)
    if target.endswith(".json"):
        raise UserError(f"{path} does not exist; give the config.json of a model, or its folder")
    if match is None:
        raise UserError(
            f"{target} does not exist; TARGET is a recipe, the name or folder of a Hugging Face "
            "model, script.py:build_model, or nothing, with sizes by flags"
        )
    name, revision = match[1], match[2] or "main"
    if cached := _cached(name, revision):
        return ModelConfig.of_file(cached)
    return ModelConfig.of_text(*_fetched(name, revision))


def _cached(name: str, revision: str) -> Path | None:
    """The config.json of a model in the cache of Hugging Face, if it is there."""
    said = settings.load(Path.cwd())
    profile, _ = sites.choose(said)
    known = caches.caches(said, profile, os.environ)
    home = next(entry.path for entry in known.entries if entry.variable == "HF_HOME")
    refined = known.refining.get("HF_HUB_CACHE") or known.refining.get("HUGGINGFACE_HUB_CACHE")
    folder = (Path(refined) if refined else home / "hub") / f"models--{name.replace('/', '--')}"
    with suppress(OSError):  # a commit has no reference
        revision = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    path = folder / "snapshots" / revision / CONFIG
    return path if path.is_file() else None


def _fetched(name: str, revision: str) -> tuple[str, str]:
    import httpx  # takes a tenth of a second

    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{name}/resolve/{revision}/config.json"
    advice = (
        f"; where there is a network `rankup fetch --model {name}` brings it; or give its "
        "config.json, or sizes by flags (--layers ...)"
    )
    recipe = f"{name} is no recipe ({nearest(name, recipes.RECIPES)})"
    text = b""
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=5) as answer:
            for part in answer.iter_bytes():
                text += part
                if len(text) > _MOST_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(
            f"{recipe} and no file, and {url} cannot be asked ({error or type(error).__name__})"
            f"{advice}"
        ) from None
    if answer.status_code in (401, 403):
        raise UserError(
            f"{name} is not there, or only for who has accepted its licence "
            f"({url}: {answer.status_code}){advice}"
        )
    if answer.status_code != 200 or len(text) > _MOST_BYTES:
        what = answer.status_code if answer.status_code != 200 else f"over {size(_MOST_BYTES)}"
        raise UserError(f"{recipe} and no file, and {url} answers {what}{advice}")
    return text.decode("utf-8-sig", errors="replace"), url


def _function(target: str, sizes: Sizes) -> Target:
    """A user's model, built on meta tensors by a process of its own, which has torch."""
    with tempfile.TemporaryDirectory(prefix="rankup-plan-") as folder:
        file = Path(folder) / "parameters.json"
        done = subprocess.run(
            python("rankup.parallel.user.named", target, str(file)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode or not file.is_file():
            lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
            raise UserError(lines[-1] if "Traceback" in done.stderr else "\n".join(lines))
        parameters = json.loads(file.read_text(encoding="utf-8"))
    shape, notes = guessed(parameters, target, sizes)
    script = target.rpartition(":")[0]
    words = (script,) if script.endswith(".py") else ()
    return Target(shape, words, notes=tuple(notes))


def guessed(
    parameters: Sequence[tuple[str, Sequence[int]]], name: str, sizes: Sizes
) -> tuple[Shape, list[str]]:
    """Return the transformer that a list of parameters is, and what is assumed of it.

    Layers, hidden, ffn, kv_heads' width, vocab and gate follow from the shapes of the matrices;
    that heads are 64 wide and sequences 4096 long is assumed, unless flags say so.

    Raises:
        UserError: there are no repeated blocks with matrices as a transformer has them.
    """
    given, notes = sizes.given(), []
    blocks: dict[str, dict[str, list[tuple[str, list[int]]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for full, dims in parameters:
        if match := re.match(r"(.*?\.)?(\d+)\.(.*)", full):
            blocks[match[1] or ""][match[2]].append((match[3], list(dims)))
    numbers = {
        prefix: sum(_count(dims) for block in of.values() for _, dims in block)
        for prefix, of in blocks.items()
    }
    prefix = max(numbers, key=numbers.__getitem__, default=None)
    total = sum(_count(dims) for _, dims in parameters)
    if prefix is None:
        raise UserError(_no_transformer(name, total, "it has no numbered blocks"))
    block = next(iter(blocks[prefix].values()))
    matrices = [tuple(dims) for _, dims in block if len(dims) == 2 and min(dims) > 1]
    sides = Counter(side for dims in matrices for side in set(dims))
    hidden = given.get("hidden") or max(sides, key=sides.__getitem__, default=0)
    inner = [a * b // hidden for a, b in matrices if hidden in (a, b)] if hidden else []
    wide = [width for width in inner if width > hidden]
    if len(inner) < 3 or not wide:
        raise UserError(
            _no_transformer(name, total, f"blocks of {prefix}* are no attention and MLP")
        )
    inside = {full for full, _ in parameters if full.startswith(prefix)}
    ends = sorted(
        (dims[0] if dims[1] == hidden else dims[1])
        for full, dims in parameters
        if full not in inside and len(dims) == 2 and hidden in dims
    )
    if not ends:
        raise UserError(_no_transformer(name, total, f"it has no embedding of {hidden} columns"))
    layers, vocab = len(blocks[prefix]), ends[-1]
    learned = ends[0] if ends[0] < vocab / 2 else 0
    feed, many = Counter(wide).most_common(1)[0]
    if many == 1:  # a gate and the matrix beside it lie in one
        feed, many = min(wide), 3
    attention = sum(inner) - many * feed
    heads = given.get("heads") or max(1, hidden // _HEAD)
    if "heads" not in given:
        notes.append(f"--heads {heads} is assumed, {_HEAD} columns each")
    kv = max(1, heads * (attention - 2 * hidden) // (2 * hidden))
    if "seq" not in given:
        notes.append(f"--seq {learned or _LONGEST} is assumed")
    found = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv,
        "ffn": feed,
        "vocab": vocab,
        "seq": learned or _LONGEST,
        "gated": many == 3,
        "tied": ends.count(vocab) < 2,
    }
    shape = checked(Shape(**{**found, **given}, positions=learned, name=name))
    notes.insert(
        0,
        f"{number(total)} parameters, {number(numbers[prefix] / layers)} in each of {layers} "
        f"blocks {prefix}*; taken as a transformer of hidden {shape.hidden}, ffn {shape.ffn}"
        f"{' with a gate' if shape.gated else ''}, {shape.kv_heads} of {shape.heads} key-value "
        f"heads, vocabulary {shape.vocab:,}: {number(shape.parameters())}",
    )
    if abs(shape.parameters() / total - 1) > 0.05:
        raise UserError(_no_transformer(name, total, f"{notes[0]}, which is another model"))
    return shape, notes


def _count(dims: Sequence[int]) -> int:
    product = 1
    for side in dims:
        product *= side
    return product


def _no_transformer(name: str, total: int, why: str) -> str:
    return (
        f"{name} has {total:,} parameters and is not known as a decoder-only transformer: {why}; "
        f"give its sizes in place of TARGET: {' '.join(f'{_flag(name)} N' for name in _NEEDED)}"
    )
