"""The calls that write, read or fetch files, and the functions of other files that they are in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .downloads import fetches
from .flow import Flow, argument, call_name, first_argument, is_backward, is_none, literal, receiver
from .names import Function, calls_in, walk
from .roles import Script, Site
from .source import File
from .torch_names import root, words

Reached = tuple[File, Function]

_CHECKPOINTS = words(
    "torch.save pickle.dump joblib.dump safetensors.torch.save_file save_pretrained save_model "
    "save_weights save_checkpoint"
)
_LOADS = frozenset({"torch.load"})

# What downloads, by its last word alone; `downloads.CALLS` has what does by its full name.
_FETCHERS = words(
    "untar_data urlretrieve load_state_dict_from_url download_url download_url_to_file "
    "snapshot_download hf_hub_download download_and_extract_archive"
)
# Their data sets download and process raw files as they are constructed.
_CONSTRUCTED = ("torch_geometric.datasets.", "dgl.data.", "ogb.", "torchdrug.datasets.")
_GENERATED = words("FakeDataset FakeHeteroDataset StochasticBlockModelDataset ExplainerDataset")
_HUBS = words("transformers datasets diffusers huggingface_hub torchvision timm")
# Calls that tell which files there are.
_ASKING = words(
    "exists lexists isfile isdir is_file is_dir listdir scandir glob iglob rglob iterdir walk stat "
    "getsize getmtime"
)
_MOST = 60  # functions that one call leads to


def _table(text: str) -> dict[str, tuple[int, str]]:
    """The position and the keyword of an argument by the name of what is called."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return {name: (int(position), keyword) for name, position, keyword in rows}


# What writes a file, with the argument that says where: a path, or an open file. A name without
# a dot says it by itself, whatever library it is of.
_WRITERS = _table("""
    torch.save                       1  f
    torch.jit.save                   1  f
    torch.onnx.export                2  f
    torchaudio.save                  0  uri
    torchvision.io.write_jpeg        1  filename
    torchvision.io.write_png         1  filename
    torchvision.io.write_video       0  filename
    safetensors.torch.save_file      1  filename
    numpy.save                       0  file
    scipy.io.savemat                 0  file_name
    scipy.io.wavfile.write           0  filename
    scipy.sparse.save_npz            0  file
    soundfile.write                  0  file
    nibabel.save                     1  filename
    pickle.dump                      1  file
    joblib.dump                      1  filename
    json.dump                        1  fp
    yaml.dump                        1  stream
    yaml.safe_dump                   1  stream
    shutil.copy                      1  dst
    shutil.copy2                     1  dst
    shutil.copyfile                  1  dst
    shutil.copytree                  1  dst
    imageio.imwrite                  0  uri
    savez                            0  file
    savez_compressed                 0  file
    savetxt                          0  fname
    savemat                          0  file_name
    save_image                       1  fp|filename
    savefig                          0  fname
    imsave                           0  fname
    imwrite                          0  filename
    mimsave                          0  uri
    mimwrite                         0  uri
    tofile                           0  fid
    write_image                      0  file
    write_html                       0  file
    to_csv                           0  path_or_buf
    to_excel                         0  excel_writer
    to_feather                       0  path
    to_hdf                           0  path_or_buf
    to_json                          0  path_or_buf
    to_parquet                       0  path
    to_pickle                        0  path
    save_pretrained                  0  save_directory
    save_model                       0  filename
    save_weights                     0  filename
    save_checkpoint                  0  filename
    add_graph                        0  model
""")
# Functions of these names may be collectives of a library; methods are not.
_METHODS = words("save_pretrained save_model save_weights save_checkpoint add_graph")
# Those whose call is worth something but None.
_WITH_RESULT = words(
    "imwrite write_text write_bytes yaml.dump yaml.safe_dump shutil.copy shutil.copy2 "
    "shutil.copyfile shutil.copytree joblib.dump save_pretrained save_model save_weights "
    "save_checkpoint"
)
# What opens a file by a path, for which a file that swallows everything does as well.
_OPENERS = _table("""
    builtins.open                    0  file
    io.open                          0  file
    gzip.open                        0  filename
    bz2.open                         0  filename
    lzma.open                        0  filename
    codecs.open                      0  filename
""")
_LOGS = _table("""
    logging.FileHandler              0  filename
    logging.basicConfig              9  filename
""")
# What opens a file of a format, and where it is given the mode.
_FORMATS = _table("""
    h5py.File                        1  mode
    netCDF4.Dataset                  1  mode
    zipfile.ZipFile                  1  mode
    tarfile.open                     1  mode
    zarr.open                        1  mode
    pandas.HDFStore                  1  mode
    numpy.memmap                     2  mode
    numpy.lib.format.open_memmap     1  mode
""")
_MADE_TO_WRITE = words(
    "cv2.VideoWriter imageio.get_writer pandas.ExcelWriter lmdb.open "
    "logging.handlers.RotatingFileHandler logging.handlers.TimedRotatingFileHandler"
)
_SQL = ("CREATE ", "INSERT ", "UPDATE ", "DELETE ", "REPLACE ", "DROP ")
# No files of the disk: what goes to these need not be kept to one rank.
_STREAMS = ("io.BytesIO", "io.StringIO", "sys.stdout", "sys.stderr")
_MODE = frozenset("rwaxbtU+-:|gzx2*")
# Libraries whose objects have a `save(path)` that writes.
_CHAIN = 8  # of `picture.convert("L").resize(size)`
_SAVED_BY = (
    "PIL.",
    "matplotlib.animation.",
    "torchvision.transforms.",
    "tokenizers.",
    "torch.jit.",
)


def find_sites(flow: Flow) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """The calls that write files, and those that load checkpoints."""
    saves, loads = [], []
    for file in flow.files:
        for call in file.names.all(ast.Call):
            site = written(flow, file, call)
            if site is not None:
                saves.append(site)
            elif file.names.called(call) in _LOADS:
                loads.append(Site(file, call, file.names.called(call), "load"))
    return tuple(saves), tuple(loads)


def written(flow: Flow, file: File, call: ast.Call) -> Site | None:
    """The file that a call writes; None where it writes none, or one that was opened before."""
    dotted, name = file.names.called(call), call_name(call)
    if dotted in _LOGS:
        path = _given(call, _LOGS[dotted])
        return Site(file, call, dotted, "file", path, "path", True) if path is not None else None
    if dotted in _OPENERS:
        path = _given(call, _OPENERS[dotted])
        return _opened(flow, file, call, path, argument(call, "mode", 1))
    if dotted in _FORMATS or dotted in _MADE_TO_WRITE:
        if dotted in _FORMATS:
            writes = bool(_form(flow, file, _given(call, _FORMATS[dotted])))
        else:
            writes = literal(argument(call, "readonly")) is not True
        path = first_argument(call)
        return Site(file, call, dotted, "file", path, "object", True) if writes else None
    if dotted == "sqlite3.connect":
        path = first_argument(call)
        writes = literal(path) != ":memory:" and _changes_tables(flow)
        return Site(file, call, dotted, "file", path, "object", True) if writes else None
    owner = receiver(call) if not dotted else None
    if owner is not None and name == "save" and _saves_itself(flow, file, owner):
        return Site(file, call, ".save", "file", first_argument(call), "call", False)
    if flow.callee(file, call) is not None or dotted.startswith("rankup."):
        return None
    if owner is not None and name == "open":
        return _opened(flow, file, call, owner, argument(call, "mode", 0))
    if owner is not None and name in ("write_text", "write_bytes"):
        return Site(file, call, f".{name}", "file", owner, "call", True)
    known = dotted if dotted in _WRITERS else name if name in _WRITERS else ""
    if dotted and known in _METHODS:
        return None
    path = _given(call, _WRITERS[known]) if known else None
    if path is None or _opened_before(flow, file, path):
        return None
    checkpoint = dotted in _CHECKPOINTS or (name in _CHECKPOINTS and not dotted)
    kind: Literal["checkpoint", "file"] = "checkpoint" if checkpoint else "file"
    return Site(file, call, dotted or f".{name}", kind, path, "call", known in _WITH_RESULT)


def _changes_tables(flow: Flow) -> bool:
    """True where one of the files says so in SQL."""
    texts = (str(literal(one)) for file in flow.files for one in file.names.all(ast.Constant))
    return any(text.strip().upper().startswith(_SQL) for text in texts)


def _given(call: ast.Call, where: tuple[int, str]) -> ast.expr | None:
    position, keywords = where
    found = (argument(call, keyword, position) for keyword in keywords.split("|"))
    return next((one for one in found if one is not None), None)


def _opened(
    flow: Flow, file: File, call: ast.Call, path: ast.expr | None, mode: ast.expr | None
) -> Site | None:
    form = _form(flow, file, mode)
    if not form:
        return None
    dotted = file.names.called(call) or ".open"
    return Site(file, call, dotted, "file", path, form, True)


def _form(flow: Flow, file: File, mode: ast.expr | None) -> Literal["", "path", "object"]:
    """Return what a mode of opening asks for: nothing to write, a file to write to, a file to keep.

    A file that is read as well, or only read under some condition, has to be a real one.
    """
    if mode is None:
        return ""
    values = [literal(one.node) for one in flow.origins(file, mode)]
    texts = [one for one in values if isinstance(one, str) and one and set(one) <= _MODE]
    if len(texts) < len(values) or not texts:
        return ""
    writing = [one for one in texts if set("wax+") & set(one)]
    if not writing:
        return ""
    plain = len(writing) == len(texts) and not any("+" in one for one in texts)
    return "path" if plain else "object"


def _opened_before(flow: Flow, file: File, target: ast.expr) -> bool:
    """True where a call is given what another has opened, or what is in memory."""
    for origin in flow.origins(file, target):
        if isinstance(origin.node, ast.Call):
            dotted = origin.file.names.called(origin.node)
            if dotted in _OPENERS or dotted in _STREAMS or dotted in _FORMATS:
                return True
            if not dotted and call_name(origin.node) == "open":
                return True
        elif origin.file.names.dotted(origin.node) in _STREAMS:
            return True
    return False


def _saves_itself(flow: Flow, file: File, value: ast.AST) -> bool:
    """True of a picture (`Image.fromarray(x)`), an animation or a TorchScript."""
    for origin in flow.origins(file, value):
        where, node = origin.file, origin.node
        for _ in range(_CHAIN):
            if isinstance(node, ast.Call):
                if dotted := where.names.called(node):
                    if dotted.startswith(_SAVED_BY):
                        return True
                    break
                node = receiver(node) or node.func
            made = flow.origins(where, node)
            if not made:
                break
            where, node = made[0].file, made[0].node
    return False


@dataclass(frozen=True)
class Fetch:
    """A download that a call may make.

    Attributes:
        what: in words, for a message.
        certain: False where it depends on a name that is not seen: of a hub, or of a folder.
    """

    what: str
    certain: bool = True


def fetched(file: File, call: ast.Call) -> Fetch | None:
    """The download that a call makes where a file is not there yet; None where it makes none."""
    dotted, name = file.names.called(call).removeprefix("six.moves."), call_name(call)
    if dotted.startswith(_CONSTRUCTED) and name[:1].isupper() and name not in _GENERATED:
        return Fetch(f"{name} downloads and processes its files")
    if name in _FETCHERS or fetches(dotted):
        return Fetch(f"{dotted if name == 'load' else name} downloads")
    if literal(argument(call, "download")) is True:
        return Fetch("download=True")
    if literal(argument(call, "local_files_only")) is True:
        return None
    if name == "from_pretrained" or dotted in ("datasets.load_dataset", "datasets.load_metric"):
        first = first_argument(call)
        value = literal(first)
        if not isinstance(value, str):
            return Fetch(f"{name}(…) may download", certain=False)
        local = value.startswith((".", "/", "~")) or value in ("json", "csv", "text", "parquet")
        return None if local else Fetch(f"{name}({value!r}) downloads", root(dotted) in _HUBS)
    if root(dotted) not in _HUBS:
        return None
    models = dotted.startswith("torchvision.models.")
    if literal(argument(call, "pretrained", 0 if models else None)) is True:
        return Fetch("pretrained=True downloads")
    weights = argument(call, "weights")
    if weights is not None and not is_none(weights):
        return Fetch("weights= downloads")
    return None


def callee(flow: Flow, file: File, call: ast.Call) -> Reached | None:
    """The function that a call runs: by its name, or by the class of what it is a method of."""
    if call not in flow.run:
        flow.run[call] = _find_callee(flow, file, call)
    return flow.run[call]


def _find_callee(flow: Flow, file: File, call: ast.Call) -> Reached | None:
    found, value = flow.callee(file, call), receiver(call)
    if value is None or file.names.called(call):
        return found
    owner = flow.definition(file, value)
    if owner is not None and isinstance(owner[1], ast.ClassDef):
        return flow.member(owner[0], owner[1], call_name(call))
    own = isinstance(value, ast.Name) and value.id in ("self", "cls")
    return flow.method(file, value, call_name(call)) or (found if own else None)


def run_by_call(flow: Flow, file: File, call: ast.Call) -> Reached | None:
    """The function that a call runs: of an instance, such as a model or a loss, its `forward`."""
    owner = flow.class_of(file, call.func)
    if owner is not None:
        return flow.member(*owner, "forward") or flow.member(*owner, "__call__")
    return callee(flow, file, call)


def leads_to(flow: Flow, file: File, function: Function) -> list[Reached]:
    """A function and all that its calls lead to."""
    found: dict[Function, File] = {function: file}
    waiting = [(file, function)]
    while waiting and len(found) < _MOST:
        where, at = waiting.pop()
        for node in walk(*at.body):
            further = callee(flow, where, node) if isinstance(node, ast.Call) else None
            if further is not None and further[1] not in found:
                found[further[1]] = further[0]
                waiting.append(further)
    return [(where, one) for one, where in found.items()]


@dataclass(frozen=True, eq=False)
class Helper:
    """A call of a function in a file that a port does not change.

    Attributes:
        caller, call: the call, and the file in which it stands.
        file, function: what it calls.
        sites: the calls that write, there and further on.
        reached: all functions of other files that it leads to.
    """

    caller: File
    call: ast.Call
    file: File
    function: Function
    sites: tuple[Site, ...]
    reached: tuple[Reached, ...]


def asks_files(flow: Flow, file: File, test: ast.AST) -> bool:
    """True where an expression, or what its names stand for, asks which files there are."""
    names = [one for one in walk(test) if isinstance(one, ast.Name)]
    made = [origin.node for name in names for origin in flow.origins(file, name)]
    return any(
        isinstance(one, ast.Call) and call_name(one) in _ASKING
        for node in (test, *made)
        for one in walk(node)
    )


def find_helpers(flow: Flow, changed: Sequence[File]) -> Iterator[Helper]:
    """The calls in some files of functions in the others."""
    for script in changed:
        for call in script.names.all(ast.Call):
            found = callee(flow, script, call)
            if found is None or found[0] in changed:
                continue
            reached = [one for one in leads_to(flow, *found) if one[0] not in changed]
            sites = [site for file, function in reached for site in sites_in(flow, file, function)]
            yield Helper(script, call, *found, tuple(sites), tuple(reached))


def sites_in(flow: Flow, file: File, function: Function) -> list[Site]:
    """The calls in a function that write."""
    calls = [node for node in walk(*function.body) if isinstance(node, ast.Call)]
    return [site for call in calls if (site := written(flow, file, call)) is not None]


def trains(file: File, script: Script, *nodes: ast.AST) -> bool:
    """True where running these nodes reaches a backward, here or in another file."""
    known = _trainers(script)
    for call in calls_in(*nodes):
        if is_backward(script.flow, file, call):
            return True
        found = callee(script.flow, file, call)
        if found is not None and found[1] not in known:
            known[found[1]] = any(
                is_backward(script.flow, where, one)
                for where, function in leads_to(script.flow, *found)
                for one in calls_in(*function.body)
            )
        if found is not None and known[found[1]]:
            return True
    return False


@lru_cache(maxsize=1)
def _trainers(script: Script) -> dict[Function, bool]:
    """The functions of a script that were asked about, with whether they lead to a backward."""
    return {}
