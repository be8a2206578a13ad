"""The calls of a script that fetch something from a network, and what they fetch.

`CALLS` is the one table of library calls that may download, each with a rule for its arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from ..base.errors import UserError
from ..base.urls import public
from .constants import Constants
from .flow import argument, call_name
from .modules import gather
from .source import File
from .torch_names import last, root, words
from .values import Known, Unknown, Value

What = Literal["dataset", "model", "url", "torchvision", "torch.hub", "fastai", "other"]
_ABSENT = Known((None,))
# Everybody knows whose `load_dataset` and `AutoModel.from_pretrained` these are.
_NEEDLESS = {"", *words("builtins datasets transformers fastai vision all huggingface_hub")}


@dataclass(frozen=True)
class Download:
    """A call that fetches something, where it is not there yet.

    Attributes:
        name: what it fetches, as far as it is known (`gpt2`, `mnist`, a URL).
        how: the call (`load_dataset`, `AutoModel.from_pretrained`).
        known: the text tells what it fetches.
        by_name: `rankup fetch` with its name, or URL, puts it where the call looks for it; else
            only the call itself does.
        config: of a data set on a hub.
        revision: commit, tag or branch on a hub.
        to: the file that a URL is written to.
        why: what is not known of it, where it is not.
    """

    line: int
    file: Path
    what: What
    name: str | None
    how: str
    known: bool
    config: str = ""
    revision: str = ""
    to: str = ""
    by_name: bool = False
    why: str = ""

    @property
    def wanted(self) -> str:
        """As `rankup fetch` takes it: NAME[:config][@revision]; empty without a name."""
        if self.name is None:
            return ""
        config = f":{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.name}{config}{revision}"


@dataclass(frozen=True)
class Reading:
    """The downloads of a script, in the order of files and lines.

    Attributes:
        notes: what was not read, and why, one line each.
    """

    downloads: tuple[Download, ...]
    notes: tuple[str, ...] = ()


def read(script: Path, args: tuple[str, ...] = (), folder: Path | None = None) -> Reading:
    """Return what a script that is started with `args` in `folder` (here) may fetch.

    Raises:
        UserError: it cannot be read, or is not Python; the message names the line.
    """
    modules = gather(script)
    try:
        found = _all(Constants(modules.files, folder or Path.cwd(), args))
    except RecursionError:
        raise UserError(f"{script}: nested too deeply to be understood") from None
    return Reading(tuple(found), modules.notes)


def fetches(dotted: str) -> bool:
    """True of a library call that fetches whatever its arguments are, by its full name."""
    rule = _rule(dotted)
    return rule is not None and rule not in _BY_ARGUMENTS


def _all(constants: Constants) -> list[Download]:
    found: dict[Download, None] = {}
    made: set[str] = set()
    for file in constants.files:
        here: dict[Download, None] = {}
        for call in file.names.all(ast.Call):
            here.update(dict.fromkeys(in_call(constants, file, call)))
            made.update(_made(constants, file, call))
        found.update(dict.fromkeys(sorted(here, key=lambda one: one.line)))
    return [one for one in found if one.what != "model" or one.name not in made]


def in_call(constants: Constants, file: File, call: ast.Call) -> Iterator[Download]:
    """Return what one call of a script or of its local modules may fetch."""
    first, dotted = 0, _called(constants, file, call.func)
    if dotted in _CALLERS and call.args:
        first, dotted = 1, _called(constants, file, call.args[0])
    rule = _rule(dotted)
    if rule is None and dotted and argument(call, "download") is not None:
        rule = _asked
    if rule is not None and constants.happens(file, call) is not False:
        yield from rule(Use(constants, file, call, dotted, first))


def _called(constants: Constants, file: File, func: ast.expr) -> str:
    """The full name of what is called, where it is not the script's own."""
    dotted = _looked_up(constants, file, func) or constants.full_name(file, func)
    if dotted:
        return "" if constants.find(dotted) is not None else dotted
    if isinstance(func, ast.Attribute) and func.attr in METHODS:
        owner = constants.class_of(file, func.value)
        if owner is None or not constants.members(*owner, func.attr)[1]:
            return f"{func.value.id if isinstance(func.value, ast.Name) else ''}.{func.attr}"
    return ""


def _looked_up(constants: Constants, file: File, func: ast.expr) -> str:
    """The full name of `getattr(module, name)` and `module.__dict__[name]`."""
    match func:
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]):
            pass
        case ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=name):
            pass
        case _:
            return ""
    dotted, found = constants.full_name(file, owner), constants.of(file, name)
    return f"{dotted}.{found.text}" if dotted and found.text else ""


def _made(constants: Constants, file: File, call: ast.Call) -> Iterator[str]:
    """Folders that the script itself writes models to, and so does not fetch from."""
    places = [one.value for one in call.keywords if one.arg == "output_dir"]
    if isinstance(call.func, ast.Attribute) and call_name(call) in _SAVERS:
        places += call.args[:1]
    for place in places:
        yield from (one for one in constants.of(file, place).values if isinstance(one, str))


@dataclass(frozen=True)
class Use:
    """One call of something that fetches.

    Attributes:
        dotted: the full name of what is called (`datasets.load_dataset`).
        first: positional arguments to be passed over (of `functools.partial`: one).
    """

    constants: Constants
    file: File
    call: ast.Call
    dotted: str
    first: int = 0

    def argument(self, position: int | None, *names: str) -> Value:
        """The values of an argument, by position or by one of its names; None where not given."""
        node = self._node(position, *names)
        if node is not None:
            return self.constants.of(self.file, node)
        before = [] if position is None else self.call.args[: self.first + position + 1]
        spread = any(isinstance(one, ast.Starred) for one in before)
        if spread or any(one.arg is None for one in self.call.keywords):
            return Unknown("the arguments are computed")
        return _ABSENT

    def _node(self, position: int | None, *names: str) -> ast.expr | None:
        place = None if position is None else position + self.first
        found = (argument(self.call, name, place) for name in names or ("",))
        return next((one for one in found if one is not None), None)

    def given(self, *names: str) -> bool:
        """True where one of these keywords is there."""
        return any(one.arg in names for one in self.call.keywords)

    def constant(self, position: int, name: str) -> str:
        """`URLs.PETS` of an argument that is a library's constant, else empty."""
        node = self._node(position, name)
        dotted = self.constants.full_name(self.file, node) if node is not None else ""
        mine = isinstance(node, ast.Call) or self.constants.find(dotted) is not None
        return "" if mine or node is None or not dotted else self.file.code(node)

    def download(
        self,
        what: What,
        name: Value | str,
        *,
        by_name: bool = False,
        why: str = "",
        config: str = "",
        revision: str = "",
        to: str = "",
    ) -> Iterator[Download]:
        """A download for each value of `name`."""
        base = Download(
            line=self.call.lineno,
            file=self.file.path,
            what=what,
            name=None,
            how=self._shown(),
            known=False,
            config=config,
            revision=revision,
            to=to,
        )
        if isinstance(name, Unknown):
            yield replace(base, why=name.why)
            return
        for value in (name,) if isinstance(name, str) else name.values:
            if isinstance(value, str) and value:
                shown = public(value) if what == "url" or "://" in value else value
                whole = by_name and not why and shown == value
                yield replace(base, name=shown, known=not why, by_name=whole, why=why)
            else:
                yield replace(base, why="no name is given" if value is None else "it is no text")

    def _shown(self) -> str:
        parts = [part for part in self.dotted.split(".") if part not in _NEEDLESS]
        return ".".join(parts if len(parts) <= 3 else parts[-1:])


Rule: TypeAlias = Callable[[Use], Iterator[Download]]

# Rules for calls whose argument, or own name, says what they fetch.


def _named(what: What, position: int, name: str) -> Rule:
    return lambda use: use.download(what, use.argument(position, name))


def _itself(what: What, word: int = -1) -> Rule:
    return lambda use: use.download(what, use.dotted.replace("()", "").split(".")[word])


def _asked(use: Use) -> Iterator[Download]:
    """`Anything(download=True)` of a library."""
    name = last(use.dotted)
    downloads = use.argument(_DOWNLOAD_POSITIONS.get(name), "download").truth
    what: What = "torchvision" if root(use.dotted) in ("torchvision", "torchaudio") else "other"
    if downloads is None:
        yield from use.download(what, name, why="whether it downloads")
    elif downloads:
        yield from use.download(what, name)


# Hubs.


def _load_dataset(use: Use) -> Iterator[Download]:
    """`datasets.load_dataset(path, name, ..., revision=)`."""
    for name in _names(use.argument(0, "path")):
        if name.text in _READERS:
            files = use.argument(3, "data_files").values
            urls = [one for one in files if isinstance(one, str) and "://" in one]
            yield from use.download("dataset", Known(tuple(urls)))
            continue
        config = use.argument(1, "name")
        if len(config.values) != 1:
            yield from use.download("dataset", name, why=_unsure("its configuration", config))
            continue
        special = use.given("data_files", "data_dir") or use.argument(2) != _ABSENT
        yield from _from_hub(use, "dataset", name, by_name=not special, config=config.text)


def _from_pretrained(use: Use) -> Iterator[Download]:
    """`Class.from_pretrained(name)` of transformers, diffusers, peft and their like."""
    if use.argument(None, "local_files_only").truth:
        return
    position = 1 if re.search(r"\bPeft\w+\.from_pretrained$", use.dotted) else 0
    names = ("pretrained_model_name_or_path", "model_id", "repo_id", "model_name")
    for name in _names(use.argument(position, *names)):
        yield from _from_hub(use, "model", name)


def _pipeline(use: Use) -> Iterator[Download]:
    """`transformers.pipeline(task, model=)`."""
    given = use.argument(1, "model")
    if given == _ABSENT:
        task = use.argument(0, "task").text
        what = f"the model that it takes for {task}" if task else "the model that it takes"
        yield from use.download("model", Unknown(f"no model is named: {what} may change"))
        return
    for name in _names(given):
        if name.text or isinstance(given, Unknown):  # else a model that is loaded already
            yield from _from_hub(use, "model", name)


def _sentence_transformer(use: Use) -> Iterator[Download]:
    """`SentenceTransformer(name)`, whose short names are of one organization."""
    for name in _names(use.argument(0, "model_name_or_path", "model_name")):
        if name.text and "/" not in name.text:
            name = Known((f"sentence-transformers/{name.text}",))
        yield from _from_hub(use, "model", name)


def _snapshot(use: Use) -> Iterator[Download]:
    """`snapshot_download`, `hf_hub_download`: a repository, or files of one."""
    what: What = "dataset" if use.argument(None, "repo_type").text == "dataset" else "model"
    # By name a model is fetched as a library needs it; which files these calls want is theirs.
    for name in _names(use.argument(0, "repo_id")):
        yield from _from_hub(use, what, name, by_name=False)


def _timm(use: Use) -> Iterator[Download]:
    """`timm.create_model(name, pretrained=True)`."""
    pretrained, name = use.argument(1, "pretrained").truth, use.argument(0, "model_name")
    if pretrained is not False:
        why = "whether it is pretrained" if pretrained is None else ""
        yield from use.download("model", name, why=why)


def _from_hub(
    use: Use, what: What, name: Value, *, by_name: bool = True, config: str = ""
) -> Iterator[Download]:
    # What is here is taken from here; what looks like a path is never asked of a hub.
    known = isinstance(name, Known)
    if known and (use.constants.exists(name.text) or not _HUB_NAME.fullmatch(name.text)):
        return
    revision = use.argument(None, "revision")
    if len(revision.values) != 1:
        yield from use.download(what, name, why=_unsure("its revision", revision))
        return
    yield from use.download(what, name, by_name=by_name, config=config, revision=revision.text)


# torch.hub, torchvision and fastai.


def _dataset(use: Use) -> Iterator[Download]:
    """`torchvision.datasets.X(root, download=True)`, and torchaudio's."""
    if last(use.dotted)[:1].isupper():
        yield from _asked(use)


def _model(use: Use) -> Iterator[Download]:
    """`torchvision.models.x(weights=)` or `(pretrained=True)`."""
    name = last(use.dotted)
    if name[:1].isupper() or name.startswith(("list_", "get_model_", "get_weight")):
        return
    position = None if name == "get_model" else 0  # `resnet18(True)`
    if name == "get_model":
        name = use.argument(0, "name").text or "a model"
    for keyword in ("weights", "weights_backbone"):
        given = use.argument(None, keyword)
        # `ResNet18_Weights.DEFAULT` is not evaluated, and is known all the same.
        named = isinstance(given, Unknown) and re.search(r"\w+_Weights\.\w+ ", f"{given.why} ")
        if named or any(given.values):
            yield from use.download("torchvision", name)
        elif isinstance(given, Unknown):
            yield from use.download("torchvision", name, why=_unsure(f"its {keyword}", given))
    if use.argument(position, "pretrained").truth:
        yield from use.download("torchvision", name)


def _hub_load(use: Use) -> Iterator[Download]:
    """`torch.hub.load(repository, model)`."""
    if use.argument(None, "source").text == "local":
        return
    repository, entry = use.argument(0, "repo_or_dir"), use.argument(1, "model").text
    if isinstance(repository, Known) and entry:
        names = (f"{one}:{entry}" if isinstance(one, str) else one for one in repository.values)
        repository = Known(tuple(names))
    yield from use.download("torch.hub", repository)


def _untar(use: Use) -> Iterator[Download]:
    """`fastai.data.external.untar_data(URLs.X)`."""
    constant = use.constant(0, "url")
    url = use.argument(0, "url")
    yield from use.download("fastai" if constant or url == _ABSENT else "url", constant or url)


def _learner(use: Use) -> Iterator[Download]:
    """fastai's `vision_learner(dls, arch)`: with torchvision's weights unless told not to."""
    if not use.given("pretrained") or use.argument(None, "pretrained").truth is not False:
        yield from use.download("fastai", use.constant(1, "arch") or "weights of its model")


# URLs: of Python's libraries, or by a program that is started.


def _to_file(position: int, *names: str) -> Rule:
    """A rule for a call that writes a URL into a file."""

    def rule(use: Use) -> Iterator[Download]:
        where = use.argument(position, *names).text
        yield from use.download("url", _web(use), by_name=bool(where), to=where)

    return rule


def _opened(use: Use) -> Iterator[Download]:
    """A call that reads a URL: where the bytes go is the script's own affair."""
    yield from use.download("url", _web(use))


def _web(use: Use) -> Value:
    """The URLs that a call is given, without those of files."""
    value = use.argument(0, "url")
    if isinstance(value, Unknown):
        return value
    return Known(tuple(one for one in value.values if not str(one).startswith("file:")))


def _from_url(use: Use) -> Iterator[Download]:
    """A call that takes a URL or a path (`pandas.read_csv`): only URLs are downloads."""
    names = ("filepath_or_buffer", "path", "fname", "urlpath", "source")
    for one in use.argument(0, *names).values:
        if isinstance(one, str) and _URL.match(one):
            yield from use.download("url", one)


def _command(use: Use) -> Iterator[Download]:
    """`os.system`, `subprocess.run`: wget, curl and their like."""
    value = use.argument(0, "args", "command", "cmd")
    if isinstance(value, Unknown):
        written = use.file.code(use.call)
        if found := _PROGRAMS.search(written):
            yield from use.download("other", Unknown(f"{found[1]}: {value.why}"))
        return
    for one in value.values:
        line = one if isinstance(one, str) else " ".join(map(str, one)) if one else ""
        found = _PROGRAMS.search(line)
        if found is None:
            continue
        if urls := _URL.findall(line):
            yield from use.download("url", Known(tuple(urls)))
            continue
        rest = [word for word in line[found.end() :].split() if not word.startswith("-")]
        program = " ".join(found[1].split())
        yield from use.download("other", rest[0] if rest else Unknown(f"what {program} fetches"))


def _names(value: Value) -> Iterator[Value]:
    """The values one by one, each known as a text or not at all."""
    if isinstance(value, Unknown):
        yield value
    for one in value.values:
        yield Known((one,)) if isinstance(one, str) else Unknown("no name is given")


def _unsure(what: str, value: Value) -> str:
    return f"{what}: {value.why if isinstance(value, Unknown) else 'it has several'}"


# `load_dataset` reads files with these; nothing is fetched unless the files are URLs.
_READERS = words(
    "json csv text parquet arrow pandas sql xml webdataset lance imagefolder audiofolder "
    "videofolder pdffolder generator hdf5 nifti"
)
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Where `download` stands among the positional arguments of the data sets that have it there.
_DOWNLOAD_POSITIONS = dict.fromkeys(("MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100"), 4)
_DOWNLOAD_POSITIONS["SVHN"] = 4
_CALLERS = ("functools.partial", "rankup.rank0_first")  # of their first argument
_SAVERS = ("save_pretrained", "save_model")
_PROGRAMS = re.compile(
    r"\b(wget|curl|aria2c|git\s+clone|gsutil|gcloud\s+storage|aws\s+s3|rclone|gdown|kaggle"
    r"|hf\s+download|huggingface-cli\s+download)\b"
)
_URL = re.compile(r"(?:https?|ftp|gs|s3)://[^\s'\"|;&<>]+")
# Methods that fetch, of a class whose name may be all that can be known.
METHODS: Mapping[str, Rule] = {"from_pretrained": _from_pretrained}
# By package: what follows it in the full name of a call, and the rule for its arguments.
CALLS: Mapping[str, tuple[tuple[str, Rule], ...]] = {
    "datasets": (
        (r"(load\.)?load_dataset(_builder)?", _load_dataset),
        (r"(load\.)?load_metric", _named("other", 0, "path")),
    ),
    "transformers": ((r"(pipelines\.)?pipeline", _pipeline),),
    "sentence_transformers": (
        (r"(SentenceTransformer|CrossEncoder|SparseEncoder)", _sentence_transformer),
    ),
    "huggingface_hub": ((r"(\w+(\(\))?\.)*(snapshot_download|hf_hub_download)", _snapshot),),
    "timm": ((r"(models\.)?create_model", _timm),),
    "evaluate": ((r"load", _named("other", 0, "path")),),
    "open_clip": ((r"create_model\w*", _named("other", 1, "pretrained")),),
    "clip": ((r"load", _named("other", 0, "name")),),
    "whisper": ((r"load_model", _named("other", 0, "name")),),
    "nltk": ((r"(downloader\.)?download", _named("other", 0, "info_or_id")),),
    "tiktoken": (
        (r"get_encoding", _named("other", 0, "encoding_name")),
        (r"encoding_for_model", _named("other", 0, "model_name")),
    ),
    "tensorflow_datasets": ((r"(\w+\.)*(load|builder)", _named("other", 0, "name")),),
    "kagglehub": ((r"\w+_download", _named("other", 0, "handle")),),
    "sklearn": ((r"datasets\.fetch_\w+", _itself("other")),),
    "keras": (
        (r"datasets\.\w+\.load_data", _itself("other", -2)),
        (r"utils\.get_file", _named("other", 1, "origin")),
    ),
    "tensorflow": (
        (r"keras\.datasets\.\w+\.load_data", _itself("other", -2)),
        (r"keras\.utils\.get_file", _named("other", 1, "origin")),
    ),
    "seaborn": ((r"load_dataset", _named("other", 0, "name")),),
    "torch": (
        (r"hub\.load", _hub_load),
        (r"hub\.download_url_to_file", _to_file(1, "dst")),
        # These look into their own cache.
        (r"hub\.load_state_dict_from_url", _named("url", 0, "url")),
        (r"utils\.model_zoo\.load_url", _named("url", 0, "url")),
    ),
    "torchvision": (
        (r"(\w+\.)*load_state_dict_from_url", _named("url", 0, "url")),
        (r"datasets\.utils\.download_\w+", _named("url", 0, "url")),
        (r"datasets\.(\w+\.)?\w+", _dataset),
        (r"models\.(\w+\.)*\w+", _model),
    ),
    "torchaudio": (
        (r"datasets\.(\w+\.)?\w+", _dataset),
        (r"pipelines\.\w+\.get_\w+", _itself("other", -2)),
    ),
    "torchtext": ((r"datasets\.(\w+\.)?\w+", _itself("other")),),
    "fastai": (
        (r"(\w+\.)*untar_data", _untar),
        (r"(\w+\.)*(vision|cnn|unet|tabular_pretrained)_learner", _learner),
    ),
    "urllib": (
        (r"request\.urlretrieve", _to_file(1, "filename")),
        (r"request\.urlopen", _opened),
    ),
    "requests": ((r"(\w+\(\)\.)?(get|stream)", _opened),),
    "httpx": ((r"(\w+\(\)\.)?(get|stream)", _opened),),
    "gdown": ((r"(cached_)?download(_folder)?", _to_file(1, "output", "path")),),
    "wget": ((r"download", _to_file(1, "out")),),
    "pandas": ((r"read_\w+", _from_url),),
    "polars": ((r"read_\w+", _from_url),),
    "numpy": ((r"(loadtxt|genfromtxt)", _from_url),),
    "fsspec": ((r"open(_files)?", _from_url),),
    "os": ((r"(system|popen)", _command),),
    "subprocess": ((r"\w+", _command),),
}


# What these fetch, and whether they do, depends on their arguments.
_BY_ARGUMENTS = {
    _load_dataset,
    _from_pretrained,
    _pipeline,
    _sentence_transformer,
    _timm,
    _dataset,
    _model,
    _learner,
    _from_url,
    _command,
}


@cache
def _rule(dotted: str) -> Rule | None:
    package, _, name = dotted.partition(".")
    for pattern, rule in CALLS.get(package, ()):
        if re.fullmatch(pattern, name):
            return rule
    # `torch.nn.Embedding.from_pretrained` takes a tensor.
    return None if package == "torch" else METHODS.get(last(dotted))
