"""The calls that fetch, by their full names, and what each of them makes of its arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from . import hubs, vision, web
from .found import Download
from .scopes import Call, File
from .use import Rule, Use
from .values import Values
from .worth import Known

_RULES: tuple[tuple[str, Rule], ...] = (
    (r"datasets(\.load)?\.load_dataset(_builder)?", hubs.load_dataset),
    (r"(.*\.)?from_pretrained", hubs.from_pretrained),
    (r"transformers(\.pipelines)?\.pipeline", hubs.pipeline),
    (
        r"sentence_transformers\.(SentenceTransformer|CrossEncoder|SparseEncoder)",
        hubs.sentence_transformer,
    ),
    (r"huggingface_hub\.(\w+(\(\))?\.)*(snapshot_download|hf_hub_download)", hubs.snapshot),
    (r"timm(\.models)?\.create_model", hubs.timm),
    (r"evaluate\.load", hubs.named("other", 0, "path")),
    (r"open_clip\.create_model\w*", hubs.named("other", 1, "pretrained")),
    (r"(clip\.load|whisper\.load_model)", hubs.named("other", 0, "name")),
    (r"nltk\.(downloader\.)?download", hubs.named("other", 0, "info_or_id")),
    (r"tensorflow_datasets(\.\w+)*\.(load|builder)", hubs.named("other", 0, "name")),
    (r"kagglehub\.\w+_download", hubs.named("other", 0, "handle")),
    (r"sklearn\.datasets\.fetch_\w+", hubs.itself("other")),
    (r"(tensorflow\.)?keras\.datasets\.\w+\.load_data", hubs.itself("other", -2)),
    (r"(tensorflow\.)?keras\.utils\.get_file", hubs.named("other", 1, "origin")),
    (r"seaborn\.load_dataset", hubs.named("other", 0, "name")),
    (r"torch\.hub\.load", vision.hub_load),
    (r"torch\.hub\.load_state_dict_from_url", vision.state_dict),
    (r"torch\.utils\.model_zoo\.load_url", vision.state_dict),
    (r"torchvision(\.\w+)*\.load_state_dict_from_url", vision.state_dict),
    (r"torch\.hub\.download_url_to_file", web.to_file(0, 1, "dst")),
    (r"(torchvision|torchaudio)\.datasets\.(\w+\.)?\w+", vision.dataset),
    (r"torchtext\.datasets\.(\w+\.)?\w+", vision.text_dataset),
    (r"torchvision\.models\.(\w+\.)*\w+", vision.model),
    (r"torchvision\.datasets\.utils\.download_\w+", vision.state_dict),
    (r"torchaudio\.pipelines\.\w+\.get_\w+", hubs.itself("other", -2)),
    (r"fastai(\.\w+)*\.untar_data", vision.untar),
    (r"fastai(\.\w+)*\.(vision|cnn|unet|tabular_pretrained)_learner", vision.learner),
    (r"urllib\.request\.urlretrieve", web.to_file(0, 1, "filename")),
    (r"urllib\.request\.urlopen", web.opened),
    (r"(requests|httpx)\.(\w+\(\)\.)?(get|stream)", web.opened),
    (r"gdown\.(cached_)?download(_folder)?", web.to_file(0, 1, "output", "path")),
    (r"wget\.download", web.to_file(0, 1, "out")),
    (r"(pandas|polars)\.read_\w+", web.from_url),
    (r"numpy\.(loadtxt|genfromtxt)", web.from_url),
    (r"fsspec\.open(_files)?", web.from_url),
    (r"(os\.(system|popen)|subprocess\.\w+)", web.command),
)
_PATTERNS = tuple((re.compile(pattern), rule) for pattern, rule in _RULES)
# Of these a method is called whose name is all that can be known.
_BY_METHOD = ("from_pretrained",)


def downloads(files: Mapping[str, File], values: Values) -> list[Download]:
    """What the calls of a project fetch, in the order of files and lines; each once."""
    found: dict[Download, None] = {}
    for file in files.values():
        for call in file.calls:
            found.update(dict.fromkeys(_of_call(call, values)))
    made = _made_here(files, values)
    kept = [one for one in found if one.what != "model" or one.name not in made]
    order = {file.path: number for number, file in enumerate(files.values())}
    return sorted(kept, key=lambda one: (order[one.file], one.line))


def _of_call(call: Call, values: Values) -> Iterator[Download]:
    first, dotted = 0, _dotted(call.node.func, call, values)
    if dotted in ("functools.partial", "partial") and call.node.args:
        first, dotted = 1, _dotted(call.node.args[0], call, values)
    if dotted is None:
        return
    for pattern, rule in _PATTERNS:
        if pattern.fullmatch(dotted):
            if values.happens(call.guards, call.scope) is not False:
                yield from rule(Use(dotted, call, values, first))
            return


def _dotted(node: ast.expr, call: Call, values: Values) -> str | None:
    """The full name of what is called, where it is not the project's own."""
    names = values.names
    if names.definition(node, call.scope) is not None:
        return None
    dotted = _looked_up(node, call, values) or names.dotted(node, call.scope)
    if dotted is not None:
        return None if names.local(dotted) is not None else dotted
    if isinstance(node, ast.Attribute) and node.attr in _BY_METHOD:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        return f"{owner}.{node.attr}"
    return None


def _looked_up(node: ast.expr, call: Call, values: Values) -> str | None:
    """The full name of `getattr(module, name)` and `module.__dict__[name]`."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]):
            pass
        case ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=name):
            pass
        case _:
            return None
    dotted, found = values.names.dotted(owner, call.scope), values.of(name, call.scope)
    if dotted is None or not isinstance(found, Known) or len(found.values) != 1:
        return None
    return f"{dotted}.{found.values[0]}"


def _made_here(files: Mapping[str, File], values: Values) -> set[str]:
    """Folders that the script itself writes models to, and so does not fetch from."""
    found: set[str] = set()
    for file in files.values():
        for call in file.calls:
            func = call.node.func
            places: list[ast.expr] = [k.value for k in call.node.keywords if k.arg == "output_dir"]
            if isinstance(func, ast.Attribute) and func.attr in ("save_pretrained", "save_model"):
                places += call.node.args[:1]
            found.update(_texts(places, call, values))
    return found


def _texts(nodes: Iterable[ast.expr], call: Call, values: Values) -> Iterator[str]:
    for node in nodes:
        value = values.of(node, call.scope)
        yield from (one for one in getattr(value, "values", ()) if isinstance(one, str))
